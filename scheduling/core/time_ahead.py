"""When and where a job can start at the earliest, from what runs and until when it may run.

A pool is taken to later moments by taking out of it what has ended by then; whatever that moment is, the job is placed
by the same ``Room`` and judged by the same quota as it would be now. Jobs without a time limit never end: where only
these stand in the way no moment is known, and the place is the one where least has to go.

Moments are times by which something has ended *at the latest*. What is being stopped counts as gone soonest, and so
does what should have ended already.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from scheduling.core.cycle import Candidate, Cycle, PoolCycle
from scheduling.core.future import Future
from scheduling.core.model import Placement, RunningJob, RunningTask, TaskStart
from scheduling.core.room import Room

LIMITS = frozenset({"over_limit", "over_memory_limit"})
MOST_NODES = 256  # that are looked at for where least has to go; the best come first


@dataclass(frozen=True, slots=True)
class Tenure:
    """A slice of the pool that is held, by whom, and when it is free again at the latest (None: nobody knows)."""

    ends_at: int | None
    leaf: int
    user_id: int
    placement: Placement
    holder: int  # under which the fleet knows it
    charge: int


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


def ends_by(job: RunningJob, task: RunningTask) -> int | None:
    """When the task is gone at the latest; None: nobody knows."""
    return job.ends_at if task.ends_at is None else task.ends_at


def would_end(candidate: Candidate, at: PoolCycle, start: int) -> int | None:
    """When tasks of the job that start there at ``start`` are gone at the latest; None: nobody knows."""
    limit = candidate.job.time_limit
    return None if limit is None else start + limit + at.pool.overtime


class TimeAhead:
    """One pool at later moments, as a cycle has it now. Every question leaves the fleet and the books as they are."""

    def __init__(self, cycle: Cycle, at: PoolCycle, future: Future):
        self._cycle = cycle
        self._at = at
        self._future = future
        self._running: list[Tenure] | None = None

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
        tenures = self._tenures(soonest)
        ending = [each for each in tenures if each.ends_at is not None]
        endless = [each for each in tenures if each.ends_at is None]
        going = _Going(self._at, ending)
        try:
            found = self._first_moment(candidate, going, soonest)
            if found is not None:
                return found if self._entitled(candidate, found.charge) else None
            going.to(len(ending))
            return self._where_least_must_go(candidate, going, endless)
        finally:
            going.to(0)

    def _soonest(self) -> int:
        """When what is being stopped is gone, by what is known of it."""
        now = self._cycle.snapshot.now
        return max([now, *(ends_by(job, task) or now for job, task in self._future.leaving)])

    def _tenures(self, soonest: int) -> list[Tenure]:
        """What is held once that is gone, by whom: jobs that run, jobs that this cycle started, and claims. What ends
        first comes first."""
        if self._running is None:
            self._running = sorted(self._of_running(soonest), key=_order)
        more: list[Tenure] = []
        for candidate in self._cycle.started:
            if candidate.pool is self._at:
                more += self._of_start(candidate, candidate.tasks, self._cycle.snapshot.now)
        for claim in self._future.claims:
            more += self._of_start(claim.candidate, claim.tasks, soonest)
        return sorted([*self._running, *more], key=_order) if more else self._running

    def _of_running(self, soonest: int) -> Iterator[Tenure]:
        at = self._at
        for job in self._future.running:
            leaf = at.tree.leaf(job.team_id)
            for task in job.tasks:
                if not task.releasing:
                    ends = ends_by(job, task)
                    yield self._tenure(None if ends is None else max(ends, soonest), leaf, job.user_id, task.placement,
                                       task.holder, task.group)  # fmt: skip

    def _stopping(self) -> Iterator[Tenure]:
        for job, task in self._future.leaving:
            leaf = self._at.tree.leaf(job.team_id)
            yield self._tenure(None, leaf, job.user_id, task.placement, task.holder, task.group)

    def _of_start(self, candidate: Candidate, tasks: Sequence[TaskStart], start: int) -> Iterator[Tenure]:
        ends = would_end(candidate, self._at, start)
        for task in tasks:
            holder = candidate.ask.groups[task.group].request.team_id
            yield self._tenure(ends, candidate.leaf, candidate.job.user_id, task.placement, holder, task.group)

    def _tenure(
        self, ends: int | None, leaf: int, user_id: int, placement: Placement, holder: int, group: int
    ) -> Tenure:
        charge = self._at.charge_of_tasks((TaskStart(group, placement),))
        return Tenure(ends, leaf, user_id, placement, holder, charge)

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

    def _first_moment(self, candidate: Candidate, going: _Going, soonest: int) -> Found | None:
        """Doubles the step until it fits, then halves: what has ended makes room, it never takes any."""
        counts = going.counts
        first = self._too_early(candidate, going)
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
        if high > first and found.binding is None:
            found = replace(found, binding=self._binding_before(candidate, going, high - 1))
        going.to(counts[high])
        return found

    def _binding_before(self, candidate: Candidate, going: _Going, moment: int) -> int | None:
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

    def _too_early(self, candidate: Candidate, going: _Going) -> int | None:
        """The first moment at which as much is free as the candidate's least counts; None where that is never so."""
        if self._at.pool.fleet.exclusive:
            return 0  # a slice that ends frees its whole device, more than it counts
        missing = self._at.charge_of_least(candidate.ask) - self._at.free()
        count = bisect_left(going.freed, missing)
        if count == len(going.freed):
            return None
        return bisect_left(going.counts, count)

    def _try(self, candidate: Candidate, going: _Going, moment: int, soonest: int) -> Found | None:
        count = going.counts[moment]
        going.to(count)
        fits = self._may_and_fits(candidate)
        if fits is None:
            return None
        at = going.tenures[count - 1].ends_at if count else soonest
        return Found(at, *fits, (*self._stopping(), *going.tenures[:count]))

    # ---- without one -------------------------------------------------------------------------------------------------

    def _where_least_must_go(self, candidate: Candidate, going: _Going, endless: Sequence[Tenure]) -> Found | None:
        """The place where least of what has no end has to go; all that has one is gone.

        Where there is room and a limit is used up by jobs without end, some of these have to go.
        """
        nodes = self._best_nodes(candidate, endless)
        held: dict[int, list[Tenure]] = {node: [] for node in nodes}
        for each in endless:
            if each.placement.node in held:
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
            return Found(None, *fits, (*self._stopping(), *going.tenures, *gone), binding)
        finally:
            for tenure in reversed(gone):
                self._bring_back(tenure)

    def _make_way_under(
        self, position: int, candidate: Candidate, charge: int, endless: Sequence[Tenure], gone: list[Tenure]
    ) -> None:
        """The least of what is held under that position's limit is gone until the candidate may have ``charge``."""
        out = {id(each) for each in gone}
        under = [each for each in endless if position in self._at.tree.path(each.leaf) and id(each) not in out]
        for tenure in sorted(under, key=lambda each: (each.charge, _order(each))):
            if self._position_of_limit(candidate, charge) is None:
                return
            self._remove(tenure)
            gone.append(tenure)

    def _best_nodes(self, candidate: Candidate, endless: Sequence[Tenure]) -> list[int]:
        """The nodes that could host the candidate's hardest task, those first where least is missing to it."""
        fleet, want = self._at.pool.fleet, candidate.ask.least[0]
        needed = self._at.charge((want._replace(tasks=1),))
        free = fleet.free_by_node(cpu=self._at.pool.unit == "cpu" or not want.request.devices)
        if not want.request.devices:
            needed = want.request.cpu_milli
        busy: Counter[int] = Counter()
        for each in endless:
            busy[each.placement.node] += each.charge
        nodes = {node for each in candidate.ask.least for node in fleet.possible_nodes(each.request)}
        best = sorted(nodes, key=lambda node: (max(0, needed - int(free[node])), busy[node], node))
        return best[:MOST_NODES]

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


