"""What a measurement may be, and how long it is worth something. Unknown is None, never 0 and never a marker number."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta

FULL_MILLI = 1000
# A device is asked every few seconds; after this long without an answer nobody knows what it does.
STALE_AFTER = timedelta(seconds=30)
# Drivers report what they do not support as a huge number; nothing real comes near these.
LARGEST_MEMORY_MIB = 2**31 - 1
LARGEST_CPU_MILLI = 10**9


def known(value: object, most: int) -> int | None:
    """``value`` as a whole number where it is one within 0..``most``; None for NaN, infinities, markers, all else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    number = round(value)
    return number if 0 <= number <= most else None


def total_known(values: Iterable[int | None]) -> int | None:
    """The sum of those that are known; None where none is."""
    found = [value for value in values if value is not None]
    return sum(found) if found else None


def is_fresh(at: datetime, now: datetime) -> bool:
    """Whether a reading of ``at`` still says something at ``now``."""
    return now - at <= STALE_AFTER
