"""Who may lift whose hold: an owner's is the team's to lift, an operator's only an operator's, the rest by itself."""

from __future__ import annotations

from datetime import datetime

from events.errors import Conflict, Forbidden
from events.services import unit_of_work
from scheduling.models import Job
from scheduling.services.stop import hold_job, release_job
from tenants.models import User
from tenants.policy import may, require


def hold_for(user: User, job: Job, now: datetime) -> None:
    """The job is held. A hold that is there already stays what it is, unless an operator takes over an owner's.

    Raises Forbidden for those who may not, Conflict where the job does not wait.
    """
    require(user, "job.hold", job.team_id, what="job")
    operator = bool(may(user, "fleet.operate"))
    with unit_of_work():
        held = Job.objects.select_for_update(no_key=True).get(pk=job.pk)
        if held.state == Job.State.PENDING and held.hold and not (operator and held.hold == Job.Hold.OWNER):
            return
        hold_job(held, now, by=Job.Hold.OPERATOR if operator else Job.Hold.OWNER, actor_id=user.pk)


def release_for(user: User, job: Job, now: datetime) -> None:
    """The job is not held any more. Releasing one that is not held changes nothing.

    Raises Forbidden for those who may not lift this hold, Conflict where the job does not wait or nobody lifts it.
    """
    require(user, "job.hold", job.team_id, what="job")
    with unit_of_work():
        held = Job.objects.select_for_update(no_key=True).get(pk=job.pk)
        if held.hold == Job.Hold.OPERATOR and not may(user, "fleet.operate"):
            raise Forbidden("An operator holds this job; only an operator releases it.", code="held_by_operator")
        if held.hold in (Job.Hold.BUDGET, Job.Hold.DEPENDENCY):
            raise Conflict(f"{held.get_hold_display()}: it is released when that is over.", code="held_by_rule")
        release_job(held, now, actor_id=user.pk)
