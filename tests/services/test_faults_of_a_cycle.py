"""A scheduler's pass that fails half way, or meets a job that changed under it, leaves nothing undone or doubled."""

from __future__ import annotations

from datetime import timedelta
from threading import Thread

import pytest
from django.db import OperationalError, connection

from config.processes import SchedulerLoop
from inventory.models import Node
from inventory.services import cordon, uncordon
from quotas.services import set_quota
from scheduling.core.decide import decide
from scheduling.engines.base import Report
from scheduling.models import Allocation, Job, SchedulerLease
from scheduling.services import cycle as cycles
from scheduling.services.cycle import Scheduler
from scheduling.services.lease import LEASE_TIME
from scheduling.services.picture import Picture
from scheduling.services.reports import record_reports
from scheduling.services.stop import Cancelled, cancel_jobs


@pytest.mark.parametrize("part", ["_load_claims", "_load_pools", "_load_jobs"])
@pytest.mark.parametrize("when", ["at first", "later"])
def test_a_database_that_goes_away_while_the_picture_is_read_costs_one_pass(world, monkeypatch, part, when):
    scheduler = world.clockwork.scheduler
    if when == "later":
        world.settle()
    job = world.submit(gpus=1)
    node = Node.objects.get(name="n-0")
    cordon(node, world.now)
    uncordon(node, world.now)
    set_quota(world.teams["nlp"], world.pool, world.now, limit=8000)
    with monkeypatch.context() as patched:
        patched.setattr(Picture, part, lambda *args: (_ for _ in ()).throw(OperationalError("gone")))
        with pytest.raises(OperationalError):
            scheduler.cycle(world.now)
    assert scheduler.cycle(world.now).started == 1
    job.refresh_from_db()
    assert job.state == Job.State.STARTING
    assert scheduler.picture.check() == []


def test_a_gang_that_went_back_to_the_queue_meanwhile_is_not_grown(world, monkeypatch):
    """Between looking and committing the node of its first tasks dies: what was to join them joins nothing."""
    cordon(Node.objects.get(name="n-1"), world.now)
    job = world.submit(gpus=1, tasks=6, min_tasks=2, name="elastic")
    world.settle()
    assert Allocation.objects.filter(job=job, released_at=None).count() == 4
    uncordon(Node.objects.get(name="n-1"), world.now)
    scheduler = world.clockwork.scheduler

    def slow(*args):
        plan = decide(*args)
        live = Allocation.objects.filter(job=job, released_at=None).values_list("pk", flat=True)
        record_reports([Report(pk, "ended", world.now, None, "node_lost") for pk in list(live)], world.now)
        return plan

    with monkeypatch.context() as patched:
        patched.setattr(cycles, "decide", slow)
        result = scheduler.cycle(world.now)
    job.refresh_from_db()
    assert (result.started, result.conflicts, job.state) == (0, 1, Job.State.PENDING)
    assert not Allocation.objects.filter(job=job, released_at=None).exists()
    world.settle()
    job.refresh_from_db()
    assert job.state == Job.State.RUNNING
    assert Allocation.objects.filter(job=job, released_at=None).count() == 6


def test_a_leader_with_news_but_nothing_to_commit_keeps_its_lease(world):
    world.clockwork.scheduler.stand_down()
    loop = SchedulerLoop(Scheduler("busy"))
    node = Node.objects.get(name="n-0")
    now = world.now
    loop.step(now)
    for _ in range(20):
        now += LEASE_TIME / 10
        (uncordon if node.state == Node.State.CORDONED else cordon)(node, now)
        loop.step(now)
        assert SchedulerLease.objects.get().expires_at > now
        assert not Scheduler("standby").lead(now + timedelta(seconds=1))


@pytest.mark.django_db(transaction=True)
def test_cancelling_what_starts_and_what_goes_on_waiting_waits_for_the_pass(world, monkeypatch):
    """Whoever writes to several jobs takes them in one order: neither the person nor the pass is turned away."""
    waits, starts = world.submit(gpus=1, model="A100-80G", tasks=9), world.submit(gpus=1)
    cancelled: list[Cancelled] = []

    def cancel() -> None:
        try:
            cancelled.append(cancel_jobs([waits.pk, starts.pk], world.now))
        finally:
            connection.close()

    person, bind = Thread(target=cancel), cycles._bind

    def bind_while_a_person_cancels(*args):
        person.start()
        person.join(timeout=0.5)  # as far as it comes
        return bind(*args)

    monkeypatch.setattr(cycles, "_bind", bind_while_a_person_cancels)
    assert world.clockwork.scheduler.cycle(world.now).started == 1
    person.join()
    assert cancelled == [Cancelled((waits.pk,), (starts.pk,), ())]
