"""The one door for writes to invoices. An issued one is a photograph; what was wrong is taken back by a credit note."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal

from django.db import IntegrityError
from django.db.models import Q

from billing.drafts import Draft, Line, compose, tax_on
from billing.exact import cents
from billing.invoicing import billed, issued, month_fees, unbilled
from billing.meter import LedgerMeter
from billing.models import Invoice, InvoicedRecord, InvoiceLine, InvoiceSequence, TeamPlan, UsageRecord
from billing.periods import Span, month_of, month_span, months_later
from billing.rates import zone
from billing.terms import terms
from events.errors import Conflict, Fault, Invalid
from events.rows import insert_rows
from events.services import Journal, require_aware, unit_of_work
from tenants.models import Team

NOUGHT = Decimal("0.00")


def issue_invoice(team: Team, month: date, now: datetime, *, actor_id: int | None = None) -> Invoice:
    """The team's invoice of the calendar month, over its own usage; issued now, or the one that was.

    Invalid while the month goes on in the billing zone. Whoever issues at the same moment gets the same invoice.
    """
    month = month.replace(day=1)
    span = month_span(month, terms().time_zone)
    if require_aware(now) < span.end:
        raise Invalid.at("month", f"is over at {span.end.isoformat()}, not before", value=month.strftime("%Y-%m"))
    try:
        with unit_of_work() as journal:
            found = issued(team, month)
            return found or _issue(team, month, span, now, journal, actor_id)
    except IntegrityError:
        # Two at the turn of a year lock the rows of two years; the database lets one of them have it.
        found = issued(team, month)
        if found is None:
            raise
        return found


def _issue(team: Team, month: date, span: Span, now: datetime, journal: Journal, actor_id: int | None) -> Invoice:
    sequence = _locked_sequence(now)
    # Whoever puts the team on another plan meets it here too.
    team = Team.objects.select_for_update(no_key=True).get(pk=team.pk)
    found = issued(team, month)
    if found is not None:
        return found
    LedgerMeter().cut(span.end, Q(team=team))
    draft = compose(billed(unbilled(team, span)), month_fees(team, month), terms())
    invoice = Invoice(
        number=_number(sequence),
        kind=Invoice.Kind.INVOICE,
        team=team,
        team_slug=team.slug,
        team_name=team.name,
        month=month,
        starts_at=span.start,
        ends_at=span.end,
        time_zone=terms().time_zone,
        currency=terms().currency,
        issued_at=now,
        net=draft.sums.net,
        tax_percent=draft.sums.tax_percent,
        tax=draft.sums.tax,
        total=draft.sums.total,
        prepaid=draft.sums.prepaid,
        due=draft.sums.due,
        line_count=len(draft.lines),
    )
    invoice.save()
    _write_lines(invoice, draft)
    journal.record(
        "invoice.issued",
        now,
        team_id=team.pk,
        actor_id=actor_id,
        number=invoice.number,
        month=month.strftime("%Y-%m"),
        total=str(invoice.total),
    )
    return invoice


def _locked_sequence(now: datetime) -> InvoiceSequence:
    """The year's row, locked: whoever issues after waits here until this transaction ends."""
    year = now.astimezone(zone(terms().time_zone)).year
    InvoiceSequence.objects.get_or_create(year=year)
    return InvoiceSequence.objects.select_for_update(no_key=True).get(year=year)


def _number(sequence: InvoiceSequence) -> str:
    """The next number of the locked row's year; there is no gap, because a transaction that fails gives it back."""
    sequence.last += 1
    sequence.save(update_fields=["last"])
    return f"{sequence.year}-{sequence.last:06d}"


def _write_lines(invoice: Invoice, draft: Draft) -> None:
    rows = insert_rows(_row(invoice, position, line) for position, line in enumerate(draft.lines, 1))
    insert_rows(
        InvoicedRecord(record_id=record_id, invoice=invoice, line=row)
        for row, line in zip(rows, draft.lines, strict=True)
        for record_id in line.records
    )
    insert_rows(InvoicedRecord(record_id=record_id, invoice=invoice, line=None) for record_id in draft.free)


def _row(invoice: Invoice, position: int, line: Line) -> InvoiceLine:
    return InvoiceLine(
        invoice=invoice,
        position=position,
        kind=line.kind,
        description=line.description,
        pool=line.pool,
        model=line.model,
        unit=line.unit,
        per_hour=line.per_hour,
        work=Decimal(line.work),
        exact=line.exact,
        amount=line.amount,
        package_id=line.package_id,
    )


def issue_last_month(now: datetime) -> int:
    """Every team that has something to pay for the last calendar month has its invoice; returns how many are new."""
    zone_name = terms().time_zone
    month = months_later(month_of(now, zone_name), -1)
    span = month_span(month, zone_name)
    before = Invoice.objects.count()
    for team in Team.objects.filter(pk__in=_owing(month, span)).order_by("pk"):
        issue_invoice(team, month, now)
    return Invoice.objects.count() - before


