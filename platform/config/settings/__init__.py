"""Settings: ``embedded`` (one machine, nothing installed), ``production``, ``test``; all on ``base``."""
