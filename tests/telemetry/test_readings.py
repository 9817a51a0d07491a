"""What engines tell becomes readings and samples: nothing is made up, nothing goes to whom it does not belong."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from inventory.models import Device
from inventory.services import create_engine
from scheduling.engines.base import DeviceUse, TaskUse, Utilization
from scheduling.engines.simulated import SimulatedEngine
from scheduling.models import Allocation, Job
from telemetry.models import DeviceReading, JobSample, PoolSample, TaskReading
from telemetry.sampler import Sampler
from telemetry.selectors import device_readings, job_series, job_use, pool_now, pool_series, team_series
from telemetry.services import record_utilization, sample_pools

NO_VALUE = 9223372036854775794


def scrape(*values):
    """The busy times of n-0's devices, by index; a value that is left out is absent from the scrape."""
    return Utilization(tuple(DeviceUse("n-0", index, value, 1000) for index, value in enumerate(values)))


def engine_connection(world):
    return world.pool.engine


@pytest.mark.parametrize("missing", [NO_VALUE, float("nan"), float("inf"), -1, None, 1001, True, "90"])
def test_a_value_that_cannot_be_is_no_data(world, missing):
    record_utilization(engine_connection(world), scrape(500, 700, 900, missing), world.now)
    now = pool_now(world.pool, world.now)
    assert (now.average_milli, now.maximum_milli, now.known) == (700, 900, 3)
    fourth = DeviceReading.objects.get(device__node__name="n-0", device__index=3)
    assert fourth.compute_milli is None


def test_a_device_that_a_scrape_leaves_out_is_unknown_from_then_on(world):
    record_utilization(engine_connection(world), scrape(500, 700, 900, 100), world.now)
    record_utilization(engine_connection(world), scrape(500, 700, 900), world.now + timedelta(seconds=5))
    now = pool_now(world.pool, world.now + timedelta(seconds=5))
    assert (now.average_milli, now.maximum_milli, now.known, now.unknown) == (700, 900, 3, 5)


def test_a_reading_older_than_thirty_seconds_is_unknown_and_not_zero(world):
    record_utilization(engine_connection(world), scrape(500), world.now)
    device = Device.objects.get(node__name="n-0", index=0)
    fresh = device_readings(world.now + timedelta(seconds=30), [device.pk])
    assert fresh[device.pk].compute_milli == 500
    assert device_readings(world.now + timedelta(seconds=31), [device.pk]) == {}
    assert pool_now(world.pool, world.now + timedelta(seconds=31)).average_milli is None


def test_readings_of_devices_that_the_connection_does_not_have_are_dropped(world):
    other = create_engine("elsewhere", "simulated")
    assert record_utilization(other, scrape(500), world.now) == 0
    assert not DeviceReading.objects.exists()


def test_a_sample_belongs_to_who_holds_the_device_at_that_moment(world):
    """The exporter goes on naming the first job for half an hour after it ended."""
    first = world.submit(gpus=1, duration="10m", name="first")
    world.settle()
    old = Allocation.objects.get(job=first)

    def told(now):
        """What the exporter says: always the first job, whatever is true."""
        record_utilization(
            engine_connection(world),
            Utilization((DeviceUse("n-0", 0, 800, 100),), (TaskUse(old.pk, 800, 100),)),
            now,
        )
        sample_pools(now)

    told(world.now)
    world.pass_time(minutes=10)
    ended = world.now
    told(ended)
    world.now += timedelta(minutes=1)
    second = world.submit("mallory", team="ads", gpus=1, duration="1h", name="second")
    world.settle()
    began = world.now
    new = Allocation.objects.get(job=second)
    engine_says = Utilization((), (TaskUse(old.pk, 800, 100), TaskUse(new.pk, 300, 50)))
    record_utilization(engine_connection(world), engine_says, began)
    sample_pools(began)
    early, late = ended - timedelta(hours=1), began + timedelta(hours=1)
    assert job_series(first, early, late, began).at == [ended - timedelta(minutes=10)]
    assert job_series(second, early, late, began).used_milli == [300]
    assert job_use(began, [first.pk, second.pk]).keys() == {second.pk}
    alice = team_series(world.users["alice"], world.pool, early, late, began)
    assert {moment for series in alice.values() for moment in series.at} == {ended - timedelta(minutes=10)}
    assert not TaskReading.objects.filter(allocation=old, at__gte=ended).exists()


def test_a_team_sees_its_own_part_of_a_pool_and_nobody_elses(world):
    world.submit(gpus=2, duration="1h")
    world.submit("mallory", team="ads", gpus=1, duration="1h")
    world.settle()
    Sampler().step(world.now, world.clockwork.reconcilers)
    reach = (world.now - timedelta(minutes=5), world.now + timedelta(minutes=5), world.now)
    assert set(team_series(world.users["bob"], world.pool, *reach)) == {"nlp"}
    assert set(team_series(world.users["mallory"], world.pool, *reach)) == {"ads"}
    assert set(team_series(world.users["root"], world.pool, *reach)) == {"nlp", "ads", "research"}
    whole = pool_series(world.pool, *reach)
    assert (whole.allocated_milli, whole.capacity_milli) == ([3000], [8000])


def test_averages_leave_out_what_was_unknown(world):
    job = world.submit(gpus=1, duration="1h")
    world.settle()
    allocation = Allocation.objects.get(job=job)
    told: tuple[Any, ...] = (400, float("nan"), 800)
    for second, value in enumerate(told):
        now = world.now + timedelta(seconds=10 * second)
        record_utilization(engine_connection(world), Utilization((), (TaskUse(allocation.pk, value, 1),)), now)
        sample_pools(now)
    series = job_series(job, world.now, world.now + timedelta(minutes=1), world.now)
    assert series.used_milli == [400, None, 800]
    assert series.average_used() == 600


class Unreachable(SimulatedEngine):
    def utilization(self, now):
        raise ConnectionError("the driver went away")


def test_an_engine_that_cannot_be_asked_keeps_no_other_from_being_asked(world):
    world.submit(gpus=1, duration="1h")
    world.settle()
    from scheduling.services.reconcile import Reconciler

    broken = Reconciler(create_engine("broken", "simulated"), Unreachable())
    sampler = Sampler()
    assert sampler.step(world.now, [broken, *world.clockwork.reconcilers]) == 2
    assert PoolSample.objects.filter(team__isnull=True).count() == 1


def test_pools_are_sampled_every_ten_seconds_however_often_engines_are_asked(world):
    world.submit(gpus=1, duration="1h")
    world.settle()
    sampler = Sampler()
    for second in range(0, 30, 5):
        sampler.step(world.now + timedelta(seconds=second), world.clockwork.reconcilers)
    assert PoolSample.objects.filter(team__isnull=True).count() == 3
    assert JobSample.objects.count() == 3
    assert Job.objects.get().samples.filter(used_milli__isnull=False).count() == 3
