"""Why a request does not fit, in numbers, and how many tasks of it would, worked out over the fleet's tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from scheduling.core.model import Request
from scheduling.core.units import MILLI_PER_DEVICE

if TYPE_CHECKING:
    from scheduling.core.placement_kernels import Tables

Short = Literal["compute", "device_memory", "devices", "cpu", "host_memory", "sharing"]


@dataclass(frozen=True, slots=True)
class Headroom:
    """What a fleet has for one request now. "Matching": allowed by model, vendor, least device memory, labels, taints.

    ``short`` is what the nearest node lacks: of the matching schedulable nodes the one that gets furthest through
    devices, the dimension asked for, the other dimension, sharing, CPU, host memory. "devices": too few devices in one
    node could give the slice at all or at once; "sharing": enough of them have room, but they are held alone or by
    another team. None where the request fits, and where no matching node is schedulable.
    """

    fits: bool  # exactly when Fleet.place finds a placement
    matching_nodes: int
    possible_nodes: int  # of these, how many could host one task if they were empty, healthy and schedulable
    cordoned_nodes: int  # matching, but not schedulable
    free_milli: int  # on matching healthy devices of schedulable nodes; all further numbers are about those too
    largest_piece_milli: int  # on one device
    free_devices: int  # devices entirely free
    most_devices: int  # in one node, that could each give the slice at once
    largest_free_memory_mib: int  # on one device that has compute to give
    free_cpu_milli: int  # on matching schedulable nodes
    largest_free_cpu_milli: int
    largest_free_host_memory_mib: int
    short: Short | None
    tainted_nodes: int = 0  # that would match were it not for a taint that is not tolerated
    taints: tuple[tuple[str, str], ...] = ()  # those taints, sorted


class Supply(NamedTuple):
    """The fleet's tables by column, as one request sees them. Arrays over the D devices or the N nodes."""

    first: np.ndarray  # of each node, the position of its first device
    end: np.ndarray  # and the one after its last
    compute: np.ndarray  # free on each device, milli, shared or not
    open: np.ndarray  # free for a new slice: 0 on failed devices, and on used ones where nothing is shared
    memory: np.ndarray  # free MiB
    need_compute: np.ndarray  # asked of this device: 0 does not match, below 0 it is too small for ever
    need_memory: np.ndarray
    computes: tuple[int, ...]  # the different values above 0 in need_compute, ascending
    usable: np.ndarray  # bool: matches, is healthy, large enough, in a schedulable matching node
    shareable: np.ndarray  # bool: free for this team, or not held at all
    cpu: np.ndarray  # free on each node
    host: np.ndarray
    matching: np.ndarray  # bool, of each node
    schedulable: np.ndarray  # bool
    exclusive: bool  # one task per device


def supply(tables: Tables, slot: int, request: Request, labelled: np.ndarray) -> Supply:
    """``labelled`` (bool[N]): the nodes with the labels that the request asks for and no taint that it cannot bear."""
    from scheduling.core import placement_kernels as k  # not at the top: numba takes long to import

    devices, nodes = tables.devices, tables.nodes
    asked_compute, asked_memory = tables.needs[slot].T.copy()
    need_compute = asked_compute[devices[k.D_CLASS]]
    held = devices[k.D_COMPUTE] < MILLI_PER_DEVICE
    held |= devices[k.D_MEMORY] < devices[k.D_MEMORY_ALL]
    exclusive = bool(tables.facts[k.EXCLUSIVE])
    refused = held & exclusive
    if request.team_id:
        refused |= held & (devices[k.D_TEAM] != request.team_id)
    matches = need_compute != 0
    first = nodes[:, k.N_FIRST]
    end = first + nodes[:, k.N_COUNT]
    matching = labelled & (_sums(first, end, matches) > 0) if request.devices else labelled
    schedulable = nodes[:, k.N_OPEN] != 0
    return Supply(
        first=first,
        end=end,
        compute=devices[k.D_COMPUTE],
        open=devices[k.D_OPEN],
        memory=devices[k.D_MEMORY],
        need_compute=need_compute,
        need_memory=asked_memory[devices[k.D_CLASS]],
        computes=tuple(np.unique(asked_compute[asked_compute > 0]).tolist()),
        usable=matches & (devices[k.D_HEALTHY] != 0) & (matching & schedulable)[devices[k.D_NODE]],
        shareable=~refused,
        cpu=nodes[:, k.N_CPU],
        host=nodes[:, k.N_HOST],
        matching=matching,
        schedulable=schedulable,
        exclusive=exclusive,
    )


def emptied(tables: Tables, seen: Supply) -> Supply:
    """The same fleet with nothing bound on it."""
    from scheduling.core import placement_kernels as k

    devices, nodes = tables.devices, tables.nodes
    whole = np.full_like(seen.compute, MILLI_PER_DEVICE)
    return seen._replace(
        compute=whole,
        open=whole * (devices[k.D_HEALTHY] != 0),
        memory=devices[k.D_MEMORY_ALL],
        shareable=np.ones_like(seen.shareable),
        cpu=nodes[:, k.N_CPU_ALL],
        host=nodes[:, k.N_HOST_ALL],
    )


class Devices(NamedTuple):
    """What requests that differ in CPU and host memory only have in common: how far the nodes get with the devices."""

    left: np.ndarray  # bool, of each node: matching, schedulable, and nothing about its devices is short
    short: Short | None  # what is, where no node is left though one is matching and schedulable
    told: Headroom  # all numbers but ``possible_nodes``, which the rest of the request decides
    cpu: np.ndarray  # free on each node
    host: np.ndarray


