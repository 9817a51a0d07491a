"""What is held in a pool, by whom and until when, in the order in which it ends; and the pool with some of it gone.

A large pool holds tens of thousands of slices, and a cycle asks of most of them only what they come to together: so
they are columns, and a slice is an object once somebody asks for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from scheduling.core.cycle import Candidate, PoolCycle
from scheduling.core.model import Placement, Request, RunningJob, RunningTask
from scheduling.core.units import MILLI_PER_DEVICE

NEVER = 1 << 62  # later than any time in microseconds
ENOUGH = 1 << 40


class Tenure(NamedTuple):
    """A slice of the pool that is held, by whom, and when it is free again at the latest (None: nobody knows)."""

    ends_at: int | None
    leaf: int
    user_id: int
    placement: Placement
    holder: int  # under which the fleet knows it
    charge: int


def ends_by(job: RunningJob, task: RunningTask) -> int | None:
    """When the task is gone at the latest; None: nobody knows."""
    return job.ends_at if task.ends_at is None else task.ends_at


def would_end(candidate: Candidate, at: PoolCycle, start: int) -> int | None:
    """When tasks of the job that start there at ``start`` are gone at the latest; None: nobody knows."""
    limit = candidate.job.time_limit
    return None if limit is None else start + limit + at.pool.overtime


def by_holder(tenures: Iterable[Tenure]) -> Counter[tuple[int, int]]:
    """What leaf and user hold of it."""
    held: Counter[tuple[int, int]] = Counter()
    for each in tenures:
        held[each.leaf, each.user_id] += each.charge
    return held


@dataclass(slots=True)
class Columns:
    """Slices as they are gathered."""

    ends: list[int] = field(default_factory=list)  # NEVER where nobody knows
    leaves: list[int] = field(default_factory=list)
    users: list[int] = field(default_factory=list)
    placements: list[Placement] = field(default_factory=list)
    holders: list[int] = field(default_factory=list)

    def add(self, ends_at: int | None, leaf: int, user_id: int, placement: Placement, holder: int) -> None:
        self.ends.append(NEVER if ends_at is None else ends_at)
        self.leaves.append(leaf)
        self.users.append(user_id)
        self.placements.append(placement)
        self.holders.append(holder)

    def copy(self) -> Columns:
        return Columns(self.ends[:], self.leaves[:], self.users[:], self.placements[:], self.holders[:])

    def parted(self, *, cores: bool) -> tuple[Tenures, Tenures]:
        """What ends, the first to end first, and what does not; those that end together as they were added.
        ``cores``: it counts by cores against quotas, not by what it holds of devices."""
        ends = np.array(self.ends, dtype=np.int64)
        order = np.argsort(ends, kind="stable")
        ending = int((ends < NEVER).sum())
        return Tenures(self, order[:ending], cores=cores), Tenures(self, order[ending:], cores=cores)


class Tenures:
    """Slices in an order, and what they hold as arrays in the same order.

    ``counts``: how many are gone at each moment at which any of them ends, before the first of them none.
    """

    def __init__(self, columns: Columns, order: np.ndarray, *, cores: bool):
        self._columns = columns
        self._order: list[int] = order.tolist()
        self._made: dict[int, Tenure] = {}
        self._counts_cores = cores
        places = [columns.placements[i] for i in self._order]
        self.nodes = np.array([each.node for each in places], dtype=np.int64)
        self.devices = np.array([len(each.device_ids) for each in places], dtype=np.int64)
        self.milli = np.array([each.compute_milli for each in places], dtype=np.int64) * self.devices
        self.cores = np.array([each.cpu_milli for each in places], dtype=np.int64)
        ends = np.array([columns.ends[i] for i in self._order], dtype=np.int64)
        last = np.flatnonzero(np.append(ends[1:] != ends[:-1], True)) + 1
        self.counts = [0, *last.tolist()] if self._order else [0]

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, place: int) -> Tenure:
        known = self._made.get(place)
        if known is None:
            known = self._made[place] = self._make(place)
        return known

    def first(self, count: int) -> Iterator[Tenure]:
        """The first so many of them."""
        return (self[place] for place in range(count))

    def _make(self, place: int) -> Tenure:
        columns, i = self._columns, self._order[place]
        charge = int((self.cores if self._counts_cores else self.milli)[place])
        ends = columns.ends[i]
        return Tenure(
            None if ends == NEVER else ends,
            columns.leaves[i],
            columns.users[i],
            columns.placements[i],
            columns.holders[i],
            charge,
        )


class Going:
    """A pool from which what ends is gone, as much of it as is asked for, in the order in which it ends.

    The books tell of all that is gone, the fleet only where one of the candidate's tasks could have room then: what a
    node has free and what is gone from it come to as much as the task takes. Elsewhere it makes no difference, but to
    what others have reserved: where they have, it is gone everywhere.
    """

    def __init__(self, at: PoolCycle, ending: Tenures, candidate: Candidate):
        self.ending = ending
        self.counts = ending.counts
        self._at = at
        self._wants = candidate.ask.least
        self._measures = [_Measure(at, want.request, ending) for want in self._wants]
        self._everywhere = any(at.account.standing.reserved)
        self._gone = 0
        self._out: dict[int, Tenure] = {}  # taken out of the fleet, by place in the order

    def too_early(self) -> int | None:
        """The first moment that is not too early by sums alone; None where that is never so."""
        low, high = -1, len(self.counts) - 1
        if not self._enough(self.counts[high]):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if self._enough(self.counts[middle]):
                high = middle
            else:
                low = middle
        return high

    def _enough(self, count: int) -> bool:
        """Whether each want by itself could have its tasks, by what the nodes have free once so many are gone."""
        return all(
            int((measure.free_after(count) // measure.each).sum()) >= want.tasks
            for want, measure in zip(self._wants, self._measures, strict=True)
        )

    def to(self, count: int, *, everywhere: bool = False) -> None:
        """The first ``count`` are gone, the others are there; ``everywhere``: in the whole fleet too."""
        account, fleet = self._at.account, self._at.pool.fleet
        first, last, sign = (self._gone, count, -1) if count > self._gone else (count, self._gone, 1)
        for (leaf, user_id), charge in by_holder(self.ending[place] for place in range(first, last)).items():
            account.take(leaf, user_id, sign * charge)
        self._gone = count
        wanted = range(count) if everywhere or self._everywhere else self._where_it_matters(count)
        stay = set(wanted)
        for place in [place for place in self._out if place not in stay]:
            tenure = self._out.pop(place)
            fleet.take(tenure.placement, tenure.holder)
        for place in wanted:
            if place not in self._out:
                self._out[place] = self.ending[place]
                fleet.give_back(self.ending[place].placement)

    def _where_it_matters(self, count: int) -> list[int]:
        if not count:
            return []
        able = np.zeros(len(self._measures[0].free), dtype=np.bool_)
        for measure in self._measures:
            able |= measure.free_after(count) >= measure.each
        return np.flatnonzero(able[self.ending.nodes[:count]]).tolist()


class _Measure:
    """What one task of a request takes of a node, ``each``, at the least; what nodes have ``free`` of it, and what each
    tenure gives back: compute of devices (in a pool of whole devices these), or cores where it asks for no device."""

    def __init__(self, at: PoolCycle, request: Request, ending: Tenures):
        fleet = at.pool.fleet
        cores = not request.devices
        self.free = fleet.free_by_node(cpu=cores)
        self._nodes = ending.nodes
        if cores:
            self.each, self._amounts = request.cpu_milli, ending.cores
        elif fleet.exclusive:
            self.each, self._amounts = request.devices * MILLI_PER_DEVICE, ending.devices * MILLI_PER_DEVICE
        else:
            self.each, self._amounts = fleet.least_milli(request), ending.milli
        if self.each == 0:  # whatever a node has free is enough
            self.each, self.free = 1, np.full_like(self.free, ENOUGH)

    def free_after(self, count: int) -> np.ndarray:
        """By node, what is free once the first ``count`` tenures are gone."""
        gone = np.bincount(self._nodes[:count], weights=self._amounts[:count], minlength=len(self.free))
        return self.free + gone.astype(np.int64)
