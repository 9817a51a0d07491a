"""Plays a list of jobs against a policy of sharing, on a virtual clock, over the core alone; see ``fair_policies``.

Time goes from event to event; events within one ``step`` are taken together. A job that gives way begins anew.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scheduling.core.fleet import Fleet
from scheduling.core.model import Eviction, PendingJob, Quota, RunningJob, RunningTask, Start, Team
from scheduling.core.shares import deserved_shares
from scheduling.workload.fair_policies import FairPolicy, World, held_milli

SECOND = 1_000_000
ROUNDS = 100  # of decisions at one moment, until nobody gives way any more


class Unsettled(RuntimeError):
    """At one moment others were told to give way again and again."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is played: jobs by (submitted_at, id), how long each runs (µs, by id), until when (µs). What happens before
    ``begin`` is played and not counted."""

    teams: tuple[Team, ...]
    guarantees: Mapping[int, int]
    jobs: tuple[PendingJob, ...]
    durations: Mapping[int, int]
    end: int
    begin: int = 0


@dataclass
class Outcome:
    """Integrals over [begin, end) in milli-GPU × µs, by team where they are mappings. ``days``: received and deserved
    of each day. ``waits``: µs in the queue of every job that came then, by team; those that still wait so far."""

    received: Counter[int] = field(default_factory=Counter)
    deserved: Counter[int] = field(default_factory=Counter)
    days: list[tuple[Counter[int], Counter[int]]] = field(default_factory=list)
    waits: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    lost: int = 0
    evictions: int = 0
    started: int = 0
    finished: int = 0
    never_started: int = 0
    decisions: int = 0


@dataclass
class _Run:
    job: PendingJob
    running: RunningJob
    began: int
    milli: int
    start: Start


class Player:
    """One run of ``load`` on ``fleet``, which is empty and is empty again afterwards."""

    def __init__(self, load: Load, fleet: Fleet, policy: FairPolicy, step: int):
        self._load, self._fleet, self._policy, self._step = load, fleet, policy, step
        self._quotas = {team_id: Quota(guaranteed=amount) for team_id, amount in load.guarantees.items()}
        self._capacity = fleet.capacity_milli()
        self._now = 0
        self._pending: dict[int, PendingJob] = {}
        self._since: dict[int, int] = {}  # job → since when it waits
        self._waited: Counter[int] = Counter()
        self._running: dict[int, _Run] = {}
        self._ends: list[tuple[int, int, int]] = []  # moment, job, when that run began
        self._ever: set[int] = set()
        self._allocations = 0
        self.outcome = Outcome()

    def play(self) -> Outcome:
        """Raises Unsettled where the policy never comes to rest."""
        arriving = iter(self._load.jobs)
        coming = next(arriving, None)
        while True:
            moments = [self._ends[0][0]] if self._ends else []
            moments += [coming.submitted_at] if coming is not None else []
            moment = min(moments, default=self._load.end)
            moment = min(-(-moment // self._step) * self._step, self._load.end)
            self._pass_to(moment)
            if moment >= self._load.end:
                break
            self._finish()
            while coming is not None and coming.submitted_at <= moment:
                self._pending[coming.id], self._since[coming.id] = coming, coming.submitted_at
                coming = next(arriving, None)
            self._decide()
        self._close()
        return self.outcome

    # ---- what happens ------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        while self._ends and self._ends[0][0] <= self._now:
            _, job_id, began = heapq.heappop(self._ends)
            run = self._running.get(job_id)
            if run is not None and run.began == began:
                self._free(job_id)
                self.outcome.finished += self._counts

    def _decide(self) -> None:
        for _ in range(ROUNDS):
            self.outcome.decisions += 1
            starts, evictions = self._policy(self._world())
            for start in starts:
                self._start(start)
            for eviction in evictions:
                self._evict(eviction)
            if not evictions:
                return
        raise Unsettled(f"others still give way after {ROUNDS} rounds at {self._now / SECOND:.0f} s")

    def _world(self) -> World:
        usage: Counter[tuple[int, int]] = Counter()
        for run in self._running.values():
            usage[run.job.team_id, run.job.user_id] += run.milli
        return World(
            now=self._now,
            teams=self._load.teams,
            guarantees=self._load.guarantees,
            fleet=self._fleet,
            pending=tuple(sorted(self._pending.values(), key=lambda job: (job.submitted_at, job.id))),
            running=tuple(self._running[job_id].running for job_id in sorted(self._running)),
            usage=dict(usage),
        )

    def _start(self, start: Start) -> None:
        job = self._pending.pop(start.job_id)
        tasks = []
        for task in start.tasks:
            self._fleet.take(task.placement)
            self._allocations += 1
            tasks.append(RunningTask(self._allocations, task.group, task.placement))
        running = RunningJob(
            id=job.id,
            team_id=job.team_id,
            user_id=job.user_id,
            pool_id=start.pool_id,
            priority=job.priority,
            preemptible=job.preemptible,
            started_at=self._now,
            tasks=tuple(tasks),
            least=tuple(group.min_count for group in job.groups),
        )
        self._running[job.id] = _Run(job, running, self._now, held_milli(start.tasks), start)
        heapq.heappush(self._ends, (self._now + self._load.durations[job.id], job.id, self._now))
        self._waited[job.id] += self._now - self._since.pop(job.id)
        self.outcome.started += self._counts and job.id not in self._ever
        self._ever.add(job.id)

    def _evict(self, eviction: Eviction) -> None:
        run = self._free(eviction.job_id)
        self.outcome.lost += run.milli * (self._now - run.began) * self._counts
        self.outcome.evictions += self._counts
        self._pending[run.job.id] = replace(run.job, room_made_at=None)
        self._since[run.job.id] = self._now
        waiting = self._pending.get(eviction.for_job)
        if waiting is not None:
            self._pending[eviction.for_job] = replace(waiting, room_made_at=self._now)

    def _free(self, job_id: int) -> _Run:
        run = self._running.pop(job_id)
        for task in run.start.tasks:
            self._fleet.give_back(task.placement)
        return run

    @property
    def _counts(self) -> bool:
        return self._now >= self._load.begin

    # ---- what is counted ---------------------------------------------------------------------------------------------

    def _pass_to(self, moment: int) -> None:
        """The time up to ``moment`` is counted, day by day, and it is then."""
        day = 86_400 * SECOND
        held: Counter[int] = Counter()
        for run in self._running.values():
            held[run.job.team_id] += run.milli
        wanted: Counter[int] = Counter()
        for job in self._pending.values():
            wanted[job.team_id] += sum(g.count * g.request.devices * 1000 for g in job.groups)
        shares = deserved_shares(self._load.teams, self._quotas, self._capacity, held, wanted)
        while self._now < moment:
            until = min(moment, ((self._now - self._load.begin) // day + 1) * day + self._load.begin)
            if self._now < self._load.begin:
                self._now = min(until, self._load.begin)
                continue
            number = (self._now - self._load.begin) // day
            while len(self.outcome.days) <= number:
                self.outcome.days.append((Counter(), Counter()))
            received, deserved = self.outcome.days[number]
            for team_id, share in shares.items():
                for counted, amount in ((received, held[team_id]), (deserved, share.deserved)):
                    counted[team_id] += amount * (until - self._now)
            self._now = until

    def _close(self) -> None:
        for received, deserved in self.outcome.days:
            self.outcome.received.update(received)
            self.outcome.deserved.update(deserved)
        for job in self._load.jobs:
            if self._load.begin <= job.submitted_at < self._load.end:
                since = self._since.get(job.id)
                waited = self._waited[job.id] + (self._load.end - since if since is not None else 0)
                self.outcome.waits[job.team_id].append(waited)
                self.outcome.never_started += job.id not in self._ever
        for job_id in sorted(self._running):
            self._free(job_id)
