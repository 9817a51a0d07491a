"""Jobs that a spent budget holds: which ones follows from what the port ``budgets`` says, and from nothing else.

A hold of an owner, an operator or a dependency stays what it is; under a spent budget it is this one's once lifted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db.models import Q

from events.rows import update_rows
from events.services import Journal
from scheduling import ports
from scheduling.core import model as core
from scheduling.core import reasons as core_reasons
from scheduling.models import Job

REASON = "budget_spent"


def hold_as_budgets_say(team_ids: Collection[int], now: datetime, journal: Journal) -> int:
    """Of the jobs that wait, exactly those of these teams are held by a budget that nobody else holds; returns how many
    that changed. What runs is left alone."""
    waiting = Job.objects.filter(state=Job.State.PENDING)
    under = Q(team_id__in=list(team_ids))
    to_hold = waiting.filter(under, hold=Job.Hold.NONE) if team_ids else waiting.none()
    to_release = waiting.filter(~under, hold=Job.Hold.BUDGET) if team_ids else waiting.filter(hold=Job.Hold.BUDGET)
    if not to_hold.exists() and not to_release.exists():
        return 0
    # All that may change, in order of id: two that lock several jobs never wait for each other.
    either = Q(pk__in=to_hold.values("pk")) | Q(pk__in=to_release.values("pk"))
    jobs = list(Job.objects.select_for_update(no_key=True).filter(either, state=Job.State.PENDING).order_by("pk"))
    return _set_hold(jobs, team_ids, now, journal)


def _set_hold(jobs: list[Job], team_ids: Collection[int], now: datetime, journal: Journal) -> int:
    changed = 0
    for before, after in ((Job.Hold.NONE, Job.Hold.BUDGET), (Job.Hold.BUDGET, Job.Hold.NONE)):
        own = [job for job in jobs if job.hold == before and (job.team_id in team_ids) == (after == Job.Hold.BUDGET)]
        only = {"state": Job.State.PENDING, "hold": before}
        update_rows(Job, (job.pk for job in own), only=only, hold=after, room_made_at=None)
        changed += len(own)
        for job in own:
            journal.record(
                "job.held" if after else "job.released",
                now,
                team_id=job.team_id,
                pool_id=job.pool_id,
                job_id=job.pk,
                state=Job.State.PENDING,
                hold=after,
            )
    return changed


def hold_of_budgets(team_id: int) -> str:
    """The hold that a job of the team has where nobody else holds it."""
    return Job.Hold.BUDGET if ports.budgets.spent([team_id]) else Job.Hold.NONE


def under_budget(pending: core.PendingJob, job: Job, numbers: Mapping[str, object] | None) -> core.PendingJob:
    """The job as the core is told of it, with the numbers of the budget that holds it. One that runs goes on, but does
    not grow while the budget is spent; a service may, because it has only lost a replica."""
    if numbers is None or (pending.growing and job.kind == Job.Kind.SERVICE):
        return pending
    if pending.growing or job.hold == Job.Hold.BUDGET:
        return replace(pending, held=REASON, held_numbers=numbers)
    return pending


def told(numbers: Mapping[str, object]) -> dict[str, Any]:
    """The reason of a job that a budget holds, as it is stored and told."""
    reason = core_reasons.reason(REASON, numbers)
    return {"code": reason.code, "message": core_reasons.message(reason), "numbers": dict(numbers), "helps": None}
