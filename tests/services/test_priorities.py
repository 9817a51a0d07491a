"""Who may give which priority, and what classes may hold."""

from __future__ import annotations

from typing import Any

import pytest

from events.errors import Invalid
from events.models import Event
from scheduling.models import Job
from scheduling.services.stop import set_priority, set_priority_class
from tenants.services import set_membership


@pytest.fixture
def classes(world):
    """boss is open to managers, rush goes ahead of other teams."""
    set_priority_class("boss", 2000, world.now, roles=["manager"])
    set_priority_class("rush", 9000, world.now, cluster_wide=True)
    return world


@pytest.mark.parametrize(
    ("user", "value", "highest"),
    [("bob", 900, None), ("bob", 901, 900), ("alice", 2000, None), ("alice", 2001, 2000), ("root", 1_000_000, None)],
)
def test_a_value_is_at_most_the_highest_class_that_is_open_to_the_person(classes, user, value, highest):
    world, count = classes, Job.objects.count()
    if highest is None:
        job = world.submit(user, priority=value, gpus=1)
        assert (job.priority_value, job.priority_class.name) == (value, "normal")
        return
    with pytest.raises(Invalid) as refused:
        world.submit(user, priority=value, gpus=1)
    (fault,) = refused.value.faults
    assert (fault.field, fault.value, fault.allowed) == ("priority", value, [0, highest])
    assert f"from 0 to {highest}" in fault.message
    assert Job.objects.count() == count


def test_the_same_holds_for_a_priority_that_is_changed(classes):
    world = classes
    job = world.submit(gpus=1)
    events = Event.objects.count()
    changes: tuple[tuple[str, dict[str, Any]], ...] = (
        ("bob", {"value": 901}),
        ("bob", {"value": -1}),
        ("mallory", {"value": 901}),
        ("alice", {"value": 2001}),
    )
    for user, change in changes:
        with pytest.raises(Invalid):
            set_priority(job, world.now, by=world.users[user], **change)
    boss = set_priority_class("boss", 2000, world.now, roles=["manager"])
    with pytest.raises(Invalid, match="not a priority class open to you"):
        set_priority(job, world.now, by=world.users["bob"], priority_class=boss)
    job.refresh_from_db()
    assert (job.priority_value, job.priority_class.name) == (None, "normal")
    assert Event.objects.count() == events + 1, "the class that was set, and nothing of the job"
    set_priority(job, world.now, by=world.users["alice"], value=1999)
    assert job.priority_value == 1999
    set_priority(job, world.now, by=world.users["alice"], priority_class=boss)
    assert (job.priority_value, job.priority_class.name) == (None, "boss")
    set_priority(job, world.now, by=world.users["root"], value=10**6)
    assert job.priority_value == 10**6
    told = Event.objects.filter(kind="job.priority").order_by("-seq").first()
    assert told.actor_id == world.users["root"].pk


def test_where_no_class_is_open_no_value_is(classes):
    world = classes
    for name in ("low", "normal", "high"):
        set_priority_class(name, 5, world.now, roles=["manager"])
    with pytest.raises(Invalid, match="no value of its own"):
        world.submit("bob", priority=0, gpus=1)
    set_membership(world.users["bob"], world.teams["nlp"], "manager", world.now)
    world.submit("bob", priority=2000, gpus=1)


@pytest.mark.parametrize(
    "options",
    [
        {"max_milli_per_team": -1},
        {"max_milli_per_team": 0.5},
        {"max_milli_per_team": True},
        {"max_milli_per_team": 10**13},
        {"max_jobs_per_team": -1},
        {"max_gpus": 1},
    ],
)
def test_a_cap_that_cannot_be_meant_is_refused(classes, options):
    before = Event.objects.count()
    with pytest.raises(Invalid):
        set_priority_class("boss", 1, classes.now, **options)
    assert Event.objects.count() == before


def test_a_cap_of_nothing_is_nothing_and_the_picture_counts_as_it_is_read_anew(classes):
    world = classes
    set_priority_class("low", 100, world.now, max_milli_per_team=1500)
    runs = [world.submit(gpus=0.5, priority="low") for _ in range(4)]
    other = world.submit("mallory", team="ads", gpus=1, priority="low")
    world.settle()
    states = [Job.objects.get(pk=job.pk).state for job in (*runs, other)]
    assert states == ["running", "running", "running", "pending", "running"]
    reason = Job.objects.get(pk=runs[3].pk).reasons[0]
    assert reason["code"] == "class_cap"
    wanted = {"limit_milli": 1500, "in_use_milli": 1500, "requested_milli": 500, "priority_class": "low", "team": "nlp"}
    assert reason["numbers"] == wanted
    picture = world.clockwork.scheduler.picture
    kept = {key: value for pool in picture.pools.values() for key, value in pool.class_milli.items() if value}
    picture.load(world.now)
    assert {key: value for pool in picture.pools.values() for key, value in pool.class_milli.items() if value} == kept
    set_priority_class("low", 100, world.now, max_milli_per_team=0)
    last = world.submit("mallory", team="ads", gpus=0.05, priority="low")
    cores = world.submit("mallory", team="ads", cpu=1, priority="low")
    world.settle()
    assert Job.objects.get(pk=last.pk).state == "pending"
    assert Job.objects.get(pk=cores.pk).state == "running", "a cap on GPUs is none on cores"
