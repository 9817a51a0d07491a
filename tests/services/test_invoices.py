"""Invoices: every record on exactly one, sums of rounded lines, frozen, numbered without a gap, taken back."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import DatabaseError, connection, transaction
from hypothesis import given
from hypothesis import strategies as some

from billing.burn import PER_UNIT
from billing.drafts import Billed, Fee, compose, fees_of
from billing.invoicing import draft_of, subtree_invoices
from billing.models import Invoice, InvoicedRecord, InvoiceLine, Rate, UsageRecord
from billing.periods import month_span
from billing.services import set_rate
from billing.services.invoices import credit_invoice, issue_invoice, issue_last_month
from billing.services.packages import add_package
from billing.services.plans import assign_plan, create_plan
from billing.terms import Terms
from events.errors import Conflict, Invalid
from events.models import Event
from scheduling.services.stop import cancel_jobs

MAY, JUNE = date(2026, 5, 1), date(2026, 6, 1)
CENT = Decimal("0.01")


# ---- what is always so -----------------------------------------------------------------------------------------------

prices = some.one_of(some.none(), some.decimals(0, 10**6, places=6))
works = some.one_of(some.integers(0, 10**7), some.integers(0, 10**17))
usage = some.lists(
    some.builds(
        Billed,
        some.integers(1, 10**6),
        some.sampled_from(["p", "q"]),
        some.sampled_from(["A", "B", ""]),
        some.just("gpu"),
        prices,
        works,
        some.sampled_from([None, None, 1, 2]),
        some.sampled_from([False, False, False, True]),
    ),
    max_size=12,
    unique_by=lambda each: each.record_id,
)
months = some.builds(Fee, some.just("v1"), some.decimals(0, 10**6, places=6), some.integers(1, 28), some.just(31))
fees = some.lists(months, max_size=2)
terms = some.builds(
    Terms, some.just("EUR"), some.just("UTC"), some.decimals(0, 100, places=4), some.sampled_from(["net", "gross"])
)


@given(usage, fees, terms)
def test_the_total_is_the_sum_of_what_is_shown(rows, of_month, on):
    draft = compose(rows, of_month, on)
    sums = draft.sums
    assert sums.net == sum((line.amount for line in draft.lines), Decimal(0))
    assert all(line.amount == line.amount.quantize(CENT) and line.amount >= 0 for line in draft.lines)
    assert (sums.total, sums.due) == (sums.net + sums.tax, sums.total - sums.prepaid)
    assert abs(sums.tax - sums.net * on.tax_percent / 100) <= Decimal("0.005")
    assert 0 <= sums.prepaid <= sums.total
    for line in draft.lines:
        if not (line.kind == "package" and on.packages_pay == "net"):
            assert abs(line.amount - line.exact) <= Decimal("0.005000000001")
    if on.packages_pay == "net":
        assert sums.prepaid == 0
    elif draft.lines and all(line.kind == "package" for line in draft.lines):
        assert sums.due == 0


@given(usage, terms)
def test_what_packages_paid_and_what_is_charged_are_all_that_was_used(rows, on):
    draft = compose(rows, [], on)
    billed = [each for each in rows if not each.waived]
    for kind, own in (
        ("package", [each for each in billed if each.package_id is not None]),
        ("usage", [each for each in billed if each.package_id is None]),
    ):
        assert sum(line.work for line in draft.lines if line.kind == kind) == sum(each.work for each in own)
    on_lines = [record for line in draft.lines for record in line.records]
    assert Counter([*on_lines, *draft.free]) == Counter(each.record_id for each in rows)


def test_a_line_is_rounded_once_half_to_even():
    on = Terms("EUR", "UTC", Decimal(0), "net")
    hour = 1000 * 3_600_000_000
    # Ten spans of half a cent are five cents, not ten times nothing.
    spans = [Billed(key, "p", "A", "gpu", Decimal("0.005"), hour) for key in range(10)]
    assert compose(spans, [], on).lines[0].amount == Decimal("0.05")
    for price, amount in (("0.005", "0.00"), ("0.015", "0.02"), ("0.025", "0.02"), ("0.0050001", "0.01")):
        draft = compose([Billed(1, "p", "A", "gpu", Decimal(price).quantize(Decimal("0.0000001")), hour)], [], on)
        assert draft.sums.net == Decimal(amount)


def test_three_thirds_of_a_cent_each_are_shown_as_they_add_up():
    on = Terms("EUR", "UTC", Decimal(0), "net")
    rows = [Billed(key, f"p{key}", "A", "gpu", Decimal("0.333"), PER_UNIT) for key in range(3)]
    draft = compose(rows, [], on)
    assert [line.amount for line in draft.lines] == [Decimal("0.33")] * 3
    assert draft.sums.total == Decimal("0.99")


def test_a_plan_that_changes_inside_a_quarter_charges_each_day_once():
    plans = [(date(2022, 1, 1), "v1", Decimal(30)), (date(2023, 2, 15), "v2", Decimal(60))]
    months = [fees_of(date(2023, month, 1), plans) for month in (1, 2, 3)]
    assert [[(fee.plan, fee.days) for fee in own] for own in months] == [
        [("v1", 31)],
        [("v1", 14), ("v2", 14)],
        [("v2", 31)],
    ]
    on = Terms("EUR", "UTC", Decimal(0), "net")
    assert sum(compose([], own, on).sums.net for own in months) == Decimal("135.00")
    assert fees_of(date(2023, 4, 1), [*plans, (date(2023, 4, 11), None, Decimal(0))])[0].days == 10


# ---- in the books ----------------------------------------------------------------------------------------------------


@pytest.fixture
def may(world):
    """The world on the last day of May, 22:00 UTC, at 2.40 an hour."""
    Rate.objects.all().delete()
    world.now = datetime(2026, 5, 31, 21, tzinfo=UTC)
    set_rate(Decimal("2.40"), world.now)
    world.now = datetime(2026, 5, 31, 22, tzinfo=UTC)
    return world


def faults_of_invoices() -> list[str]:
    """Where an invoice is not what its usage says."""
    found = []
    for invoice in Invoice.objects.all():
        lines = list(invoice.lines.all())
        if invoice.net != sum((line.amount for line in lines), Decimal(0)) or len(lines) != invoice.line_count:
            found.append(f"{invoice} does not add up")
        if invoice.kind == "credit":
            continue
        for line in lines:
            records = [row.record for row in line.records.all()]
            work = sum(row.milli * (row.microseconds or 0) for row in records)
            worth = sum((row.amount or Decimal(0) for row in records), Decimal(0))
            if line.kind != "fee" and (work != line.work or abs(worth - line.exact) > Decimal("0.000000001")):
                found.append(f"{line} of {invoice} is not its usage")
    return found


def test_all_usage_of_a_month_is_on_exactly_one_invoice(may):
    world = may
    for number in range(6):
        world.submit(gpus=0.35, duration=f"{number}h", name=f"j{number}")
        world.submit("mallory", team="ads", gpus=0.1, duration="150m")
    world.settle()
    world.pass_time(hours=1)
    set_rate(Decimal("3.30"), world.now)
    world.pass_time(hours=40)
    assert issue_last_month(world.now) == 2
    assert issue_last_month(world.now) == 0
    world.now = datetime(2026, 7, 1, 0, 45, tzinfo=UTC)
    assert issue_last_month(world.now) == 2
    assert set(InvoicedRecord.objects.values_list("record_id", flat=True)) == set(
        UsageRecord.objects.values_list("pk", flat=True)
    )
    with pytest.raises(DatabaseError), transaction.atomic():
        InvoicedRecord.objects.create(record=UsageRecord.objects.first(), invoice=Invoice.objects.last())
    for invoice in Invoice.objects.all():
        for row in invoice.records.select_related("record"):
            ended_at = row.record.ended_at or invoice.starts_at
            assert invoice.starts_at <= row.record.started_at <= ended_at <= invoice.ends_at
            assert row.record.team_id == invoice.team_id
    assert faults_of_invoices() == []
    numbers = list(Invoice.objects.order_by("id").values_list("number", flat=True))
    assert numbers == [f"2026-{number:06d}" for number in range(1, 5)]


def test_an_invoice_is_issued_once_and_stays_what_it_was(may):
    world = may
    team = world.teams["nlp"]
    world.submit(gpus=1, duration="5h")
    world.settle()
    world.pass_time(hours=1)
    before = draft_of(team, MAY, world.now)
    assert before.sums.total == Decimal("2.40")
    with pytest.raises(Invalid) as refusal:
        issue_invoice(team, MAY, world.now)
    assert refusal.value.faults[0].field == "month"
    assert (Invoice.objects.count(), UsageRecord.objects.count()) == (0, 1)
    world.now = datetime(2026, 6, 1, 0, 5, tzinfo=UTC)
    invoice = issue_invoice(team, MAY, world.now)
    assert (invoice.total, invoice.due) == (Decimal("4.80"), Decimal("4.80"))
    events = Event.objects.count()
    assert issue_invoice(team, MAY, world.now + timedelta(hours=1)) == invoice
    assert Event.objects.count() == events
    # What was used later, and another name and price, change nothing of it.
    set_rate(Decimal(9), world.now)
    world.pass_time(hours=10)
    type(team).objects.filter(pk=team.pk).update(slug="other", name="Other")
    again = issue_invoice(team, MAY, world.now)
    assert (again.total, again.team_slug) == (Decimal("4.80"), "nlp")
    assert [line.description for line in again.lines.all()] == ["A100-80G in train, 2.40 per GPU-hour"]


def test_the_database_refuses_every_change_of_what_was_issued(may):
    world = may
    world.submit(gpus=1, duration="1h")
    world.settle()
    world.now = datetime(2026, 6, 2, tzinfo=UTC)
    world.settle()
    invoice = issue_invoice(world.teams["nlp"], MAY, world.now)
    line, row = invoice.lines.get(), invoice.records.get()

    def refused(act):
        with pytest.raises(DatabaseError), transaction.atomic():
            act()

    refused(lambda: Invoice.objects.filter(pk=invoice.pk).update(total=0))
    refused(lambda: Invoice.objects.filter(pk=invoice.pk).update(reason="none"))
    refused(lambda: InvoiceLine.objects.filter(pk=line.pk).update(amount=0))
    refused(lambda: InvoicedRecord.objects.filter(pk=row.pk).update(line=None))
    more = {name: getattr(line, name) for name in ("kind", "description", "exact", "amount")}
    refused(lambda: InvoiceLine.objects.create(invoice=invoice, position=2, **more))
    refused(lambda: InvoiceLine.objects.create(invoice=invoice, position=1, **more))
    if connection.vendor == "postgresql":
        refused(lambda: InvoiceLine.objects.filter(pk=line.pk).delete())
        refused(lambda: Invoice.objects.filter(pk=invoice.pk).delete())
    assert faults_of_invoices() == []


def test_usage_that_is_told_of_late_goes_on_the_next_invoice(may):
    """An engine that was out of reach tells after the month's invoice that something began before its end."""
    from scheduling.models import Allocation

    world = may
    team = world.teams["nlp"]
    world.submit(gpus=1, duration="1h")
    world.settle()
    world.pass_time(hours=5)
    may_invoice = issue_invoice(team, MAY, world.now)
    from billing.meter import LedgerMeter

    allocation = Allocation.objects.get()
    UsageRecord.objects.create(
        allocation=allocation,
        team=team,
        user=allocation.user,
        job=allocation.job,
        pool=allocation.pool,
        model=allocation.model,
        milli=1000,
        started_at=datetime(2026, 5, 31, 23, 30, tzinfo=UTC),
    )
    LedgerMeter().closed([allocation], datetime(2026, 6, 1, 0, 30, tzinfo=UTC))
    world.now = datetime(2026, 7, 2, tzinfo=UTC)
    assert issue_invoice(team, MAY, world.now).total == may_invoice.total == Decimal("2.40")
    june = issue_invoice(team, JUNE, world.now)
    assert june.total == Decimal("2.40")
    assert june.records.count() == 2
    assert InvoicedRecord.objects.count() == UsageRecord.objects.count()


