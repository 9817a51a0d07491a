"""An end is told once or five times, early, late or out of order, by whichever clock: it frees and bills once."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from billing.models import UsageRecord
from billing.services import close_month
from events.models import Event
from inventory.models import Device, Node
from inventory.services import change_pool
from scheduling.engines.base import Report
from scheduling.models import Allocation, Job
from scheduling.services.reconcile import lose_node
from scheduling.services.reports import record_reports


def held_milli() -> int:
    return sum(Device.objects.values_list("compute_allocated_milli", flat=True))


def two_jobs(world):
    stays, ends = world.submit(gpus=2, name="stays"), world.submit(gpus=4, name="ends")
    world.settle()
    assert held_milli() == 6000
    return stays, ends, Allocation.objects.get(job=ends)


SUCCEEDED, DELETED = ("exit", 0, ""), ("gone", None, "lost")


def report(allocation: Allocation, told: tuple, at) -> Report:
    _, code, reason = told
    return Report(allocation.pk, "ended", at, code, reason)


ORDERS = sorted({order[:length] for order in itertools.product((SUCCEEDED, DELETED), repeat=3) for length in (1, 2, 3)})


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "-".join(each[0] for each in order))
@pytest.mark.parametrize("together", [True, False], ids=["at once", "one by one"])
def test_an_end_counts_once_in_every_order(world, order, together):
    stays, ends, allocation = two_jobs(world)
    world.now += timedelta(seconds=30)
    reports = [report(allocation, told, world.now) for told in order]
    for batch in [reports] if together else [[each] for each in reports]:
        record_reports(batch, world.now)
        assert held_milli() == 2000
    world.settle()
    ends.refresh_from_db()
    assert ends.state == (Job.State.SUCCEEDED if order[0] == SUCCEEDED else Job.State.FAILED)
    assert held_milli() == 2000
    assert world.clockwork.scheduler.picture.check() == []
    assert UsageRecord.objects.filter(job=ends, ended_at__isnull=False).count() == 1
    assert Event.objects.filter(job_id=ends.pk, kind="job.state", data__state=ends.state).count() == 1
    stays.refresh_from_db()
    assert stays.state == Job.State.RUNNING


def test_a_start_that_is_told_after_the_end_starts_nothing(world):
    _, ends, allocation = two_jobs(world)
    record_reports([report(allocation, SUCCEEDED, world.now)], world.now)
    assert record_reports([Report(allocation.pk, "started", world.now)], world.now) == 0
    ends.refresh_from_db()
    assert ends.state == Job.State.SUCCEEDED
    assert held_milli() == 2000


def test_reports_of_unknown_allocations_change_nothing(world):
    before = Event.objects.count()
    assert record_reports([Report(987654, "ended", world.now, 0), Report(987655, "started", world.now)], world.now) == 0
    assert Event.objects.count() == before


def test_workloads_that_vanish_give_their_places_to_those_who_wait(world):
    from quotas.services import set_quota

    set_quota(world.teams["nlp"], world.pool, world.now, limit=8000)
    running = [world.submit(gpus=2, name=f"j{i}") for i in range(4)]
    waiting = [world.submit(gpus=2, name=f"p{i}") for i in range(2)]
    world.settle()
    engine = world.clockwork.reconcilers[0].engine
    for job in running[:2]:
        engine.lose(Allocation.objects.get(job=job).pk, world.now)
    world.pass_time(seconds=1)
    states = {job.name: job.state for job in Job.objects.order_by("pk")}
    assert states == {
        "j0": "failed",
        "j1": "failed",
        "j2": "running",
        "j3": "running",
        "p0": "running",
        "p1": "running",
    }
    gone = Job.objects.get(pk=running[0].pk)
    assert (gone.ending_reason, gone.end_message) == ("lost", "The workload disappeared.")
    assert held_milli() == 8000
    assert not Allocation.objects.filter(job__in=running[:2], released_at__isnull=True).exists()
    assert Job.objects.get(pk=waiting[1].pk).state == Job.State.RUNNING


def test_a_vanished_workload_with_retries_waits_behind_nobody_older(world):
    """It keeps its first submission time, and never counts twice while it is queued again."""
    job = world.submit(gpus=4, retries=1, name="again")
    world.settle()
    engine = world.clockwork.reconcilers[0].engine
    engine.lose(Allocation.objects.get(job=job).pk, world.now)
    world.pass_time(seconds=1)
    job.refresh_from_db()
    assert (job.state, job.retries_used) == (Job.State.RUNNING, 1)
    assert held_milli() == 4000
    assert Allocation.objects.filter(job=job).count() == 2


@pytest.mark.parametrize("ahead", [-90, 90, 86400], ids=lambda seconds: f"{seconds} s")
def test_a_clock_that_is_off_neither_lengthens_nor_shortens_a_bill(world, ahead):
    """The node's clock differs; what is billed is what the server saw pass."""
    job = world.submit(gpus=1, name="skewed")
    world.clockwork.scheduler.cycle(world.now)
    allocation = Allocation.objects.get(job=job)
    skew = timedelta(seconds=ahead)
    record_reports([Report(allocation.pk, "started", world.now + skew)], world.now)
    begun = world.now
    world.now += timedelta(seconds=45)
    record_reports([Report(allocation.pk, "ended", world.now + skew, 0)], world.now)
    job.refresh_from_db()
    allocation.refresh_from_db()
    record = UsageRecord.objects.get(job=job)
    assert allocation.running_at is not None
    assert allocation.released_at is not None
    assert record.microseconds is not None
    assert begun <= allocation.running_at <= allocation.released_at <= world.now
    assert job.ended_at >= job.started_at >= job.submitted_at
    if ahead > 0:
        assert record.microseconds == 45_000_000
    else:
        assert 0 <= record.microseconds <= 45_000_000


