"""Holds: why a waiting job is passed over, who may lift which, and how several of them add up.

A job may be held for three causes at once, and has one column ``hold`` to show:

| cause | where it is kept | who ends it |
| --- | --- | --- |
| a person: an owner, or an operator, who takes over an owner's | in ``hold`` itself, nowhere else | that person |
| a spent budget | in the budget (``ports.budgets``) | the budget, when it has room again |
| a predecessor that has not succeeded | in ``after`` and the predecessor's state | its success |

So the column shows a person's hold before a spent budget, and that before a predecessor (``composed``): what only the
column knows is never overwritten by what can be worked out again. Whenever one cause ends the others are looked up
anew (``settle_holds``), and the job is free when none is left. Releasing takes away one cause, the one that shows.

A predecessor that failed or was cancelled never succeeds: the job stays held, and says so, until somebody releases it.
That waives it: the job does not come after that predecessor any more, which the event of the release remembers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import F

from events.errors import Conflict, Forbidden
from events.services import Journal, unit_of_work
from scheduling import ports
from scheduling.models import Job
from scheduling.states import JOB_ENDED
from tenants.models import User
from tenants.policy import may, require

PERSONS = frozenset({Job.Hold.OWNER, Job.Hold.OPERATOR})


def composed(*, person: str, budget_spent: bool, waits: bool) -> str:
    """What ``hold`` shows of a job with these causes; ``person``: OWNER, OPERATOR or nothing."""
    if person:
        return person
    if budget_spent:
        return Job.Hold.BUDGET
    return Job.Hold.DEPENDENCY if waits else Job.Hold.NONE


# ---- what people do --------------------------------------------------------------------------------------------------


def hold_for(user: User, job: Job, now: datetime) -> None:
    """The job is held, whatever else holds it. An operator takes over an owner's hold, an owner no operator's.

    Raises Forbidden for those who may not, Conflict where the job does not wait.
    """
    require(user, "job.hold", job.team_id, what="job")
    by = Job.Hold.OPERATOR if may(user, "fleet.operate") else Job.Hold.OWNER
    hold_job(job, now, by=by, actor_id=user.pk)


def release_for(user: User, job: Job, now: datetime) -> None:
    """The cause that shows is gone; see ``release_job``. Releasing a job that is not held changes nothing.

    Raises Forbidden for those who may not lift this hold, Conflict where the job does not wait or nobody lifts it.
    """
    require(user, "job.hold", job.team_id, what="job")
    with unit_of_work():
        held = Job.objects.select_for_update(no_key=True).get(pk=job.pk)
        if held.hold == Job.Hold.OPERATOR and not may(user, "fleet.operate"):
            raise Forbidden("An operator holds this job; only an operator releases it.", code="held_by_operator")
        release_job(job, now, actor_id=user.pk)


def hold_job(job: Job, now: datetime, *, by: str = Job.Hold.OWNER, actor_id: int | None = None) -> None:
    """The job is passed over until it is released. Conflict where it does not wait; again: nothing."""
    with unit_of_work() as journal:
        held = _waiting(job)
        if held.hold != by and not (held.hold == Job.Hold.OPERATOR and by == Job.Hold.OWNER):
            _show(held, by, now, journal, actor_id)
    job.hold = held.hold


def release_job(job: Job, now: datetime, *, actor_id: int | None = None) -> None:
    """The cause that shows is gone: a person's hold, or the predecessors that can never succeed, which are waived.

    Where nothing else holds it, the job takes its place in the queue again, by its first submission. Conflict where it
    does not wait, and for what ends by itself: a spent budget, a predecessor that may still succeed.
    """
    with unit_of_work() as journal:
        held = _waiting(job)
        waived = _waive(held) if held.hold == Job.Hold.DEPENDENCY else []
        if held.hold in (Job.Hold.BUDGET, Job.Hold.DEPENDENCY) and not waived:
            raise Conflict(f"{held.get_hold_display()}: it is released when that is over.", code="held_by_rule")
        if held.hold:
            more = {"waived": waived} if waived else {}
            _show(held, _causes([held], persons=False)[held.pk], now, journal, actor_id, released=True, **more)
    job.hold = held.hold


def _waiting(job: Job) -> Job:
    """The job's row as it is now, locked. Raises Conflict where it does not wait."""
    held = Job.objects.select_for_update(no_key=True).get(pk=job.pk)
    if held.state != Job.State.PENDING:
        raise Conflict("Only a job that waits can be held or released.", code="not_waiting")
    return held


