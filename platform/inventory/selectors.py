"""The fleet in sums."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import Case, Count, F, IntegerField, Q, Sum, Value, When

from events.errors import Fault, NotThere
from inventory.models import AcceleratorModel, Device, Node, Pool


@dataclass(frozen=True, slots=True)
class PoolTotals:
    """A pool in its unit, milli (of devices, or of cores in a CPU pool), and in numbers of things.

    ``total``: all that there is; ``schedulable``: in service, healthy devices of nodes that are ready; ``capacity``:
    that and what is held elsewhere, which is what teams share; ``free``: of what is schedulable.
    """

    total: int = 0
    schedulable: int = 0
    capacity: int = 0
    allocated: int = 0
    free: int = 0
    nodes: int = 0
    nodes_ready: int = 0
    devices: int = 0
    devices_failed: int = 0


def _sum(when: Q, value: F | Value) -> Sum:
    return Sum(Case(When(when, then=value), default=0, output_field=IntegerField()))


def pool_totals(pool_ids: Collection[int] | None = None) -> dict[int, PoolTotals]:
    """By pool id, every pool that is asked for. Two queries."""
    pools = Pool.objects.all() if pool_ids is None else Pool.objects.filter(pk__in=pool_ids)
    ready = Q(nodes__state=Node.State.READY)
    by_node = (
        pools.order_by("id")
        .values("id", "unit")
        .annotate(
            count=Count("nodes"),
            ready=Count("nodes", filter=ready),
            total=Sum("nodes__cpu_milli", default=0),
            open=_sum(ready, F("nodes__cpu_milli")),
            held=Sum("nodes__cpu_allocated_milli", default=0),
            held_open=_sum(ready, F("nodes__cpu_allocated_milli")),
        )
    )
    in_service = Q(node__state=Node.State.READY, health=Device.Health.OK)
    devices = (
        Device.objects.filter(node__pool__in=pools)
        .order_by()
        .values("node__pool_id")
        .annotate(
            count=Count("id"),
            failed=Count("id", filter=Q(health=Device.Health.FAILED)),
            open=Count("id", filter=in_service),
            held=Sum("compute_allocated_milli", default=0),
            held_open=_sum(in_service, F("compute_allocated_milli")),
        )
    )
    by_device = {row["node__pool_id"]: row for row in devices}
    found = {}
    for row in by_node:
        own = by_device.get(row["id"], {"count": 0, "failed": 0, "open": 0, "held": 0, "held_open": 0})
        if row["unit"] == Pool.Unit.CPU:
            total, schedulable, held, held_open = row["total"], row["open"], row["held"], row["held_open"]
        else:
            total, schedulable = 1000 * own["count"], 1000 * own["open"]
            held, held_open = own["held"], own["held_open"]
        found[row["id"]] = PoolTotals(
            total=total,
            schedulable=schedulable or 0,
            capacity=(schedulable or 0) + held - (held_open or 0),
            allocated=held,
            free=(schedulable or 0) - (held_open or 0),
            nodes=row["count"],
            nodes_ready=row["ready"],
            devices=own["count"],
            devices_failed=own["failed"],
        )
    return found


def pool_named(name: str, field: str = "pool") -> Pool:
    """The pool with this name. Raises NotThere, naming ``field`` and the pools that there are."""
    found = Pool.objects.select_related("engine").filter(name=name).first()
    if found is None:
        allowed = list(Pool.objects.order_by("name").values_list("name", flat=True)[:100])
        raise NotThere(
            "there is no such pool", faults=[Fault(field, "there is no such pool", "unknown", name, allowed)]
        )
    return found


def model_named(name: str, field: str = "model") -> AcceleratorModel:
    """The accelerator model with this name. Raises NotThere, naming ``field`` and the models that there are."""
    found = AcceleratorModel.objects.filter(name=name).first()
    if found is None:
        allowed = list(AcceleratorModel.objects.order_by("name").values_list("name", flat=True)[:100])
        message = "there is no such accelerator model"
        raise NotThere(message, faults=[Fault(field, message, "unknown", name, allowed)])
    return found
