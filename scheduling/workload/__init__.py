"""Workloads: recorded ones (trace readers), what was measured on them, and the generator that plays the demo.

Pure Python and numpy. Nothing here knows the database; ``scheduling.services`` turns the records into jobs.
"""
