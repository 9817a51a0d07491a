"""Figures over many values."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(ordered: Sequence[float], part: float) -> float:
    """The smallest value that at least ``part`` of the ``ordered`` values do not exceed; 0 for none."""
    if not ordered:
        return 0.0
    return ordered[max(0, -(-int(len(ordered) * part * 1000) // 1000) - 1)]
