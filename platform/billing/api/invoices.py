"""REST: invoices and credit notes, as issued; drafts; the same figures as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing import invoicing
from billing.drafts import Line
from billing.models import Invoice, InvoiceLine
from billing.periods import MONTH, month_named
from billing.services.invoices import credit_invoice, issue_invoice
from billing.terms import terms
from events.errors import NotThere
from inventory.models import Pool
from tenants.models import Team
from tenants.policy import require, visible
from tenants.selectors import team_named
from wire.fields import CENTS, Moment, Text, decimal_text, exact_text, identifier, moment_text
from wire.pages import Listing, PageQuery, page_answer, paged
from wire.strict import Strict
from wire.views import ApiView

INVOICES = Listing[Invoice]({"issued_at": "issued_at"}, default="-issued_at")
TWO_PLACES = r"^-?[0-9]+\.[0-9]{2}$"
EXACT = r"^-?[0-9]+(\.[0-9]+)?$"
SUMS = ("net", "tax", "total", "prepaid", "due")


class InvoiceSerializer(serializers.Serializer):
    """``net`` is the sum of the lines, which are rounded once each, to cents and half to even; ``tax`` is rounded once
    on it; ``due`` = ``total`` − ``prepaid``. ``state``: credited, where credit notes took all of it back."""

    id = serializers.IntegerField()
    number = serializers.CharField()
    kind = serializers.ChoiceField(Invoice.Kind.choices)
    state = serializers.ChoiceField(["issued", "credited"])
    team = serializers.CharField(help_text="as it was called when it was issued")
    team_id = serializers.IntegerField()
    team_deleted = serializers.BooleanField()
    month = serializers.RegexField(MONTH)
    time_zone = serializers.CharField()
    currency = serializers.CharField()
    net = serializers.RegexField(TWO_PLACES)
    tax_percent = serializers.RegexField(EXACT)
    tax = serializers.RegexField(TWO_PLACES)
    total = serializers.RegexField(TWO_PLACES)
    prepaid = serializers.RegexField(TWO_PLACES)
    due = serializers.RegexField(TWO_PLACES)
    issued_at = Moment()
    refers_to = serializers.CharField(allow_null=True, help_text="of a credit note: the invoice's number")
    reason = serializers.CharField()


class LineSerializer(serializers.Serializer):
    """``exact`` is what it is worth, to 12 places; ``amount`` what is charged for it: of what a package paid, nothing
    where packages pay net."""

    position = serializers.IntegerField()
    kind = serializers.ChoiceField(InvoiceLine.Kind.choices)
    description = serializers.CharField()
    pool = serializers.CharField(allow_null=True)
    model = serializers.CharField(allow_null=True)
    unit = serializers.ChoiceField(Pool.Unit.choices, allow_null=True)
    hours = serializers.RegexField(EXACT, help_text="GPU-hours (core-hours), to 12 places")
    per_hour = serializers.RegexField(EXACT, allow_null=True)
    exact = serializers.RegexField(EXACT)
    amount = serializers.RegexField(TWO_PLACES)
    package = serializers.IntegerField(allow_null=True)


class InvoiceDetailSerializer(InvoiceSerializer):
    """With its lines and the numbers of its credit notes."""

    lines = LineSerializer(many=True)
    credits = serializers.ListField(child=serializers.CharField())


class DraftSerializer(serializers.Serializer):
    """What the invoice would say now. ``invoice``: the id of the one that was issued, which then it is."""

    team = serializers.CharField()
    month = serializers.RegexField(MONTH)
    currency = serializers.CharField()
    invoice = serializers.CharField(allow_null=True, help_text="its number, once it is issued")
    net = serializers.RegexField(TWO_PLACES)
    tax_percent = serializers.RegexField(EXACT)
    tax = serializers.RegexField(TWO_PLACES)
    total = serializers.RegexField(TWO_PLACES)
    prepaid = serializers.RegexField(TWO_PLACES)
    due = serializers.RegexField(TWO_PLACES)
    lines = LineSerializer(many=True)


class InvoiceQuery(PageQuery):
    team = Text(required=False, max_length=63)
    team_id = identifier(required=False, help_text="tells a deleted team from its namesake")
    month = serializers.RegexField(MONTH, required=False)
    kind = serializers.ChoiceField(Invoice.Kind.choices, required=False)
    ordering = serializers.ChoiceField(INVOICES.choices, required=False)


class DraftQuery(Strict):
    team = Text(max_length=63)
    month = serializers.RegexField(MONTH)


class IssueRequest(Strict):
    """An invoice of a month that is over."""

    team = Text(max_length=63)
    month = serializers.RegexField(MONTH)


class CreditRequest(Strict):
    """All that was not taken back yet."""

    reason = Text(max_length=500)


class Invoices(ApiView):
    queries = {"GET": InvoiceQuery}

    @extend_schema(operation_id="invoices", parameters=[InvoiceQuery], responses=paged(InvoiceSerializer))
    def get(self, request: Request) -> Response:
        """Invoices and credit notes of the teams that one may see, deleted ones too, the latest first."""
        rows = Invoice.objects.filter(visible(request.user)).select_related("team", "refers_to")
        if "team" in self.query:
            rows = rows.filter(team__in=_teams_called(request, self.query["team"]))
        if "team_id" in self.query:
            rows = rows.filter(team_id=self.query["team_id"])
        if "month" in self.query:
            rows = rows.filter(month=month_named(self.query["month"]))
        if "kind" in self.query:
            rows = rows.filter(kind=self.query["kind"])
        found, following = INVOICES.page(rows, request, self.query)
        return page_answer(told(found), following)

    @extend_schema(
        operation_id="issue_invoice",
        request=IssueRequest,
        responses={200: InvoiceDetailSerializer, 201: InvoiceDetailSerializer},
    )
    def post(self, request: Request) -> Response:
        """The team's invoice of the month, issued by an operator. 200: it was before, and is what it was."""
        require(request.user, "fleet.operate")
        asked = IssueRequest.read_body(self.body())
        team, month = team_named(request.user, asked["team"]), month_named(asked["month"])
        before = invoicing.issued(team, month)
        invoice = issue_invoice(team, month, self.now, actor_id=request.user.pk)
        return Response(told_in_full(invoice), status=201 if before is None else 200)


