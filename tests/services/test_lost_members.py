"""A gang whose member goes down with its node: replaced at once where it can be, else queued again as a whole."""

from __future__ import annotations

from datetime import timedelta

import pytest

from billing.models import UsageRecord
from events.models import Event
from inventory.models import Device, Node
from inventory.services import NodeEntry, add_nodes, change_node, set_node_state
from scheduling.engines.base import Report
from scheduling.models import Allocation, Decision, Job, Task
from scheduling.services.cycle import Scheduler
from scheduling.services.reconcile import lose_node
from scheduling.services.reports import record_reports
from scheduling.services.stop import cancel_jobs


@pytest.fixture
def fleet(world):
    """Four nodes of four GPUs: n-0 to n-2 in rack r1, n-3 in rack r2."""
    model = Device.objects.select_related("model").first().model
    extra = [NodeEntry(f"n-{i}", 64_000, 524_288, tuple((model, 81920, "") for _ in range(4))) for i in (2, 3)]
    add_nodes(world.pool, extra, world.now)
    for i in range(4):
        change_node(node(i), world.now, labels={"rack": "r2" if i == 3 else "r1"})
    return world


def node(index: int) -> Node:
    return Node.objects.get(name=f"n-{index}")


def where(job: Job) -> list[str]:
    live = Allocation.objects.filter(job=job, released_at__isnull=True)
    return sorted(live.values_list("node__name", flat=True))


def lose(world, index: int) -> None:
    lose_node(node(index), world.engine, world.now)


def gang(world, tasks: int = 2, **more) -> Job:
    job = world.submit(gpus=4, tasks=tasks, topology={"level": "rack"}, **more)
    world.settle()
    return job


def test_a_replacement_moves_nobody_and_is_on_record(fleet):
    job = gang(fleet)
    assert where(job) == ["n-0", "n-1"]
    stays = Allocation.objects.get(job=job, node__name="n-1")
    started = Job.objects.get(pk=job.pk).started_at
    fleet.pass_time(minutes=1)
    lose(fleet, 0)
    fleet.settle()
    job.refresh_from_db()
    assert where(job) == ["n-1", "n-2"]
    assert (job.state, job.started_at, job.preemptions, job.retries_used) == ("running", started, 0, 0)
    stays.refresh_from_db()
    assert (stays.state, stays.released_at) == ("running", None)
    assert set(Task.objects.filter(job=job).values_list("state", flat=True)) == {"running"}
    assert Decision.objects.filter(job=job, kind="grow", rule="replacement").count() == 1
    assert Event.objects.filter(job_id=job.pk, kind="job.lost_tasks", data__tasks=1).count() == 1
    assert fleet.clockwork.scheduler.picture.check() == []
    assert sum(node(0).devices.values_list("compute_allocated_milli", flat=True)) == 0


def test_no_second_is_billed_twice_for_a_replaced_task(fleet):
    job = gang(fleet)
    fleet.pass_time(minutes=1)
    lost = Allocation.objects.get(job=job, node__name="n-0")
    lose(fleet, 0)
    fleet.settle()
    (old, new) = UsageRecord.objects.filter(allocation__task=lost.task).order_by("started_at")
    assert old.ended_at is not None
    assert old.ended_at <= new.started_at


def test_without_a_replacement_nobody_goes_on(fleet):
    busy = fleet.submit(gpus=4, node_selector={"rack": "r1"})
    fleet.settle()
    job = gang(fleet)
    assert where(job) == ["n-1", "n-2"]
    lose(fleet, 2)
    fleet.settle()
    job.refresh_from_db()
    assert (job.state, job.ending, job.started_at, where(job)) == ("pending", "", None, [])
    assert set(Task.objects.filter(job=job).values_list("state", flat=True)) == {"pending"}
    (decision,) = Decision.objects.filter(job=job, kind="refuse", rule="replacement")
    assert (decision.rule, decision.numbers) == ("replacement", {"missing_tasks": 1})
    assert [reason["code"] for reason in job.reasons] == ["gang_incomplete"]
    assert where(busy) == ["n-0"]
    assert fleet.clockwork.scheduler.picture.check() == []


