"""Who could be told to give way to a waiting job in one pool, and in which order.

A *unit* is what gives way together: one task that an elastic job can do without, or all that is left of a job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from scheduling.core.cycle import PoolCycle
from scheduling.core.model import RunningJob, RunningTask, TaskStart
from scheduling.core.tree import Tree

Rule = Literal["reclaim", "preempt"]


@dataclass(eq=False, slots=True)
class Unit:
    """Tasks of one job that give way together; ``charge`` is what they count, in the pool's unit."""

    job: RunningJob
    leaf: int
    tasks: tuple[RunningTask, ...]
    charge: int
    whole: bool

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Inside a team: the lowest priority first, then the latest started, then the latest bound."""
        return (self.job.priority, -self.job.started_at, -self.job.id, -self.tasks[-1].allocation_id)


class Victims:
    """The units of one pool by leaf of the tree, as the cycle found them."""

    def __init__(self, at: PoolCycle, running: Iterable[RunningJob], now: int):
        self._at = at
        self._gone: set[int] = set()  # ids of allocations that give way already
        self._by_node: dict[tuple[int, bool], dict[int, list[Unit]]] = {}
        self._held_on: dict[int, tuple[int, int]] | None = None
        self._between: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
        self.shrinking: dict[int, list[Unit]] = {}
        self.stopping: dict[int, list[Unit]] = {}
        self.spared: dict[int, list[tuple[int, int]]] = defaultdict(list)  # leaf → (priority, charge) of spared jobs
        for job in running:
            if job.preemptible and job.spared:
                self._note_spared(job)
            elif job.preemptible and job.protected_until <= now:
                self._enter(job)
        for units in (*self.shrinking.values(), *self.stopping.values()):
            units.sort(key=lambda unit: unit.order)
        self.leaves = sorted({*self.shrinking, *self.stopping})
        self.smallest = {
            leaf: min(unit.charge for units in (self.shrinking, self.stopping) for unit in units.get(leaf, ()))
            for leaf in self.leaves
        }

    def _note_spared(self, job: RunningJob) -> None:
        charge = self._at.charge_of_tasks(TaskStart(t.group, t.placement) for t in job.tasks if not t.releasing)
        if charge:
            self.spared[self._at.tree.leaf(job.team_id)].append((job.priority, charge))

    def _enter(self, job: RunningJob) -> None:
        live = [task for task in job.tasks if not task.releasing]
        if not live:
            return
        leaf = self._at.tree.leaf(job.team_id)
        spare = _spare(job, live)
        for task in spare:
            self._add(self.shrinking, job, leaf, (task,), whole=False)
        # The rest goes together; what is spare was taken before it whenever it is taken.
        self._add(self.stopping, job, leaf, tuple(task for task in live if task not in spare), whole=True)

    def _add(
        self,
        units: dict[int, list[Unit]],
        job: RunningJob,
        leaf: int,
        tasks: tuple[RunningTask, ...],
        *,
        whole: bool,
    ) -> None:
        charge = self._at.charge_of_tasks(TaskStart(task.group, task.placement) for task in tasks)
        if charge:  # what counts nothing against quotas is nobody's too much
            units.setdefault(leaf, []).append(Unit(job, leaf, tasks, charge, whole))

    def apart(self, leaf: int, other: int) -> tuple[int, tuple[int, ...]]:
        """How two leaves hang together: how many positions of ``leaf``'s path lie below the common one, and which of
        ``other``'s do."""
        known = self._between.get((leaf, other))
        if known is None:
            known = self._between[leaf, other] = _apart(self._at.tree, leaf, other)
        return known

    def whole_of(self, unit: Unit, taken: Iterable[Unit]) -> Unit:
        """The unit with all that lives of its job, less what is taken of it already."""
        if not unit.whole or len(unit.tasks) == len(unit.job.tasks):  # nothing of such a job goes by itself
            return unit
        gone = {task.allocation_id for other in taken if other.job is unit.job for task in other.tasks} | self._gone
        tasks = tuple(task for task in unit.job.tasks if not task.releasing and task.allocation_id not in gone)
        if tasks == unit.tasks:
            return unit
        charge = self._at.charge_of_tasks(TaskStart(task.group, task.placement) for task in tasks)
        return Unit(unit.job, unit.leaf, tasks, charge, whole=True)

    def on_node(self, node: int, *, whole: bool) -> dict[int, list[Unit]]:
        """Leaf → its units of one kind that hold something of this node, the best victim first."""
        if not self._by_node:
            self._index()
        there = self._by_node.get((node, whole), {})
        return {leaf: [unit for unit in units if not self._is_gone(unit)] for leaf, units in there.items()}

    def on_nodes(self, nodes: Collection[int], *, whole: bool) -> dict[int, list[Unit]]:
        """As ``on_node``, for several together; no unit twice."""
        found: dict[int, dict[int, Unit]] = {}
        for node in sorted(nodes):
            for leaf, units in self.on_node(node, whole=whole).items():
                found.setdefault(leaf, {}).update((id(unit), unit) for unit in units)
        return {leaf: sorted(units.values(), key=lambda unit: unit.order) for leaf, units in found.items()}

    def at_most_on(self, nodes: Collection[int]) -> tuple[int, int]:
        """No more than this could be freed on these nodes by all victims together: milli of devices, milli-cores."""
        if self._held_on is None:
            self._held_on = {}
            for units in (*self.shrinking.values(), *self.stopping.values()):
                for task in (task for unit in units for task in unit.tasks):
                    milli, cpu = self._held_on.get(task.placement.node, (0, 0))
                    at = task.placement
                    self._held_on[at.node] = (milli + at.milli, cpu + at.cpu_milli)
        there = [self._held_on.get(node, (0, 0)) for node in nodes]
        return sum(milli for milli, _ in there), sum(cpu for _, cpu in there)

    def _index(self) -> None:
        for whole, by_leaf in ((False, self.shrinking), (True, self.stopping)):
            for leaf, units in sorted(by_leaf.items()):
                for unit in units:
                    for node in {task.placement.node for task in unit.tasks}:
                        self._by_node.setdefault((node, whole), {}).setdefault(leaf, []).append(unit)

    def _is_gone(self, unit: Unit) -> bool:
        return all(task.allocation_id in self._gone for task in unit.tasks)

    def of_kind(self, *, whole: bool) -> dict[int, list[Unit]]:
        """Leaf → its units of one kind, the best victim first."""
        return self.stopping if whole else self.shrinking

    def drop(self, units: Collection[Unit]) -> None:
        """These give way already."""
        self._gone.update(task.allocation_id for unit in units for task in unit.tasks)
        jobs = {unit.job.id for unit in units if unit.whole}
        gone = {id(unit) for unit in units}
        for by_leaf in (self.shrinking, self.stopping):
            for leaf in {unit.leaf for unit in units}:
                if leaf in by_leaf:
                    by_leaf[leaf] = [u for u in by_leaf[leaf] if id(u) not in gone and u.job.id not in jobs]


def _spare(job: RunningJob, live: list[RunningTask]) -> list[RunningTask]:
    """The tasks beyond the least of each group, the latest bound first; never all of the job."""
    spare: list[RunningTask] = []
    for group, least in enumerate(job.least):
        own = [task for task in live if task.group == group]
        spare += own[least:]
    spare.sort(key=lambda task: -task.allocation_id)
    return spare[:-1] if len(spare) == len(live) else spare


def _apart(tree: Tree, leaf: int, other: int) -> tuple[int, tuple[int, ...]]:
    own, theirs = tree.path(leaf), tree.path(other)
    return sum(position not in theirs for position in own), tuple(p for p in theirs if p not in own)
