"""Budgets: told once, on time, and exactly those jobs held that they say, whatever happens in between."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from billing.burn import Running, reached
from billing.models import Budget, BudgetCrossing
from billing.periods import period_at
from billing.rates import Price, RateCard, amount_of
from billing.services import set_rate
from billing.services.budgets import change_budget, create_budget, look_at_budgets, remove_budget
from events.errors import Conflict, Invalid
from events.models import Event
from inventory.models import AcceleratorModel
from quotas.services import move_team
from scheduling import ports
from scheduling.models import Job
from scheduling.services.holding import hold_job, release_for, release_job
from scheduling.services.stop import cancel_jobs
from tenants.services import create_team

START = datetime(2026, 5, 4, 10, tzinfo=UTC)


def told(kind: str) -> list[dict]:
    return list(Event.objects.filter(kind=kind).order_by("seq").values_list("data", flat=True))


def holds() -> dict[str, str]:
    return dict(Job.objects.filter(state="pending").values_list("name", "hold"))


# ---- when an amount is reached ---------------------------------------------------------------------------------------


@given(
    some.lists(some.tuples(some.integers(0, 180), some.decimals(0, 20, places=2)), min_size=1, max_size=5),
    some.lists(some.integers(1, 8000), max_size=4),
    some.decimals("0.01", 100, places=2),
)
def test_at_the_moment_foreseen_the_amount_is_spent_and_not_before(changes, millis, amount):
    prices = [
        Price(key, None, None, None, None, each, START + timedelta(minutes=minutes))
        for key, (minutes, each) in enumerate(changes)
    ]
    card = RateCard(prices, "Europe/Berlin")
    end = START + timedelta(hours=6)
    running = [Running(milli, 1, 1, 1) for milli in millis]
    found = reached(running, card, START, amount, end)

    def spent(at: datetime) -> Decimal:
        segments = card.segments(1, 1, 1, START, at) if at > START else []
        return sum(
            (amount_of(milli, each.start, each.end, each.per_hour) for each in segments for milli in millis),
            Decimal(0),
        )

    if found.at is None:
        assert spent(end) < amount
    else:
        assert START < found.at <= end
        assert spent(found.at) >= amount - Decimal("0.0000001")
        assert spent(found.at - timedelta(seconds=1)) < amount


def test_a_price_by_the_hour_of_the_day_is_foreseen_too():
    from datetime import time

    prices = [
        Price(1, None, None, None, None, Decimal(1), START - timedelta(days=9)),
        Price(2, None, None, None, (time(12), time(13)), Decimal(4), START - timedelta(days=9)),
    ]
    found = reached([Running(1000, 1, 1, 1)], RateCard(prices, "UTC"), START, Decimal(5), START + timedelta(days=9))
    assert found.at == START + timedelta(hours=2, minutes=45)


@pytest.mark.parametrize(
    ("kind", "zone", "moment", "span"),
    [
        ("month", "Europe/Berlin", "2026-03-31T21:59:59", ("2026-02-28T23:00:00", "2026-03-31T22:00:00")),
        ("month", "Europe/Berlin", "2026-03-31T22:00:00", ("2026-03-31T22:00:00", "2026-04-30T22:00:00")),
        ("quarter", "Asia/Tokyo", "2026-06-30T15:00:00", ("2026-06-30T15:00:00", "2026-09-30T15:00:00")),
        ("quarter", "UTC", "2026-12-31T23:59:59", ("2026-10-01T00:00:00", "2027-01-01T00:00:00")),
        ("year", "America/New_York", "2027-01-01T04:59:59", ("2026-01-01T05:00:00", "2027-01-01T05:00:00")),
    ],
)
def test_periods_are_those_of_the_billing_calendar(kind, zone, moment, span):
    found = period_at(kind, datetime.fromisoformat(f"{moment}Z"), zone)
    assert found is not None
    assert (found.start, found.end) == tuple(datetime.fromisoformat(f"{each}Z") for each in span)


# ---- acting ----------------------------------------------------------------------------------------------------------


def test_thresholds_are_told_once_each_at_their_second(world):
    budget = create_budget(world.teams["research"], Decimal("9.60"), world.now)
    world.submit(gpus=2)
    world.settle()
    world.pass_time(hours=3)
    rows = BudgetCrossing.objects.filter(budget=budget).order_by("percent")
    assert [(row.percent, row.at - world.now + timedelta(hours=3)) for row in rows] == [
        (50, timedelta(hours=1)),
        (80, timedelta(hours=1, minutes=36)),
        (100, timedelta(hours=2)),
    ]
    assert [each["percent"] for each in told("budget.threshold")] == [50, 80, 100]
    for _ in range(3):
        assert look_at_budgets(world.now).changed == 0
    # A raised amount has thresholds of its own; the old one, set again, was told of already.
    change_budget(budget, world.now, amount=Decimal("28.80"))
    assert [each["percent"] for each in told("budget.threshold")][3:] == [50]
    change_budget(budget, world.now, amount=Decimal("9.60"))
    assert len(told("budget.threshold")) == 4


def test_a_faster_burn_brings_the_moment_forward(world):
    create_budget(world.teams["nlp"], Decimal("4.80"), world.now, action="hold", thresholds=[])
    world.submit(gpus=1)
    world.settle()
    assert world.clockwork.watch.next_change() == world.now + timedelta(hours=2)
    world.pass_time(hours=1)
    world.submit(gpus=3)
    world.settle()
    assert world.clockwork.watch.next_change() == world.now + timedelta(minutes=15)
    model = AcceleratorModel.objects.get()
    set_rate(Decimal("4.80"), world.now, model=model, effective_from=world.now + timedelta(minutes=10))
    world.settle()
    assert world.clockwork.watch.next_change() == world.now + timedelta(minutes=12, seconds=30)
    before = told("budget.spent")
    world.pass_time(minutes=12, seconds=29)
    assert (before, told("budget.spent")) == ([], [])
    world.pass_time(seconds=1)
    assert len(told("budget.spent")) == 1
    assert Job.objects.filter(state="running").count() == 2


def spent(world, team="nlp", amount="0", **values):
    return create_budget(world.teams[team], Decimal(amount), world.now, action="hold", **values)


def test_a_submission_into_a_spent_budget_is_accepted_held_and_says_so(world):
    spent(world, "research")
    job = world.submit(gpus=1)
    job.refresh_from_db()
    assert (job.state, job.hold) == ("pending", "budget")
    (reason,) = job.reasons
    assert reason["code"] == "budget_spent"
    assert reason["message"] == "the budget of research is spent: 0.00 of 0.00"
    world.settle()
    job.refresh_from_db()
    assert (job.state, [each["code"] for each in job.reasons]) == ("pending", ["budget_spent"])
    assert world.submit("mallory", team="ads", gpus=1).hold == ""


def test_a_submission_asks_anew_where_a_period_has_turned(world):
    """Nobody has looked since the last month."""
    world.now = datetime(2026, 5, 31, 22, tzinfo=UTC)
    spent(world, amount="2.40")
    world.submit(gpus=1, duration="1h", name="a")
    world.settle()
    world.pass_time(hours=1)
    assert world.submit(gpus=1, name="b").hold == "budget"
    world.now = datetime(2026, 6, 1, 0, 0, 1, tzinfo=UTC)
    assert world.submit(gpus=1, name="c").hold == ""
    assert holds() == {"b": "", "c": ""}


@pytest.mark.parametrize("how", ["raised", "removed", "warns", "off", "over", "later"])
def test_exactly_those_held_for_it_are_released(world, how):
    budget = spent(world)
    other = spent(world, "vision")
    world.submit(gpus=1, name="held")
    world.submit("root", team="vision", gpus=1, name="other")
    mine = world.submit(gpus=1, name="mine")
    hold_job(mine, world.now)
    world.settle()
    assert holds() == {"held": "budget", "other": "budget", "mine": "owner"}
    if how == "removed":
        remove_budget(budget, world.now)
    else:
        hour = timedelta(hours=1)
        changes: dict[str, dict[str, Any]] = {
            "raised": {"amount": Decimal(1)},
            "warns": {"action": "warn"},
            "off": {"active": False},
            "over": {"ends_at": world.now},
            "later": {"starts_at": world.now + hour},
        }
        change_budget(budget, world.now, **changes[how])
    assert holds() == {"held": "", "other": "budget", "mine": "owner"}
    world.settle()
    assert holds() == {"other": "budget", "mine": "owner"}
    assert Budget.objects.filter(pk=other.pk).exists()


def test_a_budget_that_begins_later_holds_then(world):
    spent(world, starts_at=world.now + timedelta(hours=1))
    world.submit(gpus=4, tasks=2, duration="2h", name="runs")
    world.submit(gpus=1, duration="1h", name="waits")
    world.settle()
    world.pass_time(minutes=59)
    assert holds() == {"waits": ""}
    world.pass_time(minutes=1)
    assert holds() == {"waits": "budget"}


def test_two_budgets_over_one_team_must_both_have_room(world):
    near, far = spent(world), spent(world, "research")
    world.submit(gpus=1, name="a")
    change_budget(near, world.now, amount=Decimal(5))
    assert holds() == {"a": "budget"}
    assert ports.budgets.spent([world.teams["nlp"].pk])[world.teams["nlp"].pk]["team"] == "research"
    change_budget(far, world.now, amount=Decimal(5))
    assert holds() == {"a": ""}


def test_who_moves_out_from_under_a_spent_budget_is_released(world):
    spent(world, "research")
    world.submit(gpus=1, name="a")
    move_team(world.teams["nlp"], None, world.now)
    world.settle()
    assert Job.objects.get().state == "running"
    move_team(world.teams["nlp"], world.teams["research"], world.now)
    world.submit(gpus=1, name="b")
    assert holds() == {"b": "budget"}


def test_a_hold_of_a_person_gives_way_to_the_budgets(world):
    budget = spent(world)
    job = world.submit(gpus=1, name="a")
    hold_job(job, world.now)
    with pytest.raises(Conflict):
        release_for(world.users["bob"], world.submit(gpus=1, name="b"), world.now)
    release_job(job, world.now)
    assert holds() == {"a": "budget", "b": "budget"}
    world.settle()
    assert holds() == {"a": "budget", "b": "budget"}
    remove_budget(budget, world.now)
    world.settle()
    assert holds() == {}


def test_what_goes_back_to_the_queue_is_held_there(world):
    from scheduling.services.reconcile import lose_node

    budget = spent(world, amount="2.40")
    job = world.submit(gpus=1)
    world.settle()
    world.pass_time(hours=1)
    assert Job.objects.get().state == "running"
    lose_node(job.allocations.get().node, world.engine, world.now)
    world.settle()
    job.refresh_from_db()
    assert (job.state, job.hold) == ("pending", "budget")
    change_budget(budget, world.now, amount=Decimal(100))
    world.settle()
    job.refresh_from_db()
    assert job.state in ("starting", "running")


def test_a_hold_that_was_missed_is_put_right_by_the_next_look(world):
    """Whatever a race or a crash left behind: what is held follows from the budgets alone."""
    spent(world)
    world.submit(gpus=1, name="a")
    world.submit("mallory", team="ads", gpus=1, name="b")
    Job.objects.filter(name="a").update(hold="")
    Job.objects.filter(name="b").update(hold="budget")
    assert look_at_budgets(world.now).changed == 2
    assert holds() == {"a": "budget", "b": ""}
    assert look_at_budgets(world.now).changed == 0


def test_deleted_teams_below_still_count_and_totals_have_no_turn(world):
    from scheduling.services.teams import delete_team

    brief = create_team("Brief", world.now, parent=world.teams["research"])
    budget = create_budget(world.teams["research"], Decimal(100), world.now, period="total", action="hold")
    world.submit("root", team="brief", gpus=1, duration="1h")
    world.settle()
    world.pass_time(hours=2)
    delete_team(brief, world.now)
    world.now += timedelta(days=500)
    look_at_budgets(world.now)
    budget.refresh_from_db()
    assert (budget.spent, budget.next_look_at) == (Decimal("2.40"), None)


def test_what_is_spent_is_what_the_usage_says(world):
    budget = create_budget(world.teams["research"], Decimal(1000), world.now)
    jobs = [world.submit(gpus=gpus, duration=f"{minutes}m") for gpus, minutes in ((0.35, 50), (1, 7), (0.1, 200))]
    world.settle()
    world.pass_time(hours=1)
    look_at_budgets(world.now)
    budget.refresh_from_db()
    costs = ports.meter.job_costs([job.pk for job in jobs], world.now)
    assert budget.spent == sum(cost.amount for cost in costs.values())
    cancel_jobs([job.pk for job in jobs], world.now)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"amount": Decimal(-1)}, "amount"),
        ({"amount": Decimal("NaN")}, "amount"),
        ({"amount": Decimal(10) ** 13}, "amount"),
        ({"amount": Decimal("0.0000001")}, "amount"),
        ({"period": "week"}, "period"),
        ({"action": "stop"}, "action"),
        ({"thresholds": [0]}, "thresholds"),
        ({"thresholds": [50, 50]}, "thresholds"),
        ({"thresholds": ["50"]}, "thresholds"),
        ({"thresholds": 50}, "thresholds"),
        ({"starts_at": START, "ends_at": START}, "ends_at"),
        ({"colour": "red"}, "colour"),
    ],
    ids=str,
)
def test_a_budget_that_cannot_be_is_refused_and_changes_nothing(world, values, field):
    budget = spent(world, amount="5")
    before = (list(Budget.objects.values()), Event.objects.count())
    with pytest.raises(Invalid) as refusal:
        change_budget(budget, world.now, **values)
    assert [fault.field for fault in refusal.value.faults] == [field]
    with pytest.raises(Invalid):
        create_budget(world.teams["ads"], values.pop("amount", Decimal(1)), world.now, **values)
    assert (list(Budget.objects.values()), Event.objects.count()) == before
