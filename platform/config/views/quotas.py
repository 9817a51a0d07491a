"""The tree of teams with their quotas and shares, pool by pool."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from django.http import HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from inventory.models import Pool
from inventory.selectors import pool_totals
from quotas.selectors import quotas_in_force
from scheduling.selectors import team_shares
from tenants.models import Team
from tenants.pages import SignedIn, page, show
from tenants.policy import top_teams, visible

DEEPEST = 3  # how far rows are moved in


def tree_rows(teams: list[Team]) -> list[tuple[Team, int]]:
    """The teams with how deep they lie below the topmost visible one, parents before children, by name."""
    seen = {team.pk for team in teams}
    below: dict[int | None, list[Team]] = defaultdict(list)
    for team in teams:
        below[team.parent_id if team.parent_id in seen else None].append(team)
    rows: list[tuple[Team, int]] = []
    waiting = [(team, 0) for team in reversed(below[None])]
    while waiting:
        team, depth = waiting.pop()
        rows.append((team, min(depth, DEEPEST)))
        waiting += [(child, depth + 1) for child in reversed(below[team.pk])]
    return rows


@page
@require_safe
def quotas(request: SignedIn) -> HttpResponse:
    now = timezone.now()
    pools = list(Pool.objects.order_by("name"))
    wanted = request.GET.get("pool", "")
    chosen = [pool for pool in pools if pool.name == wanted] or pools[:1]
    teams = list(Team.objects.filter(visible(request.user, "pk"), deleted_at__isnull=True).order_by("name_key", "pk"))
    rows: list[dict[str, Any]] = []
    for pool in chosen:
        in_force = quotas_in_force(now, pool.pk)
        shares = team_shares(now, [pool.pk])[pool.pk]
        rows = [
            {
                "team": team,
                "depth": depth,
                "share": shares[team.pk],
                "quota": in_force.get((pool.pk, team.pk)),
            }
            for team, depth in tree_rows(teams)
        ]
    context = {
        "pools": pools,
        "pool": chosen[0] if chosen else None,
        "capacity": pool_totals([chosen[0].pk])[chosen[0].pk].capacity if chosen else 0,
        "rows": rows,
        "live": json.dumps([{"subscribe": "team", "team": team.slug} for team in top_teams(request.user)[:20]]),
    }
    return show(request, "pages/quotas.html", context, {"live": "pages/quotas_live.html"})
