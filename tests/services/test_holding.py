"""Holds of several causes: every combination, taken away in every order, and free when the last one is gone."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

import pytest

from events.errors import Conflict
from events.models import Event
from events.services import unit_of_work
from scheduling import ports
from scheduling.models import Job
from scheduling.services.budget_holds import hold_as_budgets_say
from scheduling.services.holding import (
    composed,
    hold_for,
    hold_job,
    release_for,
    release_job,
)
from scheduling.services.stop import cancel_jobs


def as_budgets_say(purse, now):
    """As the service that looks at budgets does it; returns how many holds changed."""
    with unit_of_work() as journal:
        return hold_as_budgets_say(purse.empty, now, journal)


class Purse(ports.NoBudgets):
    """Budgets that a test spends and fills: what ``billing`` tells through the port."""

    def __init__(self) -> None:
        self.empty: set[int] = set()

    def spent(self, team_ids: Collection[int]) -> Mapping[int, Mapping[str, object]]:
        return {key: {"team": "NLP", "budget": "10.00", "spent": "10.50"} for key in self.empty & set(team_ids)}


@pytest.fixture
def purse(monkeypatch):
    found = Purse()
    monkeypatch.setattr(ports, "budgets", found)
    return found


TABLE = [
    ("", False, False, ""),
    ("", False, True, "dependency"),
    ("", True, False, "budget"),
    ("", True, True, "budget"),
    ("owner", False, False, "owner"),
    ("owner", False, True, "owner"),
    ("owner", True, False, "owner"),
    ("owner", True, True, "owner"),
    ("operator", False, False, "operator"),
    ("operator", False, True, "operator"),
    ("operator", True, False, "operator"),
    ("operator", True, True, "operator"),
]


@pytest.mark.parametrize(("person", "spent", "waits", "shown"), TABLE)
def test_what_shows_of_several_causes(person, spent, waits, shown):
    assert composed(person=person, budget_spent=spent, waits=waits) == shown


CAUSES = ("owner", "budget", "dependency")
EVERY_WAY = [
    (causes, order)
    for count in (1, 2, 3)
    for causes in itertools.combinations(CAUSES, count)
    for order in itertools.permutations(causes)
]


@pytest.mark.parametrize(("causes", "order"), EVERY_WAY, ids=lambda value: "-".join(value))
def test_each_cause_goes_by_itself_and_the_last_one_frees(world, purse, causes, order):
    team = world.teams["nlp"].pk
    first = world.submit(gpus=1, duration="10m", name="first")
    world.settle()
    job = world.submit(gpus=1, name="held", **({"after": [first.pk]} if "dependency" in causes else {}))
    if "owner" in causes:
        hold_job(job, world.now)
    if "budget" in causes:
        purse.empty.add(team)
        as_budgets_say(purse, world.now)
    world.settle()
    left = set(causes)
    for cause in order:
        job.refresh_from_db()
        shown = composed(
            person="owner" if "owner" in left else "", budget_spent="budget" in left, waits="dependency" in left
        )
        assert (job.state, job.hold) == ("pending", shown)
        assert job.reasons[0]["code"] == ("budget_spent" if shown == "budget" else "held")
        if cause == "owner":
            release_job(job, world.now)
        elif cause == "budget":
            purse.empty.clear()
            as_budgets_say(purse, world.now)
        else:
            world.pass_time(minutes=10)
        left.remove(cause)
        world.settle()
    job.refresh_from_db()
    assert (job.state, job.hold) == ("running", "")


def test_a_spent_budget_holds_what_is_submitted_and_says_its_numbers(world, purse):
    purse.empty.add(world.teams["nlp"].pk)
    job = world.submit(gpus=1)
    other = world.submit("mallory", team="ads", gpus=1)
    world.settle()
    job.refresh_from_db()
    other.refresh_from_db()
    assert (job.hold, other.state) == ("budget", "running")
    assert job.reasons[0]["message"] == "the budget of NLP is spent: 10.50 of 10.00"
    with pytest.raises(Conflict, match="released when that is over"):
        release_for(world.users["bob"], job, world.now)
    assert as_budgets_say(purse, world.now) == 0
    purse.empty.clear()
    assert as_budgets_say(purse, world.now) == 1
    assert as_budgets_say(purse, world.now) == 0
    world.settle()
    job.refresh_from_db()
    assert job.state == "running"


def test_an_operator_takes_over_an_owners_hold_and_leaves_what_ends_by_itself(world):
    first = world.submit(gpus=1)
    job = world.submit(gpus=1, after=[first.pk])
    hold_for(world.users["bob"], job, world.now)
    hold_for(world.users["root"], job, world.now)
    hold_for(world.users["bob"], job, world.now)
    assert Job.objects.get(pk=job.pk).hold == "operator"
    release_for(world.users["root"], job, world.now)
    assert Job.objects.get(pk=job.pk).hold == "dependency"


def test_holding_twice_and_releasing_twice_says_it_once(world):
    world.submit(gpus=4, tasks=2)
    job = world.submit(gpus=1)
    world.settle()
    for _ in range(2):
        hold_job(job, world.now)
    for _ in range(2):
        release_job(job, world.now)
    kinds = Event.objects.filter(job_id=job.pk, kind__in=["job.held", "job.released"]).values_list("kind", flat=True)
    assert sorted(kinds) == ["job.held", "job.released"]


@pytest.mark.parametrize("cause", ["owner", "dependency"])
def test_a_job_that_is_cancelled_is_held_by_nothing_any_more(world, cause):
    first = world.submit(gpus=1)
    job = world.submit(gpus=1, **({"after": [first.pk]} if cause == "dependency" else {}))
    if cause == "owner":
        hold_job(job, world.now)
    cancel_jobs([job.pk], world.now)
    job.refresh_from_db()
    assert (job.state, job.hold) == ("cancelled", "")
    with pytest.raises(Conflict):
        release_job(job, world.now)


def test_a_refused_release_moves_nothing(world):
    first = world.submit(gpus=1)
    job = world.submit(gpus=1, after=[first.pk])
    world.settle()
    before = (Job.objects.filter(pk=job.pk).values().get(), Event.objects.count())
    with pytest.raises(Conflict):
        release_job(job, world.now)
    assert (Job.objects.filter(pk=job.pk).values().get(), Event.objects.count()) == before
    assert list(job.after.all()) == [first]
