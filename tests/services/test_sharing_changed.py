"""A pool whose rule of sharing changes while it is in use: what runs stays, what comes heeds the new rule."""

import pytest

from inventory.services import change_pool
from scheduling.models import AllocationDevice
from scheduling.services.following import FollowingPicture
from scheduling.services.stop import cancel_jobs


def devices_of(job) -> set[int]:
    rows = AllocationDevice.objects.filter(allocation__job=job, allocation__released_at__isnull=True)
    return set(rows.values_list("device_id", flat=True))


@pytest.fixture
def shared(world):
    """Jobs of two teams on one device."""
    jobs = world.submit(gpus=0.25), world.submit(user="mallory", team="ads", gpus=0.25)
    world.settle()
    assert devices_of(jobs[0]) == devices_of(jobs[1])
    return jobs


@pytest.mark.parametrize("rule", [{"share_across_teams": False}, {"sharing": "exclusive"}], ids=["teams", "tasks"])
def test_who_shares_a_device_goes_on_and_nobody_else_comes_to_it(world, shared, rule):
    change_pool(world.pool, world.now, **rule)
    more = [world.submit(gpus=1) for _ in range(8)]
    world.settle()
    assert [job.state for job in more if job.refresh_from_db() is None].count("running") == 7
    assert world.clockwork.scheduler.picture.check() == []
    following = FollowingPicture()
    following.refresh(world.now)
    assert following.check() == []
    cancel_jobs([job.pk for job in shared], world.now)
    world.settle()
    assert all(job.state == "running" for job in more if job.refresh_from_db() is None)


def test_a_team_does_not_come_beside_those_that_shared_before(world, shared):
    cancel_jobs([shared[1].pk], world.now)
    world.settle()
    again = world.submit(user="mallory", team="ads", gpus=0.25)
    world.settle()
    change_pool(world.pool, world.now, share_across_teams=False)
    late = world.submit(gpus=0.25)
    world.settle()
    assert devices_of(again) == devices_of(shared[0])
    assert devices_of(late).isdisjoint(devices_of(again))


def test_jobs_that_wait_are_kept_apart_once_the_pool_says_so(world):
    full = world.submit(gpus=4, tasks=2)
    world.settle()
    waiting = world.submit(gpus=0.25), world.submit(user="mallory", team="ads", gpus=0.25)
    world.settle()
    change_pool(world.pool, world.now, share_across_teams=False)
    world.settle()
    cancel_jobs([full.pk], world.now)
    world.settle()
    assert len(devices_of(waiting[0]) | devices_of(waiting[1])) == 2
