"""Keeps how much was in service, from moment to moment: what there is now does not tell what was idle then."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Count

from billing.models import CapacityChange
from events.rows import insert_rows
from events.services import require_aware, unit_of_work
from inventory.models import Device, Node, Pool
from scheduling.core.units import MILLI_PER_DEVICE


def note_capacity(now: datetime) -> int:
    """Where what is in service differs from what was last noted, it is noted as of ``now``; returns how often."""
    present = _in_service()
    noted: dict[tuple[int, int], CapacityChange] = {}
    for row in CapacityChange.objects.order_by("at", "id"):
        noted[row.pool_id, row.model_id] = row
    last = {key: row.milli for key, row in noted.items()}
    changed = {key for key in {*present, *last} if present.get(key, 0) != last.get(key, 0)}
    if not changed:
        return 0
    with unit_of_work():
        # Of two that look at the same moment the second finds the row of the first.
        CapacityChange.objects.filter(pk__in=[noted[key].pk for key in changed if key in noted], at__gte=now).delete()
        insert_rows(
            CapacityChange(pool_id=key[0], model_id=key[1], at=require_aware(now), milli=present.get(key, 0))
            for key in sorted(changed)
        )
    return len(changed)


def _in_service() -> dict[tuple[int, int], int]:
    """(pool, model) → milli of healthy devices on nodes that take work, in pools that count devices."""
    rows = (
        Device.objects.filter(health=Device.Health.OK, node__state=Node.State.READY, node__pool__unit=Pool.Unit.GPU)
        .order_by()
        .values_list("node__pool_id", "model_id")
        .annotate(count=Count("id"))
    )
    return {(pool_id, model_id): MILLI_PER_DEVICE * count for pool_id, model_id, count in rows}