class Draft(ApiView):
    queries = {"GET": DraftQuery}

    @extend_schema(operation_id="invoice_draft", parameters=[DraftQuery], responses=DraftSerializer)
    def get(self, request: Request) -> Response:
        """What a team's invoice of a month is or would be, what runs counted up to now. Nothing is issued."""
        team, month = team_named(request.user, self.query["team"]), month_named(self.query["month"])
        seen = invoicing.invoice_seen(team, month, self.now)
        sums = {name: f"{getattr(seen.sums, name):f}" for name in SUMS}
        return Response(
            {
                "team": team.slug,
                "month": f"{month:%Y-%m}",
                "currency": terms().currency,
                "invoice": seen.number or None,
                "tax_percent": exact_text(seen.sums.tax_percent),
                **sums,
                "lines": [_line(position, line) for position, line in enumerate(seen.lines, 1)],
            }
        )


class OneInvoice(ApiView):
    @extend_schema(operation_id="invoice", responses=InvoiceDetailSerializer)
    def get(self, request: Request, invoice_id: int) -> Response:
        """One invoice or credit note with its lines."""
        return Response(told_in_full(_invoice(request, invoice_id)))


class InvoiceCsv(ApiView):
    @extend_schema(operation_id="invoice_csv", responses={(200, "text/csv"): OpenApiTypes.STR})
    def get(self, request: Request, invoice_id: int) -> HttpResponse:
        """The lines as CSV, then net, tax, total, prepaid and due: the same figures as everywhere."""
        invoice = _invoice(request, invoice_id)
        answer = HttpResponse(_csv(invoice), content_type="text/csv; charset=utf-8")
        answer["Content-Disposition"] = f'attachment; filename="{invoice.number}.csv"'
        return answer


