"""The price in force at a moment, and where spans must be cut. Pure over a list of rates."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise

ZERO = Decimal(0)
PLACES = Decimal("0.000000000001")  # an amount is kept to 12 places
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Price:
    """A rate as data. Empty (None) fields match everything."""

    id: int
    pool_id: int | None
    model_id: int | None
    class_id: int | None
    band: tuple[time, time] | None
    per_hour: Decimal
    effective_from: datetime

    @property
    def rank(self) -> tuple[bool, bool, bool, bool, datetime, int]:
        """How much it names, then how late it is: the greatest matching one wins."""
        named = (self.pool_id is not None, self.model_id is not None, self.class_id is not None, self.band is not None)
        return (*named, self.effective_from, self.id)


@dataclass(frozen=True, slots=True)
class Segment:
    """[start, end) at one price; ``per_hour`` None: no rate was set, it costs nothing and says so."""

    start: datetime
    end: datetime
    per_hour: Decimal | None


def seconds_between(start: datetime, end: datetime) -> Decimal:
    """The length of [start, end), exactly, in seconds."""
    return Decimal((end - start) // MICROSECOND) / 1_000_000


def amount_of(milli: int, start: datetime, end: datetime, per_hour: Decimal | None) -> Decimal:
    """milli/1000 × seconds/3600 × per_hour, to 12 places."""
    if per_hour is None:
        return ZERO
    microseconds = (end - start) // MICROSECOND
    return (milli * microseconds * per_hour / Decimal(3_600_000_000_000)).quantize(PLACES)


def _in_band(moment: time, band: tuple[time, time]) -> bool:
    start, end = band
    return start <= moment < end if start < end else moment >= start or moment < end


def _clock_change(before: datetime, after: datetime, here: zoneinfo.ZoneInfo) -> datetime:
    """The first second in (before, after] at which clocks there show what they show at ``after``."""
    offset = after.astimezone(here).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = before + timedelta(seconds=(after - before) // timedelta(seconds=2))
        if middle.astimezone(here).utcoffset() == offset:
            after = middle
        else:
            before = middle
    return after


@lru_cache(maxsize=8)
def zone(name: str) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(name)


def month_start(moment: datetime, zone_name: str) -> datetime:
    """The first instant, in UTC, of the calendar month of ``moment`` in the billing zone."""
    local = moment.astimezone(zone(zone_name))
    return local.replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0).astimezone(UTC)


def next_month_start(moment: datetime, zone_name: str) -> datetime:
    """The first instant, in UTC, of the calendar month after ``moment``'s in the billing zone."""
    local = moment.astimezone(zone(zone_name))
    year, month = (local.year + 1, 1) if local.month == 12 else (local.year, local.month + 1)
    return datetime(year, month, 1, tzinfo=zone(zone_name)).astimezone(UTC)


class RateCard:
    """All rates of an installation and its billing zone."""

    def __init__(self, prices: Iterable[Price], zone_name: str):
        self.prices = sorted(prices, key=lambda price: price.id)
        self.zone_name = zone_name

    def matching(self, pool_id: int, model_id: int | None, class_id: int | None) -> list[Price]:
        return [
            price
            for price in self.prices
            if price.pool_id in (None, pool_id)
            and price.model_id in (None, model_id)
            and price.class_id in (None, class_id)
        ]

    def at(self, pool_id: int, model_id: int | None, class_id: int | None, moment: datetime) -> Decimal | None:
        """The price per hour in force at ``moment``; None where no rate matches."""
        return self._pick(self.matching(pool_id, model_id, class_id), moment)

    def _pick(self, prices: list[Price], moment: datetime) -> Decimal | None:
        clock = moment.astimezone(zone(self.zone_name)).time()
        in_force = [
            price
            for price in prices
            if price.effective_from <= moment and (price.band is None or _in_band(clock, price.band))
        ]
        return max(in_force, key=lambda price: price.rank).per_hour if in_force else None

    def segments(
        self, pool_id: int, model_id: int | None, class_id: int | None, start: datetime, end: datetime
    ) -> list[Segment]:
        """[start, end) cut where the price changes and where a month ends: no gap, no overlap, in order."""
        prices = self.matching(pool_id, model_id, class_id)
        months = set(self._month_ends(start, end))
        cuts = sorted({*months, *self._changes(prices, start, end)})
        found: list[Segment] = []
        edges = [start, *cuts, end]
        for left, right in pairwise(edges):
            price = self._pick(prices, left)
            if found and found[-1].per_hour == price and left not in months:
                found[-1] = Segment(found[-1].start, right, price)
            else:
                found.append(Segment(left, right, price))
        return found

    def _month_ends(self, start: datetime, end: datetime) -> Iterator[datetime]:
        moment = next_month_start(start, self.zone_name)
        while moment < end:
            yield moment
            moment = next_month_start(moment, self.zone_name)

    def _changes(self, prices: list[Price], start: datetime, end: datetime) -> Iterator[datetime]:
        for price in prices:
            if start < price.effective_from < end:
                yield price.effective_from
            if price.band is not None:
                yield from self._band_edges(price.band, start, end)

    def _band_edges(self, band: tuple[time, time], start: datetime, end: datetime) -> Iterator[datetime]:
        """Where the clock enters or leaves the band; on the days on which clocks are changed, where they are too."""
        here = zone(self.zone_name)
        day = start.astimezone(here).date() - timedelta(days=1)
        while (midnight := datetime.combine(day, time(0), tzinfo=here).astimezone(UTC)) < end:
            # As UTC at once: of two moments in one zone that differ only in ``fold`` a set keeps one.
            moments = {
                datetime.combine(day, edge, tzinfo=here).replace(fold=fold).astimezone(UTC)
                for edge in band
                for fold in (0, 1)
            }
            day += timedelta(days=1)
            following = datetime.combine(day, time(0), tzinfo=here).astimezone(UTC)
            if midnight.astimezone(here).utcoffset() != following.astimezone(here).utcoffset():
                moments.add(_clock_change(midnight, following, here))
            for moment in sorted(moments):
                if start < moment < end:
                    yield moment