def test_a_month_whose_turn_never_came_is_not_billed_with_a_later_one(may):
    world = may
    world.submit(gpus=1, duration="4h")
    world.settle()
    world.pass_time(hours=5)
    world.now = datetime(2026, 7, 2, tzinfo=UTC)
    assert issue_invoice(world.teams["nlp"], JUNE, world.now).total == Decimal("4.80")
    assert issue_invoice(world.teams["nlp"], MAY, world.now).total == Decimal("4.80")


def test_a_spoiled_start_is_on_the_invoice_without_a_line(may):
    from scheduling.services.reconcile import lose_node

    world = may
    job = world.submit(gpus=4)
    world.clockwork.scheduler.cycle(world.now)
    world.now += timedelta(seconds=20)
    lose_node(job.allocations.get().node, world.engine, world.now)
    cancel_jobs([job.pk], world.now)
    world.now = datetime(2026, 6, 2, tzinfo=UTC)
    invoice = issue_invoice(world.teams["nlp"], MAY, world.now)
    assert (invoice.lines.count(), invoice.records.count()) == (0, 1)
    assert invoice.total == 0


def test_a_deleted_team_is_billed_under_its_id_beside_its_namesake(may):
    from scheduling.services.teams import delete_team
    from tenants.services import create_team, set_membership

    world = may
    world.submit(gpus=1, duration="30m")
    world.settle()
    world.pass_time(hours=1)
    delete_team(world.teams["nlp"], world.now)
    new = create_team("NLP", world.now, slug="nlp")
    set_membership(world.users["bob"], new, "member", world.now)
    world.submit(gpus=1, duration="10m")
    world.settle()
    world.pass_time(hours=5)
    assert issue_last_month(world.now) == 2
    rows = [(row.team_id, row.team_slug, row.total) for row in Invoice.objects.order_by("team_id")]
    assert rows == [(world.teams["nlp"].pk, "nlp", Decimal("1.20")), (new.pk, "nlp", Decimal("0.40"))]


