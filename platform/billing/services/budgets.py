"""The one door for writes to budgets: what may be spent, what was told of it, and who is held for it.

Whether a job is held by a budget follows from the budgets alone: every look puts right what differs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import F, Q

from billing.burn import Running, reached
from billing.card import rate_card
from billing.exact import exactly, money_text
from billing.models import Budget, BudgetCrossing, UsageRecord
from billing.periods import NEVER, Span, period_at
from billing.services.looks import Look
from billing.terms import terms
from billing.usage import used
from events.errors import Fault, Invalid
from events.rows import insert_rows
from events.services import Journal, require_aware, unit_of_work
from scheduling.services.budget_holds import hold_as_budgets_say
from tenants.models import Team
from tenants.policy import Tree, team_tree
from tenants.services import hold_team_tree

FIELDS = ("amount", "period", "action", "thresholds", "starts_at", "ends_at", "active")
LARGEST = Decimal(10) ** 12
MOST_THRESHOLDS = 20
# Sums of spans are rounded to 12 places each; what is missing by less than this is not missing.
NOTHING = Decimal("0.000000001")


def create_budget(team: Team, amount: Decimal, now: datetime, *, actor_id: int | None = None, **values: Any) -> Budget:
    """A budget for the team and all below it, acted on at once: what is spent already counts."""
    if team.deleted_at is not None:
        raise Invalid.at("team", f"the team '{team.slug}' is deleted", value=team.slug)
    budget = Budget(team=team, created_at=require_aware(now))
    return _set(budget, {"amount": amount, **values}, now, actor_id)


def change_budget(budget: Budget, now: datetime, *, actor_id: int | None = None, **values: Any) -> Budget:
    """The budget has these values; those that are not named stay. Whom it held and need not any more is released."""
    return _set(budget, values, now, actor_id)


def remove_budget(budget: Budget, now: datetime, *, actor_id: int | None = None) -> None:
    """The budget is gone; whom it alone held is released."""
    with unit_of_work() as journal:
        gone, _ = Budget.objects.filter(pk=budget.pk).delete()
        if gone:
            journal.record("budget.removed", now, team_id=budget.team_id, actor_id=actor_id, budget=budget.pk)
            look_at_budgets(now)


def _set(budget: Budget, values: Mapping[str, Any], now: datetime, actor_id: int | None) -> Budget:
    with unit_of_work() as journal:
        hold_team_tree()
        if budget.pk is not None:
            budget = (
                Budget.objects.select_for_update(of=("self",), no_key=True).select_related("team").get(pk=budget.pk)
            )
        before = {name: getattr(budget, name) for name in FIELDS}
        for name, value in values.items():
            setattr(budget, name, value)
        _check(budget, values)
        budget.updated_at = require_aware(now)
        budget.save()
        changed = {
            name: [_told(before[name]), _told(getattr(budget, name))]
            for name in FIELDS
            if before[name] != getattr(budget, name)
        }
        journal.record("budget.set", now, team_id=budget.team_id, actor_id=actor_id, budget=budget.pk, changed=changed)
        look_at_budgets(now)
    budget.refresh_from_db()
    return budget


def _told(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | list) else str(value)


def _check(budget: Budget, values: Mapping[str, Any]) -> None:
    faults = [Fault(name, "is not a field of a budget", allowed=FIELDS) for name in values if name not in FIELDS]
    amount = budget.amount
    if not isinstance(amount, Decimal) or not amount.is_finite() or not 0 <= amount < LARGEST:
        faults.append(Fault("amount", f"must be from 0 to less than {LARGEST:f}", value=str(amount)))
    elif amount != amount.quantize(Decimal("0.000001")):
        faults.append(Fault("amount", "has at most 6 places", value=str(amount)))
    for name, choices in (("period", Budget.Period.values), ("action", Budget.Action.values)):
        if getattr(budget, name) not in choices:
            faults.append(Fault(name, "is not one of the choices", value=getattr(budget, name), allowed=choices))
    if not _are_thresholds(budget.thresholds):
        message = f"must be a list of at most {MOST_THRESHOLDS} different whole percents from 1 to 1000"
        faults.append(Fault("thresholds", message, value=budget.thresholds))
    if budget.starts_at is not None and budget.ends_at is not None and budget.ends_at <= budget.starts_at:
        faults.append(Fault("ends_at", "must be after starts_at", value=budget.ends_at.isoformat()))
    if faults:
        raise Invalid(faults)
    budget.thresholds = sorted(budget.thresholds)


def _are_thresholds(given: Any) -> bool:
    whole = isinstance(given, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in given)
    return whole and len(set(given)) == len(given) <= MOST_THRESHOLDS and all(1 <= percent <= 1000 for percent in given)


# ---- looking ---------------------------------------------------------------------------------------------------------


def look_at_budgets(now: datetime) -> Look:
    """Every budget has told what it had to tell up to ``now``, and exactly those jobs are held that it says. Again at
    the same moment: nothing. What runs goes on; what it costs is counted."""
    with unit_of_work() as journal:
        rows = Budget.objects.select_for_update(of=("self",), no_key=True).filter(active=True).select_related("team")
        budgets = list(rows.order_by("pk"))
        tree = team_tree() if budgets else Tree({}, {})
        told = [_look(budget, tree, now, journal) for budget in budgets]
        held = hold_as_budgets_say(covered(budgets, tree).keys(), now, journal)
    moments = [each.next_at for each in told if each.next_at is not None]
    return Look(sum(each.changed for each in told) + held, min(moments, default=None), any=bool(budgets))


def _look(budget: Budget, tree: Tree, now: datetime, journal: Journal) -> Look:
    zone = terms().time_zone
    period = period_at(budget.period, now, zone, starts=budget.starts_at, ends=budget.ends_at)
    before = budget.spent_since
    told = 0
    if period is None:
        budget.spent, budget.spent_since = Decimal(0), None
        ahead = budget.starts_at if budget.starts_at is not None and budget.starts_at > now else None
    else:
        where = Q(team_id__in=tree.below(budget.team_id))
        budget.spent = sum_spent(where, period, now)
        told = _tell(budget, period, now, journal)
        spent = _reaches(budget.spent, budget.amount)
        if not spent:
            budget.spent_since = None
        elif before is None or before < period.start:
            budget.spent_since = now
        ahead = _ahead(budget, period, where, now)
    if budget.action == Budget.Action.HOLD and (before is None) != (budget.spent_since is None):
        kind = "budget.spent" if before is None else "budget.lifted"
        journal.record(kind, now, team_id=budget.team_id, budget=budget.pk, spent=money_text(budget.spent))
        told += 1
    budget.looked_at, budget.next_look_at = now, ahead
    budget.save(update_fields=["spent", "spent_since", "looked_at", "next_look_at"])
    return Look(told, ahead)


def sum_spent(where: Q, period: Span, now: datetime) -> Decimal:
    """What those records cost in the period up to ``now``, what runs included."""
    sums = used(where, period.start, min(period.end, now), now)
    return exactly(lambda: sum((each.amount for each in sums.values()), Decimal(0)))


def _reaches(spent: Decimal, amount: Decimal) -> bool:
    return spent + NOTHING >= amount


def _part(budget: Budget, percent: int) -> Decimal:
    return exactly(lambda: budget.amount * percent / 100)


def _tell(budget: Budget, period: Span, now: datetime, journal: Journal) -> int:
    """Thresholds that are reached and were not told in this period for this amount are told; returns how many."""
    over = [percent for percent in budget.thresholds if _reaches(budget.spent, _part(budget, percent))]
    if not over:
        return 0
    before = set(
        BudgetCrossing.objects.filter(
            budget=budget, period_start=period.start, amount=budget.amount, percent__in=over
        ).values_list("percent", flat=True)
    )
    new = [percent for percent in over if percent not in before]
    insert_rows(
        BudgetCrossing(
            budget=budget, period_start=period.start, amount=budget.amount, percent=percent, spent=budget.spent, at=now
        )
        for percent in new
    )
    for percent in new:
        journal.record(
            "budget.threshold",
            now,
            team_id=budget.team_id,
            budget=budget.pk,
            percent=percent,
            amount=money_text(budget.amount),
            spent=money_text(budget.spent),
            period=budget.period,
            action=budget.action,
        )
    return len(new)


def _ahead(budget: Budget, period: Span, where: Q, now: datetime) -> datetime | None:
    """When the budget must be looked at again, if all that runs goes on: an amount is reached, or the period ends."""
    marks = sorted({_part(budget, percent) for percent in (*budget.thresholds, 100)})
    open_marks = [mark for mark in marks if not _reaches(budget.spent, mark)]
    end = period.end if period.end < NEVER else None
    if not open_marks:
        return end
    running = running_now(where)
    if not running:
        return end
    found = reached(running, rate_card(), now, open_marks[0] - budget.spent, period.end)
    return found.at or min(found.seen_until, period.end)


def running_now(where: Q) -> list[Running]:
    """What these records use now."""
    rows = UsageRecord.objects.filter(where, ended_at__isnull=True).annotate(class_id=F("job__priority_class_id"))
    return [Running(*row) for row in rows.order_by("id").values_list("milli", "pool_id", "model_id", "class_id")]


# ---- who is held -----------------------------------------------------------------------------------------------------


def holding_budgets() -> list[Budget]:
    """Budgets that hold jobs, as the last look found them."""
    rows = Budget.objects.filter(active=True, action=Budget.Action.HOLD, spent_since__isnull=False)
    return list(rows.select_related("team").order_by("pk"))


def covered(budgets: Sequence[Budget], tree: Tree) -> dict[int, Budget]:
    """Team id → the spent holding budget that holds its jobs: the nearest above it, then the one set first."""
    found: dict[int, tuple[int, Budget]] = {}
    for budget in sorted(budgets, key=lambda each: each.pk):
        if budget.action != Budget.Action.HOLD or budget.spent_since is None:
            continue
        for team_id in tree.below(budget.team_id):
            distance = tree.line(team_id).index(budget.team_id)
            if team_id not in found or distance < found[team_id][0]:
                found[team_id] = (distance, budget)
    return {team_id: budget for team_id, (_, budget) in found.items()}


def due(now: datetime) -> bool:
    """Whether some budget's next look has come, so that what it says may not be so any more."""
    return Budget.objects.filter(active=True, next_look_at__lte=now).exists()


def spent_over(team_ids: Collection[int]) -> dict[int, Mapping[str, object]]:
    """The figures of the spent budget that holds jobs of each team, as the last look found it; others are left out."""
    budgets = holding_budgets()
    if not budgets:
        return {}
    over = covered(budgets, team_tree())
    return {team_id: _figures(over[team_id]) for team_id in team_ids if team_id in over}


def _figures(budget: Budget) -> Mapping[str, object]:
    return {"team": budget.team.slug, "budget": money_text(budget.amount), "spent": money_text(budget.spent)}
