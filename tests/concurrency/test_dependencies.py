"""Predecessors that end at the same moment as each other, as a submission or as a release: no follower is lost."""

from __future__ import annotations

import threading

import pytest
from django.db import connection, transaction

from events.errors import Conflict
from scheduling.engines.base import Report
from scheduling.models import Allocation, Job
from scheduling.services.holding import hold_job, release_job
from scheduling.services.reports import record_reports
from scheduling.services.stop import cancel_jobs
from tests.concurrency.accounts import faults_in_the_books
from tests.concurrency.racing import PATIENCE_S, at_once, raised

pytestmark = pytest.mark.django_db(transaction=True)


def two_run(world) -> list[Allocation]:
    jobs = [world.submit(gpus=1, name=f"p{i}") for i in range(2)]
    world.settle()
    return [Allocation.objects.get(job=job) for job in jobs]


def ends(world, allocation: Allocation):
    return lambda: record_reports([Report(allocation.pk, "ended", world.now, 0)], world.now)


@pytest.mark.postgres
def test_without_the_lock_each_of_two_sees_the_other_unfinished(world):
    """Both write their success, both look at the other's, and both leave the follower to the other."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    before = [each.job_id for each in two_run(world)]
    follower = world.submit(gpus=1, after=before)
    written = threading.Barrier(2)

    def end(own: int) -> None:
        with transaction.atomic():
            Job.objects.filter(pk=own).update(state=Job.State.SUCCEEDED, ended_at=world.now)
            written.wait(PATIENCE_S)
            waits = follower.after.exclude(state=Job.State.SUCCEEDED).exists()
            written.wait(PATIENCE_S)
            if not waits:
                Job.objects.filter(pk=follower.pk).update(hold="")

    raised(at_once([lambda own=own: end(own) for own in before]), Conflict)
    assert Job.objects.get(pk=follower.pk).hold == "dependency"  # for ever


@pytest.mark.parametrize("round_number", range(8))
def test_the_later_of_two_ends_lets_the_follower_go(world, round_number):
    allocations = two_run(world)
    follower = world.submit(gpus=1, after=[each.job_id for each in allocations])
    assert raised(at_once([ends(world, each) for each in allocations]), Conflict) == 0
    assert Job.objects.get(pk=follower.pk).hold == ""
    world.settle()
    assert Job.objects.get(pk=follower.pk).state == "running"
    assert faults_in_the_books() == []


@pytest.mark.parametrize("round_number", range(8))
def test_a_follower_that_is_submitted_as_its_predecessor_ends_is_not_left_behind(world, round_number):
    (first, second) = two_run(world)
    acts = [ends(world, first), lambda: world.submit(gpus=1, after=[first.job_id]), ends(world, second)]
    acts.append(lambda: world.submit(gpus=1, after=[first.job_id, second.job_id]))
    assert raised(at_once(acts), Conflict) == 0
    assert not Job.objects.exclude(hold="").exists()
    world.settle()
    assert Job.objects.filter(state="running").count() == 2


@pytest.mark.parametrize("round_number", range(8))
def test_a_release_and_an_end_at_once_leave_no_hold(world, round_number):
    first, second = two_run(world)
    follower = world.submit(gpus=1, after=[first.job_id, second.job_id])
    hold_job(follower, world.now)
    acts = [ends(world, first), lambda: release_job(follower, world.now), ends(world, second)]
    assert raised(at_once(acts), Conflict) == 0
    assert Job.objects.get(pk=follower.pk).hold == ""


@pytest.mark.parametrize("round_number", range(8))
def test_ends_and_cancellations_that_cross_wait_for_each_other_in_order(world, round_number):
    """Chains that lie across one another, so that whoever locked in another order would close a circle."""
    first, second = two_run(world)
    third = world.submit(gpus=1, after=[second.job_id])
    fourth = world.submit(gpus=1, after=[first.job_id, third.pk])
    acts = [
        ends(world, second),
        ends(world, first),
        lambda: cancel_jobs([fourth.pk, third.pk], world.now),
        lambda: cancel_jobs([third.pk], world.now),
    ]
    assert raised(at_once(acts), Conflict) == 0
    assert set(Job.objects.filter(pk__in=[third.pk, fourth.pk]).values_list("state", "hold")) == {("cancelled", "")}
    assert faults_in_the_books() == []