def test_a_parent_sees_the_sum_of_its_subtree(may):
    world = may
    world.submit(gpus=1, duration="1h")
    world.submit("root", team="vision", gpus=0.5, duration="1h")
    world.settle()
    world.pass_time(hours=5)
    issue_last_month(world.now)
    together = subtree_invoices(world.teams["research"], MAY)
    assert (together.total, len(together.numbers)) == (Decimal("3.60"), 2)
    assert subtree_invoices(world.teams["vision"], MAY).total == Decimal("1.20")


# ---- credit notes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def taxed(may, settings):
    """nlp's invoice of May: 2.40 and 4.80 of usage, 0.07 of fee, 19 % on it; half of the first paid by a package."""
    settings.BILLING_TAX_PERCENT = "19"
    settings.BILLING_PACKAGES_PAY = "gross"
    world = may
    team = world.teams["nlp"]
    assign_plan(team, create_plan("small", Decimal("2.17"), world.now), date(2026, 5, 31), world.now)
    add_package(team, Decimal("0.5"), world.now, confirmed=True)
    world.submit(gpus=1, duration="1h")
    world.settle()
    world.pass_time(hours=1)
    set_rate(Decimal("4.80"), world.now)
    world.submit(gpus=1, duration="1h")
    world.settle()
    world.pass_time(hours=5)
    return issue_invoice(team, MAY, world.now), world


