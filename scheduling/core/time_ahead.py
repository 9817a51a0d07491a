"""When and where a job can start at the earliest, from what runs and until when it may run.

A pool is taken to later moments by taking out of it what has ended by then; whatever that moment is, the job is placed
by the same ``Room`` and judged by the same quota as it would be now. Jobs without a time limit never end: where only
these stand in the way no moment is known, and the place is the one where least has to go.

Moments are times by which something has ended *at the latest*. What is being stopped counts as gone soonest, and so
does what should have ended already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduling.core.cycle import Candidate, Cycle, PoolCycle
from scheduling.core.future import Future
from scheduling.core.model import TaskStart
from scheduling.core.room import Room
from scheduling.core.tenures import Columns, Going, Tenure, Tenures, ends_by, would_end

LIMITS = frozenset({"over_limit", "over_memory_limit"})
MOST_NODES = 256  # that are looked at for where least has to go; the best come first


@dataclass(frozen=True, slots=True)
class Found:
    """The earliest moment (None: not known) and place. ``binding``: the position of the tree whose limit, rather than
    room, is what the job waits for. ``leaving``: what is gone by then or has to go, what is
    being stopped included."""

    at: int | None
    tasks: tuple[TaskStart, ...]
    charge: int
    leaving: tuple[Tenure, ...]
    binding: int | None = None


class TimeAhead:
    """One pool at later moments, as a cycle has it now. Every question leaves the fleet and the books as they are."""

    def __init__(self, cycle: Cycle, at: PoolCycle, future: Future):
        self._cycle = cycle
        self._at = at
        self._future = future
        self._running: Columns | None = None
        self._parted: tuple[tuple[int, int], tuple[Tenures, Tenures]] | None = None

    def earliest(self, candidate: Candidate) -> Found | None:
        """The earliest moment and place at which the candidate's least can start, all but its right to them judged.

        None where that is never, or where its team would then be beyond what it deserves (``cluster_wide`` jobs need
        not stay within it): a job that is not entitled is promised nothing.
        """
        self._future.enter()
        try:
            return self._search(candidate)
        finally:
            self._future.leave()

    def _search(self, candidate: Candidate) -> Found | None:
        soonest = self._soonest()
        if not self._could_be_entitled(candidate):
            return None
        ending, endless = self._tenures(soonest)
        going = Going(self._at, ending, candidate)
        try:
            found = self._first_moment(candidate, going, soonest)
            if found is not None:
                return found if self._entitled(candidate, found.charge) else None
            going.to(len(ending), everywhere=True)
            return self._where_least_must_go(candidate, going, endless)
        finally:
            going.to(0)

    def _soonest(self) -> int:
        """When what is being stopped is gone, by what is known of it."""
        now = self._cycle.snapshot.now
        return max([now, *(ends_by(job, task) or now for job, task in self._future.leaving)])

    def _tenures(self, soonest: int) -> tuple[Tenures, Tenures]:
        """What is held once that is gone, by jobs that run, jobs that this cycle started, and claims: what ends, the
        first to end first, and what does not."""
        if self._running is None:
            self._running = Columns()
            for job in self._future.running:
                leaf = self._at.tree.leaf(job.team_id)
                for task in job.tasks:
                    if not task.releasing:
                        ends = ends_by(job, task)
                        ends = ends if ends is None else max(ends, soonest)
                        self._running.add(ends, leaf, job.user_id, task.placement, task.holder)
        held, started = self._running, [each for each in self._cycle.started if each.pool is self._at]
        so_far = (sum(len(each.tasks) for each in started), len(self._future.claims))
        if self._parted is not None and self._parted[0] == so_far:
            return self._parted[1]
        if started or self._future.claims:
            held = held.copy()
        for candidate in started:
            self._add_tasks(held, candidate, candidate.tasks, self._cycle.snapshot.now)
        for claim in self._future.claims:
            self._add_tasks(held, claim.candidate, claim.tasks, soonest)
        self._parted = so_far, held.parted(cores=self._at.pool.unit == "cpu")
        return self._parted[1]

    def _add_tasks(self, held: Columns, candidate: Candidate, tasks: Sequence[TaskStart], start: int) -> None:
        ends = would_end(candidate, self._at, start)
        for task in tasks:
            holder = candidate.ask.groups[task.group].request.team_id
            held.add(ends, candidate.leaf, candidate.job.user_id, task.placement, holder)

    def _stopping(self) -> Iterator[Tenure]:
        for job, task in self._future.leaving:
            charge = self._at.charge_of_tasks((TaskStart(task.group, task.placement),))
            yield Tenure(None, self._at.tree.leaf(job.team_id), job.user_id, task.placement, task.holder, charge)

    # ---- what is asked of a moment -----------------------------------------------------------------------------------

    def _may_and_fits(self, candidate: Candidate) -> tuple[tuple[TaskStart, ...], int] | None:
        """As ``_fits``; None also where quota refuses it."""
        if self._refused(candidate, self._at.charge_of_least(candidate.ask)):
            return None
        fits = self._fits(candidate)
        return None if fits is None or self._refused(candidate, fits[1]) else fits

    def _fits(self, candidate: Candidate) -> tuple[tuple[TaskStart, ...], int] | None:
        """Where the candidate's least lands with the pool as it is taken to now, and what it counts; takes nothing.

        A gang whose tasks find no place one after the other may still find the one that it was promised.
        """
        room = Room(self._at.pool.fleet)
        tasks: Sequence[TaskStart] | None = room.take(candidate.ask.least)
        promised = candidate.job.room_kept_at
        if tasks is None and promised and as_asked(promised, candidate) and room.take_as(promised, candidate.ask):
            tasks = promised
        room.give_back()
        return None if tasks is None else (tuple(tasks), self._at.charge_of_tasks(tasks))

    def _refused(self, candidate: Candidate, charge: int) -> bool:
        return self._cycle.over_quota(candidate, self._at, charge) is not None

    def _entitled(self, candidate: Candidate, charge: int) -> bool:
        return entitled(self._at, candidate, charge)

    def _could_be_entitled(self, candidate: Candidate) -> bool:
        """Whether its team could be within what it deserves if all that is held were gone."""
        at, charge = self._at, self._at.charge_of_least(candidate.ask)
        if candidate.job.cluster_wide or not charge:
            return True
        deserved = at.account.standing.deserved
        return all(charge <= deserved[position] for position in at.tree.path(candidate.leaf))

    # ---- with a moment -----------------------------------------------------------------------------------------------

    def _first_moment(self, candidate: Candidate, going: Going, soonest: int) -> Found | None:
        """Doubles the step until it fits, then halves: what has ended makes room, it never takes any."""
        counts = going.counts
        first = going.too_early()
        if first is None:
            return None
        low, step, high = first - 1, 1, first
        while (found := self._try(candidate, going, high, soonest)) is None:
            if high == len(counts) - 1:
                return None
            low, high, step = high, min(high + step, len(counts) - 1), step * 2
        while high - low > 1:
            middle = (low + high) // 2
            earlier = self._try(candidate, going, middle, soonest)
            if earlier is None:
                low = middle
            else:
                found, high = earlier, middle
        if high > first:
            found = replace(found, binding=self._binding_before(candidate, going, high - 1))
        going.to(counts[high])
        return found

    def _binding_before(self, candidate: Candidate, going: Going, moment: int) -> int | None:
        """Which limit it is that the candidate still waits for at that moment, where there is room for it already."""
        going.to(going.counts[moment])
        fits = self._fits(candidate)
        return None if fits is None else self._position_of_limit(candidate, fits[1])

    def _position_of_limit(self, candidate: Candidate, charge: int) -> int | None:
        """The position whose limit refuses the candidate; None where none does, or something else than a limit."""
        refusal = self._cycle.over_quota(candidate, self._at, charge)
        if refusal is None or refusal.code not in LIMITS:
            return None
        path = self._at.tree.path(candidate.leaf)
        return next(each for each in reversed(path) if self._at.account.name(each) == refusal.numbers["team"])

    def _try(self, candidate: Candidate, going: Going, moment: int, soonest: int) -> Found | None:
        count = going.counts[moment]
        going.to(count)
        fits = self._may_and_fits(candidate)
        if fits is None:
            return None
        at = going.ending[count - 1].ends_at if count else soonest
        return Found(at, *fits, (*self._stopping(), *going.ending.first(count)))

    # ---- without one -------------------------------------------------------------------------------------------------

    def _where_least_must_go(self, candidate: Candidate, going: Going, endless: Tenures) -> Found | None:
        """The place where least of what has no end has to go; all that has one is gone.

        Where there is room and a limit is used up by jobs without end, some of these have to go.
        """
        nodes = self._best_nodes(candidate, endless)
        held: dict[int, list[Tenure]] = {node: [] for node in nodes}
        for place in np.flatnonzero(np.isin(endless.nodes, nodes)).tolist():
            each = endless[place]
            held[each.placement.node].append(each)
        gone: list[Tenure] = []
        try:
            tried, step = 0, 1
            while self._fits(candidate) is None:
                if tried == len(nodes):
                    return None
                for node in nodes[tried : tried + step]:
                    for tenure in held[node]:
                        self._remove(tenure)
                        gone.append(tenure)
                tried, step = min(tried + step, len(nodes)), step * 2
            self._keep_whom_it_can(candidate, gone)
            fits = self._fits(candidate)
            assert fits is not None, "what fitted before fits again"
            binding = self._position_of_limit(candidate, fits[1])
            if binding is not None:
                self._make_way_under(binding, candidate, fits[1], endless, gone)
            if self._refused(candidate, fits[1]) or not self._entitled(candidate, fits[1]):
                return None
            return Found(None, *fits, (*self._stopping(), *going.ending.first(len(going.ending)), *gone), binding)
        finally:
            for tenure in reversed(gone):
                self._bring_back(tenure)

    def _make_way_under(
        self, position: int, candidate: Candidate, charge: int, endless: Tenures, gone: list[Tenure]
    ) -> None:
        """The least of what is held under that position's limit is gone until the candidate may have ``charge``."""
        out = {id(each.placement) for each in gone}
        all_of_it = endless.first(len(endless))
        under = [
            each for each in all_of_it if position in self._at.tree.path(each.leaf) if id(each.placement) not in out
        ]
        for tenure in sorted(under, key=lambda each: (each.charge, _order(each))):
            if self._position_of_limit(candidate, charge) is None:
                return
            self._remove(tenure)
            gone.append(tenure)

    def _best_nodes(self, candidate: Candidate, endless: Tenures) -> list[int]:
        """The nodes that could host a task of the candidate, those first where least is missing to its hardest."""
        fleet, request = self._at.pool.fleet, candidate.ask.least[0].request
        cores = not request.devices
        needed = request.cpu_milli if cores else fleet.least_milli(request)
        missing = np.maximum(0, needed - fleet.free_by_node(cpu=cores))
        amounts = endless.cores if cores else endless.milli
        busy = np.bincount(endless.nodes, weights=amounts, minlength=len(missing))
        nodes = np.array(sorted({n for each in candidate.ask.least for n in fleet.possible_nodes(each.request)}))
        best = np.lexsort((nodes, busy[nodes], missing[nodes])) if len(nodes) else nodes
        return nodes[best][:MOST_NODES].tolist()

    def _keep_whom_it_can(self, candidate: Candidate, gone: list[Tenure]) -> None:
        """Everyone who turns out not to be in the way is there again; ``gone`` are those who are."""
        for node in list(dict.fromkeys(tenure.placement.node for tenure in reversed(gone))):
            own = [tenure for tenure in gone if tenure.placement.node == node]
            if not self._back_all(candidate, own, gone):
                for tenure in sorted(own, key=lambda each: (-each.charge, _order(each))):
                    self._back_all(candidate, [tenure], gone)

    def _back_all(self, candidate: Candidate, some: list[Tenure], gone: list[Tenure]) -> bool:
        for tenure in some:
            self._bring_back(tenure)
        if self._fits(candidate) is None:
            for tenure in reversed(some):
                self._remove(tenure)
            return False
        names = {id(tenure) for tenure in some}
        gone[:] = [tenure for tenure in gone if id(tenure) not in names]
        return True

    def _remove(self, tenure: Tenure) -> None:
        self._at.pool.fleet.give_back(tenure.placement)
        self._at.account.give_up(tenure.leaf, tenure.user_id, tenure.charge)

    def _bring_back(self, tenure: Tenure) -> None:
        self._at.pool.fleet.take(tenure.placement, tenure.holder)
        self._at.account.take(tenure.leaf, tenure.user_id, tenure.charge)


def as_asked(tasks: Sequence[TaskStart], candidate: Candidate) -> bool:
    """Whether these are the tasks that the candidate needs to start, group by group."""
    asked = Counter({want.group: want.tasks for want in candidate.ask.least})
    return Counter(task.group for task in tasks) == asked


def entitled(at: PoolCycle, candidate: Candidate, charge: int) -> bool:
    """Whether the job's team, and all above it, stay within what they deserve with ``charge`` more."""
    if candidate.job.cluster_wide or not charge:
        return True
    allocated, deserved = at.account.allocated, at.account.standing.deserved
    return all(allocated[position] + charge <= deserved[position] for position in at.tree.path(candidate.leaf))


def _order(tenure: Tenure) -> tuple[object, ...]:
    placement = tenure.placement
    where = (placement.node, placement.device_ids, placement.compute_milli, placement.memory_mib)
    return (*where, placement.cpu_milli, placement.host_memory_mib, tenure.leaf, tenure.user_id)
