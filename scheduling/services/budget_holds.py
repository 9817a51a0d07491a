"""Jobs that a spent budget holds: which ones follows from what the port ``budgets`` says, and from nothing else.

How it adds up with other causes: see ``holding``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db.models import Q

from events.services import Journal
from scheduling import ports
from scheduling.core import model as core
from scheduling.core import reasons as core_reasons
from scheduling.models import Job
from scheduling.services.holding import settle_holds

REASON = "budget_spent"


def hold_as_budgets_say(team_ids: Collection[int], now: datetime, journal: Journal) -> int:
    """Of the jobs that wait, exactly those of these teams are held by a budget where nobody holds them by hand; returns
    for how many that changed. What runs is left alone. ``team_ids``: all for which ``ports.budgets`` says so now."""
    waiting = Job.objects.filter(state=Job.State.PENDING)
    under = Q(team_id__in=list(team_ids))
    by_itself = Q(hold__in=(Job.Hold.NONE, Job.Hold.DEPENDENCY))
    changing = waiting.filter((under & by_itself) | (~under & Q(hold=Job.Hold.BUDGET)))
    if not changing.exists():
        return 0
    # All that may change, in order of id: two that lock several jobs never wait for each other.
    ids = list(changing.values_list("pk", flat=True))
    jobs = Job.objects.select_for_update(no_key=True).filter(pk__in=ids, state=Job.State.PENDING).order_by("pk")
    return settle_holds(list(jobs), now, journal)


def hold_of_budgets(team_id: int) -> str:
    """The hold that a job of the team has where nobody else holds it."""
    return Job.Hold.BUDGET if ports.budgets.spent([team_id]) else Job.Hold.NONE


def under_budget(pending: core.PendingJob, job: Job, numbers: Mapping[str, object] | None) -> core.PendingJob:
    """The job as the core is told of it. One that runs goes on, but does not grow while the budget is spent; what it
    has lost it may replace: a service its replicas, a gang what it lacks to its least."""
    if numbers is None or not pending.growing or job.kind == Job.Kind.SERVICE:
        return pending
    if any(group.placed < group.min_count for group in pending.groups):
        return pending
    return replace(pending, held=REASON, held_numbers=numbers)


def told(numbers: Mapping[str, object]) -> dict[str, Any]:
    """The reason of a job that a budget holds, as it is stored and told."""
    reason = core_reasons.reason(REASON, numbers)
    return {"code": reason.code, "message": core_reasons.message(reason), "numbers": dict(numbers), "helps": None}
