"""What a team and all below it may spend in a period, and what happens on the way."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from billing.exact import ExactDecimalField


def usual_thresholds() -> list[int]:
    return [50, 80, 100]


class Budget(models.Model):
    """``amount`` for the team's subtree in each ``period`` of the billing calendar within [starts_at, ends_at).

    The last four columns are what the last look found; ``spent_since`` is set while the present period's amount is
    spent, and with the action ``hold`` waiting jobs of the subtree are held for as long.
    """

    class Period(models.TextChoices):
        MONTH = "month", "Month"
        QUARTER = "quarter", "Quarter"
        YEAR = "year", "Year"
        TOTAL = "total", "In total"

    class Action(models.TextChoices):
        WARN = "warn", "Warn"
        HOLD = "hold", "Hold new jobs"

    team = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="budgets")
    amount = models.DecimalField(max_digits=18, decimal_places=6)
    period = models.CharField(max_length=8, choices=Period, default=Period.MONTH)
    action = models.CharField(max_length=4, choices=Action, default=Action.WARN)
    thresholds = models.JSONField(default=usual_thresholds, help_text="percent of the amount at which it is told")
    starts_at = models.DateTimeField(null=True, blank=True)
    ends_at = models.DateTimeField(null=True, blank=True)
    active = models.BooleanField(default=True)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    looked_at = models.DateTimeField(null=True, blank=True, editable=False)
    spent = ExactDecimalField(max_digits=30, decimal_places=12, default=0, editable=False)
    spent_since = models.DateTimeField(null=True, blank=True, editable=False)
    next_look_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering: ClassVar = ["team_id", "id"]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(amount__gte=0), name="budget_not_negative"),
            models.CheckConstraint(
                condition=Q(starts_at__isnull=True) | Q(ends_at__isnull=True) | Q(ends_at__gt=F("starts_at")),
                name="budget_ends_after_it_begins",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.amount} a {self.period} for {self.team_id}"

    @property
    def holds_now(self) -> bool:
        """Whether jobs that wait are held because it is spent, as the last look found it."""
        return self.active and self.action == self.Action.HOLD and self.spent_since is not None


class BudgetCrossing(models.Model):
    """A threshold that was reached: told once for a period and an amount, whoever looks at the same moment."""

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="crossings")
    period_start = models.DateTimeField()
    amount = models.DecimalField(max_digits=18, decimal_places=6)
    percent = models.PositiveSmallIntegerField()
    spent = ExactDecimalField(max_digits=30, decimal_places=12)
    at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["-at", "-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["budget", "period_start", "amount", "percent"], name="budget_threshold_told_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.percent} % of budget {self.budget_id}"
