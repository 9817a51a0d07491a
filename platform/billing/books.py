"""Money as scenarios speak of it: each action through the service that production calls for it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from billing.invoicing import Seen, invoice_seen
from billing.models import Budget, Plan
from billing.periods import month_named
from billing.services.budgets import change_budget, create_budget, remove_budget
from billing.services.invoices import issue_invoice
from billing.services.packages import add_package
from billing.services.plans import assign_plan, create_plan
from billing.terms import Terms, on_terms, terms
from events.errors import NotThere
from inventory.models import AcceleratorModel, Pool
from tenants.models import Team

BUDGET_FIELDS = {
    "amount": "amount",
    "action": "action",
    "thresholds": "thresholds",
    "starts": "starts_at",
    "ends": "ends_at",
}


class LedgerBooks:
    """The books of the database that is connected."""

    def on_terms(self, asked: Mapping[str, Any]) -> AbstractContextManager[None]:
        return on_terms(
            Terms(terms().currency, asked["time_zone"], asked["tax_percent"], asked["packages_pay"]),
        )

    def set_budget(self, team: Team, values: Mapping[str, Any], now: datetime) -> None:
        period = values.get("period", Budget.Period.MONTH)
        given = {column: values[name] for name, column in BUDGET_FIELDS.items() if name in values}
        found = Budget.objects.filter(team=team, period=period).order_by("pk").first()
        if values.get("remove"):
            if found is None:
                raise NotThere(f"The team '{team.slug}' has no budget of this period.")
            remove_budget(found, now)
        elif found is not None:
            change_budget(found, now, **given)
        else:
            create_budget(team, given.pop("amount"), now, period=period, **given)

    def add_package(
        self,
        team: Team,
        values: Mapping[str, Any],
        now: datetime,
        *,
        pool: Pool | None = None,
        model: AcceleratorModel | None = None,
    ) -> None:
        more = {"price": values["price"]} if "price" in values else {}
        add_package(
            team,
            values["gpu_hours"],
            now,
            pool=pool,
            model=model,
            starts_at=values.get("starts"),
            expires_at=values.get("expires"),
            confirmed=True,
            **more,
        )

    def set_plan(self, team: Team, values: Mapping[str, Any], now: datetime) -> None:
        plan = Plan.objects.filter(name=values["name"], monthly_fee=values["monthly_fee"]).first()
        assign_plan(team, plan or create_plan(values["name"], values["monthly_fee"], now), values["day"], now)

    def issue_invoice(self, team: Team, month: str, now: datetime) -> None:
        issue_invoice(team, month_named(month), now)

    def invoice_of(self, team: Team, month: str, now: datetime) -> Seen:
        return invoice_seen(team, month_named(month), now)
