"""What always holds of a plan, on random worlds with real fleets. Nothing here asks the code that decided."""

from collections import Counter
from dataclasses import dataclass
from random import Random

from hypothesis import event, given, settings
from hypothesis import strategies as st

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
    Snapshot,
    Team,
)
from scheduling.core.reasons import REASONS, message


@dataclass
class Picture:
    """A snapshot and what it was made from, so that a test can make its fleets anew."""

    snapshot: Snapshot
    nodes: dict
    options: dict


class Maker:
    """Makes worlds out of a seed: rich ones, which strategies that shrink well seldom make."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.one_of = self.random.choice

    def chance(self, percent):
        return self.random.random() * 100 < percent

    def picture(self, flat=None):
        flat = self.chance(50) if flat is None else flat
        ids = range(1, self.one_of([1, 2, 3, 4, 6]) + 1)
        teams = tuple(Team(i, f"t{i}", None if flat else self.one_of([None, *range(1, i)])) for i in ids)
        options = {"score": self.one_of(["binpack", "spread"]), "exclusive": self.chance(15)}
        made_nodes = {pool_id: self.nodes(pool_id * 10) for pool_id in range(1, self.one_of([1, 1, 2, 3]) + 1)}
        pools = tuple(self.pool(key, made, options, ids, flat) for key, made in made_nodes.items())
        jobs = tuple(self.job(i, ids, list(made_nodes)) for i in range(1, self.random.randint(0, 14) + 1))
        return Picture(Snapshot(0, teams, pools, jobs), made_nodes, options)

    def nodes(self, first_id):
        made = []
        for number in range(first_id, first_id + self.one_of([0, 1, 1, 2, 3])):
            model, memory = self.one_of([("A100", 80_000), ("H100", 80_000), ("A100", 16_000)])
            devices = []
            for index in range(self.one_of([0, 1, 2, 3, 4])):
                used, healthy = self.one_of([0, 0, 0, 0, 300, 1000]), self.chance(90)
                number_of_device, held = number * 100 + index, memory * used // 1000
                devices.append(DeviceState(number_of_device, index, model, "nvidia", memory, healthy, used, held))
            made.append(NodeState(number, f"n{number}", number, 8000, 64_000, tuple(devices), self.chance(90)))
        return tuple(made)

    def pool(self, number, made_nodes, options, team_ids, flat):
        usage = {(self.one_of(team_ids), self.one_of([1, 2])): self.one_of([0, 500, 1000]) for _ in range(2)}
        return PoolState(
            number,
            f"p{number}",
            Fleet(made_nodes, **options),
            {team_id: self.quota(flat) for team_id in team_ids if self.chance(60)},
            usage,
            unit="cpu" if self.chance(20) else "gpu",
            available=self.chance(90),
        )

    def quota(self, flat):
        guaranteed = self.gpus()
        return Quota(
            guaranteed=guaranteed,
            limit=self.gpus() if self.chance(40) else None,
            weight=self.one_of([0, 1, 1, 2, 3]),
            reserved=guaranteed // 2 if flat and self.chance(30) else 0,
            per_user_limit=self.gpus() if self.chance(20) else None,
        )

    def gpus(self):
        return self.one_of([0, 500, 1000, 1500, 2000, 3000, 5000])

    def job(self, number, team_ids, pool_ids):
        self.random.shuffle(pool_ids)
        return PendingJob(
            id=number,
            team_id=self.one_of(team_ids),
            user_id=self.one_of([1, 2]),
            pool_ids=tuple(pool_ids[: self.one_of([1, 1, 2, 3])]),
            groups=tuple(self.group(i) for i in range(self.one_of([1, 1, 1, 2]))),
            submitted_at=self.one_of(range(6)),
            priority=self.one_of([100, 500]),
            cluster_wide=self.chance(10),
            preemptible=self.chance(85),
            held="held" if self.chance(8) else None,
            max_running_of_class=1 if self.chance(8) else None,
        )

    def group(self, number):
        count = self.one_of([1, 1, 1, 2, 3, 4])
        return Group(f"g{number}", count, self.random.randint(1, count), self.request())

    def request(self):
        kind = self.random.random()
        if kind < 0.15:
            return Request(devices=0, cpu_milli=self.one_of([500, 3000, 9000]))
        if kind < 0.3:
            return Request(devices=1, memory_mib=self.one_of([2000, 12_000, 20_000]))
        if kind < 0.5:
            least = self.one_of([0, 0, 20_000])
            return Request(self.one_of([1, 2, 3]), 1000, cpu_milli=self.one_of([0, 500]), min_device_memory_mib=least)
        return Request(
            devices=1,
            compute_milli=self.one_of([50, 250, 300, 500, 600]),
            memory_mib=self.one_of([None, None, 4000, 12_000]),
            cpu_milli=self.one_of([0, 500, 3000]),
            models=self.one_of([(), (), (), ("A100",), ("H100",)]),
        )


seeds = st.integers(0, 2**32 - 1)


def ancestors(snapshot, team_id):
    parents = {team.id: team.parent_id for team in snapshot.teams}
    while team_id is not None:
        yield team_id
        team_id = parents[team_id]


def charge(pool, placement):
    return placement.milli if pool.unit == "gpu" else placement.cpu_milli


class After:
    """The world once a plan is carried out: fleets made anew, every task taken, every charge added up."""

    def __init__(self, picture, plan):
        self.snapshot, self.plan = picture.snapshot, plan
        self.pools = {pool.id: pool for pool in self.snapshot.pools}
        self.jobs = {job.id: job for job in self.snapshot.pending}
        self.fleets = {key: Fleet(made, **picture.options) for key, made in picture.nodes.items()}
        self.held: Counter[tuple[int, int]] = Counter()  # by pool and team, subtrees included
        self.held_by: Counter[tuple[int, int, int]] = Counter()
        self.running_of_class: Counter[tuple[int, str]] = Counter()
        for pool in self.snapshot.pools:
            for (team_id, user_id), amount in pool.usage.items():
                self.add(pool, team_id, user_id, amount)
        self.before = Counter(self.held)
        for start in plan.starts:
            self.carry_out(start)

    def carry_out(self, start):
        job, pool = self.jobs[start.job_id], self.pools[start.pool_id]
        for task in start.tasks:
            self.fleets[pool.id].take(task.placement, job.groups[task.group].request.team_id)
            self.add(pool, job.team_id, job.user_id, charge(pool, task.placement))
        self.running_of_class[job.team_id, job.priority_class] += 1

    def add(self, pool, team_id, user_id, amount):
        for above in ancestors(self.snapshot, team_id):
            self.held[pool.id, above] += amount
            self.held_by[pool.id, above, user_id] += amount

    def admits(self, pool, job, amount):
        """Whether every rule of admission lets the job hold ``amount`` more in the pool now."""
        if not pool.available:
            return False
        running, cap = self.running_of_class[job.team_id, job.priority_class], job.max_running_of_class
        if cap is not None and running >= cap:
            return False
        if amount == 0:
            return True
        for above in ancestors(self.snapshot, job.team_id):
            quota = pool.quotas.get(above, Quota())
            if quota.limit is not None and self.held[pool.id, above] + amount > quota.limit:
                return False
            by_user = self.held_by[pool.id, above, job.user_id]
            if quota.per_user_limit is not None and by_user + amount > quota.per_user_limit:
                return False
        guaranteed = pool.quotas.get(job.team_id, Quota()).guaranteed
        if not job.preemptible and self.held[pool.id, job.team_id] + amount > guaranteed:
            return False
        return amount <= self.free(pool) - self.reserved_for_others(pool, job)

    def free(self, pool):
        fleet = self.fleets[pool.id]
        return fleet.free_milli() if pool.unit == "gpu" else fleet.free_cpu_milli()

    def reserved_for_others(self, pool, job):
        """In a flat world; no more than what is left of the capacity for each team that has something reserved."""
        kept = 0
        for team_id, quota in pool.quotas.items():
            if team_id != job.team_id:
                kept += max(0, quota.reserved - self.held[pool.id, team_id])
        return kept

    def where_least_fits(self, pool, job):
        """Placements of the least of a job of one group, tried on a fleet of its own; None where they do not fit."""
        (group,), fleet, found = job.groups, self.fleets[pool.id], []
        for _ in range(group.min_count):
            placement = fleet.place(group.request)
            if placement is None:
                break
            fleet.take(placement)
            found.append(placement)
        for placement in reversed(found):
            fleet.give_back(placement)
        return found if len(found) == group.min_count else None


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_nothing_is_over_and_gangs_are_whole(seed):
    picture = Maker(seed).picture()
    plan = decide(picture.snapshot)
    after = After(picture, plan)  # raises where a device or a node would be over-allocated
    started = [start.job_id for start in plan.starts]
    assert len(started) == len(set(started))
    event(f"{len(started)} started")
    for start in plan.starts:
        job = after.jobs[start.job_id]
        assert job.held is None
        assert start.pool_id in job.pool_ids
        tasks = Counter(task.group for task in start.tasks)
        assert all(group.min_count <= tasks[i] <= group.count for i, group in enumerate(job.groups))
    for pool in picture.snapshot.pools:
        for team_id, quota in pool.quotas.items():
            held, before = after.held[pool.id, team_id], after.before[pool.id, team_id]
            assert quota.limit is None or held <= max(quota.limit, before)
            share = plan.shares[pool.id][team_id]
            assert (share.allocated, share.limit) == (held, quota.limit)


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_everyone_who_waits_is_told_why(seed):
    picture = Maker(seed).picture()
    plan = decide(picture.snapshot)
    complete = {
        start.job_id
        for start in plan.starts
        for job in picture.snapshot.pending
        if job.id == start.job_id and len(start.tasks) == sum(group.count for group in job.groups)
    }
    assert set(plan.reasons) == {job.id for job in picture.snapshot.pending} - complete
    names = {pool.id: pool.name for pool in picture.snapshot.pools}
    for reasons in plan.reasons.values():
        assert reasons
        for reason in reasons:
            event(reason.code)
            assert REASONS[reason.code].needs <= reason.numbers.keys()
            assert message(reason)
            assert reason.code in ("held", "class_cap", "next_cycle") or reason.numbers["pool"] == names[reason.pool_id]


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_deciding_changes_nothing_and_repeats_itself(seed):
    picture = Maker(seed).picture()
    snapshot = picture.snapshot
    fresh = Snapshot(
        0,
        snapshot.teams[::-1],
        tuple(_with_fleet(pool, Fleet(picture.nodes[pool.id], **picture.options)) for pool in snapshot.pools[::-1]),
        snapshot.pending[::-1],
    )
    before = [seen(pool.fleet, snapshot) for pool in snapshot.pools]
    plan = decide(snapshot)
    assert [seen(pool.fleet, snapshot) for pool in snapshot.pools] == before
    assert decide(snapshot) == plan
    assert decide(fresh) == plan


def seen(fleet, snapshot):
    shapes = sorted({group.request for job in snapshot.pending for group in job.groups}, key=repr)
    totals = (fleet.free_milli(), fleet.free_cpu_milli(), fleet.allocated_milli())
    return (*totals, [fleet.place(shape) for shape in shapes], [fleet.headroom(shape) for shape in shapes])


def _with_fleet(pool, fleet):
    return PoolState(pool.id, pool.name, fleet, pool.quotas, pool.usage, pool.unit, pool.available, pool.class_usage)


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_nobody_waits_who_could_start(seed):
    """Jobs of one group, so what fits is beyond doubt; guarantees that the capacity covers, so reserves are too."""
    picture = Maker(seed).picture(flat=True)
    plan = decide(picture.snapshot)
    after = After(picture, plan)
    started = {start.job_id for start in plan.starts}
    for job in picture.snapshot.pending:
        if job.id in started or job.held is not None or len(job.groups) > 1:
            continue
        for pool_id in job.pool_ids:
            pool = after.pools[pool_id]
            if over_committed(after, pool):
                continue
            found = after.where_least_fits(pool, job)
            event("fits" if found else "does not fit")
            if found and after.admits(pool, job, sum(charge(pool, placement) for placement in found)):
                (kept,) = [each for each in plan.reservations if each.pool_id == pool_id]
                event("kept for another")
                assert kept.job_id != job.id
                told = [reason for reason in plan.reasons[job.id] if reason.pool_id == pool_id]
                assert [(reason.code, reason.numbers["job"]) for reason in told] == [("reserved_for", kept.job_id)]


def over_committed(after, pool):
    fleet = after.fleets[pool.id]
    capacity = fleet.capacity_milli() if pool.unit == "gpu" else fleet.capacity_cpu_milli()
    return sum(quota.guaranteed for quota in pool.quotas.values()) > capacity


@settings(max_examples=300, deadline=None)
@given(seeds, st.integers(0, 3))
def test_a_bound_on_starts_only_shortens_the_list(seed, most):
    picture = Maker(seed).picture()
    whole, short = decide(picture.snapshot), decide(picture.snapshot, Policy(max_starts=most))
    names = [start.job_id for start in whole.starts]
    assert [start.job_id for start in short.starts] == names[:most]


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_what_helps_helps(seed):
    """A larger quota, as told, lets the job start once everything else has started."""
    picture = Maker(seed).picture()
    plan = decide(picture.snapshot)
    after = After(picture, plan)
    started = {start.job_id for start in plan.starts}
    for job in picture.snapshot.pending:
        for reason in plan.reasons.get(job.id, ()):
            if reason.helps and "quota" in reason.helps and job.id not in started:
                if over_committed(after, after.pools[reason.pool_id]):
                    continue  # how far the capacity reaches for reserves depends on what the others ask for
                event(f"{reason.code} helps")
                (start,) = decide(_alone(after, job, reason)).starts
                assert start.job_id == job.id


def _alone(after, job, reason):
    """The world after the plan, with the job waiting alone and the quota changed as the reason says."""
    pool = after.pools[reason.pool_id]
    change = dict(reason.helps["quota"])
    del change["by_milli"]
    names = {team.name: team.id for team in after.snapshot.teams}
    team_id = names[change.pop("team")]
    row = pool.quotas.get(team_id, Quota())
    raised = {field: change.get(field, getattr(row, field)) for field in row.__slots__}
    usage = Counter(pool.usage)
    running_of_class: Counter[tuple[int, str]] = Counter()
    for start in after.plan.starts:
        other = after.jobs[start.job_id]
        running_of_class[other.team_id, other.priority_class] += 1
        if start.pool_id == pool.id:
            usage[other.team_id, other.user_id] += sum(charge(pool, task.placement) for task in start.tasks)
    now = PoolState(
        pool.id,
        pool.name,
        after.fleets[pool.id],
        {**pool.quotas, team_id: Quota(**raised)},
        dict(usage),
        unit=pool.unit,
        class_usage=dict(running_of_class),
    )
    return Snapshot(0, after.snapshot.teams, (now,), (job,))
