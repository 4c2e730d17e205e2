"""The SQLite store for 10,000 memories and more, its buffer and cold storage."""
