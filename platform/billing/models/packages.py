"""GPU-hours that were bought beforehand, and what was drawn from them."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from billing.exact import ExactDecimalField


class Package(models.Model):
    """GPU-hours for a team and all below it, in [starts_at, expires_at), for one pool or model or for all.

    Work is counted in milli-GPU × microseconds, so that nothing is rounded. It can be drawn from once it is confirmed
    (paid). ``left`` never goes below zero: the database refuses it.
    """

    class State(models.TextChoices):
        PENDING = "pending", "Not paid yet"
        CONFIRMED = "confirmed", "Confirmed"

    team = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="packages")
    pool = models.ForeignKey("inventory.Pool", null=True, blank=True, on_delete=models.PROTECT, related_name="packages")
    model = models.ForeignKey(
        "inventory.AcceleratorModel", null=True, blank=True, on_delete=models.PROTECT, related_name="packages"
    )
    state = models.CharField(max_length=10, choices=State, default=State.PENDING)
    work = models.BigIntegerField(help_text="milli-GPU × microseconds that were bought")
    left = models.BigIntegerField(help_text="of these, not drawn yet")
    price = models.DecimalField(max_digits=18, decimal_places=2, default=0)
    starts_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()
    confirmed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["team_id", "expires_at", "id"]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(left__gte=0, left__lte=F("work")), name="package_never_below_zero"),
            models.CheckConstraint(
                condition=Q(expires_at__isnull=True) | Q(expires_at__gt=F("starts_at")),
                name="package_expires_after_it_begins",
            ),
            models.CheckConstraint(
                condition=Q(state="pending", confirmed_at__isnull=True)
                | Q(state="confirmed", confirmed_at__isnull=False),
                name="package_confirmed_has_a_time",
            ),
        ]

    def __str__(self) -> str:
        return f"package {self.pk} of {self.team_id}"


class PackageDraw(models.Model):
    """A closed usage record that the package pays, whole: a record is split where a package runs out."""

    package = models.ForeignKey(Package, on_delete=models.PROTECT, related_name="draws")
    record = models.OneToOneField("billing.UsageRecord", on_delete=models.PROTECT, related_name="draw")
    work = models.BigIntegerField(help_text="milli-GPU × microseconds")
    amount = ExactDecimalField(max_digits=30, decimal_places=12, help_text="what it would have cost")
    at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["package_id", "id"]
        constraints: ClassVar = [models.CheckConstraint(condition=Q(work__gt=0), name="package_draw_of_something")]

    def __str__(self) -> str:
        return f"{self.work} from package {self.package_id}"
