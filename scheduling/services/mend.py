"""Gangs that lost a member with its node, when no replacement was found: they go back to the queue as a whole.

What is left of them is stopped with their pool's grace, and they wait with their first submission time. Where one was
found nothing is to be done here: it is bound like any other task, and the members that are left go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db.models import Count, F, Q

from events.rows import insert_rows
from events.services import Journal
from scheduling.models import Decision, Job, Task, TaskGroup
from scheduling.states import JOB_ACTIVE


def send_back(job_ids: Sequence[int], cycle: int, now: datetime, journal: Journal) -> int:
    """Those of the jobs that still run, and are not ending by themselves, are ending to be queued again; returns how
    many. The caller has locked them."""
    if not job_ids:
        return 0
    rows = Job.objects.filter(pk__in=job_ids, state__in=JOB_ACTIVE, ending="").order_by("pk")
    jobs = list(rows.values_list("pk", "team_id", "pool_id", "state"))
    Job.objects.filter(pk__in=[job[0] for job in jobs]).update(
        ending=Job.Ending.REQUEUE, ending_reason="node_lost", version=F("version") + 1
    )
    for job_id, team_id, pool_id, state in jobs:
        common = {"team_id": team_id, "pool_id": pool_id, "job_id": job_id}
        journal.record("job.stopping", now, **common, state=state, ending=Job.Ending.REQUEUE, reason="node_lost")
    insert_rows(
        Decision(
            at=now,
            cycle=cycle,
            kind=Decision.Kind.REFUSE,
            job_id=job_id,
            team_id=team_id,
            pool_id=pool_id,
            rule="replacement",
            numbers={"missing_tasks": missing_tasks(job_id)},
        )
        for job_id, team_id, pool_id, _ in jobs
    )
    return len(jobs)


def missing_tasks(job_id: int) -> int:
    """How many tasks a job that runs lacks to its least, all groups together; 0 where none of its tasks waits."""
    if not Task.objects.filter(job_id=job_id, state=Task.State.PENDING).exists():
        return 0
    groups = TaskGroup.objects.filter(job_id=job_id).order_by("position")
    counted = groups.annotate(there=Count("tasks", filter=~Q(tasks__state=Task.State.PENDING)))
    return sum(max(0, least - there) for least, there in counted.values_list("min_count", "there"))