class CreditInvoice(ApiView):
    @extend_schema(operation_id="credit_invoice", request=CreditRequest, responses={201: InvoiceDetailSerializer})
    def post(self, request: Request, invoice_id: int) -> Response:
        """A credit note over all that was not taken back yet, by an operator."""
        require(request.user, "fleet.operate")
        invoice = _invoice(request, invoice_id)
        asked = CreditRequest.read_body(self.body())
        credit = credit_invoice(invoice, self.now, reason=asked["reason"], actor_id=request.user.pk)
        return Response(told_in_full(_invoice(request, credit.pk)), status=201)


def _teams_called(request: Request, slug: str) -> list[int]:
    found = list(
        Team.objects.filter(visible(request.user, "pk"), slug=slug).order_by("pk").values_list("pk", flat=True)
    )
    if not found:
        team_named(request.user, slug)  # raises, and says what there is
    return found


def _invoice(request: Request, invoice_id: int) -> Invoice:
    rows = Invoice.objects.filter(visible(request.user), pk=invoice_id).select_related("team", "refers_to")
    found = rows.first()
    if found is None:
        raise NotThere("There is no such invoice, or you may not see it.")
    return found


def told(invoices: Iterable[Invoice]) -> list[dict[str, Any]]:
    rows = list(invoices)
    credited = invoicing.credited_whole([row.pk for row in rows])
    return [_told(row, row.pk in credited) for row in rows]


def _told(row: Invoice, credited: bool) -> dict[str, Any]:
    return {
        "id": row.pk,
        "number": row.number,
        "kind": row.kind,
        "state": "credited" if credited else "issued",
        "team": row.team_slug,
        "team_id": row.team_id,
        "team_deleted": row.team.deleted_at is not None,
        "month": f"{row.month:%Y-%m}",
        "time_zone": row.time_zone,
        "currency": row.currency,
        "tax_percent": exact_text(row.tax_percent),
        **{name: decimal_text(getattr(row, name), CENTS) for name in SUMS},
        "issued_at": moment_text(row.issued_at),
        "refers_to": row.refers_to.number if row.refers_to else None,
        "reason": row.reason,
    }


def told_in_full(row: Invoice) -> dict[str, Any]:
    (head,) = told([row])
    lines = InvoiceLine.objects.filter(invoice=row).order_by("position")
    return {
        **head,
        "lines": [_line(line.position, line) for line in lines],
        "credits": list(row.credits.order_by("issued_at", "id").values_list("number", flat=True)),
    }


def _line(position: int, line: InvoiceLine | Line) -> dict[str, Any]:
    return {
        "position": position,
        "kind": line.kind,
        "description": line.description,
        "pool": line.pool or None,
        "model": line.model or None,
        "unit": line.unit or None,
        "hours": exact_text(invoicing.hours_of(line)),
        "per_hour": None if line.per_hour is None else exact_text(line.per_hour),
        "exact": exact_text(line.exact),
        "amount": decimal_text(line.amount, CENTS),
        "package": line.package_id,
    }


CSV_COLUMNS = ("number", "month", "team", "position", "kind", "description", "pool", "model", "unit", "hours")
CSV_AMOUNTS = ("per_hour", "exact", "amount", "currency")


def _csv(invoice: Invoice) -> str:
    whole = told_in_full(invoice)
    head = {name: whole[name] for name in ("number", "month", "team", "currency")}
    text = io.StringIO()
    writer = csv.DictWriter(
        text, (*CSV_COLUMNS, *CSV_AMOUNTS), restval="", extrasaction="ignore", lineterminator="\r\n"
    )
    writer.writeheader()
    for line in whole["lines"]:
        writer.writerow({**line, **head, "description": _harmless(line["description"])})
    for name in SUMS:
        writer.writerow({**head, "kind": name, "amount": whole[name]})
    return text.getvalue()


def _harmless(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in "=+-@\t\r" else text
