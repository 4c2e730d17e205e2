"""Agents that use this memory: one module for what every host needs, one folder for each host.

    host      HostMemory: a memory behind the hooks of a host; offline, in time, never raising
    hermes/   plugin and memory provider for Hermes Agent
"""
