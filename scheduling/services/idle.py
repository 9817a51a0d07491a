"""Ending an interactive job that does nothing, and saying so before. Who finds that out measures; see ``ports``."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import F

from events.models import Event
from events.services import unit_of_work
from scheduling.models import Job


def end_idle_job(job_id: int, now: datetime, *, since: datetime, limit: timedelta) -> bool:
    """The running interactive job is being stopped, and will be cancelled for the reason ``idle``. False, with nothing
    changed, where it does not run or is ending already."""
    with unit_of_work() as journal:
        job = _running(job_id)
        if job is None:
            return False
        minutes = max(1, round(limit / timedelta(minutes=1)))
        Job.objects.filter(pk=job.pk).update(
            ending=Job.Ending.CANCELLED,
            ending_reason="idle",
            end_message=f"Nothing that it held was used for {minutes} min, which is as long as its pool lets it.",
            version=F("version") + 1,
        )
        journal.record(
            "job.stopping",
            now,
            team_id=job.team_id,
            pool_id=job.pool_id,
            job_id=job.pk,
            state=job.state,
            ending=Job.Ending.CANCELLED,
            reason="idle",
            since=since.isoformat(),
        )
    return True


def warn_of_idleness(job_id: int, now: datetime, *, since: datetime, ends_at: datetime) -> bool:
    """The job's people are told when it ends if it goes on doing nothing: once for each time since when it does."""
    with unit_of_work() as journal:
        job = _running(job_id)
        told = Event.objects.filter(job_id=job_id, kind="job.idle", data__since=since.isoformat())
        if job is None or told.exists():
            return False
        journal.record(
            "job.idle",
            now,
            team_id=job.team_id,
            pool_id=job.pool_id,
            job_id=job.pk,
            state=job.state,
            name=job.name,
            since=since.isoformat(),
            ends_at=ends_at.isoformat(),
        )
    return True


def _running(job_id: int) -> Job | None:
    """The job, locked, if it is interactive, runs, and is not ending."""
    rows = Job.objects.select_for_update(no_key=True).filter(pk=job_id, kind=Job.Kind.INTERACTIVE)
    return rows.filter(state=Job.State.RUNNING, ending=Job.Ending.NONE).first()