def _owing(month: date, span: Span) -> set[int]:
    """Ids of teams that used something in the month or were on a plan, and have no invoice of it."""
    records = UsageRecord.objects.filter(started_at__lt=span.end).filter(
        Q(ended_at__isnull=True) | Q(ended_at__gt=span.start)
    )
    owing = set(records.order_by().values_list("team_id", flat=True).distinct())
    planned = TeamPlan.objects.filter(starts_on__lt=months_later(month, 1)).values_list("team_id", flat=True).distinct()
    owing |= {team.pk for team in Team.objects.filter(pk__in=planned) if month_fees(team, month)}
    done = Invoice.objects.filter(month=month, kind=Invoice.Kind.INVOICE).values_list("team_id", flat=True)
    return owing - set(done)


# ---- credit notes ----------------------------------------------------------------------------------------------------


def credit_invoice(
    invoice: Invoice,
    now: datetime,
    *,
    amounts: Mapping[int, Decimal] | None = None,
    reason: str = "",
    actor_id: int | None = None,
) -> Invoice:
    """A credit note that takes back ``amounts`` (by the line's position), or all that was not taken back yet.

    Its usage stays billed: it is on the invoice, and on no other. Conflict where nothing is left to take back, Invalid
    where a line would be taken back by more than it has.
    """
    with unit_of_work() as journal:
        sequence = _locked_sequence(now)
        row = Invoice.objects.select_for_update(of=("self",), no_key=True).select_related("team").get(pk=invoice.pk)
        if row.kind != Invoice.Kind.INVOICE:
            raise Conflict("A credit note is not taken back; issue what is right.", code="not_an_invoice")
        lines = list(InvoiceLine.objects.filter(invoice=row).order_by("position"))
        left = _left(row, lines)
        taken = dict(left) if amounts is None else _checked(amounts, left)
        if not any(taken.values()):
            raise Conflict(f"Nothing of invoice {row.number} is left to take back.", code="credited_already")
        return _credit(row, lines, left, taken, _number(sequence), now, journal, reason, actor_id)


def _left(invoice: Invoice, lines: Sequence[InvoiceLine]) -> dict[int, Decimal]:
    """By position, what of the line was not taken back yet."""
    left = {line.position: line.amount for line in lines}
    positions = {line.pk: line.position for line in lines}
    for line_id, amount in InvoiceLine.objects.filter(invoice__refers_to=invoice).values_list("refers_to_id", "amount"):
        if line_id in positions:
            left[positions[line_id]] += amount
    return left


def _checked(amounts: Mapping[int, Decimal], left: Mapping[int, Decimal]) -> dict[int, Decimal]:
    faults = []
    for position, amount in amounts.items():
        if position not in left:
            faults.append(Fault("lines", "there is no such line", value=position, allowed=sorted(left)))
        elif not 0 <= amount <= left[position] or amount != cents(amount):
            most = f"must be from 0.00 to {left[position]}, in cents"
            faults.append(Fault(f"lines[{position}]", most, value=str(amount)))
    if faults:
        raise Invalid(faults)
    return {position: cents(amount) for position, amount in amounts.items()}


def _credit(
    row: Invoice,
    lines: Sequence[InvoiceLine],
    left: Mapping[int, Decimal],
    taken: Mapping[int, Decimal],
    number: str,
    now: datetime,
    journal: Journal,
    reason: str,
    actor_id: int | None,
) -> Invoice:
    chosen = [line for line in lines if taken.get(line.position)]
    net = sum((taken[line.position] for line in chosen), NOUGHT)
    before = list(Invoice.objects.filter(refers_to=row).values_list("tax", "prepaid"))
    if all(taken.get(position, NOUGHT) == amount for position, amount in left.items()):
        # The last note takes the rest of the tax, so that all notes together undo the invoice to the cent.
        tax = row.tax + sum((each[0] for each in before), NOUGHT)
        prepaid = row.prepaid + sum((each[1] for each in before), NOUGHT)
    else:
        tax, prepaid = tax_on(net, row.tax_percent), NOUGHT
    credit = Invoice(
        number=number,
        kind=Invoice.Kind.CREDIT,
        team=row.team,
        team_slug=row.team_slug,
        team_name=row.team_name,
        month=row.month,
        starts_at=row.starts_at,
        ends_at=row.ends_at,
        time_zone=row.time_zone,
        currency=row.currency,
        issued_at=require_aware(now),
        net=-net,
        tax_percent=row.tax_percent,
        tax=-tax,
        total=-(net + tax),
        prepaid=-prepaid,
        due=-(net + tax - prepaid),
        line_count=len(chosen),
        refers_to=row,
        reason=reason[:500],
    )
    credit.save()
    insert_rows(
        InvoiceLine(
            invoice=credit,
            refers_to=line,
            position=position,
            kind=InvoiceLine.Kind.CREDIT,
            description=f"Credit: {line.description}"[:300],
            pool=line.pool,
            model=line.model,
            unit=line.unit,
            per_hour=line.per_hour,
            exact=-taken[line.position],
            amount=-taken[line.position],
            package_id=line.package_id,
        )
        for position, line in enumerate(chosen, 1)
    )
    journal.record(
        "invoice.credited",
        now,
        team_id=row.team_id,
        actor_id=actor_id,
        number=number,
        of=row.number,
        total=str(-(net + tax)),
    )
    return credit
