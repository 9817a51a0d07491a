"""Killed at any moment and started again: nothing is lost, nothing is doubled."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime

import pytest

from billing.models import UsageRecord
from scheduling.models import Allocation, Job
from scheduling.services.stop import cancel_jobs
from scheduling.services.submit import submit_payload
from scheduling.states import JOB_ENDED
from tests.concurrency.accounts import faults_in_the_books
from tests.concurrency.racing import Worker

KILLS = 5


def now() -> datetime:
    return datetime.now(UTC)


def flow(world, chance: random.Random, jobs: int) -> list[int]:
    """Submits so many small jobs of all kinds, and cancels one in ten."""
    ids = []
    for _ in range(jobs):
        payload = {
            "team": "nlp",
            "pool": "train",
            "gpus": chance.choice([0.25, 0.5, 1, 2]),
            "tasks": chance.choice([1, 1, 2]),
            "duration": f"{chance.randint(5, 300) / 1000}s",
            "exit": chance.choice(["succeeded", "succeeded", "failed"]),
            "retries": chance.choice([0, 1]),
        }
        (job,), _ = submit_payload(world.users["bob"], payload, now())
        ids.append(job.pk)
        if chance.random() < 0.1:
            cancel_jobs([chance.choice(ids)], now())
    return ids


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.django_db(transaction=True)
def test_a_scheduler_that_is_killed_again_and_again_loses_and_doubles_nothing(world):
    world.clockwork.scheduler.stand_down()
    chance = random.Random(20260302)
    ids: list[int] = []
    for _ in range(KILLS):
        worker = Worker("scheduler", "killed")
        assert worker.answer() == "works"
        end = time.monotonic() + chance.uniform(0.05, 1.0)
        while time.monotonic() < end:
            ids += flow(world, chance, 1)
            time.sleep(0.01)
        worker.kill()
        assert faults_in_the_books() == []
    worker = Worker("scheduler", "killed")
    assert worker.answer() == "works"
    patience = time.monotonic() + 120
    while Job.objects.exclude(state__in=JOB_ENDED).exists():
        assert time.monotonic() < patience, list(Job.objects.exclude(state__in=JOB_ENDED).values("pk", "state"))
        time.sleep(0.1)
    assert worker.end() == 0
    assert faults_in_the_books() == []
    assert sorted(Job.objects.values_list("pk", flat=True)) == sorted(ids)
    assert not Allocation.objects.filter(released_at__isnull=True).exists()
    assert UsageRecord.objects.filter(ended_at__isnull=True).count() == 0
    for job in Job.objects.all():
        attempts = Allocation.objects.filter(job=job).count()
        assert attempts <= job.tasks_wanted * (job.retries + 1), f"job {job.pk} was started {attempts} times"
