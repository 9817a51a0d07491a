"""Estimated starts: the same decision made again and again, at each later moment at which something ends.

What an estimate claims: with the jobs, teams, quotas and nodes that there are now, and with jobs that end exactly when
their time limits end them, the job starts at that moment. So the holder of a reservation starts no later than that
whatever it is that ends early; any other job starts no later unless what ends early lets others go before it, or
somebody with a better claim arrives. There is no estimate rather than a wrong one: none for what is held, or waits for
a pool that is out of reach, or for jobs without a time limit to end, or for something that should have ended already;
and none beyond the bounds of the policy, which count and do not look at a clock, so the same picture gives the same
estimates: ``max_moments`` later moments, ``max_forecast_starts`` starts, ``max_looks`` looks at a waiting job.

Nobody gives way in a forecast. Whoever waits until others have stopped starts when their grace has ended.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from scheduling.core.decide import NextStarts, next_starts
from scheduling.core.fleet import Fleet
from scheduling.core.model import (
    PendingJob,
    Placement,
    Policy,
    PoolState,
    RunningJob,
    RunningTask,
    Snapshot,
    Start,
    TaskStart,
)
from scheduling.core.time_ahead import ends_by


def forecast(snapshot: Snapshot, policy: Policy | None = None) -> Mapping[int, int]:
    """Job id → when it starts, in microseconds, for every waiting job of which that can be told. The fleets are left as
    they were found."""
    policy = policy or Policy()
    later = _Later(snapshot)
    estimates: dict[int, int] = {}
    if not later.knows_of_an_end:
        return estimates
    try:
        looks = 0
        moment: int | None = snapshot.now
        for _ in range(policy.max_moments + 1):
            if moment is None or not later.anybody_waits:
                break
            looks += len(later.pending)
            if looks > policy.max_looks and moment != snapshot.now:
                break
            later.go_to(moment)
            for start in later.decide(policy).starts:
                if later.start(start):
                    estimates[start.job_id] = moment
            if len(estimates) >= policy.max_forecast_starts:
                break
            moment = later.next_end()
    finally:
        later.give_back()
    return estimates


@dataclass(slots=True)
class _Books:
    """What a pool's teams hold at the moment of the forecast."""

    pool: PoolState
    usage: Counter[tuple[int, int]]
    running_of_class: Counter[tuple[int, str]]
    class_milli: Counter[tuple[int, str]]
    memory: Counter[int]  # by team, MiB

    def state(self) -> PoolState:
        return replace(
            self.pool,
            usage=dict(+self.usage),
            class_usage=dict(+self.running_of_class),
            class_milli=dict(+self.class_milli),
            memory_usage=dict(+self.memory),
        )

    def book(
        self, job: RunningJob | PendingJob, class_of: tuple[int, str] | None, placement: Placement, sign: int
    ) -> None:
        """A task of the job holds the placement from now on (sign 1), or holds it no more (-1)."""
        self.usage[job.team_id, job.user_id] += sign * self.charge(placement)
        self.memory[job.team_id] += sign * placement.memory_counted
        if class_of is not None and self.pool.unit == "gpu":
            self.class_milli[class_of] += sign * placement.milli

    def charge(self, placement: Placement) -> int:
        return placement.milli if self.pool.unit == "gpu" else placement.cpu_milli


def _books(pool: PoolState) -> _Books:
    memory = Counter(pool.memory_usage)
    return _Books(pool, Counter(pool.usage), Counter(pool.class_usage), Counter(pool.class_milli), memory)


@dataclass(slots=True)
class _Change:
    """Something that was taken (+1) or given back (-1) in a fleet."""

    fleet: Fleet
    placement: Placement
    holder: int
    sign: int

    def undo(self) -> None:
        if self.sign > 0:
            self.fleet.give_back(self.placement)
        else:
            self.fleet.take(self.placement, self.holder)