def _waive(job: Job) -> list[int]:
    """The job does not come after those that ended without success any more; their ids."""
    links = Job.after.through.objects.filter(from_job=job, to_job__state__in=JOB_ENDED)
    links = links.exclude(to_job__state=Job.State.SUCCEEDED)
    waived = sorted(links.values_list("to_job_id", flat=True))
    Job.after.through.objects.filter(from_job=job, to_job_id__in=waived).delete()
    return waived


# ---- what ends by itself ---------------------------------------------------------------------------------------------


def settle_holds(jobs: Sequence[Job], now: datetime, journal: Journal) -> int:
    """Each of these waiting jobs, read and locked by the caller in order of id, shows the hold that its causes come
    to; returns for how many that is another one. Called where a cause may have ended or begun."""
    wanted = _causes(jobs)
    changed = [job for job in jobs if wanted[job.pk] != job.hold]
    for job in changed:
        _show(job, wanted[job.pk], now, journal)
    return len(changed)


def _causes(jobs: Sequence[Job], *, persons: bool = True) -> dict[int, str]:
    """By job, what its causes come to now; without those that are a person's, if that is said."""
    unmet = predecessors_unmet([job.pk for job in jobs])
    spent = ports.budgets.spent({job.team_id for job in jobs})
    return {
        job.pk: composed(
            person=job.hold if persons and job.hold in PERSONS else Job.Hold.NONE,
            budget_spent=job.team_id in spent,
            waits=job.pk in unmet,
        )
        for job in jobs
    }


def predecessors_unmet(job_ids: Sequence[int]) -> dict[int, list[Mapping[str, Any]]]:
    """By job that comes after one which has not succeeded: all of those, by id, as the reason ``held`` tells them.

    ``state`` is there only where it is an end: such a predecessor never succeeds. Those of another team have no name,
    for whoever sees the job need not see them; their numbers stand in its request anyway.
    """
    found: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    links = Job.after.through.objects.filter(from_job_id__in=job_ids).exclude(to_job__state=Job.State.SUCCEEDED)
    columns = ("from_job_id", "from_job__team_id", "to_job_id", "to_job__name", "to_job__team_id", "to_job__state")
    for row in links.order_by("from_job_id", "to_job_id").values_list(*columns):
        follower, own_team, job_id, name, team, state = row
        ended = {"state": state} if state in JOB_ENDED else {}
        found[follower].append({"job": job_id, "name": name if team == own_team else None, **ended})
    return dict(found)


def held_numbers(jobs: Sequence[Job]) -> dict[int, Mapping[str, Any]]:
    """By held job, the numbers of the reason that tells of its hold."""
    waits = [job.pk for job in jobs if job.hold == Job.Hold.DEPENDENCY]
    unmet = predecessors_unmet(waits) if waits else {}
    poor = {job.team_id for job in jobs if job.hold == Job.Hold.BUDGET}
    spent = ports.budgets.spent(poor) if poor else {}
    found: dict[int, Mapping[str, Any]] = {job_id: {"after": after} for job_id, after in unmet.items()}
    found.update({job.pk: spent[job.team_id] for job in jobs if job.team_id in spent and job.hold == Job.Hold.BUDGET})
    return found


def _show(
    job: Job,
    hold: str,
    now: datetime,
    journal: Journal,
    actor_id: int | None = None,
    *,
    released: bool = False,
    **more: Any,
) -> None:
    """The locked job shows this hold from now on; others do not give way to a held one any more."""
    Job.objects.filter(pk=job.pk, state=Job.State.PENDING).update(
        hold=hold, room_made_at=None, version=F("version") + 1
    )
    journal.record(
        "job.released" if released or not hold else "job.held",
        now,
        team_id=job.team_id,
        pool_id=job.pool_id,
        job_id=job.pk,
        actor_id=actor_id,
        state=Job.State.PENDING,
        hold=hold,
        **more,
    )
    job.hold = hold