def test_a_grace_keeps_the_others_devices_held_until_they_have_stopped(fleet):
    type(fleet.pool).objects.filter(pk=fleet.pool.pk).update(grace_s=30)
    fleet.clockwork.scheduler.picture.outdate()
    job = gang(fleet, 3)
    lose(fleet, 1)
    fleet.settle()
    assert where(job) == ["n-0", "n-2"]
    assert set(Allocation.objects.filter(job=job, released_at=None).values_list("state", flat=True)) == {"releasing"}
    fleet.pass_time(minutes=1)
    job.refresh_from_db()
    assert (job.state, where(job)) == ("pending", [])


def test_a_scheduler_that_begins_in_between_decides_the_same(fleet):
    job = gang(fleet)
    lose(fleet, 0)
    assert where(job) == ["n-1"]
    fleet.clockwork.scheduler.stand_down()
    fleet.clockwork.scheduler = Scheduler("next")
    assert fleet.clockwork.scheduler.lead(fleet.now)
    fleet.settle()
    assert where(job) == ["n-1", "n-2"]


def test_several_members_lost_in_one_moment_are_all_replaced_or_none(fleet):
    job = gang(fleet, 2)
    set_node_state(node(0), "down", fleet.now)
    set_node_state(node(1), "down", fleet.now)
    fleet.settle()
    job.refresh_from_db()
    assert (job.state, where(job)) == ("pending", [])
    for index in (0, 1):
        set_node_state(node(index), "ready", fleet.now)
    fleet.settle()
    job.refresh_from_db()
    assert (job.state, len(where(job))) == ("running", 2)


def test_a_gang_that_is_cancelled_in_between_gets_no_replacement(fleet):
    job = gang(fleet)
    lose(fleet, 0)
    cancel_jobs([job.pk], fleet.now)
    fleet.settle()
    job.refresh_from_db()
    assert (job.state, where(job)) == ("cancelled", [])
    assert not Decision.objects.filter(job=job, kind__in=("grow", "refuse")).exists()


def test_others_that_succeed_before_a_scheduler_comes_do_not_end_a_gang_in_part(fleet):
    job = gang(fleet)
    lose(fleet, 0)
    (left,) = Allocation.objects.filter(job=job, released_at__isnull=True)
    fleet.now += timedelta(seconds=30)
    record_reports([Report(left.pk, "ended", fleet.now, 0)], fleet.now)
    job.refresh_from_db()
    assert (job.state, where(job)) == ("pending", [])
    fleet.settle()
    job.refresh_from_db()
    assert (job.state, where(job)) == ("running", ["n-1", "n-2"])


def test_others_that_fail_before_a_scheduler_comes_end_it(fleet):
    job = gang(fleet)
    lose(fleet, 0)
    (left,) = Allocation.objects.filter(job=job, released_at__isnull=True)
    record_reports([Report(left.pk, "ended", fleet.now, 3)], fleet.now)
    fleet.settle()
    job.refresh_from_db()
    assert (job.state, job.exit_code, where(job)) == ("failed", 3, [])


def test_a_gang_that_is_cancelled_while_its_end_is_committed_stays_cancelled(fleet):
    """Decided over a picture in which it is short; cancelled before the commit."""
    job = gang(fleet, 3)
    lose(fleet, 0)
    scheduler = fleet.clockwork.scheduler
    decided = scheduler.picture.snapshot

    def snapshot(now):
        found = decided(now)
        cancel_jobs([job.pk], now)
        return found

    scheduler.picture.snapshot = snapshot
    result = scheduler.cycle(fleet.now)
    scheduler.picture.snapshot = decided
    assert (result.plan.broken, result.sent_back) == ((job.pk,), 0)
    fleet.settle()
    job.refresh_from_db()
    assert job.state == "cancelled"


def test_a_single_task_goes_back_to_the_queue(fleet):
    job = fleet.submit(gpus=4, node_selector={"rack": "r2"})
    fleet.settle()
    lose(fleet, 3)
    fleet.settle()
    job.refresh_from_db()
    assert (job.state, job.started_at) == ("pending", None)
    assert not Event.objects.filter(kind="job.lost_tasks").exists()
