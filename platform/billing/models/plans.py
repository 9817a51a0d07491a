"""Base fees: what a team pays a month whether it uses anything or not."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q


class Plan(models.Model):
    """A monthly fee under a name. It never changes: another fee is another plan."""

    name = models.CharField(max_length=63, unique=True)
    monthly_fee = models.DecimalField(max_digits=18, decimal_places=6)
    created_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [models.CheckConstraint(condition=Q(monthly_fee__gte=0), name="plan_fee_not_negative")]

    def __str__(self) -> str:
        return self.name


class TeamPlan(models.Model):
    """From the day ``starts_on`` of the billing calendar the team is on this plan (None: on none), until a later row.

    So each day belongs to one plan, and a month's fee is divided by days where the plan changes inside it.
    """

    team = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="plans")
    plan = models.ForeignKey(Plan, null=True, blank=True, on_delete=models.PROTECT, related_name="teams")
    starts_on = models.DateField()
    created_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["team_id", "starts_on"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["team", "starts_on"], name="one_plan_a_day")]

    def __str__(self) -> str:
        return f"{self.plan_id} for {self.team_id} from {self.starts_on}"
