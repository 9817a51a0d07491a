"""Real processes on this machine (Linux)."""

from scheduling.engines.local.engine import LocalEngine

__all__ = ["LocalEngine"]
