"""Prepaid hours as tills, and which of them pays which part of a span. Pure: what is drawn is noted on the tills.

Work is milli-GPU × microseconds, a whole number, so nothing is rounded and a till never goes below zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise

from billing.periods import NEVER
from billing.rates import MICROSECOND, Segment

# Less than a milli-GPU-second is dust: it stays where it is rather than split a span.
DUST = 1_000_000


@dataclass
class Till:
    """What is left of a package, who may draw from it, and when: [starts_at, expires_at)."""

    id: int
    left: int
    starts_at: datetime
    expires_at: datetime | None = None
    team_ids: frozenset[int] | None = None  # None: everyone
    pool_id: int | None = None  # None: every pool that counts GPUs
    model_id: int | None = None

    @property
    def ends_at(self) -> datetime:
        return self.expires_at or NEVER

    @property
    def rank(self) -> tuple[datetime, int]:
        """The one that expires first is drawn first."""
        return (self.ends_at, self.id)

    def serves(self, team_id: int, pool_id: int, model_id: int | None) -> bool:
        return (
            (self.team_ids is None or team_id in self.team_ids)
            and self.pool_id in (None, pool_id)
            and self.model_id in (None, model_id)
        )


@dataclass(frozen=True, slots=True)
class Part:
    """[start, end) at one price, paid by one till, or by none."""

    start: datetime
    end: datetime
    per_hour: Decimal | None
    till_id: int | None = None


def work_of(milli: int, start: datetime, end: datetime) -> int:
    return milli * ((end - start) // MICROSECOND)


def drawn(segments: Iterable[Segment], milli: int, tills: Sequence[Till]) -> list[Part]:
    """The segments, split where a till begins, expires or runs out; ``tills``: those that serve the span.

    What costs nothing draws nothing.
    """
    ordered = sorted(tills, key=lambda till: till.rank)
    parts: list[Part] = []
    for segment in segments:
        if not segment.per_hour or milli <= 0 or segment.end <= segment.start:
            parts.append(Part(segment.start, segment.end, segment.per_hour))
            continue
        parts += _drawn(segment, milli, ordered)
    return parts


def _drawn(segment: Segment, milli: int, ordered: Sequence[Till]) -> Iterable[Part]:
    left = segment.start
    while left < segment.end:
        usable = [till for till in ordered if till.left >= max(milli, DUST) and till.ends_at > left]
        open_now = next((till for till in usable if till.starts_at <= left), None)
        # A better till that begins inside takes over there.
        later = [till.starts_at for till in usable if till.starts_at > left]
        if open_now is None:
            right = min([segment.end, *later])
            yield Part(left, right, segment.per_hour)
        else:
            better = [till.starts_at for till in usable if till.starts_at > left and till.rank < open_now.rank]
            lasts = left + timedelta(microseconds=min(open_now.left // milli, (segment.end - left) // MICROSECOND))
            right = min([segment.end, open_now.ends_at, lasts, *better])
            open_now.left -= work_of(milli, left, right)
            yield Part(left, right, segment.per_hour, open_now.id)
        left = right


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """Use that goes on, since ``started_at``; it costs something in the spans ``priced``, in order."""

    milli: int
    team_id: int
    pool_id: int
    model_id: int | None
    started_at: datetime
    priced: tuple[tuple[datetime, datetime], ...]

    def costs_at(self, moment: datetime) -> bool:
        return any(start <= moment < end for start, end in self.priced)


@dataclass(frozen=True, slots=True)
class RunOut:
    """The till that is empty from ``at`` on, because all together draw from it."""

    at: datetime
    till: Till


def first_run_out(spans: Sequence[OpenSpan], tills: Sequence[Till], until: datetime) -> RunOut | None:
    """When and which till is the first to be emptied by what goes on, drawn in the order of time; None: none before
    ``until``. The tills are left as they are."""
    ordered = sorted(tills, key=lambda till: till.rank)
    left = {till.id: till.left for till in ordered}
    edges = {moment for till in ordered for moment in (till.starts_at, till.ends_at)}
    edges |= {span.started_at for span in spans}
    edges |= {moment for span in spans for priced in span.priced for moment in priced}
    began = min((span.started_at for span in spans), default=until)
    moments = [*sorted(moment for moment in edges if began <= moment < until), until]
    for moment, following in pairwise(moments):
        now = moment
        while now < following:
            burn = _burn(spans, ordered, left, now)
            lasts = min((left[key] // milli for key, milli in burn.items()), default=None)
            if lasts is None or now + lasts * MICROSECOND >= following:
                for key, milli in burn.items():
                    left[key] -= work_of(milli, now, following)
                break
            at = now + lasts * MICROSECOND
            for key, milli in burn.items():
                left[key] -= milli * lasts
            empty = next(till for till in ordered if till.id in burn and left[till.id] < max(burn[till.id], DUST))
            return RunOut(at, empty)
    return None


def _burn(spans: Sequence[OpenSpan], ordered: Sequence[Till], left: Mapping[int, int], now: datetime) -> dict[int, int]:
    """What is drawn from each till at ``now``, in milli."""
    burn: dict[int, int] = defaultdict(int)
    for span in spans:
        if span.started_at > now or not span.costs_at(now):
            continue
        for till in ordered:
            open_now = till.starts_at <= now < till.ends_at and left[till.id] >= max(span.milli, DUST)
            if open_now and till.serves(span.team_id, span.pool_id, span.model_id):
                burn[till.id] += span.milli
                break
    return burn
