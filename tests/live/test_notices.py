"""Notices are said once, to whom they concern."""

from __future__ import annotations

from datetime import timedelta

from events.models import Event
from live.services import send_notices
from scheduling.services.holding import hold_job
from telemetry.models import Finding


def notices():
    return list(Event.objects.filter(kind="notice").order_by("seq"))


def test_a_job_that_waits_for_an_hour_is_told_of_once(world):
    world.submit(gpus=4, tasks=2, duration="1d")
    waiting = world.submit(gpus=1, name="patient")
    held = world.submit(gpus=1, name="held")
    hold_job(held, world.now)
    world.settle()
    assert send_notices(world.now + timedelta(minutes=59)) == 0
    assert send_notices(world.now + timedelta(minutes=60)) == 1
    assert send_notices(world.now + timedelta(hours=5)) == 0
    (notice,) = notices()
    assert (notice.team_id, notice.job_id) == (world.teams["nlp"].pk, waiting.pk)
    assert notice.data == {
        "code": "long_wait",
        "name": "patient",
        "numbers": {"waited_s": 3600, "reasons": ["no_fit"]},
    }


def test_a_finding_is_told_of_once_and_a_new_one_again(world):
    job = world.submit(gpus=1, duration="1d")
    world.settle()

    def find(began_at):
        return Finding.objects.create(
            kind="idle", team=job.team, job=job, began_at=began_at, numbers={"allocated_milli": 1000}
        )

    first = find(world.now)
    assert send_notices(world.now) == 1
    assert send_notices(world.now) == 0
    Finding.objects.update(ended_at=world.now)
    second = find(world.now)
    assert send_notices(world.now) == 1
    assert [notice.data["finding"] for notice in notices()] == [first.pk, second.pk]


def test_nothing_to_say_writes_nothing(world):
    before = Event.objects.count()
    assert send_notices(world.now) == 0
    assert Event.objects.count() == before
