"""What always holds of evictions, on random worlds: carried out as planned, and judged by nothing that decided."""

from collections import Counter, defaultdict
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from scheduling.core.decide import decide
from scheduling.core.fleet import Fleet
from scheduling.core.model import (
    DeviceState,
    Group,
    NodeState,
    PendingJob,
    PoolState,
    Quota,
    Request,
    RunningJob,
    RunningTask,
    Snapshot,
    Team,
)

seeds = st.integers(0, 2**32 - 1)


class Maker:
    """One pool, mostly full of running jobs, and a queue. ``whole``: every task asks for one whole GPU."""

    def __init__(self, seed, *, whole=False, flat=None):
        self.random = Random(seed)
        self.one_of = self.random.choice
        self.whole = whole
        ids = range(1, self.one_of([2, 2, 3, 4, 6]) + 1)
        flat = self.chance(50) if flat is None else flat
        self.teams = tuple(Team(i, f"t{i}", None if flat else self.one_of([None, *range(1, i)])) for i in ids)
        gpus = [self.one_of([1, 2, 4]) for _ in range(self.one_of([1, 2, 3]))]
        self.nodes = [
            NodeState(
                n,
                f"n{n}",
                n,
                8000,
                64_000,
                tuple(DeviceState(n * 10 + i, i, "A", "nvidia", 80_000) for i in range(count)),
                whole or self.chance(95),
            )
            for n, count in enumerate(gpus, 1)
        ]
        self.capacity = 1000 * sum(gpus)
        self.quotas = self.make_quotas(ids)
        self.fleet = Fleet(self.nodes)
        self.usage: Counter[Any] = Counter()
        self.running = tuple(self.run(number, ids) for number in range(1, self.random.randint(2, 9)))
        self.running = tuple(job for job in self.running if job.tasks)
        self.pending = tuple(self.wait(number, ids) for number in range(1, self.random.randint(1, 8)))

    def chance(self, percent):
        return self.random.random() * 100 < percent

    def make_quotas(self, ids):
        """Guarantees that the capacity covers, parents' at least their children's."""
        left, quotas = self.capacity, {}
        for team_id in ids:
            guaranteed = min(left, self.one_of([0, 0, 1000, 2000, 3000]))
            left -= guaranteed
            limit = self.one_of([None, None, None, guaranteed + 2000])
            quotas[team_id] = Quota(guaranteed=guaranteed, limit=limit, weight=self.one_of([0, 1, 1, 2]))
        return quotas

    def request(self):
        if self.whole:
            return Request(1, 1000)
        kind = self.random.random()
        if kind < 0.1:
            return Request(1, memory_mib=self.one_of([20_000, 60_000]))
        if kind < 0.4:
            return Request(1, self.one_of([250, 500]), cpu_milli=self.one_of([0, 1000]))
        return Request(self.one_of([1, 1, 2]), 1000, cpu_milli=self.one_of([0, 2000]))

    def run(self, number, ids):
        team, request, tasks = self.one_of(ids), self.request(), []
        wanted = self.one_of([1, 1, 2, 3])
        for i in range(wanted):
            placement = self.fleet.place(request)
            if placement is not None:
                self.fleet.take(placement)
                self.usage[team, 1] += placement.milli
                leaving = not self.whole and self.chance(8)
                tasks.append(RunningTask(number * 10 + i, 0, placement, leaving))
        least = self.one_of([len(tasks), max(1, len(tasks) - 1)])
        return RunningJob(
            number, team, 1, 1, self.one_of([100, 500]), self.chance(85), self.one_of([0, 1, 2]), tuple(tasks), (least,)
        )  # fmt: skip

    def wait(self, number, ids):
        count = self.one_of([1, 1, 2, 3])
        group = Group("g", count, self.one_of([1, count]), self.request())
        priority = self.one_of([100, 500, 900])
        preemptible = self.chance(90)
        return PendingJob(
            100 + number, self.one_of(ids), 1, (1,), (group,), number, priority=priority, preemptible=preemptible
        )

    def snapshot(self):
        pool = PoolState(1, "p", self.fleet, self.quotas, dict(self.usage))
        return Snapshot(10, self.teams, (pool,), self.pending, self.running)


