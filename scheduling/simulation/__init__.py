"""Plays the real services, models and scheduler on a virtual clock: scenarios, replays, what-if."""
