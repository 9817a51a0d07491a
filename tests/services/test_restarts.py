"""Services: how long a replica waits before its next start, what its own ends are, and every second billed once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from billing.models import UsageRecord
from events.errors import Conflict
from scheduling.engines.base import Report
from scheduling.models import Allocation, Job, Task
from scheduling.services.holding import hold_job, release_job
from scheduling.services.reports import record_reports
from scheduling.services.restarts import FIRST, wait_after
from scheduling.services.stop import cancel_jobs
from tests.concurrency.accounts import faults_in_the_books

WAITS = [(0, 1), (1, 1), (2, 2), (3, 4), (4, 8), (8, 128), (9, 256), (10, 300), (1000, 300)]


@pytest.mark.parametrize(("in_a_row", "seconds"), WAITS)
def test_a_wait_doubles_up_to_five_minutes(in_a_row, seconds):
    assert wait_after(in_a_row) == timedelta(seconds=seconds)


def service(world, **asks):
    job = world.submit(kind="service", name="api", **{"gpus": 1, **asks})
    world.settle()
    return job


def end(world, job, *indexes, code=1, reason=""):
    """These replicas end now."""
    live = Allocation.objects.filter(job=job, task__index__in=indexes, released_at__isnull=True).order_by("pk")
    engine = world.clockwork.reconcilers[0].engine
    for allocation in live:
        engine._running.pop(allocation.pk)  # so that it tells no second end
    record_reports([Report(each.pk, "ended", world.now, code, reason) for each in live], world.now)
    world.settle()


def seen(job):
    found = Job.objects.get(pk=job.pk)
    return found.state, list(Task.objects.filter(job=job).order_by("index").values_list("state", "restarts"))


def starts(job):
    """When its allocations were bound, in seconds since the first."""
    moments = list(Allocation.objects.filter(job=job).order_by("pk").values_list("bound_at", flat=True))
    return [(moment - moments[0]).total_seconds() for moment in moments]


@pytest.mark.parametrize("exit_name", ["failed", "succeeded"])
def test_a_replica_is_started_again_however_it_ended(world, exit_name):
    job = service(world, duration="10s", exit=exit_name)
    world.pass_time(minutes=3)
    # Lives of 10 s, with 1, 2, 4, 8, 16 and 32 s between them.
    assert starts(job) == [0, 11, 23, 37, 55, 81, 123]
    assert Task.objects.get(job=job).restarts == 7
    assert faults_in_the_books() == []


def test_a_crash_loop_is_never_tried_more_often_than_every_five_minutes(world):
    job = service(world, duration="0s", exit="failed")
    world.pass_time(hours=3)
    gaps = [b - a for a, b in zip(starts(job), starts(job)[1:], strict=False)]
    assert gaps[:10] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert set(gaps[10:]) == {300}
    (reason,) = Job.objects.get(pk=job.pk).reasons
    assert reason["code"] == "crash_loop"
    assert reason["numbers"]["in_a_row"] >= 10


def test_a_life_of_ten_minutes_forgets_the_ones_before(world):
    job = service(world, duration="10m")
    world.pass_time(hours=1)
    gaps = [b - a for a, b in zip(starts(job), starts(job)[1:], strict=False)]
    assert gaps == [601] * 5


def test_others_run_on_while_one_rests_and_the_reason_says_so(world):
    job = service(world, tasks=3, min_tasks=1)
    began = Job.objects.get(pk=job.pk).started_at
    for count in (1, 2, 3):
        end(world, job, 1)
        state, tasks = seen(job)
        assert (state, tasks) == ("running", [("running", 0), ("pending", count), ("running", 0)])
        (reason,) = Job.objects.get(pk=job.pk).reasons
        assert (reason["code"], reason["numbers"]["in_a_row"]) == ("crash_loop", count)
        world.pass_time(seconds=2 ** (count - 1) - 0.5)
        assert seen(job)[1][1] == ("pending", count)
        world.pass_time(seconds=0.5)
        assert seen(job)[1][1] == ("running", count)
        assert Job.objects.get(pk=job.pk).reasons == []
    assert Job.objects.get(pk=job.pk).started_at == began
    assert faults_in_the_books() == []


def test_the_one_that_rests_is_not_started_in_the_place_of_one_that_need_not(world):
    job = service(world, tasks=3, min_tasks=1)
    for _ in range(4):
        end(world, job, 0)
        world.pass_time(seconds=8)
    end(world, job, 0)  # rests for 16 s
    node_lost = Allocation.objects.get(job=job, task__index=2, released_at__isnull=True)
    record_reports([Report(node_lost.pk, "ended", world.now, None, "node_lost")], world.now)
    world.settle()
    assert seen(job)[1] == [("pending", 5), ("running", 0), ("running", 0)]
    (reason,) = Job.objects.get(pk=job.pk).reasons
    assert reason["code"] == "crash_loop"


def test_a_lost_node_is_no_crash_and_is_made_up_for_at_once(world):
    job = service(world, gpus=4, tasks=2, min_tasks=2)
    spare = world.submit(gpus=4, kind="service", name="later")
    node = Allocation.objects.get(job=job, task__index=0).node
    world.engine.lose(Allocation.objects.get(job=job, task__index=0).pk, world.now, "node_lost")
    world.settle()
    # What waits as a job goes before what runs and is to be made up for: that is the right of a growing job.
    assert seen(job)[0] == "running"
    assert Allocation.objects.get(job=spare, released_at__isnull=True).node_id == node.pk
    (reason,) = Job.objects.get(pk=job.pk).reasons
    assert reason["code"] == "no_fit"
    cancel_jobs([spare.pk], world.now)
    world.settle()
    assert seen(job) == ("running", [("running", 0), ("running", 0)])
    assert Job.objects.get(pk=job.pk).reasons == []
    assert faults_in_the_books() == []


def test_all_gone_at_once_waits_as_one_and_starts_as_one(world):
    job = service(world, gpus=1, tasks=4, min_tasks=3)
    end(world, job, 0, 1, 2, 3)
    assert seen(job) == ("pending", [("pending", 1)] * 4)
    world.pass_time(seconds=1)
    assert seen(job) == ("running", [("running", 1)] * 4)
    # Two rest longer than the others: the least is not there before they are.
    end(world, job, 0, 1)
    world.pass_time(seconds=1)
    end(world, job, 2, 3)
    assert seen(job)[0] == "pending"
    world.pass_time(seconds=1)
    assert seen(job)[0] == "pending"
    world.pass_time(seconds=1)
    assert seen(job) == ("running", [("running", 2)] * 4)
    assert faults_in_the_books() == []


def test_groups_rest_apart(world):
    job = world.submit(
        kind="service",
        groups=[{"name": "front", "gpus": 0.5, "tasks": 2, "min_tasks": 1}, {"name": "back", "gpus": 1, "tasks": 2}],
    )
    world.settle()
    end(world, job, 0)
    end(world, job, 3)
    assert [state for state, _ in seen(job)[1]] == ["pending", "running", "running", "pending"]
    world.pass_time(seconds=1)
    assert seen(job) == ("running", [("running", 1), ("running", 0), ("running", 0), ("running", 1)])


def test_every_second_of_every_replica_is_billed_once(world):
    job = service(world, tasks=2, min_tasks=1, duration="90s")
    world.pass_time(minutes=10)
    cancel_jobs([job.pk], world.now)
    world.settle()
    held = Allocation.objects.filter(job=job)
    seconds = sum(((each.released_at or world.now) - each.bound_at).total_seconds() for each in held)
    billed = sum(record.microseconds or 0 for record in UsageRecord.objects.filter(job=job))
    assert billed == seconds * 1_000_000
    assert 0 < seconds < 2 * 600
    assert faults_in_the_books() == []


def test_a_rest_can_be_held_and_cancelled(world):
    job = service(world, duration="10s", exit="failed")
    world.pass_time(seconds=10)
    assert Job.objects.get(pk=job.pk).reasons[0]["code"] == "crash_loop"
    hold_job(job, world.now)
    world.pass_time(seconds=60)
    found = Job.objects.get(pk=job.pk)
    assert (found.state, found.reasons[0]["message"]) == ("pending", "held by its owner")
    release_job(found, world.now)
    world.settle()
    assert seen(job)[0] == "running"
    with pytest.raises(Conflict):
        hold_job(job, world.now)
    world.pass_time(seconds=10)
    cancel_jobs([job.pk], world.now)
    world.pass_time(minutes=10)
    assert seen(job)[0] == "cancelled"
    assert Allocation.objects.filter(job=job).count() == 2


def test_cancelling_a_service_that_half_rests_ends_all_of_it(world):
    job = service(world, tasks=2, min_tasks=1)
    end(world, job, 0)
    cancel_jobs([job.pk], world.now)
    world.settle()
    world.pass_time(minutes=10)
    found = Job.objects.get(pk=job.pk)
    assert (found.state, found.reasons) == ("cancelled", [])
    assert seen(job)[1] == [("cancelled", 1), ("cancelled", 0)]
    assert faults_in_the_books() == []


def test_a_restart_of_the_scheduler_forgets_no_rest(world):
    from scheduling.services.cycle import Scheduler

    job = service(world, duration="10s", exit="failed")
    world.pass_time(seconds=10 + 1 + 10 + 2 + 10)
    world.clockwork.scheduler.stand_down()
    fresh = Scheduler("fresh")
    assert fresh.lead(world.now)
    world.clockwork.scheduler = fresh
    world.settle()
    assert fresh.picture.rests_until == world.now + FIRST * 4
    world.pass_time(seconds=3)
    assert seen(job)[0] == "pending"
    world.pass_time(seconds=1)
    assert seen(job)[0] == "running"