class _Going:
    """What ends, in the order in which it does, and how many of it are taken out now.

    ``counts``: how many are gone at each moment at which anything ends, before the first of them none; ``freed``: what
    the first so many hold together.
    """

    def __init__(self, at: PoolCycle, tenures: Sequence[Tenure]):
        self.tenures = tenures
        self.counts = [0]
        for count, each in enumerate(tenures, 1):
            if count == len(tenures) or tenures[count].ends_at != each.ends_at:
                self.counts.append(count)
        self.freed = [0, *accumulate(each.charge for each in tenures)]
        self._at = at
        self._gone = 0

    def to(self, count: int) -> None:
        """The first ``count`` are gone, the others are there."""
        fleet, account = self._at.pool.fleet, self._at.account
        while self._gone < count:
            each = self.tenures[self._gone]
            fleet.give_back(each.placement)
            account.give_up(each.leaf, each.user_id, each.charge)
            self._gone += 1
        while self._gone > count:
            self._gone -= 1
            each = self.tenures[self._gone]
            fleet.take(each.placement, each.holder)
            account.take(each.leaf, each.user_id, each.charge)


def _order(tenure: Tenure) -> tuple[object, ...]:
    placement = tenure.placement
    where = (placement.node, placement.device_ids, placement.compute_milli, placement.memory_mib)
    return (tenure.ends_at or 0, *where, placement.cpu_milli, placement.host_memory_mib, tenure.leaf, tenure.user_id)
