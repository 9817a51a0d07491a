"""A picture that follows another's commits from the event log alone is the picture that one would read now."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from django.db import connection

from inventory.models import Device, Node
from inventory.services import set_device_health, set_node_state
from quotas.services import set_quota
from scheduling.core.decide import decide
from scheduling.core.fleet_state import state_of
from scheduling.models import Allocation, Job, PriorityClass
from scheduling.services.cycle import Scheduler
from scheduling.services.following import FollowingPicture, KeptPicture
from scheduling.services.holding import hold_job, release_job
from scheduling.services.picture import Picture
from scheduling.services.reconcile import lose_node
from scheduling.services.stop import cancel_jobs, set_priority
from tests.concurrency.racing import Worker

NO_FLEET: Any = None


def as_read(picture: Picture, now: Any) -> Any:
    """All that a decision is made over, fleets as their columns; counts of nothing left out."""
    snapshot = picture.snapshot(now)
    pools = [
        (
            replace(pool, fleet=NO_FLEET, usage={}, class_usage={}, class_milli={}, memory_usage={}),
            {key: held for key, held in pool.usage.items() if held},
            {key: held for key, held in pool.class_usage.items() if held},
            {key: held for key, held in pool.class_milli.items() if held},
            {key: held for key, held in pool.memory_usage.items() if held},
            state_of(pool.fleet).nodes.tolist(),
            state_of(pool.fleet).devices.tolist(),
        )
        for pool in snapshot.pools
    ]
    return replace(snapshot, pools=()), pools


def assert_follows(follower: FollowingPicture, now: Any) -> None:
    follower.refresh(now)
    fresh = Picture()
    fresh.refresh(now)
    assert follower.check() == []
    assert as_read(follower, now) == as_read(fresh, now)
    assert decide(follower.snapshot(now)) == decide(fresh.snapshot(now))


def submit_something(world: Any, random: Random) -> None:
    tasks = random.choice([1, 1, 2, 3])
    team = random.choice(["nlp", "nlp", "vision"])
    world.submit(
        user="root",
        team=team,
        gpus=random.choice([0.25, 0.5, 1, 2, 4]),
        tasks=tasks,
        min_tasks=random.choice([1, tasks]),
        priority=random.choice(["low", "normal", "high"]),
        preemptible=random.random() < 0.8,
        retries=random.choice([0, 1]),
        **random.choice([{}, {"duration": "20s"}, {"duration": "40s", "exit": "failed"}]),
    )


def act(world: Any, random: Random) -> None:
    """One thing happens, whoever does it."""
    unfinished = list(Job.objects.filter(ended_at__isnull=True).order_by("pk"))
    waiting = [job for job in unfinished if job.state == Job.State.PENDING]
    node = random.choice(list(Node.objects.order_by("pk")))
    live = list(Allocation.objects.filter(released_at__isnull=True).order_by("pk"))
    kind = random.randrange(14)
    if kind <= 4 or not unfinished:
        submit_something(world, random)
    elif kind == 5:
        cancel_jobs([random.choice(unfinished).pk], world.now)
    elif kind == 6 and waiting:
        job = random.choice(waiting)
        (release_job if job.hold else hold_job)(job, world.now)
    elif kind == 7:
        guaranteed = random.choice([0, 2000, 4000])
        set_quota(world.teams[random.choice(["nlp", "vision"])], world.pool, world.now, guaranteed=guaranteed)
    elif kind == 8:
        state = random.choice([Node.State.READY, Node.State.READY, Node.State.CORDONED, Node.State.DRAINING])
        set_node_state(node, state, world.now)
    elif kind == 9:
        lose_node(node, world.engine, world.now)
    elif kind == 10:
        health = random.choice([Device.Health.OK, Device.Health.FAILED])
        set_device_health(random.choice(list(node.devices.order_by("pk"))), health, world.now)
    elif kind == 11 and live:
        world.clockwork.reconcilers[0].engine.lose(random.choice(live).pk, world.now)
    elif kind == 12:
        set_priority(random.choice(unfinished), world.now, priority_class=PriorityClass.objects.get(name="high"))
    else:
        world.clockwork.scheduler.stand_down()
        world.clockwork.scheduler = Scheduler("another")
        assert world.clockwork.scheduler.lead(world.now)


@pytest.mark.parametrize("seed", range(8))
def test_it_follows_whatever_happens(world, seed):
    """Seen after every single pass of the scheduler and the engine, not only once all has settled."""
    random = Random(seed)
    follower = FollowingPicture()
    reconciler = world.clockwork.reconcilers[0]
    seen: set[str] = set()
    for _ in range(24):
        act(world, random)
        for _ in range(random.randint(0, 3)):
            world.clockwork.scheduler.cycle(world.now)
            if random.random() < 0.5:
                assert_follows(follower, world.now)
            reconciler.step(world.now)
            if random.random() < 0.5:
                assert_follows(follower, world.now)
        if random.random() < 0.4:
            world.pass_time(seconds=random.choice([1, 10, 30]))
        assert_follows(follower, world.now)
        seen |= set(Job.objects.values_list("state", flat=True))
    assert {"running", "pending"} <= seen


def test_it_follows_evictions_step_by_step(world):
    """Those who give way hold what they hold until they are gone, and for whom is known."""
    set_quota(world.teams["nlp"], world.pool, world.now, guaranteed=4000)
    set_quota(world.teams["vision"], world.pool, world.now, guaranteed=4000)
    world.pool.grace_s = 60
    world.pool.save()
    follower = FollowingPicture()
    for number in range(8):
        world.submit(user="root", team="nlp", name=f"n{number}", gpus=1)
    world.settle()
    assert_follows(follower, world.now)
    wants = world.submit(user="root", team="vision", gpus=2)
    assert world.clockwork.scheduler.cycle(world.now).evicted == 2
    assert_follows(follower, world.now)
    assert [held.for_job for held in follower.held.values() if held.releasing] == [wants.pk] * 2
    assert follower.pending[wants.pk].room_made_at is not None
    world.settle()
    assert_follows(follower, world.now)
    world.pass_time(seconds=61)
    assert_follows(follower, world.now)
    assert Job.objects.get(pk=wants.pk).state == Job.State.RUNNING


def test_an_elastic_job_grows_and_shrinks_in_it(world):
    follower = FollowingPicture()
    blocks = world.submit(gpus=4, name="blocks")
    world.settle()
    elastic = world.submit(gpus=1, tasks=8, min_tasks=2)
    world.settle()
    assert_follows(follower, world.now)
    assert len(follower.allocations_of[elastic.pk]) == 4
    cancel_jobs([blocks.pk], world.now)
    world.settle()
    assert_follows(follower, world.now)
    assert len(follower.allocations_of[elastic.pk]) == 8


def test_what_no_event_tells_of_is_found_when_it_gets_in_the_way(world):
    """Rows that were changed by hand: the picture is read anew instead of being wrong."""
    follower = FollowingPicture()
    first = world.submit(gpus=4, name="first")
    world.settle()
    assert_follows(follower, world.now)
    Allocation.objects.filter(job=first).update(state="released", released_at=world.now)
    Device.objects.update(compute_allocated_milli=0, memory_allocated_mib=0)
    Job.objects.filter(pk=first.pk).update(state="cancelled", ended_at=world.now)
    world.clockwork.scheduler.picture.outdate()
    for name in ("second", "third"):
        world.submit(gpus=4, name=name)
    world.settle()
    assert_follows(follower, world.now)


def test_a_kept_picture_is_the_same_one_until_it_was_left_alone_too_long(world):
    kept = KeptPicture(timedelta(minutes=10))
    world.submit(gpus=4)
    world.settle()
    with kept.at(world.now) as first:
        assert len(first.held) == 1
    world.submit(gpus=2)
    world.settle()
    with kept.at(world.now + timedelta(minutes=9)) as second:
        assert second is first
        assert len(second.held) == 2
    with kept.at(world.now + timedelta(minutes=20)) as third:
        assert third is not first
        assert len(third.held) == 2


def test_a_picture_in_which_something_went_wrong_is_not_used_again(world):
    kept = KeptPicture(timedelta(minutes=10))
    with pytest.raises(RuntimeError), kept.at(world.now) as broken:
        raise RuntimeError
    with kept.at(world.now) as other:
        assert other is not broken


@pytest.mark.django_db(transaction=True)
def test_it_follows_a_scheduler_in_another_process(world):
    """Jobs come and go there all the while; whenever it looks, what it sees is whole."""
    world.clockwork.scheduler.stand_down()
    follower = FollowingPicture()
    worker = Worker("scheduler", "elsewhere")
    try:
        assert worker.answer() == "works"
        submitted = []
        for number in range(40):
            job = world.submit(gpus=[0.5, 1, 2, 4][number % 4], name=f"j{number}", duration="50ms")
            submitted.append(job.pk)
            follower.refresh(world.now)
            assert_consistent(follower)
        while Job.objects.filter(pk__in=submitted, ended_at__isnull=True).exists():
            follower.refresh(world.now)
            assert_consistent(follower)
    finally:
        worker.end()
        connection.close()
    assert_follows(follower, world.now)


def assert_consistent(picture: Picture) -> None:
    """The fleet holds exactly what the picture's allocations say."""
    for pool in picture.pools.values():
        held = sum(each.placement.milli for each in picture.held.values() if each.pool_id == pool.id)
        assert pool.fleet.allocated_milli() == held == sum(pool.usage.values())
