"""One pool's fleet during a cycle: gangs are placed whole or not at all, and in the end all is as it was found.

Room only shrinks while a cycle goes on, so what did not fit once is remembered and not tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from scheduling.core.fleet import Fleet
from scheduling.core.model import Group, Placement, Request, TaskStart

COUNTED_GANG = 16  # from so many tasks on, counting what fits is cheaper than placing them and giving them back


class Want(NamedTuple):
    """Tasks of one group that must be placed together."""

    group: int  # position in PendingJob.groups
    request: Request
    tasks: int


class Ask:
    """What the groups of a job still ask for. Equal groups share one Ask, so it can be looked up by identity."""

    __slots__ = ("extra", "groups", "least", "tasks")

    def __init__(self, groups: tuple[Group, ...]):
        self.groups = groups
        needed = [max(0, group.min_count - group.placed) for group in groups]
        wants = [Want(i, group.request, n) for i, (group, n) in enumerate(zip(groups, needed, strict=True)) if n]
        self.least = tuple(sorted(wants, key=_hardest_first))  # all or nothing
        self.tasks = sum(needed)
        self.extra = [max(0, group.count - group.placed - n) for group, n in zip(groups, needed, strict=True)]


def _hardest_first(want: Want) -> tuple[int, int, int, int, int, int]:
    """Total order in which the groups of a gang are placed: what is hardest to fit goes first."""
    request = want.request
    compute, memory = request.compute_milli or 0, request.memory_mib or 0
    return (
        -request.devices * compute,
        -request.devices * memory,
        -request.devices,
        -request.cpu_milli,
        -request.host_memory_mib,
        want.group,
    )


class Room:
    """Takes from a fleet on trial. ``give_back`` undoes everything that was taken and not undone."""

    def __init__(self, fleet: Fleet):
        self.fleet = fleet
        self._taken: list[Placement] = []
        self._too_many: dict[Request, int] = {}  # the fewest tasks of a shape that did not fit at once
        self._too_large: dict[Request, list[tuple[int, int]]] = {}  # by devices: CPU and memory of one that did not fit
        self._too_mixed: dict[tuple[Want, ...], int] = {}  # gangs of several shapes, and how many tasks found room

    def take(self, wants: tuple[Want, ...]) -> list[TaskStart] | None:
        """Places and takes all ``wants``, or takes nothing and returns None.

        Tasks of one shape are placed one after the other where each lands best. (A required or preferred topology
        level narrows the nodes here, once nodes carry their levels.)
        """
        if self.known_full(wants):
            return None
        first = wants[0]
        if first.tasks >= COUNTED_GANG and self.fleet.count_fitting(first.request, first.tasks) < first.tasks:
            self._remember(wants[:1])
            return None
        tasks = self._take_as_many(wants)
        if len(tasks) < sum(want.tasks for want in wants):
            self._remember(wants[:1] if len(tasks) < first.tasks else wants, len(tasks))
            self.undo(tasks)
            return None
        return tasks

    def known_full(self, wants: tuple[Want, ...]) -> bool:
        """Whether it is known without trying that ``wants`` do not fit."""
        if any(want.tasks >= self._fewest_too_many(want) for want in wants):
            return True
        return len(wants) > 1 and wants in self._too_mixed

    def _fewest_too_many(self, want: Want) -> int:
        """The fewest tasks of the shape of which it is known that they do not fit at once; else more than wanted.

        What asks for the same devices as one that did not fit, and for no less CPU and memory, does not fit either:
        so a queue of many shapes is mostly refused without a look at the nodes.
        """
        known = self._too_many.get(want.request)
        if known is not None:
            return known
        request = want.request
        refused = self._too_large.get(_devices_of(request), ()) if self._too_large else ()
        if any(cpu <= request.cpu_milli and host <= request.host_memory_mib for cpu, host in refused):
            self._too_many[request] = 1
            return 1
        return want.tasks + 1

    def fits(self, wants: tuple[Want, ...]) -> bool:
        """Whether ``wants`` could be taken now; takes nothing."""
        tasks = self.take(wants)
        if tasks is None:
            return False
        self.undo(tasks)
        return True

    def count_fitting(self, wants: tuple[Want, ...]) -> int:
        """How many tasks of ``wants``, tried in their order, find room together, or did when they were refused."""
        known = [self._too_many[want.request] - 1 for want in wants[:1] if want.request in self._too_many]
        if known == [0]:
            return 0
        tasks = self._take_as_many(wants)
        self.undo(tasks)
        return min([len(tasks), *known, self._too_mixed.get(wants, len(tasks))])

    def undo(self, tasks: Sequence[TaskStart]) -> None:
        """Gives back what the latest ``take`` took."""
        for task in reversed(tasks):
            assert self._taken[-1] is task.placement
            self.fleet.give_back(task.placement)
            self._taken.pop()

    def give_back(self) -> None:
        """The fleet is as it was before the first ``take``."""
        while self._taken:
            self.fleet.give_back(self._taken[-1])
            self._taken.pop()

    def _take_as_many(self, wants: tuple[Want, ...]) -> list[TaskStart]:
        """Takes task after task and stops at the first shape that has no room left."""
        tasks: list[TaskStart] = []
        for want in wants:
            for _ in range(want.tasks):
                placement = self.fleet.place(want.request)
                if placement is None:
                    return tasks
                self.fleet.take(placement, want.request.team_id)
                self._taken.append(placement)
                tasks.append(TaskStart(want.group, placement))
        return tasks

    def _remember(self, wants: tuple[Want, ...], fitting: int = 0) -> None:
        """That one shape did not fit says so for every gang with as many of it; several say so only together."""
        if len(wants) > 1:
            self._too_mixed[wants] = fitting
            return
        request, tasks = wants[0].request, wants[0].tasks
        self._too_many[request] = tasks
        if tasks == 1:
            refused = self._too_large.setdefault(_devices_of(request), [])
            refused.append((request.cpu_milli, request.host_memory_mib))


def _devices_of(request: Request) -> Request:
    return replace(request, cpu_milli=0, host_memory_mib=0)