def test_a_credit_note_takes_all_back_once(taxed):
    invoice, world = taxed
    assert (invoice.net, invoice.tax, invoice.total) == (Decimal("7.27"), Decimal("1.38"), Decimal("8.65"))
    assert (invoice.prepaid, invoice.due) == (Decimal("1.43"), Decimal("7.22"))
    credit = credit_invoice(invoice, world.now, reason="wrong price")
    for name in ("net", "tax", "total", "prepaid", "due"):
        assert getattr(credit, name) == -getattr(invoice, name)
    assert credit.refers_to == invoice
    with pytest.raises(Conflict):
        credit_invoice(invoice, world.now)
    with pytest.raises(Conflict):
        credit_invoice(credit, world.now)
    assert Invoice.objects.count() == 2
    assert faults_of_invoices() == []


def test_credit_notes_in_parts_undo_an_invoice_to_the_cent(taxed):
    invoice, world = taxed
    team = world.teams["nlp"]
    with pytest.raises(Invalid):
        credit_invoice(invoice, world.now, amounts={3: Decimal("4.81")})
    with pytest.raises(Invalid):
        credit_invoice(invoice, world.now, amounts={9: Decimal(1)})
    assert Invoice.objects.count() == 1
    for amount in ("0.01", "0.01", "1.11"):
        credit_invoice(invoice, world.now, amounts={3: Decimal(amount)})
    credit_invoice(invoice, world.now)
    for name in ("net", "tax", "total", "prepaid", "due"):
        assert sum(getattr(row, name) for row in Invoice.objects.all()) == 0
    assert subtree_invoices(team, MAY).total == 0
    assert month_span(MAY, "UTC").end == invoice.ends_at
    numbers = sorted(Invoice.objects.values_list("number", flat=True))
    assert numbers == [f"2026-{number:06d}" for number in range(1, 6)]
