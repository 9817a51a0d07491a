"""The one door for writes to plans and to which team is on which."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

from billing.models import Invoice, Plan, TeamPlan
from events.errors import Conflict, Invalid
from events.services import require_aware, unit_of_work
from tenants.models import Team
from tenants.services import checked_name


def create_plan(name: str, monthly_fee: Decimal, now: datetime, *, actor_id: int | None = None) -> Plan:
    """A new plan. Conflict where the name is taken: a plan never changes, another fee is another plan."""
    name = checked_name(name, "name", 63)
    if not monthly_fee.is_finite() or not 0 <= monthly_fee < Decimal(10) ** 12:
        raise Invalid.at("monthly_fee", "a fee is 0 or more", value=str(monthly_fee))
    with unit_of_work() as journal:
        if Plan.objects.filter(name=name).exists():
            raise Conflict(f"There is already a plan '{name}'.", code="name_taken")
        plan = Plan(name=name, monthly_fee=monthly_fee, created_at=require_aware(now))
        plan.save()
        journal.record("plan.created", now, actor_id=actor_id, name=name, monthly_fee=str(monthly_fee))
    return plan


def assign_plan(
    team: Team, plan: Plan | None, starts_on: date, now: datetime, *, actor_id: int | None = None
) -> TeamPlan:
    """The team is on the plan (None: on none) from that day on, until a later day says otherwise.

    Conflict where a month from that day on has its invoice already: it charged what held then.
    """
    with unit_of_work() as journal:
        # The team's row is what two that do this at once, or an invoice in between, would meet at.
        Team.objects.select_for_update(no_key=True).get(pk=team.pk)
        billed = Invoice.objects.filter(team=team, kind=Invoice.Kind.INVOICE, month__gte=starts_on.replace(day=1))
        last = billed.order_by("-month").first()
        if last is not None:
            raise Conflict(f"{last.month:%Y-%m} is on invoice {last.number} already.", code="invoiced_already")
        row, _ = TeamPlan.objects.update_or_create(
            team=team, starts_on=starts_on, defaults={"plan": plan}, create_defaults={"plan": plan, "created_at": now}
        )
        journal.record(
            "plan.assigned",
            now,
            team_id=team.pk,
            actor_id=actor_id,
            plan=plan and plan.name,
            starts_on=starts_on.isoformat(),
        )
    return row
