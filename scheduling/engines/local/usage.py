"""What tasks use of this machine: processor time and memory of process trees, and of devices what they tell.

Memory of a tree is the sum of what is resident of each process; pages that several of them share count for each.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from scheduling.engines.base import DeviceUse, Slice, TaskUse
from scheduling.engines.local.nvidia import GpuUse
from scheduling.engines.local.supervisor.records import process_fields

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Process:
    """``ticks`` of processor time, its own and that of children that it has waited for; ``resident`` pages."""

    parent: int
    ticks: int
    resident: int


def process_table() -> dict[int, Process]:
    """All processes of this machine, by pid."""
    table = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        fields = process_fields(name)
        if fields is not None:
            table[int(name)] = Process(int(fields[1]), sum(map(int, fields[11:15])), int(fields[21]))
    return table


def children(table: Mapping[int, Process]) -> dict[int, list[int]]:
    found = defaultdict(list)
    for pid, process in table.items():
        found[process.parent].append(pid)
    return found


def tree(root: int, of: Mapping[int, Sequence[int]]) -> set[int]:
    """``root`` and all that descends from it."""
    members, waiting = {root}, [root]
    while waiting:
        new = [pid for pid in of.get(waiting.pop(), ()) if pid not in members]
        members.update(new)
        waiting.extend(new)
    return members


@dataclass(frozen=True, slots=True)
class Tree:
    """One task's processes, its supervisor among them: so orphans, and what was waited for, stay counted."""

    ticks: int
    host_memory_mib: int
    pids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Look:
    """All processes of this machine at ``at``, and the trees of tasks among them by allocation."""

    at: datetime
    pids: frozenset[int]
    trees: Mapping[int, Tree]


def look(supervisors: Mapping[int, int], now: datetime) -> Look:
    """The tree of each allocation whose supervisor's pid is given; those that are gone are left out."""
    table = process_table()
    of = children(table)
    trees = {}
    for allocation_id, root in supervisors.items():
        if root in table:
            pids = tree(root, of)
            pages = sum(table[pid].resident for pid in pids if pid != root)
            ticks = sum(table[pid].ticks for pid in pids)
            trees[allocation_id] = Tree(ticks, pages * PAGE_BYTES >> 20, frozenset(pids))
    return Look(now, frozenset(table), trees)


def cpu_milli(allocation_id: int, before: Look | None, after: Look) -> int | None:
    """Thousandths of a core that a task used between two looks; None without two at different times."""
    old, new = before and before.trees.get(allocation_id), after.trees.get(allocation_id)
    if before is None or not old or not new or after.at <= before.at:
        return None
    seconds = (after.at - before.at).total_seconds()
    return max(0, round((new.ticks - old.ticks) / TICKS_PER_S / seconds * 1000))


def pretended(slices: Sequence[Slice], cpu: int | None, host_memory_mib: int) -> list[DeviceUse]:
    """What a task uses of pretend devices, played from what its processes really do, so that the picture moves.

    A core that is kept busy counts as a device that is kept busy, resident memory as device memory; both are spread
    evenly over the task's slices and end at their size. It says nothing about any hardware.
    """
    count = len(slices)
    return [
        DeviceUse(
            "",
            slice_.index,
            None if cpu is None else min(slice_.compute_milli, cpu // count),
            min(slice_.memory_mib, host_memory_mib // count),
        )
        for slice_ in slices
    ]


def measured(slices: Sequence[Slice], own: frozenset[int], gpus: Mapping[int, GpuUse], at: Look) -> list[DeviceUse]:
    """What a task uses of NVIDIA devices: all of those that it has whole, else what its own processes have.

    In a container NVML may name processes as the host counts them. Then nobody here has those pids, and a task that
    has none of the others is unknown, not idle.
    """
    shares = []
    for slice_ in slices:
        gpu = gpus.get(slice_.index, GpuUse(None, None, None))
        compute = memory = None
        if slice_.compute_milli >= 1000:
            compute, memory = gpu.compute_milli, gpu.memory_mib
        elif gpu.processes is not None:
            uses = [use for pid, use in gpu.processes.items() if pid in own]
            if uses or at.pids.issuperset(gpu.processes):
                compute, memory = total(use.compute_milli for use in uses), total(use.memory_mib for use in uses)
        shares.append(DeviceUse("", slice_.index, compute, memory))
    return shares


def total(parts: Iterable[int | None]) -> int | None:
    """The sum; None as soon as one part is unknown."""
    known = list(parts)
    return None if None in known else sum(part for part in known if part is not None)


def sum_of(shares: Iterable[DeviceUse], node: str, index: int) -> DeviceUse:
    """What all of the shares together use of the device with this index."""
    own = [share for share in shares if share.index == index]
    compute, memory = total(share.compute_milli for share in own), total(share.memory_mib for share in own)
    return DeviceUse(node, index, compute, memory)


def task_use(allocation_id: int, shares: Sequence[DeviceUse], cpu: int | None, host_memory_mib: int) -> TaskUse:
    """What a task uses over all its devices; a task without devices uses none of them."""
    compute, memory = total(share.compute_milli for share in shares), total(share.memory_mib for share in shares)
    return TaskUse(allocation_id, compute, memory, cpu, host_memory_mib)
