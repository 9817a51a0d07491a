"""Plays a recorded workload through the real services and reports what became of it."""
