"""Rates, and the immutable record of what was used."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from billing.exact import ExactDecimalField


class Rate(models.Model):
    """A price per GPU-hour (or core-hour in a CPU pool) from ``effective_from`` on, until a later one like it.

    Empty fields match everything; the rate that names most (pool, then model, then priority class) wins, then the
    latest. ``band_start``/``band_end`` restrict it to hours of the day [start, end) in the billing time zone.
    """

    pool = models.ForeignKey("inventory.Pool", null=True, blank=True, on_delete=models.PROTECT, related_name="rates")
    model = models.ForeignKey(
        "inventory.AcceleratorModel", null=True, blank=True, on_delete=models.PROTECT, related_name="rates"
    )
    priority_class = models.ForeignKey(
        "scheduling.PriorityClass", null=True, blank=True, on_delete=models.PROTECT, related_name="rates"
    )
    band_start = models.TimeField(null=True, blank=True)
    band_end = models.TimeField(null=True, blank=True)
    per_hour = models.DecimalField(max_digits=18, decimal_places=6)
    effective_from = models.DateTimeField()
    created_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["-effective_from", "-id"]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(per_hour__gte=0), name="rate_not_negative"),
            models.CheckConstraint(
                condition=Q(band_start__isnull=True, band_end__isnull=True)
                | Q(band_start__isnull=False, band_end__isnull=False),
                name="rate_band_whole",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.per_hour} from {self.effective_from:%Y-%m-%d %H:%M}"


class UsageRecord(models.Model):
    """One allocation at one rate over [started_at, ended_at). The open one (no end) grows until the release.

    Closed records never change: the database refuses it, and refuses two that overlap for one allocation. ``amount``
    is milli/1000 × seconds/3600 × per_hour to 12 places; rounding to cents happens once, on an invoice line.
    """

    allocation = models.ForeignKey("scheduling.Allocation", on_delete=models.PROTECT, related_name="usage")
    team = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="usage")
    user = models.ForeignKey("tenants.User", on_delete=models.PROTECT, related_name="usage")
    job = models.ForeignKey("scheduling.Job", on_delete=models.PROTECT, related_name="usage")
    pool = models.ForeignKey("inventory.Pool", on_delete=models.PROTECT, related_name="usage")
    model = models.ForeignKey(
        "inventory.AcceleratorModel", null=True, blank=True, on_delete=models.PROTECT, related_name="usage"
    )
    milli = models.BigIntegerField(help_text="milli-GPU, or milli-cores in a CPU pool")
    per_hour = models.DecimalField(max_digits=18, decimal_places=6, null=True, blank=True)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    microseconds = models.BigIntegerField(null=True, blank=True, help_text="from start to end")
    amount = ExactDecimalField(max_digits=30, decimal_places=12, null=True, blank=True)
    waived = models.CharField(max_length=40, blank=True, help_text="why it costs nothing, if it does")

    class Meta:
        ordering: ClassVar = ["started_at", "id"]
        indexes: ClassVar = [
            models.Index(fields=["team", "started_at"], name="usage_by_team"),
            models.Index(fields=["job"], name="usage_by_job"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["allocation", "started_at"], name="usage_once"),
            models.UniqueConstraint(
                fields=["allocation"], condition=Q(ended_at__isnull=True), name="one_open_usage_of_an_allocation"
            ),
            models.CheckConstraint(
                condition=Q(ended_at__isnull=True) | Q(ended_at__gte=F("started_at")), name="usage_ends_after_it_begins"
            ),
            models.CheckConstraint(
                condition=Q(ended_at__isnull=True, amount__isnull=True, microseconds__isnull=True)
                | Q(ended_at__isnull=False, amount__isnull=False, microseconds__isnull=False),
                name="usage_closed_has_an_amount",
            ),
        ]

    def __str__(self) -> str:
        return f"usage of {self.allocation_id} from {self.started_at}"
