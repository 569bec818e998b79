"""Databases that `export --to URL` sends a system's documents to, one per file (`components.systems.database`)."""
