"""What was used in a window of time and what it costs, exactly: every record clipped to [start, end)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from django.db.models import F, Q

from billing.card import rate_card
from billing.exact import ExactSum
from billing.models import UsageRecord
from billing.rates import amount_of, seconds_between, zone
from billing.terms import terms

ZERO = Decimal(0)
# What usage can be summed by: name → column. A day is one of the billing time zone.
GROUPS = {"team": "team_id", "user": "user_id", "pool": "pool_id", "model": "model_id", "job": "job_id", "day": None}


@dataclass(frozen=True, slots=True)
class Used:
    """A sum: milli-GPU × seconds (milli-core × seconds where the unit is cpu) and money. ``running``: it grows."""

    milli_seconds: Decimal = ZERO
    amount: Decimal = ZERO
    running: bool = False

    def __add__(self, other: Used) -> Used:
        return Used(self.milli_seconds + other.milli_seconds, self.amount + other.amount, self.running or other.running)


Key = tuple[Any, str]  # (what it is summed by: an id, a date, or None; the unit)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a record inside the window, at one price."""

    group: Any
    unit: str
    start: datetime
    end: datetime
    milli: int
    per_hour: Decimal | None
    running: bool


def used(where: Q, start: datetime, end: datetime, now: datetime, group_by: str | None = None) -> dict[Key, Used]:
    """What the records that ``where`` leaves used in [start, end), open ones up to ``now``, by group and unit.

    Never negative: a window that ends before it begins has nothing in it. GPUs and cores are never added together.
    """
    found: dict[Key, Used] = {}
    if end <= start:
        return found
    column = GROUPS[group_by] if group_by else None
    closed = UsageRecord.objects.filter(where, ended_at__gt=start, started_at__lt=end)
    whole = Q(started_at__gte=start, ended_at__lte=end)
    if group_by == "day":
        whole = Q(pk__in=())
    columns = ["pool__unit", *([column] if column else [])]
    sums = (
        closed.filter(whole)
        .order_by()
        .values(*columns)
        .annotate(total=ExactSum("amount"), work=ExactSum(F("milli") * F("microseconds")))
    )
    for row in sums if group_by != "day" else ():
        key = (row[column] if column else None, row["pool__unit"])
        found[key] = found.get(key, Used()) + Used(row["work"] / 1_000_000, row["total"])
    for piece in (*_closed(closed.exclude(whole), column, start, end), *_open(where, column, start, end, now)):
        for group, left, right in _days(piece) if group_by == "day" else [(piece.group, piece.start, piece.end)]:
            key = (group, piece.unit)
            found[key] = found.get(key, Used()) + Used(
                piece.milli * seconds_between(left, right),
                amount_of(piece.milli, left, right, piece.per_hour),
                piece.running,
            )
    return found


def _closed(records: Any, column: str | None, start: datetime, end: datetime) -> Iterator[Piece]:
    columns = ("pool__unit", "started_at", "ended_at", "milli", "per_hour", "waived", column or "id")
    for unit, began, ended, milli, per_hour, waived, group in records.order_by("id").values_list(*columns).iterator():
        price = None if waived else per_hour
        yield Piece(group if column else None, unit, max(began, start), min(ended, end), milli, price, False)


def _open(where: Q, column: str | None, start: datetime, end: datetime, now: datetime) -> Iterator[Piece]:
    records = list(
        UsageRecord.objects.filter(where, ended_at__isnull=True, started_at__lt=end)
        .annotate(class_id=F("job__priority_class_id"), unit=F("pool__unit"))
        .order_by("id")
    )
    card = rate_card() if records else None
    for record in records:
        left, right = max(record.started_at, start), min(end, now)
        if card is None or right <= left:
            continue
        group = getattr(record, column) if column else None
        for part in card.segments(record.pool_id, record.model_id, record.class_id, left, right):
            yield Piece(group, record.unit, part.start, part.end, record.milli, part.per_hour, end >= now)


def _days(piece: Piece) -> Iterable[tuple[date, datetime, datetime]]:
    """The piece cut at midnights of the billing time zone."""
    here = zone(terms().time_zone)
    left = piece.start
    while left < piece.end:
        day = left.astimezone(here).date()
        midnight = datetime.combine(day + timedelta(days=1), time(0), tzinfo=here).astimezone(left.tzinfo)
        right = min(piece.end, midnight)
        yield day, left, right
        left = right