@dataclass(slots=True)
class _Later:
    """The world at a later and later moment."""

    snapshot: Snapshot
    pending: dict[int, PendingJob] = field(init=False)
    _running: dict[int, RunningJob] = field(init=False)
    _books: dict[int, _Books] = field(init=False)
    _ends: list[tuple[int, int, int]] = field(init=False)  # when, job, allocation: a heap
    _classes: dict[int, tuple[int, str]] = field(init=False)  # of jobs that the forecast started
    _changes: list[_Change] = field(init=False)
    _now: int = field(init=False)
    _next_id: int = field(init=False)

    def __post_init__(self) -> None:
        snapshot = self.snapshot
        self._now = snapshot.now
        self.pending = {job.id: job for job in snapshot.pending if job.held is None}
        self._running = {job.id: job for job in snapshot.running}
        self._books = {pool.id: _books(pool) for pool in snapshot.pools}
        self._ends, self._classes, self._changes = [], {}, []
        tasks = [(job, task) for job in snapshot.running for task in job.tasks]
        self._next_id = max((task.allocation_id for _, task in tasks), default=0) + 1
        for job, task in tasks:
            self._note_end(job, task)

    @property
    def knows_of_an_end(self) -> bool:
        return bool(self._ends)

    @property
    def anybody_waits(self) -> bool:
        return any(not job.growing for job in self.pending.values())

    def next_end(self) -> int | None:
        return self._ends[0][0] if self._ends else None

    def decide(self, policy: Policy) -> NextStarts:
        """What starts at this moment, as a cycle would have it; who has a reservation is noted."""
        found = next_starts(
            Snapshot(
                now=self._now,
                teams=self.snapshot.teams,
                pools=tuple(self._books[pool.id].state() for pool in self.snapshot.pools),
                pending=tuple(self.pending[job_id] for job_id in sorted(self.pending)),
                running=tuple(self._running[job_id] for job_id in sorted(self._running)),
            ),
            policy,
        )
        kept = {each.job_id: each for each in found.reservations}
        for job_id, job in list(self.pending.items()):
            if job_id in kept:
                told = kept[job_id]
                self.pending[job_id] = replace(job, room_kept_since=told.since, room_kept_at=told.tasks)
            elif job.room_kept_since is not None:
                self.pending[job_id] = replace(job, room_kept_since=None, room_kept_at=())
        return found

    def go_to(self, moment: int) -> None:
        """What ends by that moment is gone."""
        self._now = moment
        gone: dict[int, set[int]] = {}
        while self._ends and self._ends[0][0] <= moment:
            _, job_id, allocation_id = heapq.heappop(self._ends)
            gone.setdefault(job_id, set()).add(allocation_id)
        for job_id, ids in sorted(gone.items()):
            self._end(self._running[job_id], ids)

    def _end(self, job: RunningJob, ids: Iterable[int]) -> None:
        books = self._books.get(job.pool_id)
        left = tuple(task for task in job.tasks if task.allocation_id not in ids)
        for task in job.tasks:
            if books is not None and task.allocation_id in ids:
                self._change(books.pool.fleet, task.placement, task.holder, -1)
                books.book(job, self._classes.get(job.id), task.placement, -1)
        growing = self.pending.get(job.id)
        if growing is not None and growing.growing and any(not task.releasing for task in job.tasks):
            del self.pending[job.id]  # its time is over
        if left:
            self._running[job.id] = replace(job, tasks=left)
            return
        del self._running[job.id]
        if books is not None and job.id in self._classes:
            books.running_of_class[self._classes[job.id]] -= 1

    def start(self, start: Start) -> bool:
        """The start is carried out; whether the job waited until now."""
        job, books = self.pending.pop(start.job_id), self._books[start.pool_id]
        if not job.growing:
            self._classes[job.id] = (job.team_id, job.priority_class)
        tasks = [self._task(job, books, each) for each in start.tasks]
        placed = [group.placed for group in job.groups]
        for task in tasks:
            placed[task.group] += 1
        running = self._running.get(job.id) if job.growing else None
        if running is None:
            running = self._begun(job, start)
            books.running_of_class[job.team_id, job.priority_class] += 1
        running = self._running[job.id] = replace(running, tasks=(*running.tasks, *tasks))
        for task in tasks:
            self._note_end(running, task)
        if any(count < group.count for count, group in zip(placed, job.groups, strict=True)):
            groups = tuple(replace(group, placed=count) for group, count in zip(job.groups, placed, strict=True))
            self.pending[job.id] = replace(
                job,
                groups=groups,
                growing=True,
                pool_ids=(start.pool_id,),
                room_made_at=None,
                room_kept_since=None,
                room_kept_at=(),
            )
        return not job.growing

    def _begun(self, job: PendingJob, start: Start) -> RunningJob:
        return RunningJob(
            id=job.id,
            team_id=job.team_id,
            user_id=job.user_id,
            pool_id=start.pool_id,
            priority=job.priority,
            preemptible=job.preemptible,
            started_at=self._now,
            tasks=(),
            least=tuple(group.min_count for group in job.groups),
        )

    def _task(self, job: PendingJob, books: _Books, start: TaskStart) -> RunningTask:
        holder = job.groups[start.group].request.team_id
        self._change(books.pool.fleet, start.placement, holder, 1)
        books.book(job, self._classes.get(job.id), start.placement, 1)
        ends_at = None if job.time_limit is None else self._now + job.time_limit + books.pool.overtime
        self._next_id += 1
        return RunningTask(self._next_id, start.group, start.placement, holder=holder, ends_at=ends_at)

    def _note_end(self, job: RunningJob, task: RunningTask) -> None:
        ends = ends_by(job, task)
        # What should have ended before now is late, and nobody knows by how much.
        if ends is not None and ends >= self._now:
            heapq.heappush(self._ends, (ends, job.id, task.allocation_id))

    def _change(self, fleet: Fleet, placement: Placement, holder: int, sign: int) -> None:
        change = _Change(fleet, placement, holder, sign)
        if sign > 0:
            fleet.take(placement, holder)
        else:
            fleet.give_back(placement)
        self._changes.append(change)

    def give_back(self) -> None:
        """Every fleet is as it was found."""
        while self._changes:
            self._changes.pop().undo()
