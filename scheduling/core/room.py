"""One pool's fleet during a cycle: gangs are placed whole or not at all, and in the end all is as it was found.

Room only shrinks while a cycle goes on, so what did not fit once is remembered and not tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from scheduling.core.fleet import Fleet, PlacementRefused
from scheduling.core.gang_rules import GangRule, narrows_nothing, placers
from scheduling.core.model import Group, Placement, Request, TaskStart

Place = Callable[[Request], Placement | None]
COUNTED_GANG = 16  # from so many tasks on, counting what fits is cheaper than placing them and giving them back


class Want(NamedTuple):
    """Tasks of one group that must be placed together. ``rule`` is that of their job, for all its wants alike."""

    group: int  # position in PendingJob.groups
    request: Request
    tasks: int
    rule: GangRule | None = None


class Ask:
    """What the groups of a job still ask for. Jobs that ask alike share one Ask, so it can be looked up by identity.

    ``one_by_one``: nothing of it must start together, because the job runs already and can do with any part of it.
    """

    __slots__ = ("extra", "groups", "least", "rule", "tasks")

    def __init__(self, groups: tuple[Group, ...], rule: GangRule | None = None, *, one_by_one: bool = False):
        self.groups = groups
        needed = [0 if one_by_one else max(0, group.min_count - group.placed) for group in groups]
        self.tasks = sum(needed)
        self.extra = [max(0, group.count - group.placed - n) for group, n in zip(groups, needed, strict=True)]
        self.rule = rule if rule is None or not any(self.extra) else replace(rule, whole=self._whole(needed))
        wants = [
            Want(i, group.request, n, self.rule) for i, (group, n) in enumerate(zip(groups, needed, strict=True)) if n
        ]
        self.least = tuple(sorted(wants, key=_hardest_first))  # all or nothing

    def _whole(self, needed: Sequence[int]) -> tuple[tuple[Request, int], ...]:
        """All tasks that are still wanted, by request."""
        whole: dict[Request, int] = {}
        for group, least, more in zip(self.groups, needed, self.extra, strict=True):
            whole[group.request] = whole.get(group.request, 0) + least + more
        return tuple(whole.items())


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

        Tasks of one shape are placed one after the other where each lands best, among the nodes that their rule
        leaves.
        """
        if self.known_full(wants):
            return None
        first = wants[0]
        if first.rule is not None and not narrows_nothing(first.rule, wants):
            tasks = self._take_by_rule(wants, first.rule)
            if tasks is None:
                self._too_mixed[wants] = sum(want.tasks for want in wants) - 1
            return tasks
        if first.tasks >= COUNTED_GANG and self.fleet.count_fitting(first.request, first.tasks) < first.tasks:
            self._remember(wants[:1])
            return None
        tasks = self._take_as_many(wants)
        if len(tasks) < sum(want.tasks for want in wants):
            self._remember(wants[:1] if len(tasks) < first.tasks else wants, len(tasks))
            self.undo(tasks)
            return None
        return tasks

    def take_as(self, tasks: Sequence[TaskStart], ask: Ask) -> bool:
        """Takes these very places, all that ``ask`` needs to start, or nothing where one of them is not to be had."""
        taken = len(self._taken)
        for task in tasks:
            request = ask.groups[task.group].request
            try:
                if self.fleet.in_service(task.placement):
                    self.fleet.take(task.placement, request.team_id)
                    self._taken.append(task.placement)
                    continue
            except PlacementRefused:
                pass
            while len(self._taken) > taken:
                self.fleet.give_back(self._taken.pop())
            return False
        return True

    def known_full(self, wants: tuple[Want, ...]) -> bool:
        """Whether it is known without trying that ``wants`` do not fit."""
        if any(want.tasks >= self._fewest_too_many(want) for want in wants):
            return True
        return (len(wants) > 1 or wants[0].rule is not None) and wants in self._too_mixed

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

    def _take_by_rule(self, wants: tuple[Want, ...], rule: GangRule) -> list[TaskStart] | None:
        needed = sum(want.tasks for want in wants)
        for place in placers(self.fleet, wants, rule):
            tasks = self._take_as_many(wants, place)
            if len(tasks) == needed:
                return tasks
            self.undo(tasks)
        return None

    def count_placed(self, wants: tuple[Want, ...], place: Place) -> int:
        """How many tasks of ``wants`` find room where ``place`` puts them. Takes nothing."""
        tasks = self._take_as_many(wants, place)
        self.undo(tasks)
        return len(tasks)

    def _take_as_many(self, wants: tuple[Want, ...], place: Place | None = None) -> list[TaskStart]:
        """Takes task after task and stops at the first shape that has no room left."""
        place = place or self.fleet.place
        tasks: list[TaskStart] = []
        for want in wants:
            for _ in range(want.tasks):
                placement = place(want.request)
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
