"""Utilization over REST: exact numbers, no NaN, nothing of teams that one may not see."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from scheduling.engines.base import DeviceUse, TaskUse, Utilization
from scheduling.models import Allocation
from telemetry.services import record_utilization, sample_pools

# What a driver says need not be what the port's types promise.
BUSY: tuple[Any, ...] = (500, 700, 900, float("nan"))


@pytest.fixture
def measured(world):
    """nlp holds 2 GPUs and uses 0.9, ads holds one and says nothing; the moment is the present, as REST has it."""
    world.now = timezone.now()
    job = world.submit(gpus=2, duration="1h", name="measured")
    world.submit("mallory", team="ads", gpus=1, duration="1h")
    world.settle()
    allocation = Allocation.objects.get(job=job)
    uses = tuple(DeviceUse("n-0", index, value, 100) for index, value in enumerate(BUSY))
    told = Utilization(uses, (TaskUse(allocation.pk, 900, 4096, 1500),))
    record_utilization(world.pool.engine, told, world.now)
    sample_pools(world.now)
    return job


def get(world, name, address):
    client = Client()
    client.force_login(world.users[name])
    return client.get(f"/api/v1/{address}")


def test_a_pool_tells_the_whole_and_the_parts_that_one_may_see(world, measured):
    answer = get(world, "bob", "pools/train/utilization").json()
    assert answer["now"] == {"average": 0.7, "maximum": 0.9, "known": 3, "unknown": 5}
    assert answer["series"]["allocated"] == [3]
    assert answer["series"]["used"] == [2.1]
    assert answer["series"]["capacity"] == [8]
    assert list(answer["teams"]) == ["nlp"]
    assert answer["teams"]["nlp"]["allocated"] == [2]
    assert answer["teams"]["nlp"]["used"] == [0.9]
    assert list(get(world, "mallory", "pools/train/utilization").json()["teams"]) == ["ads"]
    assert get(world, "mallory", "pools/train/utilization").json()["teams"]["ads"]["used"] == [None]
    assert get(world, "bob", "pools/train/utilization?team=nlp").json()["series"]["allocated"] == [2]


def test_a_job_tells_what_it_uses(world, measured):
    answer = get(world, "bob", f"jobs/{measured.pk}/utilization").json()
    assert answer["now"] == {"allocated": 2, "used": 0.9, "memory_mib": 4096, "cpu": 1.5, "host_memory_mib": None}
    assert answer["series"]["used"] == [0.9]
    assert answer["average_used"] == 0.9


@pytest.mark.parametrize("address", ["pools/nowhere/utilization", "jobs/999999/utilization"])
def test_what_is_not_there_is_not_found(world, address):
    assert get(world, "bob", address).status_code == 404


def test_a_strangers_job_and_team_are_not_found(world, measured):
    assert get(world, "mallory", f"jobs/{measured.pk}/utilization").status_code == 404
    assert get(world, "mallory", "pools/train/utilization?team=nlp").status_code == 404


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("since=yesterday", "since"),
        ("since=2026-03-02T09:00:00", "since"),
        ("since=2026-03-02T09:00:00Z&until=2026-03-02T09:00:00Z", "since"),
        ("since=2020-03-02T09:00:00Z&until=2026-03-02T09:00:00Z", "since"),
        ("until=1e400", "until"),
        ("until=0001-01-01T00:00:00Z", "until"),
        ("window=5", "window"),
    ],
)
def test_a_wrong_span_is_refused_by_name(world, query, field):
    answer = get(world, "bob", f"pools/train/utilization?{query}")
    assert answer.status_code == 400
    assert answer.json()["field"] == field


def test_a_span_in_which_nothing_was_measured_is_empty(world):
    early = datetime(2026, 1, 1, tzinfo=UTC)
    query = f"since={early.isoformat()[:19]}Z&until=2026-01-02T00:00:00Z"
    series = get(world, "bob", f"pools/train/utilization?{query}").json()["series"]
    assert (series["at"], series["used"]) == ([], [])
