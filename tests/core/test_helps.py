"""What would help does help: in random worlds the suggested change is made, and the job starts."""

from dataclasses import replace

from hypothesis import event, given, settings
from hypothesis import strategies as st

from scheduling.core.decide import decide
from scheduling.core.fleet import Fleet
from scheduling.core.model import Quota, Snapshot
from scheduling.core.units import milli_from_gpus
from tests.core import test_decide_properties, test_reclaim_properties
from tests.core.little_world import BOB, World, node, one_team

seeds = st.integers(0, 2**32 - 1)


def carried_out(made, plan):
    """The world of a picture once the plan's starts run."""
    fleets = {key: Fleet(nodes, **made.options) for key, nodes in made.nodes.items()}
    usage = {pool.id: dict(pool.usage) for pool in made.snapshot.pools}
    classes = {pool.id: dict(pool.class_usage) for pool in made.snapshot.pools}
    jobs = {job.id: job for job in made.snapshot.pending}
    units = {pool.id: pool.unit for pool in made.snapshot.pools}
    for start in plan.starts:
        job = jobs.pop(start.job_id)
        for task in start.tasks:
            fleets[start.pool_id].take(task.placement, job.groups[task.group].request.team_id)
            held = task.placement.milli if units[start.pool_id] == "gpu" else task.placement.cpu_milli
            key = (job.team_id, job.user_id)
            usage[start.pool_id][key] = usage[start.pool_id].get(key, 0) + held
        rank = (job.team_id, job.priority_class)
        classes[start.pool_id][rank] = classes[start.pool_id].get(rank, 0) + 1
    pools = tuple(
        replace(pool, fleet=fleets[pool.id], usage=usage[pool.id], class_usage=classes[pool.id])
        for pool in made.snapshot.pools
    )
    return Snapshot(made.snapshot.now, made.snapshot.teams, pools, tuple(jobs.values()))


def changed(snapshot, job, reason):
    """The world with the change that the reason suggests."""
    helps = reason.helps
    pools, pending = snapshot.pools, snapshot.pending
    if "quota" in helps:
        team = next(team.id for team in snapshot.teams if team.name == helps["quota"]["team"])
        values = {
            name: helps["quota"][name]
            for name in ("limit", "per_user_limit", "memory_limit_mib")
            if name in helps["quota"]
        }
        pools = tuple(
            replace(pool, quotas={**pool.quotas, team: replace(pool.quotas.get(team, Quota()), **values)})
            if pool.id == reason.pool_id
            else pool
            for pool in pools
        )
    request = helps.get("request", {})
    other = job
    if "preemptible" in request:
        other = replace(other, preemptible=request["preemptible"])
    if "gpus" in request:
        (group,) = other.groups
        smaller = replace(group.request, compute_milli=milli_from_gpus(request["gpus"]))
        other = replace(other, groups=(replace(group, request=smaller),))
    pending = tuple(other if each.id == job.id else each for each in pending)
    return replace(snapshot, pools=pools, pending=pending)


def assert_what_helps_helps(settled):
    """``settled``: what is left once a plan is carried out. Each job starts once what would help it is so."""
    plan = decide(settled)
    if plan.starts or plan.evictions:
        return  # others come first: what is told now is of a moment that is over by then
    kept = {each.job_id: each for each in plan.reservations}
    pending = tuple(
        replace(job, room_kept_since=kept[job.id].since, room_kept_at=kept[job.id].tasks) if job.id in kept else job
        for job in settled.pending
    )
    settled = replace(settled, pending=pending)
    jobs = {job.id: job for job in pending}
    for job_id, reasons in plan.reasons.items():
        for reason in reasons:
            if reason.helps is None or jobs[job_id].growing:
                continue
            event(reason.code)
            after = decide(changed(settled, jobs[job_id], reason))
            assert job_id in {start.job_id for start in after.starts}, (job_id, reason)


@settings(deadline=None, max_examples=300)
@given(seeds)
def test_in_worlds_of_many_pools(seed):
    made = test_decide_properties.Maker(seed).picture()
    assert_what_helps_helps(carried_out(made, decide(made.snapshot)))


@settings(deadline=None, max_examples=200)
@given(seeds)
def test_in_worlds_where_others_give_way(seed):
    made = test_reclaim_properties.Maker(seed)
    plan = decide(made.snapshot())
    assert_what_helps_helps(test_reclaim_properties.Later(made, plan).snapshot())


def test_a_raised_limit_covers_those_before_in_the_line():
    outcome = one_team(node(gpus=8), limit=2).jobs_of("a", 5, 1).decide()
    assert outcome.started == ["a-1", "a-2"]
    assert outcome.reason("a-3").helps == {"quota": {"team": "a", "limit": 3000, "by_milli": 1000}}
    assert outcome.reason("a-5").helps == {
        "quota": {"team": "a", "limit": 5000, "by_milli": 3000}, "jobs_ahead": 2,
    }  # fmt: skip


def test_who_comes_next_is_not_told_where_several_teams_wait_for_one_limit():
    world = World().pool("train", node(gpus=8)).team("p", limit=1).team("p/a").team("p/b")
    outcome = world.job("one", "a", 1).job("two", "b", 1).job("three", "a", 1).decide()
    assert outcome.started == ["one"]
    assert outcome.reason("two").helps is None


def test_a_members_limit_is_a_line_of_the_members_own():
    world = one_team(node(gpus=8), per_user_limit=1).jobs_of("a", 2, 1).job("bobs", "a", 1, user=BOB)
    outcome = world.job("bobs-too", "a", 1, user=BOB).decide()
    assert outcome.reason("a-2").helps == {"quota": {"team": "a", "per_user_limit": 2000, "by_milli": 1000}}
    assert outcome.reason("bobs-too").helps is None  # a-2 would be let in first
