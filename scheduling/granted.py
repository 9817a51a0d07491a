"""What is granted beside what was asked: the slices of devices that tasks hold, and those that a request would get.

They differ where a model of accelerator is cut by templates or given whole (see ``core.slicing``). What is granted is
what counts against quotas and is billed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from inventory.models import AcceleratorModel, Device, Pool
from inventory.slicing import rule_of
from scheduling.core.fragmentation import TypicalShape
from scheduling.core.placement_shapes import DeviceClass, needs_of
from scheduling.core.slicing import template_name
from scheduling.core.units import MILLI_PER_DEVICE
from scheduling.models import AllocationDevice


@dataclass(frozen=True, slots=True, order=True)
class Granted:
    """What each of ``devices`` devices of one node gives to a task. ``template``: what it was cut by, if it was."""

    model: str
    devices: int
    compute_milli: int
    memory_mib: int
    template: str | None

    @property
    def whole(self) -> bool:
        return self.compute_milli == MILLI_PER_DEVICE

    @property
    def milli(self) -> int:
        return self.devices * self.compute_milli


@dataclass(frozen=True, slots=True)
class Offer:
    """What one kind of device in a pool would grant to a task; the model by its id."""

    model_id: int
    granted: Granted


class Asked(Protocol):
    """A group of tasks, stored or only read, as far as devices go."""

    @property
    def devices(self) -> int: ...
    @property
    def compute_milli(self) -> int | None: ...
    @property
    def memory_mib(self) -> int | None: ...
    @property
    def min_device_memory_mib(self) -> int: ...


def template_of(model: AcceleratorModel | None, compute_milli: int, memory_mib: int) -> str | None:
    """The name of the model's template of this size, as the model is now; None where there is none."""
    return None if model is None else template_name(rule_of(model), compute_milli, memory_mib)


def granted_to_groups(job_id: int) -> dict[int, list[Granted]]:
    """Group id → the different slices that its tasks hold now."""
    rows = AllocationDevice.objects.filter(allocation__job_id=job_id, allocation__released_at__isnull=True)
    return _distinct(rows, "allocation__task__group_id")


def granted_to_allocations(allocation_ids: Collection[int]) -> dict[int, list[Granted]]:
    """Allocation id → the different slices that it holds or held; several where a node's devices differ in memory."""
    return _distinct(AllocationDevice.objects.filter(allocation_id__in=allocation_ids), "allocation_id")


def _distinct(rows: Iterable[AllocationDevice], by: str) -> dict[int, list[Granted]]:
    slices = rows.order_by()  # type: ignore[attr-defined]
    columns = (by, "allocation__task__group__devices", "device__model_id", "compute_milli", "memory_mib")
    found: dict[int, list[Granted]] = defaultdict(list)
    seen = list(slices.values_list(*columns).distinct())
    models = AcceleratorModel.objects.in_bulk({model_id for _, _, model_id, _, _ in seen})
    for key, devices, model_id, compute, memory in seen:
        model = models[model_id]
        found[key].append(Granted(model.name, devices, compute, memory, template_of(model, compute, memory)))
    return {key: sorted(grants, key=_order) for key, grants in found.items()}


def _order(granted: Granted) -> tuple[str, int, int]:
    return granted.model, granted.compute_milli, granted.memory_mib


# ---- before it is submitted ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Devices of a pool that are alike: of one model and memory."""

    model_id: int
    kind: DeviceClass


def device_kinds(pool_ids: Iterable[int]) -> dict[int, list[DeviceKind]]:
    """Pool id → the different kinds of its devices."""
    rows = Device.objects.filter(node__pool_id__in=list(pool_ids)).order_by()
    seen = sorted(rows.values_list("node__pool_id", "model_id", "memory_mib").distinct())
    models = AcceleratorModel.objects.in_bulk({model_id for _, model_id, _ in seen})
    kinds: dict[int, list[DeviceKind]] = defaultdict(list)
    for pool_id, model_id, memory in seen:
        model = models[model_id]
        kinds[pool_id].append(DeviceKind(model_id, DeviceClass(model.name, model.vendor, memory, rule_of(model))))
    return kinds


def offers(
    asked: Asked, models: Collection[str], vendors: Collection[str], kinds: Sequence[DeviceKind], step_milli: int
) -> list[Offer]:
    """What a task would be granted of each kind of device that serves it, free or not, the least first."""
    shape = TypicalShape(
        cpu_milli=0,
        devices=asked.devices,
        compute_milli=asked.compute_milli,
        models=tuple(models),
        share=1.0,
        memory_mib=asked.memory_mib,
        vendors=tuple(vendors),
        min_device_memory_mib=asked.min_device_memory_mib,
    )
    found = []
    needs = needs_of(shape, [each.kind for each in kinds], step_milli)
    for each, (compute, memory) in zip(kinds, needs, strict=True):
        if compute > 0:
            name = template_name(each.kind.rule, compute, memory)
            granted = Granted(each.kind.model, asked.devices, compute, memory, name)
            found.append(Offer(each.model_id, granted))
    return sorted(found, key=lambda offer: (offer.granted.milli, *_order(offer.granted)))


def cut_by_templates_alone(pools: Sequence[Pool], models: Collection[str], vendors: Collection[str]) -> bool:
    """Whether every device of the pools that such a request allows is cut by templates: the step says nothing there."""
    devices = Device.objects.filter(node__pool__in=[pool.pk for pool in pools]).order_by()
    if models:
        devices = devices.filter(model__name__in=models)
    if vendors:
        devices = devices.filter(model__vendor__in=vendors)
    rules = set(devices.values_list("model__slicing", flat=True).distinct())
    return rules == {AcceleratorModel.Slicing.TEMPLATES}


def told(granted: Granted) -> Mapping[str, object]:
    """As REST answers it, in the words of a request: whole GPUs together, a part of each device."""
    gpus = granted.devices if granted.whole else granted.compute_milli / MILLI_PER_DEVICE
    return {
        "model": granted.model,
        "devices": granted.devices,
        "gpus": gpus,
        "gpu_memory_mib": granted.memory_mib,
        "template": granted.template,
    }
