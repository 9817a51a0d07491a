"""A team's overview: its shares, its jobs, its spend, what wants attention."""

from __future__ import annotations

import json

from django.http import HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from billing.models import Budget
from billing.selectors import team_spend
from config.overview import attention, shares_of
from scheduling.browsing import STATES, rows_of, unfinished_counts
from scheduling.models import Job
from tenants.models import Team
from tenants.pages import SignedIn, page, show, visible_team
from tenants.policy import may, team_tree

FEW = 8


@page
@require_safe
def team(request: SignedIn, slug: str) -> HttpResponse:
    now = timezone.now()
    found = visible_team(request, slug)
    ids = team_tree().below(found.pk)
    jobs = Job.objects.filter(team_id__in=ids)
    listed = jobs.select_related("team", "user", "pool", "priority_class")
    shares = shares_of(found, now)
    context = {
        "team": found,
        "above": found.parent if found.parent_id and may(request.user, "team.see", found.parent_id) else None,
        "now": now,
        "shares": shares,
        "counts": unfinished_counts(jobs),
        "running": rows_of(list(listed.filter(STATES["running"]).order_by("-submitted_at", "-id")[:FEW]), now),
        "waiting": rows_of(list(listed.filter(STATES["waiting"]).order_by("submitted_at", "id")[:FEW]), now),
        "recent": rows_of(list(listed.filter(STATES["finished"]).order_by("-submitted_at", "-id")[:5]), now),
        "spend": team_spend(found, now),
        "budgets": Budget.objects.filter(team=found, active=True).order_by("id"),
        "attention": attention(request.user, ids, now),
        "children": Team.objects.filter(parent=found, deleted_at__isnull=True).order_by("slug"),
        "may_submit": bool(may(request.user, "job.submit", found.pk)),
        "chart_pool": shares[0].pool if shares else None,
        "live": json.dumps([{"subscribe": "team", "team": found.slug}]),
    }
    return show(request, "pages/team.html", context, {"live": "pages/team_live.html"})