class Later:
    """The world once the plan's starts run and its victims are gone and wait again."""

    def __init__(self, made, plan):
        self.made, self.plan = made, plan
        gone = {pk for each in plan.evictions for pk in each.allocation_ids}
        gone |= {task.allocation_id for job in made.running for task in job.tasks if task.releasing}
        self.fleet = Fleet(made.nodes)
        self.usage: Counter[Any] = Counter()
        self.running = []
        for job in made.running:
            tasks = tuple(task for task in job.tasks if task.allocation_id not in gone)
            for task in tasks:
                self.hold(job.team_id, task.placement)
            if tasks:
                self.running.append(replace(job, tasks=tasks))
        started = {start.job_id: start for start in plan.starts}
        jobs = {job.id: job for job in made.pending}
        for job_id, start in started.items():
            for task in start.tasks:
                self.hold(jobs[job_id].team_id, task.placement)
        claims = {job_id: i for i, job_id in enumerate(dict.fromkeys(each.for_job for each in plan.evictions))}
        self.waiting = tuple(
            replace(job, room_made_at=claims.get(job.id)) for job in made.pending if job.id not in started
        )

    def hold(self, team_id, placement):
        self.fleet.take(placement)
        self.usage[team_id, 1] += placement.milli

    def snapshot(self, waiting=None):
        pool = PoolState(1, "p", self.fleet, self.made.quotas, dict(self.usage))
        waiting = self.waiting if waiting is None else waiting
        return Snapshot(10, self.made.teams, (pool,), waiting, tuple(self.running))


def with_ancestors(teams, amounts):
    parents = {team.id: team.parent_id for team in teams}
    sums: Counter[Any] = Counter()
    for (team_id, _), amount in amounts.items():
        above = team_id
        while above is not None:
            sums[above] += amount
            above = parents[above]
    return sums


@settings(max_examples=400, deadline=None)
@given(seeds)
def test_everyone_that_others_give_way_to_starts_once_they_are_gone(seed):
    made = Maker(seed)
    plan = decide(made.snapshot())
    event(f"{len(plan.evictions)} evictions")
    later = decide(Later(made, plan).snapshot())
    started = {start.job_id for start in later.starts}
    assert {each.for_job for each in plan.evictions} <= started


@settings(max_examples=400, deadline=None)
@given(seeds)
def test_only_those_give_way_who_may_be_asked_to(seed):
    made = Maker(seed)
    plan = decide(made.snapshot())
    running = {job.id: job for job in made.running}
    waiting = {job.id: job for job in made.pending}
    seen: set[Any] = set()
    for each in plan.evictions:
        victim, rescued = running[each.job_id], waiting[each.for_job]
        assert victim.preemptible
        assert seen.isdisjoint(each.allocation_ids)
        seen.update(each.allocation_ids)
        live = {task.allocation_id for task in victim.tasks if not task.releasing}
        assert set(each.allocation_ids) <= live
        if not each.whole:
            assert len(live - seen) >= victim.least[0]
        if each.rule == "preempt":
            assert victim.team_id == rescued.team_id
            assert victim.priority < rescued.priority
        else:
            assert victim.team_id != rescued.team_id
            numbers: dict[str, Any] = dict(each.numbers)
            assert numbers["allocated"] > numbers["guaranteed"] or any(
                team.parent_id == victim.team_id for team in made.teams
            )
    for start in plan.starts:
        assert start.job_id not in {each.for_job for each in plan.evictions}


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_guarantees_are_only_touched_by_jobs_that_stick_out_of_them(seed):
    made = Maker(seed, flat=True)
    plan = decide(made.snapshot())
    held: Counter[Any] = Counter()
    for (team_id, _), amount in made.usage.items():
        held[team_id] += amount
    for job in made.running:
        held[job.team_id] -= sum(task.placement.milli for task in job.tasks if task.releasing)
    reclaimed: defaultdict[int, list[Any]] = defaultdict(list)
    for each in plan.evictions:
        if each.rule == "reclaim":
            reclaimed[next(job.team_id for job in made.running if job.id == each.job_id)].append(each.numbers["freed"])
    for team_id, freed in reclaimed.items():
        inside = min(made.quotas[team_id].guaranteed, held[team_id])
        assert held[team_id] - sum(freed) + max(freed) >= inside


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_what_was_evicted_is_not_taken_straight_back(seed):
    """Rounds of deciding and carrying out, the victims in the queue again, come to an end."""
    made = Maker(seed, whole=True)
    evicted: Counter[Any] = Counter()
    for _ in range(12):
        plan = decide(made.snapshot())
        evicted.update(each.job_id for each in plan.evictions if each.whole)
        if not plan.evictions and not plan.starts:
            break
        made = carried_out(made, plan)
    else:
        raise AssertionError("it never settles")
    assert all(count <= 2 for count in evicted.values())


