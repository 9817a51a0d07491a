"""Money as people look at it: what a team spent this month and spends now. Exact; rounding is the page's."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db.models import F, Q

from billing.card import rate_card
from billing.exact import ExactSum
from billing.models import UsageRecord
from billing.rates import amount_of, month_start
from billing.terms import terms
from tenants.models import Team
from tenants.policy import team_tree


@dataclass(frozen=True, slots=True)
class Spend:
    """``month``: since the first instant of the billing month at ``since``, up to now. ``per_hour``: at this moment."""

    month: Decimal
    per_hour: Decimal
    since: datetime


def team_spend(team: Team, now: datetime) -> Spend:
    """What the team and all teams below it spent in this billing month, running allocations counted up to ``now``."""
    return spend_of(team_tree().below(team.pk), now)


def spend_of(team_ids: Collection[int] | None, now: datetime) -> Spend:
    """The same for these teams together; None: for everyone."""
    where = Q() if team_ids is None else Q(team_id__in=team_ids)
    since = month_start(now, terms().time_zone)
    # A closed record never crosses a month's end, so one that began before ``since`` belongs to an earlier month.
    closed = UsageRecord.objects.filter(where, ended_at__isnull=False, started_at__gte=since)
    month: Decimal = closed.order_by().aggregate(total=ExactSum("amount"))["total"] or Decimal(0)
    per_hour = Decimal(0)
    card = rate_card()
    running = UsageRecord.objects.filter(where, ended_at__isnull=True).annotate(class_id=F("job__priority_class_id"))
    for record in running.order_by("id"):
        subject = (record.pool_id, record.model_id, record.class_id)
        start = max(record.started_at, since)
        for segment in card.segments(*subject, start, max(now, start)):
            month += amount_of(record.milli, segment.start, segment.end, segment.per_hour)
        per_hour += (card.at(*subject, now) or Decimal(0)) * record.milli / 1000
    return Spend(month, per_hour, since)
