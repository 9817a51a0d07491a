"""Invoices as photographs: nothing of an issued one ever changes, whatever becomes of what it shows."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from billing.exact import ExactDecimalField


class InvoiceSequence(models.Model):
    """The last number given in a year. Whoever issues locks this row, so numbers have no gap and come once."""

    year = models.PositiveIntegerField(unique=True)
    last = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.year}: {self.last}"


class Invoice(models.Model):
    """A team's own usage of a calendar month, or a credit note that takes some of an invoice back (amounts below 0).

    ``net`` is the sum of the rounded lines, ``tax`` is rounded once on it, ``total`` = net + tax, ``prepaid`` what
    packages pay of it, ``due`` = total − prepaid. Names are those of the day of issue.
    """

    class Kind(models.TextChoices):
        INVOICE = "invoice", "Invoice"
        CREDIT = "credit", "Credit note"

    number = models.CharField(max_length=20, unique=True)
    kind = models.CharField(max_length=8, choices=Kind, default=Kind.INVOICE)
    team = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="invoices")
    team_slug = models.CharField(max_length=63)
    team_name = models.CharField(max_length=200)
    month = models.DateField(help_text="its first day")
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    time_zone = models.CharField(max_length=64)
    currency = models.CharField(max_length=8)
    issued_at = models.DateTimeField()
    net = ExactDecimalField(max_digits=20, decimal_places=2)
    tax_percent = ExactDecimalField(max_digits=9, decimal_places=4)
    tax = ExactDecimalField(max_digits=20, decimal_places=2)
    total = ExactDecimalField(max_digits=20, decimal_places=2)
    prepaid = ExactDecimalField(max_digits=20, decimal_places=2, default=0)
    due = ExactDecimalField(max_digits=20, decimal_places=2)
    line_count = models.PositiveIntegerField()
    refers_to = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="credits")
    reason = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering: ClassVar = ["-issued_at", "-id"]
        indexes: ClassVar = [models.Index(fields=["team", "month"], name="invoice_by_team")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["team", "month", "kind"], condition=Q(kind="invoice"), name="invoice_once"),
            models.CheckConstraint(
                condition=Q(kind="invoice", refers_to__isnull=True) | Q(kind="credit", refers_to__isnull=False),
                name="credit_refers_to_an_invoice",
            ),
        ]

    def __str__(self) -> str:
        return self.number


class InvoiceLine(models.Model):
    """``amount`` is what is charged, rounded once to cents, half to even, from ``exact``. What a package pays is a line
    of its own (``package``): with packages that pay net its amount is 0, and ``exact`` tells what it was worth."""

    class Kind(models.TextChoices):
        USAGE = "usage", "Usage"
        PACKAGE = "package", "Paid by a package"
        FEE = "fee", "Base fee"
        CREDIT = "credit", "Credit"

    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="lines")
    refers_to = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="credits",
        help_text="of a credit: what of",
    )
    position = models.PositiveIntegerField()
    kind = models.CharField(max_length=8, choices=Kind)
    description = models.CharField(max_length=300)
    pool = models.CharField(max_length=63, blank=True)
    model = models.CharField(max_length=63, blank=True)
    unit = models.CharField(max_length=4, blank=True)
    per_hour = ExactDecimalField(max_digits=18, decimal_places=6, null=True, blank=True)
    work = ExactDecimalField(max_digits=30, decimal_places=0, default=0, help_text="milli × microseconds")
    exact = ExactDecimalField(max_digits=30, decimal_places=12)
    amount = ExactDecimalField(max_digits=20, decimal_places=2)
    package = models.ForeignKey(
        "billing.Package", null=True, blank=True, on_delete=models.PROTECT, related_name="invoice_lines"
    )

    class Meta:
        ordering: ClassVar = ["invoice_id", "position"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["invoice", "position"], name="invoice_line_once")]

    def __str__(self) -> str:
        return self.description


class InvoicedRecord(models.Model):
    """That the usage record is billed: on this invoice and on no other. ``line`` is empty where it costs nothing."""

    record = models.OneToOneField("billing.UsageRecord", on_delete=models.PROTECT, related_name="invoiced")
    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="records")
    line = models.ForeignKey(InvoiceLine, null=True, blank=True, on_delete=models.PROTECT, related_name="records")

    class Meta:
        ordering: ClassVar = ["invoice_id", "id"]

    def __str__(self) -> str:
        return f"record {self.record_id} on {self.invoice_id}"
