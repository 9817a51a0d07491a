"""The list of jobs, and stopping many at once."""

from __future__ import annotations

import json

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST, require_safe

from events.errors import Invalid
from inventory.models import Pool
from scheduling.browsing import JobFilter, filtered_jobs, job_page, rows_of, unfinished_counts
from scheduling.models import Job
from scheduling.selectors import visible_job
from scheduling.services.stop import cancel_jobs
from tenants.models import Team
from tenants.pages import SignedIn, page, show
from tenants.policy import require, top_teams, visible

MOST_AT_ONCE = 500


@page
@require_safe
def jobs(request: SignedIn) -> HttpResponse:
    """Jobs of all teams that the viewer may see; filters, order and place are in the address."""
    now = timezone.now()
    user = request.user
    wanted = JobFilter.read(request.GET)
    whole = JobFilter(team=wanted.team, pool=wanted.pool, user=wanted.user, q=wanted.q)
    tops = top_teams(user)
    context = {
        "filter": wanted,
        "page": job_page(user, wanted, now),
        "counts": unfinished_counts(filtered_jobs(user, whole)),
        "teams": Team.objects.filter(visible(user, "pk"), deleted_at__isnull=True).order_by("slug"),
        "pools": Pool.objects.order_by("name"),
        "now": now,
        "live": json.dumps([{"subscribe": "team", "team": team.slug} for team in tops[:20]]),
    }
    return show(request, "scheduling/jobs.html", context, {"table": "scheduling/jobs_table.html"})


@page
@require_safe
def job_row(request: SignedIn, job_id: int) -> HttpResponse:
    """One row of the list, for a row that changed."""
    job = visible_job(request.user, job_id)
    (row,) = rows_of([job], timezone.now())
    return show(request, "scheduling/job_row.html", {"row": row})


@page
@require_POST
def stop_jobs(request: SignedIn) -> HttpResponse:
    """All named jobs are cancelled or none is: one that the viewer may not see or stop refuses them all."""
    given = request.POST.getlist("job")
    if not given or len(given) > MOST_AT_ONCE or not all(text.isascii() and text.isdigit() for text in given):
        raise Invalid.at("job", _("choose 1 to %(most)d jobs") % {"most": MOST_AT_ONCE})
    ids = sorted({int(text) for text in given if len(text) < 19})
    found = list(Job.objects.filter(visible(request.user), pk__in=ids).order_by("pk"))
    if len(found) != len(ids):
        raise Invalid.at("job", _("one of these jobs is not there, or you may not see it"))
    for team_id in sorted({job.team_id for job in found}):
        require(request.user, "job.stop", team_id, what="job")
    done = cancel_jobs(ids, timezone.now(), actor_id=request.user.pk)
    stopped = len(done.at_once) + len(done.stopping)
    messages.success(request, ngettext("%(n)d job is stopped.", "%(n)d jobs are stopped.", stopped) % {"n": stopped})
    return HttpResponseRedirect(way_back(request, reverse("jobs")))


def way_back(request: SignedIn, otherwise: str) -> str:
    """Where the form says that it came from, on this host only."""
    target = request.POST.get("next", "")
    safe = url_has_allowed_host_and_scheme(
        target, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return target if safe else otherwise
