"""Nodes, devices, requests and typical shapes as the integer tables that ``placement_kernels`` works on.

Devices of one *class* have model, vendor, memory and slice rule in common, so a request is granted the same slice of
each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scheduling.core.fragmentation import TypicalShape
from scheduling.core.model import DeviceState, NodeState, Request
from scheduling.core.slicing import ANY, NOT_ALLOWED, TOO_SMALL, SliceRule, granted
from scheduling.core.units import MILLI_PER_DEVICE

__all__ = ["NOT_ALLOWED", "TOO_SMALL", "DeviceClass", "needs_of"]


class DeviceClass(NamedTuple):
    model: str
    vendor: str
    memory_mib: int
    rule: SliceRule = ANY


def class_of(device: DeviceState) -> DeviceClass:
    return DeviceClass(device.model, device.vendor, device.memory_mib, device.rule)


def check_request(request: Request) -> None:
    """Raises ValueError where the request could not be meant for any fleet: it is a mistake of the caller."""
    if min(request.devices, request.cpu_milli, request.host_memory_mib, request.memory_mib or 0) < 0:
        raise ValueError(f"a negative quantity in {request}")
    if request.devices and request.compute_milli is None and not request.memory_mib:
        raise ValueError(f"neither compute nor memory of the devices is asked for in {request}")
    if request.compute_milli is not None and request.devices and not 0 < request.compute_milli <= MILLI_PER_DEVICE:
        raise ValueError(f"compute of one device must be within 1..{MILLI_PER_DEVICE} milli in {request}")


def needs_of(request: Request | TypicalShape, classes: Sequence[DeviceClass], step_milli: int) -> list[tuple[int, int]]:
    """For each class the slice granted of one of its devices; compute NOT_ALLOWED or TOO_SMALL where there is none."""
    needs = []
    for kind in classes:
        allowed = (
            request.devices > 0
            and (not request.models or kind.model in request.models)
            and (not request.vendors or kind.vendor in request.vendors)
            and kind.memory_mib >= request.min_device_memory_mib
        )
        if not allowed:
            needs.append((NOT_ALLOWED, 0))
            continue
        needs.append(granted(kind.rule, request.compute_milli, request.memory_mib, kind.memory_mib, step_milli))
    return needs


def computes_differ(needs: Sequence[tuple[int, int]]) -> bool:
    """Whether devices of different classes would give different compute for the same request."""
    return len({compute for compute, _ in needs if compute > 0}) > 1


def devices_by_index(node: NodeState) -> list[DeviceState]:
    return sorted(node.devices, key=lambda device: device.index)


def node_rows(ordered: Sequence[NodeState], columns: int) -> np.ndarray:
    """int64[N, columns] as ``placement_kernels`` wants it; ValueError where a node holds more than it has."""
    rows = []
    first = 0
    for node in ordered:
        cpu, host = node.cpu_milli - node.cpu_used, node.host_memory_mib - node.host_memory_used
        if cpu < 0 or host < 0:
            raise ValueError(f"node {node.name} holds more than it has")
        rows.append((cpu, host, node.schedulable, first, len(node.devices), node.cpu_milli, node.host_memory_mib, 0, 0))
        first += len(node.devices)
    return np.array(rows, dtype=np.int64).reshape(len(rows), columns)


def device_columns(ordered: Sequence[NodeState], classes: Sequence[DeviceClass], columns: int) -> np.ndarray:
    """int64[columns, D] as ``placement_kernels`` wants it; ValueError where a device holds more than it has."""
    number = {kind: i for i, kind in enumerate(classes)}
    rows = []
    for position, node in enumerate(ordered):
        for device in devices_by_index(node):
            compute, memory = MILLI_PER_DEVICE - device.compute_used, device.memory_mib - device.memory_used
            if compute < 0 or memory < 0:
                raise ValueError(f"device {device.index} of node {node.name} holds more than it has")
            kind = number[class_of(device)]
            rows.append((compute, memory, 0, kind, device.healthy, device.team_id, device.memory_mib, position))
    return np.ascontiguousarray(np.array(rows, dtype=np.int64).reshape(len(rows), columns).T)


class TypicalTables(NamedTuple):
    typical: np.ndarray  # int64[T, 2 + C]: CPU, devices, compute asked of each class
    share: np.ndarray  # float64[T]
    steps: np.ndarray  # int64[U]: distinct CPU sizes, ascending
    marks: np.ndarray  # int64[C * 1001 + U + 1]


def typical_tables(typical: Sequence[TypicalShape], classes: Sequence[DeviceClass], step_milli: int) -> TypicalTables:
    rows = [
        [shape.cpu_milli, shape.devices, *(compute for compute, _ in needs_of(shape, classes, step_milli))]
        for shape in typical
    ]
    steps = sorted({shape.cpu_milli for shape in typical})
    return TypicalTables(
        typical=np.array(rows, dtype=np.int64).reshape(len(rows), 2 + len(classes)),
        share=np.array([shape.share for shape in typical], dtype=np.float64),
        steps=np.array(steps, dtype=np.int64),
        marks=_marks(len(classes) * (MILLI_PER_DEVICE + 1) + len(steps) + 1),
    )


def _marks(count: int) -> np.ndarray:
    """``count`` fixed 64-bit numbers without pattern (Steele, Lea and Flood's SplitMix64 from state 0)."""
    state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (state ^ (state >> np.uint64(31))).view(np.int64)
