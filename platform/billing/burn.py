"""Where spending goes if all that runs goes on: when an amount will be reached. Pure over a rate card."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

from billing.rates import MICROSECOND, RateCard

# Milli × microseconds × price per hour that make one unit of money.
PER_UNIT = 3_600_000_000_000
# Prices that change with the hour of the day are followed for so long at once.
DAYS_OF_BANDS = timedelta(days=31)
FARTHEST = timedelta(days=400)


@dataclass(frozen=True, slots=True)
class Running:
    """What is used now, at whose price."""

    milli: int
    pool_id: int
    model_id: int | None
    class_id: int


@dataclass(frozen=True, slots=True)
class Ahead:
    """``at``: when the amount will be reached, None: not before ``seen_until``, beyond which nobody looked."""

    at: datetime | None
    seen_until: datetime


def reached(running: Iterable[Running], card: RateCard, start: datetime, amount: Decimal, end: datetime) -> Ahead:
    """The first moment in (start, end] (to the microsecond) by which what runs will have cost ``amount`` more."""
    together: dict[tuple[int, int | None, int], int] = defaultdict(int)
    for each in running:
        together[each.pool_id, each.model_id, each.class_id] += each.milli
    banded = any(price.band is not None for subject in together for price in card.matching(*subject))
    end = min(end, start + (DAYS_OF_BANDS if banded else FARTHEST))
    if end <= start:
        return Ahead(None, end)
    missing = Fraction(amount)
    left = start
    for right, burn in _steps(together, card, start, end):
        costs = burn * ((right - left) // MICROSECOND) / PER_UNIT
        if burn and costs >= missing:
            return Ahead(left + max(1, -(-missing * PER_UNIT // burn)) * MICROSECOND, end)
        missing -= costs
        left = right
    return Ahead(None, end)


def _steps(
    together: dict[tuple[int, int | None, int], int], card: RateCard, start: datetime, end: datetime
) -> list[tuple[datetime, Fraction]]:
    """Until when what is burnt (milli × price) stays the same, and how much it is, in order of time."""
    changes: dict[datetime, Fraction] = defaultdict(Fraction)
    for subject, milli in sorted(together.items(), key=str):
        before = Fraction(0)
        for segment in card.segments(*subject, start, end):
            burn = milli * Fraction(segment.per_hour or 0)
            changes[segment.start] += burn - before
            before = burn
    steps: list[tuple[datetime, Fraction]] = []
    burn = Fraction(0)
    for moment, following in pairwise([*sorted(changes), end]):
        burn += changes[moment]
        steps.append((following, burn))
    return steps or [(end, Fraction(0))]
