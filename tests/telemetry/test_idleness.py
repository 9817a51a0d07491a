"""Idle is what was measured to be, all of the time: a gap, an unknown or a moment of work begins the span anew."""

from __future__ import annotations

from datetime import timedelta

import pytest

from events.errors import Invalid
from events.models import Event
from inventory.services import change_pool
from scheduling.engines.base import DeviceUse, TaskUse, Utilization
from scheduling.models import Allocation, Job
from telemetry.services import end_idle, record_utilization

LIMIT = 600


@pytest.fixture
def shell(world):
    change_pool(world.pool, world.now, idle_limit_s=LIMIT)
    job = world.submit(kind="interactive", gpus=1, name="shell")
    world.settle()
    return job


def look(world, job, *values, every=10, devices=()):
    """Its tasks use this, ``every`` seconds; after each look idle jobs are ended."""
    for value in values:
        live = Allocation.objects.filter(job=job, released_at__isnull=True).order_by("pk")
        uses = tuple(TaskUse(each.pk, value, 100, cpu_milli=value) for each in live)
        record_utilization(world.pool.engine, Utilization(tuple(devices), uses), world.now)
        end_idle(world.now)
        world.settle()
        world.now += timedelta(seconds=every)


def ended(job):
    found = Job.objects.get(pk=job.pk)
    return found.state, found.ending_reason


def test_it_ends_when_the_limit_is_over_and_not_before(world, shell):
    look(world, shell, *[0] * 60)  # 0 s to 590 s
    assert ended(shell) == ("running", "")
    look(world, shell, 0)
    assert ended(shell) == ("cancelled", "idle")
    found = Job.objects.get(pk=shell.pk)
    assert found.end_message == "Nothing that it held was used for 10 min, which is as long as its pool lets it."
    assert not Allocation.objects.filter(job=shell, released_at__isnull=True).exists()


def test_its_people_are_told_once_at_half_of_it(world, shell):
    began = world.now
    look(world, shell, *[0] * 30)
    assert not Event.objects.filter(kind="job.idle").exists()
    look(world, shell, *[0] * 20)
    (event,) = Event.objects.filter(kind="job.idle")
    assert (event.job_id, event.team_id, event.at) == (shell.pk, shell.team_id, began + timedelta(seconds=300))
    assert event.data["ends_at"] == (began + timedelta(seconds=LIMIT)).isoformat()
    look(world, shell, 900, *[0] * 40)
    assert Event.objects.filter(kind="job.idle").count() == 2


BREAKS = {
    "work": lambda world, job: look(world, job, 10),
    "one per cent": lambda world, job: look(world, job, 10),
    "unknown": lambda world, job: look(world, job, None),
    "not a number": lambda world, job: look(world, job, float("nan")),
    "silence": lambda world, job: setattr(world, "now", world.now + timedelta(seconds=40)),
    "left out": lambda world, job: record_utilization(world.pool.engine, Utilization(), world.now),
}


@pytest.mark.parametrize("what", BREAKS)
def test_whatever_breaks_the_span_begins_it_anew(world, shell, what):
    look(world, shell, *[0] * 59)
    BREAKS[what](world, shell)
    look(world, shell, *[0] * 60)
    assert ended(shell) == ("running", "")
    look(world, shell, 0)
    assert ended(shell) == ("cancelled", "idle")


def test_below_one_per_cent_of_a_slice_is_nothing_and_one_per_cent_is_something(world):
    change_pool(world.pool, world.now, idle_limit_s=LIMIT)
    slight, busy = (world.submit(kind="interactive", gpus=0.5, name=name) for name in ("slight", "busy"))
    world.settle()
    for _ in range(61):
        uses = tuple(
            TaskUse(Allocation.objects.filter(job=job).latest("pk").pk, value, 0)
            for job, value in ((slight, 4), (busy, 5))
        )
        record_utilization(world.pool.engine, Utilization((), uses), world.now)
        end_idle(world.now)
        world.now += timedelta(seconds=10)
    world.settle()
    assert (ended(slight)[1], ended(busy)[1]) == ("idle", "")


def test_every_task_must_do_nothing_and_the_last_one_to_fall_idle_counts(world):
    change_pool(world.pool, world.now, idle_limit_s=LIMIT)
    job = world.submit(kind="interactive", gpus=1, tasks=2)
    world.settle()
    first, second = Allocation.objects.filter(job=job).order_by("pk")
    for step in range(90):
        uses = (TaskUse(first.pk, 0, 0), TaskUse(second.pk, 500 if step < 25 else 0, 0))
        record_utilization(world.pool.engine, Utilization((), uses), world.now)
        end_idle(world.now)
        world.settle()
        assert ended(job)[0] == ("running" if step < 85 else "cancelled")
        world.now += timedelta(seconds=10)


def test_devices_speak_for_a_task_that_has_them_whole_and_does_not_tell(world, shell):
    allocation = Allocation.objects.get(job=shell)
    device = allocation.slices.get().device
    place = (allocation.node.name, device.index)
    look(world, shell, *[None] * 30, devices=[DeviceUse(*place, 0, 100)])
    look(world, shell, None, devices=[DeviceUse(*place, None, 100)])
    look(world, shell, *[None] * 60, devices=[DeviceUse(*place, 9, 100)])
    assert ended(shell) == ("running", "")
    look(world, shell, None, devices=[DeviceUse(*place, 9, 100)])
    assert ended(shell) == ("cancelled", "idle")


def test_devices_that_are_shared_speak_for_nobody(world):
    change_pool(world.pool, world.now, idle_limit_s=LIMIT)
    job = world.submit(kind="interactive", gpus=0.5)
    world.settle()
    allocation = Allocation.objects.get(job=job)
    use = DeviceUse(allocation.node.name, allocation.slices.get().device.index, 0, 100)
    look(world, job, *[None] * 100, devices=[use])
    assert ended(job) == ("running", "")


def test_cores_speak_for_a_task_without_devices(world):
    change_pool(world.pool, world.now, idle_limit_s=LIMIT)
    job = world.submit(kind="interactive", cpu=2)
    world.settle()
    look(world, job, *[20] * 61)
    assert ended(job) == ("running", "")
    look(world, job, *[19] * 61)
    assert ended(job) == ("cancelled", "idle")


@pytest.mark.parametrize("asks", [{"kind": "batch"}, {"kind": "service"}])
def test_only_interactive_jobs_end_so(world, asks):
    change_pool(world.pool, world.now, idle_limit_s=LIMIT)
    job = world.submit(gpus=1, **asks)
    world.settle()
    look(world, job, *[0] * 100)
    assert ended(job) == ("running", "")


def test_a_pool_without_a_limit_ends_nobody_and_one_that_gets_it_begins_to_count(world):
    job = world.submit(kind="interactive", gpus=1)
    world.settle()
    look(world, job, *[0] * 100)
    assert ended(job) == ("running", "")
    change_pool(world.pool, world.now, idle_limit_s=LIMIT)
    look(world, job, *[0] * 60)
    assert ended(job) == ("running", "")
    look(world, job, 0)
    assert ended(job) == ("cancelled", "idle")


@pytest.mark.parametrize("value", [0, 59, -1, 10**12, "1h", True, 1.5])
def test_a_limit_that_cannot_be_kept_is_refused(world, value):
    with pytest.raises(Invalid, match="idle_limit_s"):
        change_pool(world.pool, world.now, idle_limit_s=value)
    world.pool.refresh_from_db()
    assert world.pool.idle_limit_s is None
