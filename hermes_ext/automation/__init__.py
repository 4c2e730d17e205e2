"""Rules, the actions that they start, and the report of alerts."""
