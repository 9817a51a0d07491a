"""A pool whose time passes: jobs come, start as plans say, run for as long as they do, and end."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

from scheduling.core.decide import decide
from scheduling.core.fleet import Fleet
from scheduling.core.model import (
    DeviceState,
    Group,
    NodeState,
    PendingJob,
    Policy,
    PoolState,
    Quota,
    Request,
    RunningJob,
    RunningTask,
    Snapshot,
    Team,
)

NOBODY_GIVES_WAY = Policy(max_rescues=0)


class Passing:
    """Random nodes, teams and quotas out of a seed. ``limits``: the part of jobs with a time limit; ``exact``: these
    run until it."""

    def __init__(self, seed, *, teams=None, limits=1.0, exact=False, flat=False, **options):
        self.random = Random(seed)
        self.one_of = self.random.choice
        self.limits, self.exact = limits, exact
        self.now = 0
        ids = range(1, (teams or self.one_of([1, 2, 2, 3, 4])) + 1)
        self.teams = tuple(Team(i, f"t{i}", None if flat else self.one_of([None, None, *range(1, i)])) for i in ids)
        self.apart = self.random.random() < 0.25
        options.setdefault("score", self.one_of(["binpack", "spread"]))
        options.setdefault("exclusive", self.random.random() < 0.15)
        self.unit: Any = "cpu" if self.random.random() < 0.12 else "gpu"
        self.node_count = self.one_of([1, 2, 3, 4])
        self.fleet = Fleet([self.node(n) for n in range(1, self.node_count + 1)], **options)
        self.quotas = {i: self.quota() for i in ids if self.random.random() < 0.5}
        self.pending: dict[int, PendingJob] = {}
        self.running: dict[int, RunningJob] = {}
        self.usage: Counter[Any] = Counter()
        self.ends: list[Any] = []  # when, job, allocation
        self.started: dict[int, int] = {}
        self.runs_for: dict[int, int] = {}
        self.numbers = 0
        self.kept_by = None

    def node(self, number):
        devices = tuple(
            DeviceState(number * 10 + i, i, "A", "nvidia", 80_000) for i in range(self.one_of([1, 2, 4, 4]))
        )
        return NodeState(number, f"n{number}", number, 8000, 64_000, devices)

    def quota(self):
        guaranteed = self.one_of([0, 1000, 2000])
        limit = self.one_of([None, None, guaranteed + 2000])
        return Quota(guaranteed=guaranteed, limit=limit, weight=self.one_of([1, 1, 2]))

    def request(self, team):
        kind, holder = self.random.random(), team if self.apart else 0
        if kind < 0.1 or self.unit == "cpu":
            return Request(0, cpu_milli=self.one_of([1000, 3000, 8000]))
        if kind < 0.2:
            return Request(1, memory_mib=self.one_of([20_000, 60_000]), team_id=holder)
        if kind < 0.5:
            milli, memory = self.one_of([250, 500, 700]), self.one_of([None, None, 70_000])
            return Request(1, milli, memory, cpu_milli=self.one_of([0, 1000]), team_id=holder)
        return Request(self.one_of([1, 1, 2, 4]), 1000, cpu_milli=self.one_of([0, 2000]), team_id=holder)

    def arrive(self, **fixed):
        self.numbers += 1
        team = self.one_of(self.teams).id
        count = self.one_of([1, 1, 1, 2, 3])
        groups = [Group("g", count, self.one_of([1, count, count]), self.request(team))]
        if self.random.random() < 0.1:
            groups.append(Group("h", 1, 1, self.request(team)))
        limit = self.one_of([1, 2, 3, 5, 8, 13]) * 10 if self.random.random() < self.limits else None
        longest = limit or self.one_of([20, 50, 90])
        job = PendingJob(
            id=self.numbers,
            team_id=team,
            user_id=self.one_of([1, 2]),
            pool_ids=(1,),
            groups=tuple(groups),
            submitted_at=self.now,
            priority=self.one_of([500, 500, 500, 900]),
            time_limit=limit,
        )
        job = replace(job, **fixed)
        self.runs_for[job.id] = longest if self.exact else self.random.randint(1, longest)
        self.pending[job.id] = job

    def snapshot(self):
        pool = PoolState(1, "p", self.fleet, self.quotas, dict(+self.usage), unit=self.unit)
        pending, running = self.pending, self.running
        return Snapshot(
            self.now,
            self.teams,
            (pool,),
            tuple(pending[key] for key in sorted(pending)),
            tuple(running[key] for key in sorted(running)),
        )

    def charge(self, placement):
        return placement.milli if self.unit == "gpu" else placement.cpu_milli

    def cycle(self):
        """A decision, carried out. Returns its plan."""
        plan = decide(self.snapshot(), NOBODY_GIVES_WAY)
        assert not plan.evictions
        for start in plan.starts:
            self.carry_out(start)
        kept = {each.job_id: each for each in plan.reservations}
        for key, job in list(self.pending.items()):
            since, place = (kept[key].since, kept[key].tasks) if key in kept else (None, ())
            self.pending[key] = replace(job, room_kept_since=since, room_kept_at=place)
        return plan

    def carry_out(self, start):
        job = self.pending.pop(start.job_id)
        placed = [group.placed for group in job.groups]
        before = self.running.get(job.id)
        tasks = list(before.tasks) if before else []
        for each in start.tasks:
            request = job.groups[each.group].request
            self.fleet.take(each.placement, request.team_id)
            self.usage[job.team_id, job.user_id] += self.charge(each.placement)
            number = 1000 * job.id + len(tasks)
            limit = None if job.time_limit is None else self.now + job.time_limit
            tasks.append(RunningTask(number, each.group, each.placement, holder=request.team_id, ends_at=limit))
            heapq.heappush(self.ends, (self.now + self.runs_for[job.id], job.id, number))
            placed[each.group] += 1
        self.started.setdefault(job.id, self.now)
        least = tuple(group.min_count for group in job.groups)
        self.running[job.id] = RunningJob(
            job.id, job.team_id, job.user_id, 1, job.priority, True, self.started[job.id], tuple(tasks), least
        )
        if any(n < group.count for n, group in zip(placed, job.groups, strict=True)):
            groups = tuple(replace(group, placed=n) for group, n in zip(job.groups, placed, strict=True))
            self.pending[job.id] = replace(job, groups=groups, growing=True, room_kept_since=None, room_kept_at=())

    def next_end(self):
        return self.ends[0][0] if self.ends else None

    def go_to(self, moment):
        self.now = moment
        while self.ends and self.ends[0][0] <= moment:
            _, job_id, number = heapq.heappop(self.ends)
            job = self.running[job_id]
            task = next(each for each in job.tasks if each.allocation_id == number)
            self.fleet.give_back(task.placement)
            self.usage[job.team_id, job.user_id] -= self.charge(task.placement)
            left = tuple(each for each in job.tasks if each is not task)
            self.pending.pop(job_id, None)  # it grows no more
            if left:
                self.running[job_id] = replace(job, tasks=left)
            else:
                del self.running[job_id]