def devices(request: Request, seen: Supply) -> Devices:
    there = seen.matching & seen.schedulable
    by_compute = seen.usable & (seen.compute >= seen.need_compute)
    by_memory = seen.usable & (seen.need_compute > 0) & (seen.memory >= seen.need_memory)
    both = by_compute & by_memory
    giving = _alike_in_node(request, seen, both & seen.shareable)
    first: Short = "compute" if request.compute_milli is not None else "device_memory"
    second: Short = "device_memory" if request.compute_milli is not None else "compute"
    asked = by_compute if request.compute_milli is not None else by_memory
    obstacles: tuple[tuple[Short, np.ndarray], ...] = (
        ("devices", _in_node(seen, seen.usable) >= request.devices),
        (first if request.devices == 1 else "devices", _alike_in_node(request, seen, asked) >= request.devices),
        (second, _alike_in_node(request, seen, both) >= request.devices),
        ("sharing", giving >= request.devices),
    )
    left, short = _furthest(there, obstacles)
    room = np.where(seen.usable, seen.open, 0)
    told = Headroom(
        fits=False,
        matching_nodes=int(seen.matching.sum()),
        possible_nodes=0,
        cordoned_nodes=int((seen.matching & ~seen.schedulable).sum()),
        free_milli=int(room.sum()),
        largest_piece_milli=_largest(room),
        free_devices=int((room == MILLI_PER_DEVICE).sum()),
        most_devices=_largest(giving),
        largest_free_memory_mib=_largest(seen.memory[room > 0]),
        free_cpu_milli=int(seen.cpu[there].sum()),
        largest_free_cpu_milli=_largest(seen.cpu[there]),
        largest_free_host_memory_mib=_largest(seen.host[there]),
        short=short,
    )
    return Devices(left, short, told, seen.cpu, seen.host)


def headroom(request: Request, there: Devices, possible_nodes: int) -> Headroom:
    """``there``: of any request that asks for the same devices."""
    short = there.short
    fits = bool(there.left.any())
    if fits:
        obstacles: tuple[tuple[Short, np.ndarray], ...] = (
            ("cpu", there.cpu >= request.cpu_milli),
            ("host_memory", there.host >= request.host_memory_mib),
        )
        left, short = _furthest(there.left, obstacles)
        fits = bool(left.any())
    return replace(there.told, fits=fits, possible_nodes=possible_nodes, short=short)


def most_tasks(request: Request, seen: Supply, limit: int) -> int:
    """The most tasks of the request that fit at once, at most ``limit``."""
    return min(limit, int(tasks_by_node(request, seen, limit).sum()))


def tasks_by_node(request: Request, seen: Supply, limit: int) -> np.ndarray:
    """Of each node, the most tasks of the request that fit there at once, at most ``limit``.

    In one node T tasks of k different devices fit exactly when the sum over its devices of min(slices it can give, T)
    is at least k T, and CPU and host memory last for T.
    """
    there = seen.matching & seen.schedulable
    most = np.where(there, limit, 0)
    if request.cpu_milli:
        most = np.minimum(most, seen.cpu // request.cpu_milli)
    if request.host_memory_mib:
        most = np.minimum(most, seen.host // request.host_memory_mib)
    if request.devices:
        able = seen.usable & seen.shareable & (seen.need_compute > 0) & (seen.open >= seen.need_compute)
        slices = np.where(able, seen.open // np.maximum(seen.need_compute, 1), 0)
        by_memory = np.where(seen.need_memory > 0, seen.memory // np.maximum(seen.need_memory, 1), slices)
        slices = np.minimum(np.minimum(slices, by_memory), 1 if seen.exclusive else MILLI_PER_DEVICE)
        most = np.minimum(most, _tasks_in_node(request, seen, slices))
    return most


def _tasks_in_node(request: Request, seen: Supply, slices: np.ndarray) -> np.ndarray:
    """Of each node, the most tasks that its devices can host when device i can give ``slices[i]``."""
    if request.devices == 1:
        return _in_node(seen, slices)
    most = np.zeros(len(seen.cpu), dtype=np.int64)
    for compute in seen.computes:
        of_group = np.where(seen.need_compute == compute, slices, 0)
        top = int(_in_node(seen, of_group).max(initial=0)) // request.devices
        for tasks in range(1, top + 1):
            enough = _in_node(seen, np.minimum(of_group, tasks)) >= request.devices * tasks
            most += enough  # once it is not enough it never is again, so this counts up to the most
    return most


def _in_node(seen: Supply, of_device: np.ndarray) -> np.ndarray:
    """The sum over each node's devices."""
    return _sums(seen.first, seen.end, of_device)


def _sums(first: np.ndarray, end: np.ndarray, of_device: np.ndarray) -> np.ndarray:
    running = np.zeros(len(of_device) + 1, dtype=np.int64)
    np.cumsum(of_device, out=running[1:])
    return running[end] - running[first]


def _alike_in_node(request: Request, seen: Supply, flags: np.ndarray) -> np.ndarray:
    """Of each node, how many of the flagged devices could serve one task together: those that give the same compute."""
    if request.devices <= 1 or len(seen.computes) <= 1:
        return _in_node(seen, flags)
    return np.max([_in_node(seen, flags & (seen.need_compute == compute)) for compute in seen.computes], axis=0)


def _furthest(there: np.ndarray, obstacles: tuple[tuple[Short, np.ndarray], ...]) -> tuple[np.ndarray, Short | None]:
    """The nodes of ``there`` that pass all; where there are none, what stops the one that passes most in this order."""
    left = there
    for name, passed in obstacles:
        if not left.any():
            return left, None
        if not (left & passed).any():
            return left & passed, name
        left = left & passed
    return left, None


def _largest(values: np.ndarray) -> int:
    return int(values.max(initial=0))
