"""Estimated starts as services keep them: stored, renewed, taken away, and no more often than they may."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from scheduling.models import Job
from scheduling.services.cycle import Scheduler
from scheduling.services.stop import cancel_jobs
from tests.conftest import NOW

pytestmark = pytest.mark.django_db


def estimate(job: Job) -> timedelta | None:
    job.refresh_from_db()
    return None if job.estimated_start is None else job.estimated_start - NOW


@pytest.fixture
def full(world: Any) -> list[Job]:
    """Two nodes of four: one for two hours, one for one; then two that wait."""
    limits = [("2h", 4), ("1h", 4), ("3h", 4), ("1h", 4)]
    jobs = [world.submit(name=f"j-{i}", gpus=gpus, time_limit=limit) for i, (limit, gpus) in enumerate(limits)]
    world.settle()
    return jobs


def test_they_are_stored_renewed_and_gone_with_the_wait(world: Any, full: list[Job]) -> None:
    _, second, third, fourth = full
    assert (estimate(third), estimate(fourth)) == (timedelta(hours=1), timedelta(hours=2))
    cancel_jobs([second.pk], world.now)
    world.settle()
    assert (estimate(third), estimate(fourth)) == (None, timedelta(hours=2))
    assert third.state == Job.State.RUNNING
    cancel_jobs([fourth.pk], world.now)
    world.settle()
    assert estimate(fourth) is None


def test_where_it_cannot_be_told_any_more_it_is_taken_back(world: Any, full: list[Job]) -> None:
    _, second, third, _ = full
    endless = world.submit(name="endless", gpus=4)
    cancel_jobs([third.pk], world.now)
    cancel_jobs([second.pk], world.now)
    world.settle()
    # The fourth starts where the second was; the endless one follows the first.
    after = world.submit(name="after", gpus=4)
    last = world.submit(name="last", gpus=4)
    world.settle()
    assert [estimate(each) for each in (endless, after)] == [timedelta(hours=1), timedelta(hours=2)]
    assert estimate(last) is None, "it would follow the one without a time limit"


def test_a_scheduler_that_starts_anew_says_the_same(world: Any, full: list[Job]) -> None:
    before = [estimate(job) for job in full]
    world.pass_time(minutes=10)
    world.clockwork.scheduler.stand_down()
    world.clockwork.scheduler = scheduler = Scheduler("another")
    assert scheduler.lead(world.now)
    Job.objects.filter(pk=full[0].pk).update(estimated_start=None)
    world.settle()
    assert [estimate(job) for job in full] == before


def test_they_are_worked_out_no_more_often_than_the_interval(world: Any, full: list[Job]) -> None:
    scheduler = world.clockwork.scheduler
    scheduler.estimates.interval = timedelta(minutes=5)
    more = world.submit(name="more", gpus=4, time_limit="1h")
    world.pass_time(minutes=1)
    assert more.pk in scheduler.picture.pending
    assert estimate(more) is None
    assert scheduler.estimate(world.now + timedelta(minutes=3)) == 0
    assert scheduler.estimate(world.now + timedelta(minutes=6)) == 1
    assert estimate(more) == timedelta(hours=3)
    assert scheduler.estimate(world.now + timedelta(minutes=50)) == 0, "nothing was decided since"


def test_a_moment_that_has_passed_is_no_estimate(world: Any, full: list[Job]) -> None:
    """The engine did not end a task at its time limit: nobody knows how late it is."""
    third = full[2]
    scheduler = world.clockwork.scheduler
    assert estimate(third) == timedelta(hours=1)
    assert scheduler.estimate(NOW + timedelta(hours=1, seconds=1)) > 0
    assert estimate(third) == timedelta(hours=2), "behind the other node, as far as anybody knows"
