"""Samples become averages, averages become coarser ones, all are let go in time; and what lies idle is found."""

from __future__ import annotations

from datetime import timedelta

import pytest

from scheduling.engines.base import TaskUse, Utilization
from scheduling.models import Allocation
from scheduling.services.stop import cancel_jobs
from telemetry.models import Finding, JobSample, PoolSample
from telemetry.selectors import job_series, open_findings, pool_series, resolution_for
from telemetry.services import find_idle, prune, record_utilization, roll_up, sample_pools


def measure(world, values, every=10):
    """The job's use, ``every`` seconds; the clock goes on."""
    allocation = Allocation.objects.filter(released_at__isnull=True).get()
    for value in values:
        record_utilization(world.pool.engine, Utilization((), (TaskUse(allocation.pk, value, 100),)), world.now)
        sample_pools(world.now)
        world.now += timedelta(seconds=every)


@pytest.fixture
def job(world):
    job = world.submit(gpus=1, duration="10d", name="long")
    world.settle()
    return job


def test_a_minute_is_the_average_of_what_was_known_in_it(world, job):
    start = world.now
    measure(world, [0, 600, float("nan"), 300, None, 300, 900, 900])
    assert roll_up(world.now) == 4  # the pool, nlp, research and the job
    minute = JobSample.objects.get(job=job, resolution_s=60)
    assert (minute.at, minute.used_milli, minute.allocated_milli) == (start, 300, 1000)
    assert roll_up(world.now) == 0
    assert roll_up(world.now + timedelta(minutes=1)) == 4
    assert JobSample.objects.get(job=job, resolution_s=60, at__gt=start).used_milli == 900


def test_a_minute_of_which_nothing_is_known_stays_unknown(world, job):
    measure(world, [None] * 6)
    roll_up(world.now)
    assert JobSample.objects.get(job=job, resolution_s=60).used_milli is None


def test_a_team_that_held_something_for_half_a_minute_held_half_on_average(world, job):
    measure(world, [500] * 3)
    cancel_jobs([job.pk], world.now)
    world.settle()
    for _ in range(3):
        sample_pools(world.now)
        world.now += timedelta(seconds=10)
    roll_up(world.now)
    minute = PoolSample.objects.get(resolution_s=60, team=world.teams["nlp"])
    assert minute.allocated_milli == 500


def test_hours_are_made_of_minutes(world, job):
    start = world.now
    measure(world, [200] * 60 + [400] * 60, every=30)
    for minutes in range(0, 65, 5):
        roll_up(start + timedelta(minutes=minutes))
    hour = JobSample.objects.get(job=job, resolution_s=3600)
    assert (hour.at, hour.used_milli) == (start, 300)
    assert PoolSample.objects.get(resolution_s=3600, team__isnull=True).allocated_milli == 1000


def test_averages_that_were_missed_are_made_up_for(world, job):
    measure(world, [500] * 60)
    assert roll_up(world.now) == 40


def test_what_is_past_its_time_goes_and_what_is_finer_goes_first(world, job):
    measure(world, [500] * 12)
    roll_up(world.now)
    prune(world.now + timedelta(hours=2, minutes=5))
    assert not JobSample.objects.filter(resolution_s=0).exists()
    assert JobSample.objects.filter(resolution_s=60).count() == 2
    prune(world.now + timedelta(days=3))
    assert not JobSample.objects.exists()
    assert not PoolSample.objects.exists()


@pytest.mark.parametrize(
    ("since", "until", "resolution"),
    [
        (timedelta(hours=1), timedelta(0), 0),
        (timedelta(hours=3), timedelta(0), 60),
        (timedelta(days=1), timedelta(hours=23), 60),
        (timedelta(days=30), timedelta(0), 3600),
        (timedelta(days=390), timedelta(0), 3600),
    ],
)
def test_a_series_is_as_fine_as_what_is_kept(world, since, until, resolution):
    assert resolution_for(world.now - since, world.now - until, world.now) == resolution


def test_a_series_is_read_at_its_resolution(world, job):
    start = world.now
    measure(world, [500] * 12)
    roll_up(world.now)
    later = world.now + timedelta(hours=3)
    series = job_series(job, start, world.now, later)
    assert (series.resolution_s, series.used_milli) == (60, [500, 500])
    assert pool_series(world.pool, start, world.now, later).allocated_milli == [1000, 1000]


def test_ten_minutes_of_doing_nothing_are_found_once(world, job):
    measure(world, [10] * 59)
    assert find_idle(world.now) == (0, 0)
    measure(world, [19] * 3)
    assert find_idle(world.now) == (1, 0)
    assert find_idle(world.now) == (0, 0)
    (finding,) = open_findings(world.users["bob"])
    assert (finding.job, finding.team, finding.kind) == (job, job.team, "idle")
    assert open_findings(world.users["mallory"]) == []


def test_a_finding_ends_when_the_job_works_again(world, job):
    measure(world, [0] * 62)
    assert find_idle(world.now) == (1, 0)
    measure(world, [500])
    assert find_idle(world.now) == (0, 1)
    assert Finding.objects.get().ended_at == world.now


def test_a_finding_ends_when_the_devices_are_given_back(world, job):
    measure(world, [0] * 62)
    find_idle(world.now)
    cancel_jobs([job.pk], world.now)
    world.settle()
    assert find_idle(world.now) == (0, 1)


@pytest.mark.parametrize("values", [[None] * 62, [0] * 20 + [None] * 42, [0] * 30 + [700] + [0] * 31, [20] * 62])
def test_nobody_is_called_idle_who_may_have_worked(world, job, values):
    measure(world, values)
    assert find_idle(world.now) == (0, 0)


def test_a_job_without_devices_is_never_idle(world):
    job = world.submit(gpus=0, cpu=2, duration="1d")
    world.settle()
    assert Allocation.objects.filter(job=job, milli=0).exists()
    measure(world, [0] * 62)
    assert find_idle(world.now) == (0, 0)
