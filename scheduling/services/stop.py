"""Cancelling and reprioritising. Each by compare-and-swap, so that doing it twice does it once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import F

from events.errors import Fault, Invalid
from events.services import Journal, unit_of_work
from scheduling.models import Job, PriorityClass, Task
from scheduling.services.dependencies import followers_of, predecessors_ended
from scheduling.services.priorities import check_priority
from scheduling.states import JOB_ACTIVE, JOB_ENDED
from tenants.models import User
from tenants.policy import roles

CLASS_OPTIONS = ("cluster_wide", "roles", "max_jobs_per_team", "max_milli_per_team")


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Ids of jobs, by what became of them."""

    at_once: tuple[int, ...]  # waited; are cancelled now
    stopping: tuple[int, ...]  # run; are being stopped
    ended_before: tuple[int, ...]  # nothing to do


def cancel_jobs(job_ids: Sequence[int], now: datetime, *, actor_id: int | None = None) -> Cancelled:
    """Waiting ones are cancelled at once, none of them starts any more; running ones are told to stop. Idempotent."""
    with unit_of_work() as journal:
        named = set(job_ids)
        # Those that come after them are told, and so locked with them, all in order of id.
        ids = named.union(*followers_of(named).values())
        jobs = list(Job.objects.select_for_update(no_key=True).filter(pk__in=ids).order_by("pk"))
        jobs = [job for job in jobs if job.pk in named]
        waiting = [job for job in jobs if job.state == Job.State.PENDING]
        active = [job for job in jobs if job.state in JOB_ACTIVE and job.ending != Job.Ending.CANCELLED]
        ended = [job.pk for job in jobs if job.state in JOB_ENDED or job.ending == Job.Ending.CANCELLED]
        _cancel_waiting(waiting, now, journal, actor_id)
        Job.objects.filter(pk__in=[job.pk for job in active]).update(
            ending=Job.Ending.CANCELLED,
            ending_reason="cancelled",
            cancel_requested_at=now,
            version=F("version") + 1,
        )
        for job in active:
            journal.record(
                "job.stopping",
                now,
                team_id=job.team_id,
                pool_id=job.pool_id,
                job_id=job.pk,
                actor_id=actor_id,
                state=job.state,
            )
    return Cancelled(tuple(job.pk for job in waiting), tuple(job.pk for job in active), tuple(ended))


def _cancel_waiting(jobs: Sequence[Job], now: datetime, journal: Journal, actor_id: int | None) -> None:
    ids = [job.pk for job in jobs]
    Job.objects.filter(pk__in=ids, state=Job.State.PENDING).update(
        state=Job.State.CANCELLED,
        ending=Job.Ending.CANCELLED,
        ended_at=now,
        cancel_requested_at=now,
        hold=Job.Hold.NONE,
        reasons=[],
        version=F("version") + 1,
    )
    Task.objects.filter(job_id__in=ids, state=Task.State.PENDING).update(state=Task.State.CANCELLED)
    for job in jobs:
        journal.record(
            "job.state",
            now,
            team_id=job.team_id,
            pool_id=job.pool_id,
            job_id=job.pk,
            actor_id=actor_id,
            before=job.state,
            state=Job.State.CANCELLED,
        )
    predecessors_ended(dict.fromkeys(ids, str(Job.State.CANCELLED)), now, journal)


def set_priority(
    job: Job,
    now: datetime,
    *,
    priority_class: PriorityClass | None = None,
    value: int | None = None,
    by: User | None = None,
) -> None:
    """The job has this class, or this value of its own. Invalid where neither is given, and where ``by``, who asks for
    it (None: nobody but the product itself), may not give that priority; counts from the next cycle."""
    if (priority_class is None) == (value is None):
        raise Invalid.at("priority", "give a class or a value")
    if value is not None and not -(2**31) <= value < 2**31:
        raise Invalid.at("priority", "must be a whole number of 32 bits", value=value)
    if by is not None:
        asked = priority_class.name if priority_class is not None else value
        assert asked is not None
        check_priority(by, roles(by).get(job.team_id, ""), asked)
    actor_id = None if by is None else by.pk
    with unit_of_work() as journal:
        changes: dict[str, object] = {"priority_value": value}
        if priority_class is not None:
            changes["priority_class"] = priority_class
        Job.objects.filter(pk=job.pk).update(**changes, version=F("version") + 1)
        journal.record(
            "job.priority",
            now,
            team_id=job.team_id,
            pool_id=job.pool_id,
            job_id=job.pk,
            actor_id=actor_id,
            state=job.state,
            value=value,
            priority_class=priority_class and priority_class.name,
        )
    job.refresh_from_db()


def set_priority_class(
    name: str, value: int, now: datetime, *, actor_id: int | None = None, **options: object
) -> PriorityClass:
    """The class exists and has this value; its jobs have it too from the next cycle on, everywhere the same.

    ``options``: cluster_wide, roles, and the caps max_jobs_per_team and max_milli_per_team (milli-GPU), None for no
    cap. What is left out stays as it was. Running jobs above a cap that is lowered run on.
    """
    faults = [
        Fault(key, "is not an option of a class", allowed=CLASS_OPTIONS) for key in options.keys() - set(CLASS_OPTIONS)
    ]
    if not -(2**31) <= value < 2**31:
        faults.append(Fault("value", "must be a whole number of 32 bits", value=value))
    for key, most in (("max_jobs_per_team", 2**31 - 1), ("max_milli_per_team", 10**12)):
        cap = options.get(key)
        if cap is not None and (isinstance(cap, bool) or not isinstance(cap, int) or not 0 <= cap <= most):
            faults.append(Fault(key, f"must be a whole number from 0 to {most}", value=cap))
    if faults:
        raise Invalid(faults)
    with unit_of_work() as journal:
        found, _ = PriorityClass.objects.update_or_create(name=name, defaults={"value": value, **options})
        journal.record("priority_class.set", now, actor_id=actor_id, name=name, value=value)
    return found
