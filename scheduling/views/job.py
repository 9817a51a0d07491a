"""One job: what it is, where it runs, why it waits, what it costs; and what can be done to it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from scheduling import ports
from scheduling.browsing import decision_rows, history, places, price_now, spans, task_rows
from scheduling.granted import granted_to_groups
from scheduling.models import Job
from scheduling.selectors import links_of, reasons_for, visible_job, visible_jobs
from scheduling.services.holding import hold_for, release_for
from scheduling.services.stop import cancel_jobs
from scheduling.states import JOB_ENDED
from tenants.pages import SignedIn, page, show
from tenants.policy import may, require, visible_team_ids


@page
@require_safe
def job(request: SignedIn, job_id: int) -> HttpResponse:
    now = timezone.now()
    found = visible_job(request.user, job_id)
    events = history(found)
    cost = ports.meter.job_costs([found.pk], now).get(found.pk)
    after, followers = links_of([found.pk], visible_team_ids(request.user))[found.pk]
    linked = visible_jobs(request.user).in_bulk([*after, *followers])
    context = {
        "job": found,
        "after": [linked[job_id] for job_id in after if job_id in linked],
        "followers": [linked[job_id] for job_id in followers if job_id in linked],
        "team": found.team,
        "now": now,
        "ended": found.state in JOB_ENDED,
        "groups": list(found.groups.all()),
        "granted": granted_to_groups(found.pk),
        "tasks": task_rows(found),
        "places": places(found),
        "events": events,
        "decisions": decision_rows(found, request.user),
        "reasons": reasons_for(request.user, found.reasons, found.pool.unit),
        "spans": spans(found, events, now),
        "cost": cost,
        "per_hour": price_now(found, now),
        "gpu_hours": gpu_hours(cost.milli_seconds) if cost else "",
        "waited": (found.started_at or found.ended_at or now) - found.submitted_at,
        "ran": (found.ended_at or now) - found.started_at if found.started_at else None,
        "command": shlex.join(found.command),
        "may_stop": bool(may(request.user, "job.stop", found.team_id)),
        "may_hold": bool(may(request.user, "job.hold", found.team_id)),
        "live": json.dumps([{"subscribe": "job", "id": found.pk}]),
    }
    return show(request, "scheduling/job.html", context, {"live": "scheduling/job_live.html"})


def gpu_hours(milli_seconds: Decimal) -> str:
    """Milli-GPU-seconds as GPU-hours, to a ten-thousandth."""
    return f"{(milli_seconds / 3_600_000).quantize(Decimal('0.0001')).normalize():f}"


def _act(
    request: SignedIn, job_id: int, action: Any, service: Callable[[Job, datetime, int], None], done: str
) -> HttpResponse:
    """``service`` is done to the job that the viewer may see and do this to; then its page is shown again."""
    found = visible_job(request.user, job_id)
    require(request.user, action, found.team_id, what="job")
    service(found, timezone.now(), request.user.pk)
    messages.success(request, done)
    return HttpResponseRedirect(reverse("job", args=[job_id]))


@page
@require_POST
def cancel(request: SignedIn, job_id: int) -> HttpResponse:
    def stop(found: Job, now: datetime, actor: int) -> None:
        cancel_jobs([found.pk], now, actor_id=actor)

    return _act(request, job_id, "job.stop", stop, _("The job is told to stop."))


@page
@require_POST
def hold(request: SignedIn, job_id: int) -> HttpResponse:
    def keep(found: Job, now: datetime, actor: int) -> None:
        hold_for(request.user, found, now)

    return _act(request, job_id, "job.hold", keep, _("The job is held: it is passed over until you release it."))


@page
@require_POST
def release(request: SignedIn, job_id: int) -> HttpResponse:
    def let(found: Job, now: datetime, actor: int) -> None:
        release_for(request.user, found, now)

    return _act(request, job_id, "job.hold", let, _("The job is back in the queue, by its first submission."))
