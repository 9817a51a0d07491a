"""One way through everything: submitted, placed, run, ended, billed."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from billing.models import UsageRecord
from inventory.models import Device
from scheduling import ports
from scheduling.models import Allocation, Job


def test_a_job_runs_and_is_billed_to_the_second(world):
    job = world.submit(gpus=0.25, duration="90s", name="quarter")
    world.settle()
    job.refresh_from_db()
    assert job.state == Job.State.RUNNING
    assert Device.objects.filter(compute_allocated_milli=250, memory_allocated_mib=20480).count() == 1
    world.now += timedelta(seconds=30)
    assert ports.meter.job_costs([job.pk], world.now)[job.pk].amount == Decimal("0.005")
    world.now -= timedelta(seconds=30)
    world.pass_time(seconds=100)
    job.refresh_from_db()
    assert job.state == Job.State.SUCCEEDED
    assert job.ended_at - job.started_at == timedelta(seconds=90)
    assert not Device.objects.exclude(compute_allocated_milli=0, memory_allocated_mib=0).exists()
    record = UsageRecord.objects.get(job=job)
    assert (record.milli, record.amount) == (250, Decimal("0.015"))
    assert ports.meter.job_costs([job.pk], world.now)[job.pk].milli_seconds == 250 * 90


def test_what_does_not_fit_waits_and_says_why(world):
    world.submit(gpus=8, name="too wide")
    for _ in range(2):
        world.submit(gpus=4)
    waiting = world.submit(gpus=0.5)
    world.settle()
    waiting.refresh_from_db()
    assert waiting.state == Job.State.PENDING
    assert [reason["code"] for reason in waiting.reasons] == ["no_fit"]
    assert not Allocation.objects.filter(job=waiting).exists()


def test_a_job_that_is_over_as_soon_as_it_starts_is_recorded_like_any_other(world):
    job = world.submit(gpus=1, duration="0s")
    world.settle()
    job.refresh_from_db()
    allocation = Allocation.objects.get(job=job)
    assert job.state == Job.State.SUCCEEDED
    assert allocation.running_at == allocation.released_at == world.now
    assert UsageRecord.objects.get(job=job).amount == 0
    assert not Device.objects.exclude(compute_allocated_milli=0).exists()
