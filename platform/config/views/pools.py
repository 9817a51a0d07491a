"""Pools: the list, and one pool with its map, its queue and its shares."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse, JsonResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from config.overview import PoolCard, pool_cards
from events.errors import NotThere
from inventory.models import Device, Node, Pool
from scheduling.granted import template_of
from scheduling.models import AllocationDevice
from scheduling.queue import queue
from scheduling.selectors import TeamShare, team_shares
from telemetry.selectors import device_readings
from tenants.models import Team
from tenants.pages import SignedIn, page, show
from tenants.policy import top_teams, visible, visible_team_ids

SHOWN_IN_QUEUE = 25


def known_pool(name: str) -> Pool:
    """The pool with this name. Pools are seen by everyone who is signed in; what others do in them is not."""
    pool = Pool.objects.select_related("engine").filter(name=name).first()
    if pool is None:
        raise NotThere("There is no such pool.")
    return pool


@page
@require_safe
def pools(request: SignedIn) -> HttpResponse:
    now = timezone.now()
    found = list(Pool.objects.select_related("engine").order_by("name"))
    context = {
        "pools": pool_cards(found, now),
        "live": json.dumps([{"subscribe": "pool", "pool": pool.name} for pool in found[:20]]),
    }
    return show(request, "pages/pools.html", context, {"live": "pages/pools_live.html"})


@page
@require_safe
def pool(request: SignedIn, name: str) -> HttpResponse:
    now = timezone.now()
    found = known_pool(name)
    (card,) = pool_cards([found], now)
    seen = visible_team_ids(request.user)
    subscriptions: list[dict[str, str]] = [{"subscribe": "pool", "pool": found.name}]
    subscriptions += [{"subscribe": "team", "team": team.slug} for team in top_teams(request.user)[:20]]
    context = {
        "pool": found,
        "card": card,
        "models": _models(found),
        "queue": [
            {
                "place": each.place,
                "job": each.job,
                "wanted": each.wanted,
                "named": seen is None or each.job.team_id in seen,
            }
            for each in queue(found, now, SHOWN_IN_QUEUE)
        ],
        "shares": _shares(request, team_shares(now, [found.pk])[found.pk], card),
        "live": json.dumps(subscriptions),
        "map_words": json.dumps(map_words()),
    }
    return show(request, "pages/pool.html", context, {"live": "pages/pool_live.html"})


def map_words() -> dict[str, str]:
    """What the map's script says of a device."""
    return {
        "free": _("free"),
        "allocated": _("allocated"),
        "used": _("busy"),
        "unknown": _("use unknown"),
        "failed": _("failed"),
        "others": _("other teams"),
        "device": _("device"),
    }


def _models(found: Pool) -> list[str]:
    models = Device.objects.filter(node__pool=found).order_by().values_list("model__name", flat=True)
    return sorted(set(models))


def _shares(request: SignedIn, shares: Mapping[int, TeamShare], card: PoolCard) -> list[dict[str, Any]]:
    """The bars of the teams that the viewer may see and that have something here, in the order of the tree."""
    teams = Team.objects.filter(visible(request.user, "pk"), deleted_at__isnull=True).order_by("slug")
    rows = []
    for team in teams:
        share = shares[team.pk]
        if share.guaranteed or share.allocated or share.pending:
            rows.append({"team": team, "share": share, "capacity": card.totals.capacity})
    return rows


@page
@require_safe
def pool_map(request: SignedIn, name: str) -> HttpResponse:
    """All that the map draws: nodes, their devices, and the slices of teams that the viewer may see.

    ``devices``: [id, model, failed, allocated milli, used milli or null, [[job, team, milli], …]].
    """
    found = known_pool(name)
    slices: dict[int, list[tuple[int, str, int]]] = defaultdict(list)
    rows = AllocationDevice.objects.filter(
        visible(request.user, "allocation__team_id"), allocation__pool=found, allocation__released_at__isnull=True
    )
    for device_id, job_id, slug, milli in rows.order_by("allocation_id", "device_id").values_list(
        "device_id", "allocation__job_id", "allocation__team__slug", "compute_milli"
    ):
        slices[device_id].append((job_id, slug, milli))
    devices: dict[int, list[Any]] = defaultdict(list)
    models: dict[str, int] = {}
    known = Device.objects.filter(node__pool=found).order_by("node__rank", "index")
    readings = device_readings(timezone.now(), known.values_list("pk", flat=True))
    for pk, node_id, model, health, held in known.values_list(
        "pk", "node_id", "model__name", "health", "compute_allocated_milli"
    ):
        used = readings[pk].compute_milli if pk in readings else None
        place = models.setdefault(model, len(models))
        devices[node_id].append([pk, place, health != Device.Health.OK, held, used, slices.get(pk, [])])
    nodes = [
        {"id": pk, "name": node_name, "state": state, "rack": labels.get("rack", ""), "devices": devices.get(pk, [])}
        for pk, node_name, state, labels in Node.objects.filter(pool=found)
        .order_by("rank")
        .values_list("pk", "name", "state", "labels")
    ]
    teams = Team.objects.filter(visible(request.user, "pk"), deleted_at__isnull=True).order_by("slug")
    return JsonResponse(
        {"models": list(models), "nodes": nodes, "teams": [[team.slug, team.name, team.color] for team in teams]}
    )


@page
@require_safe
def device(request: SignedIn, name: str, device_id: int) -> HttpResponse:
    """What one device holds: own slices by name, the others' only as a sum."""
    found = known_pool(name)
    row = (
        Device.objects.filter(pk=device_id, node__pool=found).select_related("node", "model").first()
        if device_id < 2**63
        else None
    )
    if row is None:
        raise NotThere("There is no such device in this pool.")
    slices = list(
        AllocationDevice.objects.filter(
            visible(request.user, "allocation__team_id"), device=row, allocation__released_at__isnull=True
        )
        .select_related("allocation__job", "allocation__team", "allocation__task")
        .order_by("allocation_id")
    )
    for each in slices:
        each.template = template_of(row.model, each.compute_milli, each.memory_mib)  # type: ignore[attr-defined]
    own = sum(each.compute_milli for each in slices)
    context = {
        "pool": found,
        "device": row,
        "slices": slices,
        "others": row.compute_allocated_milli - own,
        "others_memory": row.memory_allocated_mib - sum(each.memory_mib for each in slices),
        "free": max(0, 1000 - row.compute_allocated_milli),
        "reading": device_readings(timezone.now(), [row.pk]).get(row.pk),
    }
    return show(request, "pages/device.html", context)
