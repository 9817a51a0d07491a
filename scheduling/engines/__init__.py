"""Engines carry out what the scheduler decided. They never touch the database: they report, services record."""
