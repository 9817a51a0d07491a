"""Deleting a team: only when nothing of it waits or runs; what it used and cost stays."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Count

from events.errors import Conflict
from events.services import unit_of_work
from quotas.services import remove_quotas_of
from scheduling.models import Job
from scheduling.states import JOB_ENDED
from tenants.models import Team
from tenants.services import lock_team_tree, retire_team


def delete_team(team: Team, now: datetime, *, actor_id: int | None = None) -> None:
    """The team is gone and its quotas are handed back; jobs, usage and costs stay under its id.

    Conflict, with the counts, while jobs of it are unfinished, and while teams hang below it.
    """
    with unit_of_work():
        # Before counting: a submission at the same moment holds the tree; it is counted here, or finds the team gone.
        lock_team_tree()
        unfinished = unfinished_jobs(team)
        if unfinished:
            counts = ", ".join(f"{count} {state}" for state, count in unfinished.items())
            raise Conflict(f"The team '{team.slug}' still has unfinished jobs: {counts}.", code="team_has_jobs")
        retire_team(team, now, actor_id=actor_id)
        remove_quotas_of(team, now, actor_id=actor_id)


def unfinished_jobs(team: Team) -> dict[str, int]:
    """How many jobs of the team itself are in each state that is not an end; states without any are left out."""
    rows = Job.objects.filter(team=team).exclude(state__in=JOB_ENDED).order_by().values_list("state")
    found = dict(rows.annotate(count=Count("id")))
    order = (Job.State.RUNNING, Job.State.STARTING, Job.State.PENDING)
    return {str(state): found[state] for state in order if state in found}
