"""What nobody used, at what it would have cost: capacity in service less what was allocated, told apart and never
spread over the teams unless that is asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

from django.db.models import Q

from billing.burn import PER_UNIT
from billing.card import rate_card
from billing.exact import exactly
from billing.models import CapacityChange
from billing.rates import MICROSECOND, PLACES, RateCard
from billing.usage import used
from inventory.models import Pool
from quotas.selectors import quotas_in_force
from scheduling.models import Allocation

ZERO = Decimal(0)
NO_CLASS = 0  # idle capacity is of no priority class: only rates that name none are its
By = Literal["none", "usage", "guarantee"]


@dataclass(frozen=True, slots=True)
class Idle:
    """Of one pool in [start, end): work in milli × microseconds, money to 12 places. ``known_from``: nothing was noted
    of the capacity before; None: nothing was at all."""

    pool: str
    capacity: int
    allocated: int
    idle: int
    cost: Decimal
    known_from: datetime | None


@dataclass(frozen=True, slots=True)
class Divided:
    """Idle cost by team id, and what nobody got. The two always add up to the whole."""

    shares: Mapping[int, Decimal]
    rest: Decimal


def idle_cost(pool: Pool, start: datetime, end: datetime, now: datetime) -> Idle:
    """The pool's idle capacity in [start, end), up to ``now``, at the rates in force in each second. A pool without
    accelerators has none. Where more is allocated than is in service (a cordoned node), nothing is idle; never less."""
    end = min(end, now)
    if pool.unit != Pool.Unit.GPU or end <= start:
        return Idle(pool.name, 0, 0, 0, ZERO, None)
    capacity, known_from = _capacity(pool, end)
    allocated = _allocated(pool, start, end)
    card = rate_card()
    in_service = held = idle = 0
    cost = Fraction(0)
    for model_id in sorted({*capacity, *allocated}):
        there, taken = capacity[model_id], allocated[model_id]
        for left, right, price in _spans(card, pool, model_id, there, taken, start, end):
            have, hold = _at(there, left), _at(taken, left)
            length = (right - left) // MICROSECOND
            unused = max(0, have - hold) * length
            in_service, held, idle = in_service + have * length, held + hold * length, idle + unused
            cost += unused * price
    return Idle(pool.name, in_service, held, idle, _decimal(cost / PER_UNIT), known_from)


Steps = list[tuple[datetime, int]]  # from each moment on, so much


def _capacity(pool: Pool, end: datetime) -> tuple[dict[int, Steps], datetime | None]:
    steps: dict[int, Steps] = defaultdict(list)
    for row in CapacityChange.objects.filter(pool=pool, at__lt=end).order_by("at", "id"):
        steps[row.model_id].append((row.at, row.milli))
    return steps, min((own[0][0] for own in steps.values()), default=None)


def _allocated(pool: Pool, start: datetime, end: datetime) -> dict[int, Steps]:
    """By model what is allocated, as steps; 0 before the window."""
    changes: dict[int, dict[datetime, int]] = defaultdict(lambda: defaultdict(int))
    lives = Q(released_at__isnull=True) | Q(released_at__gt=start)
    rows = Allocation.objects.filter(lives, pool=pool, model__isnull=False, bound_at__lt=end)
    for model_id, milli, bound_at, released_at in rows.values_list("model_id", "milli", "bound_at", "released_at"):
        changes[model_id or 0][max(bound_at, start)] += milli
        if released_at is not None and released_at < end:
            changes[model_id or 0][released_at] -= milli
    steps: dict[int, Steps] = defaultdict(list)
    for model_id, own in changes.items():
        level = 0
        for moment in sorted(own):
            level += own[moment]
            steps[model_id].append((moment, level))
    return steps


def _spans(
    card: RateCard, pool: Pool, model_id: int, there: Steps, taken: Steps, start: datetime, end: datetime
) -> list[tuple[datetime, datetime, Fraction]]:
    """[start, end) cut wherever the price, the capacity or what is allocated changes, with the price."""
    segments = card.segments(pool.pk, model_id, NO_CLASS, start, end)
    prices = {segment.start: Fraction(segment.per_hour or 0) for segment in segments}
    cuts = {moment for moment, _ in (*there, *taken) if start < moment < end}
    found: list[tuple[datetime, datetime, Fraction]] = []
    price = Fraction(0)
    for left, right in pairwise(sorted({*prices, *cuts, start, end})):
        price = prices.get(left, price)
        found.append((left, right, price))
    return found


def _at(steps: Steps, moment: datetime) -> int:
    place = bisect_right(steps, moment, key=lambda step: step[0])
    return steps[place - 1][1] if place else 0


def _decimal(value: Fraction) -> Decimal:
    return exactly(lambda: (Decimal(value.numerator) / value.denominator).quantize(PLACES))


def divided(cost: Decimal, weights: Mapping[int, int]) -> Divided:
    """The cost by team in proportion to the weights, to 12 places, with nothing lost: the largest remainders get the
    last places, ties the older team. With nothing to divide by it stays where it was."""
    total = sum(weights.values())
    if total <= 0 or cost <= 0:
        return Divided({}, cost)
    places = int(cost / PLACES)
    exact = {team_id: Fraction(places * weight, total) for team_id, weight in weights.items() if weight > 0}
    whole = {team_id: int(part) for team_id, part in exact.items()}
    missing = places - sum(whole.values())
    for team_id in sorted(exact, key=lambda key: (whole[key] - exact[key], key))[:missing]:
        whole[team_id] += 1
    return Divided({team_id: part * PLACES for team_id, part in sorted(whole.items())}, ZERO)


def idle_weights(pool: Pool, start: datetime, end: datetime, now: datetime, by: By) -> dict[int, int]:
    """What the pool's idle cost is divided by: milli × microseconds used in the window, or milli guaranteed to the
    teams that have no other above them with a guarantee, at its end."""
    if by == "none":
        return {}
    if by == "usage":
        sums = used(Q(pool=pool), start, end, now, "team")
        return {team_id: int(each.milli_seconds * 1_000_000) for (team_id, _), each in sums.items()}
    in_force = quotas_in_force(min(end, now), pool.pk)
    given = {row.team_id: row for row in in_force.values() if row.guaranteed}
    return {team_id: row.guaranteed or 0 for team_id, row in given.items() if not _above(row, given)}


def _above(row: Any, given: Mapping[int, Any]) -> bool:
    above = row.team.parent
    while above is not None:
        if above.pk in given:
            return True
        above = above.parent
    return False
