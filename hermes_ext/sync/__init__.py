"""Devices that share their memories through a folder."""
