"""Nothing is decided twice over the same picture, and everything that counts is a reason to decide anew."""

from dataclasses import replace

import pytest

from scheduling.core.fleet import Fleet
from scheduling.core.model import DeviceState, Group, NodeState, PendingJob, Policy, PoolState, Quota, Request, Snapshot
from scheduling.core.model import Team as CoreTeam
from scheduling.services.deciding import Standing, decide
from scheduling.services.stop import cancel_jobs

WHOLE = Request(devices=1, compute_milli=1000)


def snapshot(gpus: int = 9, used: int = 0) -> Snapshot:
    devices = tuple(DeviceState(i, i, "A100", "nvidia", 80, True, used, 80 if used else 0) for i in range(2))
    fleet = Fleet([NodeState(1, "n", 1, 8000, 8000, devices)])
    pool = PoolState(1, "train", fleet, {1: Quota()}, {})
    job = PendingJob(1, 1, 1, (1,), (Group("main", gpus, gpus, WHOLE),), 5)
    return Snapshot(10, (CoreTeam(1, "nlp"),), (pool,), (job,))


def decided(seen: Snapshot) -> Standing:
    standing = Standing()
    standing.keep(seen, Policy(), decide(seen, Policy()))
    return standing


def test_a_plan_that_does_nothing_stands_at_another_moment():
    seen = snapshot()
    standing = decided(seen)
    again = standing.plan_for(replace(seen, now=seen.now + 1), Policy())
    assert again is not None
    assert again == decide(seen, Policy())


def test_a_plan_that_starts_somebody_does_not_stand():
    seen = snapshot(gpus=1)
    assert decided(seen).plan_for(seen, Policy()) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda seen: replace(seen, pending=()),
        lambda seen: replace(seen, teams=(*seen.teams, CoreTeam(2, "ads"))),
        lambda seen: replace(seen, pools=(replace(seen.pools[0], quotas={1: Quota(limit=5)}),)),
        lambda seen: replace(seen, pools=(replace(seen.pools[0], available=False),)),
        lambda seen: replace(seen, pools=(replace(seen.pools[0], fleet=seen.pools[0].fleet.judged_anew("spread")),)),
    ],
    ids=["queue", "teams", "quota", "pool", "fleet"],
)
def test_what_counts_is_decided_anew(change):
    seen = snapshot()
    assert decided(seen).plan_for(change(seen), Policy()) is None


def test_another_policy_is_decided_anew():
    seen = snapshot()
    assert decided(seen).plan_for(seen, Policy(max_starts=1)) is None


def test_a_device_taken_or_given_back_is_decided_anew():
    seen = snapshot()
    standing = decided(seen)
    fleet = seen.pools[0].fleet
    placement = fleet.place(WHOLE)
    assert placement is not None
    fleet.take(placement)
    assert standing.plan_for(seen, Policy()) is None


def test_where_the_past_counts_every_moment_is_decided_anew():
    seen = snapshot()
    seen = replace(seen, pools=(replace(seen.pools[0], past_use={1: 5}),))
    assert decided(seen).plan_for(seen, Policy()) is None


def test_a_forced_cycle_over_the_same_picture_has_the_same_plan_and_the_next_change_is_seen(world):
    running = world.submit(gpus=4)
    world.settle()
    waiting = world.submit(gpus=4, tasks=2)
    scheduler = world.clockwork.scheduler
    first = scheduler.cycle(world.now)
    settled = scheduler.cycle(world.now, force=True)  # that room is kept for it is part of the picture now
    forced = scheduler.cycle(world.now, force=True)
    assert first.plan is not None
    assert forced.plan is settled.plan
    cancel_jobs([running.pk], world.now)
    world.settle()
    waiting.refresh_from_db()
    assert waiting.state == "running"