def carried_out(made, plan):
    """The world after the plan, as a Maker: started jobs run, stopped ones wait with their first submission."""
    later = Later(made, plan)
    jobs = {job.id: job for job in made.pending}
    runs = {job.id: job for job in made.running}
    running = list(later.running)
    for start in plan.starts:
        job = jobs[start.job_id]
        tasks = tuple(RunningTask(start.job_id * 10 + i, 0, t.placement) for i, t in enumerate(start.tasks))
        least = (job.groups[0].min_count,)
        running.append(
            RunningJob(job.id, job.team_id, 1, 1, job.priority, job.preemptible, 10, tasks, least)
        )  # fmt: skip
    back = []
    for each in plan.evictions:
        if each.whole:
            job = runs[each.job_id]
            group = Group("g", len(job.tasks), job.least[0], Request(1, 1000))
            back.append(PendingJob(job.id, job.team_id, 1, (1,), (group,), job.id, job.priority))
    made.fleet, made.usage = later.fleet, later.usage
    made.running, made.pending = tuple(running), (*later.waiting, *back)
    return made


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_nobody_waits_below_what_it_deserves_while_others_hold_more(seed):
    """Whole GPUs, one by one, a flat tree: nothing is indivisible, so what is entitled gets its room."""
    made = Maker(seed, whole=True, flat=True)
    made.running = tuple(replace(job, preemptible=True, least=(1,)) for job in made.running)
    singles = [replace(job, groups=(replace(job.groups[0], count=1, min_count=1),)) for job in made.pending]
    made.pending = tuple(replace(job, preemptible=True) for job in singles)
    plan = decide(made.snapshot())
    shares = plan.shares[1]
    held: Counter[Any] = Counter()
    later = Later(made, plan)
    for (team_id, _), amount in later.usage.items():
        held[team_id] += amount
    for job in later.waiting:
        if job.room_made_at is not None:
            held[job.team_id] += 1000
    deserved = {team_id: share.deserved for team_id, share in shares.items()}
    spare: Counter[Any] = Counter()
    for job in later.running:
        one = job.tasks[0].placement.milli
        loss = one if len(job.tasks) > 1 else sum(task.placement.milli for task in job.tasks)
        floor = max(deserved[job.team_id], made.quotas[job.team_id].guaranteed)
        spare[job.team_id] = max(spare[job.team_id], held[job.team_id] - loss - floor + 1)
    for job in later.waiting:
        if job.room_made_at is None and held[job.team_id] + 1000 <= deserved[job.team_id]:
            assert not any(amount > 0 for team_id, amount in spare.items() if team_id != job.team_id)


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_the_same_picture_gives_the_same_plan_and_stays_as_it_was(seed):
    one, other = Maker(seed), Maker(seed)
    snapshot = one.snapshot()
    before = (one.fleet.free_milli(), one.fleet.free_cpu_milli(), [one.fleet.place(r) for r in shapes(one)])
    plan = decide(snapshot)
    assert (one.fleet.free_milli(), one.fleet.free_cpu_milli(), [one.fleet.place(r) for r in shapes(one)]) == before
    assert decide(snapshot) == plan
    again = other.snapshot()
    assert decide(replace(again, running=again.running[::-1], pending=again.pending[::-1])) == plan


def shapes(made):
    return sorted({job.groups[0].request for job in made.pending}, key=repr)
