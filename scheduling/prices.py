"""What a request would cost an hour, where its place is known and where it is not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

from inventory.models import AcceleratorModel, Pool
from scheduling import ports
from scheduling.services.requests import JobSpec


def price_of(pool_id: int, held: Iterable[tuple[int | None, int]], class_id: int, now: datetime) -> Decimal:
    """An hour of all that is held, by (model, milli of the pool's unit), at the rates in force at ``now``."""
    by_model: dict[int | None, int] = defaultdict(int)
    for model_id, milli in held:
        by_model[model_id] += milli
    prices = (ports.meter.price_per_hour(pool_id, key, class_id, milli, now) for key, milli in by_model.items())
    return sum(prices, Decimal(0))


def price_range(pool: Pool, spec: JobSpec, wanted: int, class_id: int, now: datetime) -> tuple[Decimal, Decimal]:
    """An hour of ``wanted`` milli on the cheapest and on the dearest model of the pool that the request allows."""
    wished = {name for group in spec.groups for name in group.models}
    models = AcceleratorModel.objects.filter(devices__node__pool=pool).order_by().distinct()
    if wished:
        models = models.filter(name__in=wished)
    ids: list[int | None] = list(models.values_list("pk", flat=True)) or [None]
    prices = [ports.meter.price_per_hour(pool.pk, model_id, class_id, wanted, now) for model_id in ids]
    return min(prices), max(prices)
