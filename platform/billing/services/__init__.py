"""The one door for writes to rates; usage is written by ``billing.meter``."""

from __future__ import annotations

from datetime import datetime, time
from decimal import Decimal

from billing.meter import LedgerMeter
from billing.models import Rate
from billing.rates import month_start
from billing.terms import terms
from events.errors import Invalid
from events.services import require_aware, unit_of_work
from inventory.models import AcceleratorModel, Pool
from scheduling.models import PriorityClass


def set_rate(
    per_hour: Decimal,
    now: datetime,
    *,
    effective_from: datetime | None = None,
    pool: Pool | None = None,
    model: AcceleratorModel | None = None,
    priority_class: PriorityClass | None = None,
    band: tuple[time, time] | None = None,
    actor_id: int | None = None,
) -> Rate:
    """A rate from ``effective_from`` (default ``now``) on. What was used keeps its price: the past is refused."""
    if per_hour < 0:
        raise Invalid.at("per_hour", "a price is 0 or more", value=per_hour)
    start = require_aware(effective_from or now)
    if start < now:
        raise Invalid.at("effective_from", "a rate cannot begin in the past", value=start.isoformat())
    with unit_of_work() as journal:
        rate = Rate(
            pool=pool,
            model=model,
            priority_class=priority_class,
            band_start=band[0] if band else None,
            band_end=band[1] if band else None,
            per_hour=per_hour,
            effective_from=start,
            created_at=require_aware(now),
        )
        rate.save()
        journal.record(
            "rate.set",
            now,
            pool_id=pool.pk if pool else None,
            actor_id=actor_id,
            model=model and model.name,
            per_hour=str(per_hour),
            effective_from=start.isoformat(),
        )
    return rate


def close_month(now: datetime) -> int:
    """Open usage that began before this month is cut at the month's first instant; again: nothing. Returns how many."""
    with unit_of_work():
        return LedgerMeter().cut(month_start(now, terms().time_zone))
