"""A fleet as those see it who submit to it: makers whose devices are interchangeable, and what fits on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scheduling.core.units import MILLI_PER_DEVICE
from scheduling.workload.accelerators import BY_NAME
from scheduling.workload.records import TraceNode, equal_tasks


@dataclass(frozen=True, slots=True)
class ModelSupply:
    """What a fleet has of one model. ``width``: devices of its widest node; CPU and memory: the least per device."""

    name: str
    devices: int
    nodes_by_width: tuple[tuple[int, int], ...]  # (devices of a node, such nodes), ascending
    cpu_milli: int
    host_memory_mib: int

    @property
    def width(self) -> int:
        return self.nodes_by_width[-1][0]

    def tasks_of(self, devices: int) -> int:
        """How many tasks of ``devices`` whole devices all its nodes hold when they are empty."""
        return sum(nodes * (width // devices) for width, nodes in self.nodes_by_width)


@dataclass(frozen=True, slots=True)
class Platform:
    """Models of one maker that are sliced alike: a job built for one of them runs on all."""

    vendor: str
    models: tuple[ModelSupply, ...]  # by name

    @property
    def devices(self) -> int:
        return sum(model.devices for model in self.models)

    @property
    def width(self) -> int:
        """Devices of the widest node."""
        return max(model.width for model in self.models)

    def fitting(self, compute_milli: int) -> int:
        """The slice that these devices can be cut to which gives at least ``compute_milli`` of one device."""
        accelerator = BY_NAME.get(self.models[0].name)
        return accelerator.fitting(compute_milli) if accelerator else compute_milli

    def gang(self, gpus: int) -> tuple[int, int]:
        """``(tasks, devices)`` of a job of ``gpus`` whole devices: equal tasks, no wider than the widest node."""
        return equal_tasks(gpus, self.width)

    def models_for(self, tasks: int, devices: int) -> tuple[ModelSupply, ...]:
        """The models with nodes wide enough, all of which together hold the gang when empty; else none."""
        wide = tuple(model for model in self.models if model.width >= max(1, devices))
        return wide if sum(model.tasks_of(max(1, devices)) for model in wide) >= tasks else ()

    def holds(self, gpus: int) -> bool:
        """Whether a job of ``gpus`` whole devices can ever run here."""
        return bool(self.models_for(*self.gang(gpus)))


def platforms_of(nodes: Iterable[TraceNode]) -> tuple[Platform, ...]:
    """The platforms of a fleet, in a fixed order. CPU nodes belong to none."""
    by_model: dict[str, list[TraceNode]] = {}
    for node in nodes:
        if node.devices:
            by_model.setdefault(node.model, []).append(node)
    groups: dict[tuple[str, tuple[int, ...]], list[ModelSupply]] = {}
    for name in sorted(by_model):
        key = (by_model[name][0].vendor, _sizes(name))
        groups.setdefault(key, []).append(_supply(name, by_model[name]))
    return tuple(Platform(vendor, tuple(groups[vendor, sizes])) for vendor, sizes in sorted(groups))


def _sizes(model: str) -> tuple[int, ...]:
    """What tells apart how models are sliced: the sizes below a whole device; (0,) where any size can be had."""
    accelerator = BY_NAME.get(model)
    if accelerator is None or accelerator.slice_rule == "any":
        return (0,)
    return (*(template.compute_milli for template in accelerator.templates), MILLI_PER_DEVICE)


def _supply(name: str, nodes: list[TraceNode]) -> ModelSupply:
    widths = sorted({node.devices for node in nodes})
    return ModelSupply(
        name=name,
        devices=sum(node.devices for node in nodes),
        nodes_by_width=tuple((width, sum(1 for node in nodes if node.devices == width)) for width in widths),
        cpu_milli=min(node.cpu_milli // node.devices for node in nodes),
        host_memory_mib=min(node.host_memory_mib // node.devices for node in nodes),
    )
