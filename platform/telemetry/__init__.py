"""Utilization samples and roll-ups."""
