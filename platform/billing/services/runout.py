"""Packages act on time: what runs is cut at the moment at which a package runs out, so that each is drawn in the order
of time, whoever stops first."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Q

from billing.burn import DAYS_OF_BANDS
from billing.card import rate_card
from billing.meter import LedgerMeter
from billing.models import UsageRecord
from billing.rates import RateCard
from billing.services.looks import Look
from billing.services.packages import open_tills
from billing.tills import OpenSpan, RunOut, Till, first_run_out
from events.services import unit_of_work
from inventory.models import Pool

MOST_CUTS = 1000  # in one look; the next goes on


def look_at_packages(now: datetime) -> Look:
    """What ran while a package ran out is cut there; and when the next will run out, if all that runs goes on."""
    changed = 0
    for _ in range(MOST_CUTS):
        tills = open_tills(now)
        if not tills:
            return Look(changed, None, any=False)
        until = now + DAYS_OF_BANDS
        found = first_run_out(_open_spans(tills, until), tills, until)
        if found is None or found.at > now:
            return Look(changed, found.at if found else until, any=True)
        changed += _cut(found)
    return Look(changed, now + timedelta(seconds=1), any=True)


def _open_spans(tills: list[Till], until: datetime) -> list[OpenSpan]:
    teams: set[int] = set().union(*(till.team_ids or () for till in tills))
    rows = (
        UsageRecord.objects.filter(ended_at__isnull=True, team_id__in=teams, pool__unit=Pool.Unit.GPU)
        .annotate(class_id=F("job__priority_class_id"))
        .order_by("id")
    )
    card = rate_card()
    return [_span(record, card, until) for record in rows if record.started_at < until]


def _span(record: Any, card: RateCard, until: datetime) -> OpenSpan:
    segments = card.segments(record.pool_id, record.model_id, record.class_id, record.started_at, until)
    priced: list[tuple[datetime, datetime]] = []
    for segment in segments:
        if segment.per_hour:
            joined = priced and priced[-1][1] == segment.start
            priced[-1:] = [(priced[-1][0], segment.end)] if joined else [*priced[-1:], (segment.start, segment.end)]
    return OpenSpan(record.milli, record.team_id, record.pool_id, record.model_id, record.started_at, tuple(priced))


def _cut(found: RunOut) -> int:
    """What may draw from the package is cut where it runs out; what is left of it then is dust."""
    till = found.till
    where = Q(team_id__in=till.team_ids or (), pool__unit=Pool.Unit.GPU)
    if till.pool_id is not None:
        where &= Q(pool_id=till.pool_id)
    if till.model_id is not None:
        where &= Q(model_id=till.model_id)
    with unit_of_work():
        return LedgerMeter().cut(found.at, where)
