"""What always holds of a plan, on random worlds with real fleets. Nothing here asks the code that decided."""

from collections import Counter
from dataclasses import dataclass

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

MODELS = ("A100", "H100")


@dataclass
class Picture:
    """A snapshot and what it was made from, so that a test can make its fleets anew."""

    snapshot: Snapshot
    nodes: dict
    options: dict


@st.composite
def nodes(draw, first_id):
    made = []
    for i in range(draw(st.sampled_from([0, 1, 2, 2, 3]))):
        number, memory = first_id + i, draw(st.sampled_from([16_000, 80_000]))
        model = draw(st.sampled_from(MODELS))
        devices = tuple(
            _device(number * 100 + index, index, model, memory, used, healthy)
            for index, (used, healthy) in enumerate(
                draw(
                    st.lists(
                        st.tuples(st.sampled_from([0, 0, 0, 300, 1000]), st.sampled_from([True, True, True, False])),
                        min_size=draw(st.sampled_from([0, 2, 3])),
                        max_size=4,
                    )
                )
            )
        )
        made.append(
            NodeState(number, f"n{number}", number, 8000, 64_000, devices, schedulable=draw(st.integers(0, 5)) > 0)
        )
    return tuple(made)


def _device(number, index, model, memory, used, healthy):
    return DeviceState(number, index, model, "nvidia", memory, healthy, used, memory * used // 1000)


requests = st.one_of(
    st.builds(
        Request,
        devices=st.just(1),
        compute_milli=st.sampled_from([50, 250, 300, 500, 600, 1000]),
        memory_mib=st.sampled_from([None, None, 4000, 12_000]),
        cpu_milli=st.sampled_from([0, 500, 3000]),
        models=st.sampled_from([(), (), (), ("A100",), ("H100",)]),
    ),
    st.builds(
        Request,
        devices=st.integers(1, 3),
        compute_milli=st.just(1000),
        cpu_milli=st.sampled_from([0, 500]),
        min_device_memory_mib=st.sampled_from([0, 0, 20_000]),
    ),
    st.builds(Request, devices=st.just(0), cpu_milli=st.sampled_from([500, 3000, 9000])),
    st.builds(Request, devices=st.just(1), memory_mib=st.sampled_from([2000, 20_000])),
)


@st.composite
def groups(draw):
    made = []
    for i in range(draw(st.sampled_from([1, 1, 1, 2]))):
        count = draw(st.integers(1, 4))
        made.append(Group(f"g{i}", count, draw(st.integers(1, count)), draw(requests)))
    return tuple(made)


@st.composite
def quotas(draw, team_ids, flat):
    gpus = st.sampled_from([0, 500, 1000, 1500, 2000, 3000, 5000])
    rows = {}
    for team_id in team_ids:
        if draw(st.booleans()):
            guaranteed = draw(gpus)
            rows[team_id] = Quota(
                guaranteed=guaranteed,
                limit=draw(st.one_of(st.none(), gpus)),
                weight=draw(st.integers(0, 3)),
                reserved=guaranteed // 2 if flat and draw(st.booleans()) else 0,
                per_user_limit=draw(st.one_of(st.none(), st.none(), gpus)),
            )
    return rows


@st.composite
def pictures(draw, flat=None):
    flat = draw(st.booleans()) if flat is None else flat
    teams = []
    for team_id in range(1, draw(st.integers(1, 5)) + 1):
        parent = None if flat or team_id == 1 else draw(st.sampled_from([None, *range(1, team_id)]))
        teams.append(Team(team_id, f"t{team_id}", parent))
    team_ids = [team.id for team in teams]
    options = {"score": draw(st.sampled_from(["binpack", "spread"])), "exclusive": draw(st.integers(0, 4)) == 0}
    made_nodes, pools = {}, []
    for pool_id in range(1, draw(st.integers(1, 2)) + 1):
        made_nodes[pool_id] = draw(nodes(pool_id * 10))
        usage = {(draw(st.sampled_from(team_ids)), draw(st.integers(1, 2))): draw(st.integers(0, 3)) * 500}
        fleet = Fleet(made_nodes[pool_id], **options)
        available = draw(st.integers(0, 6)) > 0
        pools.append(
            PoolState(
                pool_id,
                f"p{pool_id}",
                fleet,
                draw(quotas(team_ids, flat)),
                usage,
                available=available,
                unit=draw(st.sampled_from(["gpu", "gpu", "gpu", "cpu"])),
            )
        )
    pool_ids = [pool.id for pool in pools]
    jobs = []
    for job_id in range(1, draw(st.integers(0, 12)) + 1):
        jobs.append(
            PendingJob(
                id=job_id,
                team_id=draw(st.sampled_from(team_ids)),
                user_id=draw(st.integers(1, 2)),
                pool_ids=tuple(draw(st.permutations(pool_ids)))[: draw(st.integers(1, len(pool_ids)))],
                groups=draw(groups()),
                submitted_at=draw(st.integers(0, 5)),
                priority=draw(st.sampled_from([100, 500])),
                cluster_wide=draw(st.integers(0, 6)) == 0,
                preemptible=draw(st.integers(0, 3)) > 0,
                held=draw(st.sampled_from([None, None, None, None, None, "held"])),
                max_running_of_class=draw(st.sampled_from([None, None, None, 1])),
            )
        )
    return Picture(Snapshot(0, tuple(teams), tuple(pools), tuple(jobs)), made_nodes, options)


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


@settings(max_examples=400, deadline=None)
@given(pictures())
def test_nothing_is_over_and_gangs_are_whole(picture):
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


@settings(max_examples=400, deadline=None)
@given(pictures())
def test_everyone_who_waits_is_told_why(picture):
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
@given(pictures())
def test_deciding_changes_nothing_and_repeats_itself(picture):
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


@settings(max_examples=500, deadline=None)
@given(pictures(flat=True))
def test_nobody_waits_who_could_start(picture):
    """Jobs of one group, so what fits is beyond doubt; guarantees that the capacity covers, so reserves are too."""
    plan = decide(picture.snapshot)
    after = After(picture, plan)
    started = {start.job_id for start in plan.starts}
    for job in picture.snapshot.pending:
        if job.id in started or job.held is not None or len(job.groups) > 1:
            continue
        for pool_id in job.pool_ids:
            pool = after.pools[pool_id]
            if sum(quota.guaranteed for quota in pool.quotas.values()) > capacity(after, pool):
                continue
            found = after.where_least_fits(pool, job)
            event("fits" if found else "does not fit")
            if found:
                assert not after.admits(pool, job, sum(charge(pool, placement) for placement in found))


def capacity(after, pool):
    fleet = after.fleets[pool.id]
    return fleet.capacity_milli() if pool.unit == "gpu" else fleet.capacity_cpu_milli()


@settings(max_examples=300, deadline=None)
@given(pictures(), st.integers(0, 3))
def test_a_bound_on_starts_only_shortens_the_list(picture, most):
    whole, short = decide(picture.snapshot), decide(picture.snapshot, Policy(max_starts=most))
    names = [start.job_id for start in whole.starts]
    assert [start.job_id for start in short.starts] == names[:most]


@settings(max_examples=300, deadline=None)
@given(pictures())
def test_what_helps_helps(picture):
    """A larger quota, as told, lets the job start once everything else has started."""
    plan = decide(picture.snapshot)
    for job in picture.snapshot.pending:
        for reason in plan.reasons.get(job.id, ()):
            if reason.helps and "quota" in reason.helps and job.id not in {start.job_id for start in plan.starts}:
                event(f"{reason.code} helps")
                after = After(picture, plan)
                alone = _alone(after, job, reason)
                (start,) = decide(alone).starts
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
