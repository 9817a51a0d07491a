"""What an invoice of a team's month is made of, read from the books; and invoices as people look at them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django.db.models import Exists, F, OuterRef, Q

from billing.burn import PER_UNIT
from billing.card import rate_card
from billing.drafts import Billed, Draft, Fee, Line, Sums, compose, fees_of
from billing.exact import exactly
from billing.models import Invoice, InvoiceLine, TeamPlan, UsageRecord
from billing.periods import Span, month_span
from billing.rates import PLACES
from billing.services.packages import open_tills
from billing.terms import terms
from billing.tills import drawn, work_of
from inventory.models import Pool
from tenants.models import Team
from tenants.policy import team_tree

NOUGHT = Decimal("0.00")


def unbilled(team: Team, month: Span) -> Q:
    """Closed records of the team that its invoice of the month has to bill: those that began in it, and those of a
    month whose invoice was issued before they came (an engine that was out of reach tells late). None is billed yet."""
    late = Exists(
        Invoice.objects.filter(
            kind=Invoice.Kind.INVOICE,
            team_id=OuterRef("team_id"),
            starts_at__lte=OuterRef("started_at"),
            ends_at__gt=OuterRef("started_at"),
        )
    )
    within = Q(started_at__gte=month.start, started_at__lt=month.end) | Q(late, started_at__lt=month.start)
    return within & Q(team=team, ended_at__isnull=False, invoiced__isnull=True)


COLUMNS = ("id", "pool__name", "model__name", "pool__unit", "per_hour", "milli", "microseconds", "draw__package_id")


def billed(where: Q) -> Iterator[Billed]:
    """Closed records as an invoice takes them."""
    rows = UsageRecord.objects.filter(where).order_by("id").values_list(*COLUMNS, "waived")
    for record_id, pool, model, unit, per_hour, milli, microseconds, package_id, waived in rows.iterator():
        yield Billed(record_id, pool, model or "", unit, per_hour, milli * microseconds, package_id, bool(waived))


def going_on(team: Team, month: Span, now: datetime) -> Iterator[Billed]:
    """What runs, as far as it ran in the month up to ``now``, and what packages will pay of it as things stand."""
    rows = UsageRecord.objects.filter(team=team, ended_at__isnull=True, started_at__lt=month.end)
    rows = rows.annotate(class_id=F("job__priority_class_id")).select_related("pool", "model")
    card, tills = rate_card(), open_tills(now)
    until = min(month.end, now)
    for record in rows.order_by("id"):
        if until <= record.started_at:
            continue
        pool, model = record.pool, record.model.name if record.model else ""
        serving = [till for till in tills if till.serves(record.team_id, pool.pk, record.model_id)]
        segments = card.segments(pool.pk, record.model_id, _class_of(record), record.started_at, until)
        for part in drawn(segments, record.milli, serving if pool.unit == Pool.Unit.GPU else ()):
            work = work_of(record.milli, max(part.start, month.start), max(part.end, month.start))
            yield Billed(None, pool.name, model, pool.unit, part.per_hour, work, part.till_id)


def _class_of(record: Any) -> int:
    return int(record.class_id)


def month_fees(team: Team, month: date) -> list[Fee]:
    rows = TeamPlan.objects.filter(team=team).select_related("plan").order_by("starts_on")
    return fees_of(
        month,
        [
            (row.starts_on, row.plan.name if row.plan else None, row.plan.monthly_fee if row.plan else Decimal(0))
            for row in rows
        ],
    )


def draft_of(team: Team, month: date, now: datetime) -> Draft:
    """The invoice as it would be now: of a month that is not over, so far. Reads only."""
    span = month_span(month, terms().time_zone)
    usage = [*billed(unbilled(team, span)), *going_on(team, span, now)]
    return compose(usage, month_fees(team, month), terms())


def issued(team: Team, month: date) -> Invoice | None:
    return Invoice.objects.filter(team=team, month=month, kind=Invoice.Kind.INVOICE).first()


@dataclass(frozen=True, slots=True)
class Seen:
    """A team's month as it is billed, or would be."""

    number: str  # empty: not issued yet
    sums: Sums
    lines: Sequence[Any]  # drafts.Line or models.InvoiceLine: both tell model, work, exact, amount, description


def invoice_seen(team: Team, month: date, now: datetime) -> Seen:
    """The invoice if it was issued, else the draft."""
    found = issued(team, month)
    if found is None:
        draft = draft_of(team, month, now)
        return Seen("", draft.sums, draft.lines)
    sums = Sums(found.net, found.tax_percent, found.tax, found.total, found.prepaid)
    return Seen(found.number, sums, list(InvoiceLine.objects.filter(invoice=found).order_by("position")))


@dataclass(frozen=True, slots=True)
class Together:
    """The invoices and credit notes of a team and all below it, added up."""

    numbers: tuple[str, ...]
    net: Decimal
    tax: Decimal
    total: Decimal
    due: Decimal


def subtree_invoices(team: Team, month: date) -> Together:
    """What was issued for the month to the team and all teams below it, deleted ones too."""
    rows = Invoice.objects.filter(team_id__in=team_tree().below(team.pk), month=month).order_by("issued_at", "id")
    found = list(rows)

    def together(name: str) -> Decimal:
        return sum((getattr(row, name) for row in found), NOUGHT)

    names = tuple(row.number for row in found)
    return Together(names, together("net"), together("tax"), together("total"), together("due"))


def hours_of(line: InvoiceLine | Line) -> Decimal:
    """GPU-hours (core-hours where the unit is cpu), to 12 places."""
    return exactly(lambda: (Decimal(line.work) / PER_UNIT).quantize(PLACES))


def credited_whole(invoice_ids: Sequence[int]) -> set[int]:
    """Those of these invoices that credit notes took back, all of it; one over nothing never is."""
    taken: dict[int, Decimal] = defaultdict(lambda: NOUGHT)
    rows = Invoice.objects.filter(refers_to_id__in=invoice_ids).values_list("refers_to_id", "net")
    for invoice_id, net in rows:
        taken[invoice_id or 0] += net
    nets = dict(Invoice.objects.filter(pk__in=taken).values_list("pk", "net"))
    return {invoice_id for invoice_id, net in nets.items() if net + taken[invoice_id] == 0}