def test_a_stop_that_comes_as_the_job_ends_by_itself_changes_nothing_more(world):
    from scheduling.services.stop import cancel_jobs

    job = world.submit(gpus=4, duration="10m")
    world.settle()
    world.pass_time(minutes=10)
    job.refresh_from_db()
    assert job.state == Job.State.SUCCEEDED
    assert cancel_jobs([job.pk], world.now).ended_before == (job.pk,)
    world.settle()
    job.refresh_from_db()
    assert job.state == Job.State.SUCCEEDED
    assert held_milli() == 0


def test_a_late_stop_does_not_hit_a_later_job_of_the_same_name(world):
    """A chore that was scheduled for the first job is delivered again after it: it names an id, not a name."""
    from scheduling.services.stop import cancel_jobs

    first = world.submit(gpus=4, name="train", time_limit="6h")
    world.settle()
    world.pass_time(hours=6)
    first.refresh_from_db()
    assert (first.state, first.ending_reason) == (Job.State.FAILED, "time_limit")
    second = world.submit(gpus=4, name="train")
    world.settle()
    for _ in range(6):
        cancel_jobs([first.pk], world.now)
        world.settle()
    second.refresh_from_db()
    assert second.state == Job.State.RUNNING
    records = UsageRecord.objects.filter(job=first)
    assert [record.microseconds for record in records] == [21_600_000_000]
    assert Event.objects.filter(job_id=first.pk, kind="job.state", data__state="failed").count() == 1


def test_a_node_set_down_by_anyone_loses_its_tasks_at_the_next_pass(world):
    from inventory.services import set_node_state

    job = world.submit(gpus=4)
    world.settle()
    node = Allocation.objects.get(job=job).node
    set_node_state(node, Node.State.DOWN, world.now)
    world.settle()
    job.refresh_from_db()
    assert job.state == Job.State.RUNNING
    assert Allocation.objects.get(job=job, released_at__isnull=True).node_id != node.pk
    assert held_milli() == 4000


def test_losing_a_node_twice_loses_it_once(world):
    job = world.submit(gpus=4)
    world.settle()
    node = Allocation.objects.get(job=job).node
    engine = world.clockwork.reconcilers[0].engine
    assert lose_node(node, engine, world.now) == 1
    assert lose_node(node, engine, world.now) == 0
    world.settle()
    world.pass_time(hours=1)
    assert UsageRecord.objects.filter(job=job).count() == 2
    first, second = UsageRecord.objects.filter(job=job).order_by("started_at")
    assert first.ended_at is not None
    assert first.ended_at <= second.started_at


def test_a_gang_runs_once_the_task_that_was_never_told_to_start_has_ended(world):
    job = world.submit(gpus=1, tasks=2, name="pair")
    world.clockwork.scheduler.cycle(world.now)
    first, second = Allocation.objects.filter(job=job).order_by("pk")
    began = world.now
    record_reports([Report(first.pk, "started", began)], began)
    job.refresh_from_db()
    assert job.state == Job.State.STARTING
    record_reports([Report(second.pk, "ended", began, 0)], began + timedelta(seconds=5))
    job.refresh_from_db()
    assert (job.state, job.started_at) == (Job.State.RUNNING, began)


def test_a_task_that_was_stopped_from_outside_is_as_failed_as_its_job(world):
    _, ends, allocation = two_jobs(world)
    record_reports([Report(allocation.pk, "ended", world.now, None, "stopped")], world.now)
    ends.refresh_from_db()
    assert (ends.state, ends.tasks.get().state) == (Job.State.FAILED, "failed")


@pytest.mark.parametrize("late", [timedelta(seconds=10), timedelta(hours=2)])
def test_an_end_that_is_told_after_its_month_was_closed_is_billed_as_long_as_it_was_held(world, late):
    month = datetime(2026, 4, 1, tzinfo=UTC)
    world.now = month - timedelta(hours=1)
    job = world.submit(gpus=1)
    world.settle()
    allocation = Allocation.objects.get(job=job)
    assert close_month(month + timedelta(minutes=5)) == 1
    record_reports([Report(allocation.pk, "ended", month - timedelta(seconds=10), 0)], month + late)
    allocation.refresh_from_db()
    assert allocation.released_at is not None
    used = sum(record.microseconds or 0 for record in UsageRecord.objects.filter(job=job))
    assert timedelta(microseconds=used) == allocation.released_at - allocation.bound_at
    job.refresh_from_db()
    assert job.ended_at == allocation.released_at


@pytest.mark.parametrize(("code", "state"), [(0, "succeeded"), (1, "pending")])
def test_what_ended_well_though_it_was_told_to_give_way_is_not_done_again(world, code, state):
    low = world.submit(gpus=4, tasks=2, priority="low")
    world.settle()
    change_pool(world.pool, world.now, grace_s=60)
    high = world.submit(gpus=4, tasks=2, priority="high")
    world.settle()
    low.refresh_from_db()
    assert low.ending == "requeue"
    world.now += timedelta(seconds=5)
    live = Allocation.objects.filter(job=low, released_at=None).order_by("id").values_list("pk", flat=True)
    first, second = live
    record_reports([Report(first, "ended", world.now, 0)], world.now)
    record_reports([Report(second, "ended", world.now, code)], world.now)
    world.settle()
    low.refresh_from_db()
    high.refresh_from_db()
    assert (low.state, high.state) == (state, "running")
    assert low.preemptions == 1
