"""Whose turn it is: the walk down the tree of teams, and the order of jobs inside a team.

Among children with work the walk takes those below their guarantee before the others, then the lowest allocated ÷
deserved, then the one whose oldest pending job waits longest, then the older team. Ratios are compared as whole
numbers, never as floats; a team that deserves nothing comes after all that deserve something.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from scheduling.core.model import PendingJob
from scheduling.core.shares import Standing
from scheduling.core.tree import ROOT

NEVER = 1 << 63  # later than any time in microseconds: nobody waits

JobKey = tuple[int, int, int, int]


def job_key(job: PendingJob, *, growing: bool) -> JobKey:
    """In a team: the highest priority; then jobs that wait, before running services that have fewer replicas than
    their least, before others that run and want more; then the earliest."""
    return (-job.priority, growing and (1 if job.degraded else 2), job.submitted_at, job.id)


class Walk:
    """Finds the leaf whose turn it is, again and again, in one pool.

    ``allocated`` is the caller's list, by position; after it changes on the path of a leaf, ``settle`` that leaf.
    ``oldest`` tells of a leaf since when its longest waiting job waits, NEVER where none does. What it tells may change
    only for a leaf that is settled next. Each call costs time in the depth of the tree and the children on the path.
    """

    def __init__(self, standing: Standing, allocated: list[int], leaves: Iterable[int], oldest: Callable[[int], int]):
        self._standing = standing
        self._tree = standing.tree
        self._allocated = allocated
        self._oldest_at_leaf = oldest
        # allocated/deserved of two teams differ by at least 1/widest²: scaled by more, their whole parts differ too.
        self._scale = max(standing.deserved, default=0) ** 2 + 1
        self._working: dict[int, set[int]] = {}  # position or ROOT → its children that have work
        self._oldest: dict[int, int] = {}
        self._turns: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        self._turn_of: dict[int, tuple[int, ...]] = {}
        for leaf in leaves:
            self._open(leaf)
        for position in sorted(self._oldest, reverse=True):
            self._queue(position)

    def next_leaf(self) -> int | None:
        """The leaf whose turn it is, or None when no leaf has work. It stays the same until settled or dropped."""
        position = ROOT
        while position == ROOT or position in self._working:
            turns = self._turns.get(position, [])
            while turns and self._turn_of.get(turns[0][1]) != turns[0][0]:
                heapq.heappop(turns)
            if not turns:
                return None
            position = turns[0][1]
        return position

    def settle(self, leaf: int) -> None:
        """Takes note that a job of ``leaf`` has been given something."""
        for position in self._tree.path(leaf):
            self._queue(position)

    def drop(self, leaf: int) -> None:
        """Takes ``leaf`` out: it has no work that could still be done."""
        for position in self._tree.path(leaf):
            self._turn_of.pop(position, None)
            siblings = self._working[self._tree.parents[position]]
            siblings.discard(position)
            if siblings:
                return

    def _open(self, leaf: int) -> None:
        for position in self._tree.path(leaf):
            self._oldest[position] = NEVER
            self._working.setdefault(self._tree.parents[position], set()).add(position)

    def _queue(self, position: int) -> None:
        parent = self._tree.parents[position]
        if position not in self._working.get(parent, ()):
            return
        self._oldest[position] = self._oldest_below(position)
        turn = self._turn(position)
        if self._turn_of.get(position) != turn:
            self._turn_of[position] = turn
            heapq.heappush(self._turns.setdefault(parent, []), (turn, position))

    def _oldest_below(self, position: int) -> int:
        children = self._tree.children[position]
        if not children:
            return self._oldest_at_leaf(position)
        return min((self._oldest[child] for child in children if child in self._oldest), default=NEVER)

    def _turn(self, position: int) -> tuple[int, ...]:
        allocated, deserved = self._allocated[position], self._standing.deserved[position]
        return (
            allocated >= self._standing.guaranteed[position],
            deserved == 0,
            allocated * self._scale // deserved if deserved else 0,
            self._oldest[position],
            self._tree.ages[position],
            position,
        )
