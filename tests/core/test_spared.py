"""Jobs that gave way as often as they may be made to: no rule touches them, and what they hold is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduling.core.model import Group, PendingJob
from scheduling.core.order import job_key
from tests.core.little_world import World, node, request


def borrowed(*, spared, tasks=1, least=None):
    """borrower holds all 4 GPUs, which are lender's, who asks for 2 of them."""
    world = World().pool("train", node("n", 4)).team("lender", guaranteed=4).team("borrower")
    world.works("lent", "borrower", 4 // tasks, tasks=tasks, least=least)
    world.running["lent"] = replace(world.running["lent"], spared=spared)
    return world.job("own", "lender", 2)


@pytest.mark.parametrize("spared", [False, True])
@pytest.mark.parametrize(("tasks", "least"), [(1, None), (4, 1)])
def test_a_spared_job_neither_stops_nor_shrinks(spared, tasks, least):
    outcome = borrowed(spared=spared, tasks=tasks, least=least).decide()
    assert bool(outcome.evicted) == (not spared)
    if spared:
        numbers = outcome.reason("own").numbers
        assert (numbers["needed_milli"], numbers["freeable_milli"], numbers["spared_milli"]) == (2000, 0, 4000)


def service(placed, *, count=4, least=2, growing=True, kind=True):
    return PendingJob(1, 1, 1, (1,), (Group("g", count, least, request(1), placed),), 0, growing=growing, service=kind)


@pytest.mark.parametrize(
    ("job", "degraded"),
    [
        (service(1), True),
        (service(2), False),
        (service(0, growing=False), False),
        (service(1, kind=False), False),
    ],
)
def test_a_service_below_its_least_is_degraded(job, degraded):
    assert job.degraded == degraded


def test_waiting_jobs_go_before_degraded_services_and_these_before_other_growth():
    waits = replace(service(0, growing=False), id=9, submitted_at=9)
    degraded, grows = replace(service(1), id=8, submitted_at=8), replace(service(3), id=7, submitted_at=7)
    jobs = sorted([grows, degraded, waits], key=lambda job: job_key(job, growing=job.growing))
    assert [job.id for job in jobs] == [9, 8, 7]
