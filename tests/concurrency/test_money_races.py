"""Money at the same moment: packages are drawn once, confirmed once, invoices issued once. Each race without its guard
goes wrong first, where that can be shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.db.models import F, Sum

from billing.meter import LedgerMeter
from billing.models import BudgetCrossing, Invoice, InvoicedRecord, Package, PackageDraw, UsageRecord
from billing.periods import month_of
from billing.services.budgets import create_budget, look_at_budgets
from billing.services.invoices import credit_invoice, issue_invoice
from billing.services.packages import add_package, confirm_package
from billing.tills import DUST
from events.errors import Conflict, Refusal
from events.models import Event
from events.services import unit_of_work
from scheduling.models import Allocation, Job
from tests.concurrency.racing import at_once, raised

pytestmark = pytest.mark.django_db(transaction=True)


def four_that_run(world) -> list[Allocation]:
    for number in range(4):
        world.submit(gpus=1, name=f"j{number}")
    world.settle()
    return list(Allocation.objects.order_by("pk"))


def close(allocation: Allocation, at: datetime) -> None:
    with unit_of_work():
        LedgerMeter().closed([allocation], at)


def test_without_the_lock_two_draw_the_same_hour(world):
    """Both read what is left before either writes: an hour pays for two."""
    package = add_package(world.teams["nlp"], Decimal(1), world.now, confirmed=True)
    allocations = four_that_run(world)[:2]
    end = world.now + timedelta(hours=1)
    read = [Package.objects.get(pk=package.pk).left for _ in allocations]

    def charge(allocation: Allocation, left: int) -> None:
        record = UsageRecord.objects.get(allocation=allocation)
        work = min(left, record.milli * 3_600_000_000)
        UsageRecord.objects.filter(pk=record.pk).update(
            ended_at=end, microseconds=3_600_000_000, amount=Decimal("2.40")
        )
        PackageDraw.objects.create(package=package, record=record, work=work, amount=Decimal("2.40"), at=end)
        Package.objects.filter(pk=package.pk).update(left=left - work)

    at_once([lambda a=a, left=left: charge(a, left) for a, left in zip(allocations, read, strict=True)])
    drawn = PackageDraw.objects.aggregate(sum=Sum("work"))["sum"]
    assert drawn == 2 * package.work


@pytest.mark.parametrize("round_number", range(8))
def test_a_package_pays_no_more_than_it_has_whoever_charges_at_once(world, round_number):
    package = add_package(world.teams["research"], Decimal("2.5"), world.now, confirmed=True)
    allocations = four_that_run(world)
    end = world.now + timedelta(hours=1)
    assert raised(at_once([lambda each=each: close(each, end) for each in allocations]), Refusal) == 0
    package.refresh_from_db()
    drawn = PackageDraw.objects.aggregate(sum=Sum("work"))["sum"]
    assert 0 <= package.left < DUST
    assert drawn == package.work - package.left
    unpaid = UsageRecord.objects.filter(draw__isnull=True).aggregate(sum=Sum(F("milli") * F("microseconds")))["sum"]
    assert drawn + unpaid == 4 * 1000 * 3_600_000_000
    for draw in PackageDraw.objects.select_related("record"):
        assert draw.work == draw.record.milli * (draw.record.microseconds or 0)


@pytest.mark.parametrize("round_number", range(50))
def test_a_package_that_two_confirm_at_once_is_confirmed_once(world, round_number):
    package = add_package(world.teams["nlp"], Decimal(100), world.now)
    results = at_once([lambda: confirm_package(Package.objects.get(pk=package.pk), world.now)] * 2)
    assert sorted(results) == [False, True]
    package.refresh_from_db()
    assert package.left == package.work
    assert Event.objects.filter(kind="package.confirmed").count() == 1


@pytest.mark.parametrize("round_number", range(5))
def test_an_invoice_that_many_issue_at_once_is_issued_once(world, round_number):
    four_that_run(world)
    month = month_of(world.now, "UTC")
    world.now = datetime(2026, 4, 2, tzinfo=UTC)
    team = world.teams["nlp"]
    results = at_once([lambda: issue_invoice(team, month, world.now).number] * 4)
    assert raised(results, Refusal) == 0
    assert len(set(results)) == 1
    assert Invoice.objects.count() == 1
    records = UsageRecord.objects.filter(ended_at__isnull=False).count()
    assert (InvoicedRecord.objects.count(), records) == (4, 4)


@pytest.mark.parametrize("round_number", range(5))
def test_teams_that_are_billed_at_once_get_numbers_without_a_gap(world, round_number):
    world.now = datetime(2026, 4, 2, tzinfo=UTC)
    month = datetime(2026, 3, 1, tzinfo=UTC).date()
    teams = list(world.teams.values())
    results = at_once([lambda team=team: issue_invoice(team, month, world.now) for team in teams])
    assert raised(results, Refusal) == 0
    numbers = sorted(Invoice.objects.values_list("number", flat=True))
    assert numbers == [f"2026-{number:06d}" for number in range(1, len(teams) + 1)]


@pytest.mark.parametrize("round_number", range(5))
def test_an_invoice_is_taken_back_once(world, round_number):
    four_that_run(world)
    month = month_of(world.now, "UTC")
    world.now = datetime(2026, 4, 2, tzinfo=UTC)
    invoice = issue_invoice(world.teams["nlp"], month, world.now)
    assert raised(at_once([lambda: credit_invoice(invoice, world.now)] * 3), Conflict) == 2
    assert sum(row.total for row in Invoice.objects.all()) == 0


@pytest.mark.parametrize("round_number", range(5))
def test_a_threshold_is_told_once_however_many_look(world, round_number):
    create_budget(world.teams["nlp"], Decimal("2.40"), world.now, action="hold")
    four_that_run(world)
    world.submit(gpus=8, name="waits")
    at = world.now + timedelta(hours=1)
    assert raised(at_once([lambda: look_at_budgets(at)] * 4), Refusal) == 0
    assert BudgetCrossing.objects.count() == 3
    assert Event.objects.filter(kind="budget.threshold").count() == 3
    assert Event.objects.filter(kind="job.held").count() == 1
    assert Job.objects.get(name="waits").hold == "budget"


def test_jobs_are_submitted_while_a_budget_is_spent_and_raised_and_none_is_forgotten(world):
    """Whatever lands in between: a look afterwards finds everyone where the budget says."""
    from billing.services.budgets import change_budget

    budget = create_budget(world.teams["nlp"], Decimal(0), world.now, action="hold")
    done: list[int] = []

    def turn() -> None:
        for number in range(20):
            change_budget(budget, world.now, amount=Decimal(number % 2))
        done.append(1)

    def submit() -> None:
        while not done:
            world.submit(gpus=0.5)

    assert raised(at_once([turn, submit, submit]), Refusal) == 0
    look_at_budgets(world.now)
    assert set(Job.objects.values_list("hold", flat=True)) <= {""}
    change_budget(budget, world.now, amount=Decimal(0))
    assert set(Job.objects.values_list("hold", flat=True)) == {"budget"}
