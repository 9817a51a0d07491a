"""Notices: what a team should be told though nobody asked. Each is an event, said once."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, OuterRef

from events.models import Event
from events.services import Journal, require_aware, unit_of_work
from scheduling.models import Job
from telemetry.models import Finding

log = logging.getLogger(__name__)

LONG_WAIT = timedelta(hours=1)
AT_MOST = 500  # in one go, so that the first look at a long queue does not flood the log; the rest follows
LONG_WAIT_CODE = "long_wait"


def send_notices(now: datetime) -> int:
    """Every job that has waited for more than an hour and every open finding has its notice; returns how many are new.

    Rows are locked before it is looked whether they have one, so that two at once do not both say it.
    """
    require_aware(now)
    with unit_of_work() as journal:
        waiting = _long_waits(journal, now)
        findings = _findings(journal, now)
    if waiting or findings:
        log.info("notices: %d jobs wait long, %d findings", waiting, findings)
    return waiting + findings


def _long_waits(journal: Journal, now: datetime) -> int:
    told = Event.objects.filter(kind="notice", job_id=OuterRef("pk"), data__code=LONG_WAIT_CODE)
    due = Job.objects.filter(state=Job.State.PENDING, hold=Job.Hold.NONE, submitted_at__lte=now - LONG_WAIT)
    ids = list(due.filter(~Exists(told)).order_by("submitted_at", "pk").values_list("pk", flat=True)[:AT_MOST])
    if not ids:
        return 0
    locked = list(Job.objects.select_for_update(no_key=True).filter(pk__in=ids, state=Job.State.PENDING).order_by("pk"))
    # Looked at again under the lock: who held it before may just have said it.
    notices = Event.objects.filter(kind="notice", job_id__in=ids, data__code=LONG_WAIT_CODE)
    said = set(notices.values_list("job_id", flat=True))
    new = [job for job in locked if job.pk not in said]
    for job in new:
        waited = int((now - job.submitted_at).total_seconds())
        numbers = {"waited_s": waited, "reasons": [each["code"] for each in job.reasons]}
        _record(journal, now, job, LONG_WAIT_CODE, numbers)
    return len(new)


def _findings(journal: Journal, now: datetime) -> int:
    due = Finding.objects.filter(ended_at__isnull=True, job__isnull=False)
    locked = list(due.select_for_update(of=("self",), no_key=True).select_related("job").order_by("pk"))
    notices = Event.objects.filter(kind="notice", job_id__in=[finding.job_id for finding in locked])
    said = {data.get("finding") for data in notices.values_list("data", flat=True)}
    new = [finding for finding in locked if finding.pk not in said][:AT_MOST]
    for finding in new:
        assert finding.job is not None
        _record(journal, now, finding.job, finding.kind, finding.numbers, finding=finding.pk)
    return len(new)


def _record(journal: Journal, now: datetime, job: Job, code: str, numbers: dict, **more: Any) -> None:
    journal.record(
        "notice",
        now,
        team_id=job.team_id,
        pool_id=job.pool_id,
        job_id=job.pk,
        code=code,
        name=job.name,
        numbers=numbers,
        **more,
    )
