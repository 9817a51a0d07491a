"""The event log that everything else is told by."""
