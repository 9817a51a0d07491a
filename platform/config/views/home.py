"""Where one lands: a person at their team, an operator at the fleet."""

from __future__ import annotations

import json

from django.db.models import Count, Q
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from billing.selectors import spend_of
from config.overview import attention, pool_cards
from inventory.models import EngineConnection, Pool
from scheduling.browsing import STATES
from scheduling.models import Job, SchedulerLease
from scheduling.services.lease import NAME, leader_seen
from tenants.models import Membership
from tenants.pages import SignedIn, operators_page, page, show
from tenants.policy import sees_everything, top_teams


@page
@require_safe
def home(request: SignedIn) -> HttpResponse:
    """On to the viewer's first team, or to the fleet for who sees everything; a welcome for who has no team yet."""
    own = Membership.objects.filter(user=request.user, team__deleted_at__isnull=True).order_by("id").first()
    if own is not None:
        return HttpResponseRedirect(reverse("team", args=[own.team.slug]))
    if sees_everything(request.user):
        return HttpResponseRedirect(reverse("fleet"))
    return show(request, "pages/no_team.html", {})


@operators_page
@require_safe
def fleet(request: SignedIn) -> HttpResponse:
    """All pools at a glance: how full, how busy, what fails, whether the scheduler lives."""
    now = timezone.now()
    unfinished = Job.objects.filter(STATES["unfinished"]).order_by()
    pools = list(Pool.objects.select_related("engine").order_by("name"))
    subscriptions = [{"subscribe": "pool", "pool": pool.name} for pool in pools[:20]]
    subscriptions += [{"subscribe": "team", "team": team.slug} for team in top_teams(request.user)[:20]]
    context = {
        "now": now,
        "pools": pool_cards(pools, now),
        "counts": unfinished.aggregate(
            waiting=Count("pk", filter=STATES["waiting"]), running=Count("pk", filter=STATES["running"])
        ),
        "spend": spend_of(None, now),
        "attention": attention(request.user, None, now),
        "lease": SchedulerLease.objects.filter(name=NAME).first(),
        "scheduler_lives": leader_seen(now),
        "engines_lost": EngineConnection.objects.filter(~Q(state="ok"), enabled=True).count(),
        "live": json.dumps(subscriptions),
    }
    return show(request, "pages/fleet.html", context, {"live": "pages/fleet_live.html"})
