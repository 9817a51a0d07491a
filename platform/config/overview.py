"""What overviews of a team and of the fleet are put together from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Count, Q
from django.urls import reverse
from django.utils.translation import gettext as _

from inventory.models import Node, Pool
from inventory.selectors import PoolTotals, pool_totals
from scheduling.models import Job
from scheduling.selectors import TeamShare, team_shares
from telemetry.models import Finding
from telemetry.selectors import fresh_device_use, open_findings
from tenants.models import Team, User

LONG_WAIT = timedelta(minutes=30)
MOST_NOTES = 8


@dataclass(frozen=True, slots=True)
class PoolShare:
    """A team's share of one pool, and what the pool has to give, in the pool's unit."""

    pool: Pool
    share: TeamShare
    capacity: int


@dataclass(frozen=True, slots=True)
class PoolCard:
    """A pool at a glance, in its unit. ``used`` None: nothing is known of its use now."""

    pool: Pool
    totals: PoolTotals
    used: int | None
    waiting: int
    running: int

    @property
    def nodes_away(self) -> int:
        return self.totals.nodes - self.totals.nodes_ready


@dataclass(frozen=True, slots=True)
class Note:
    """Something that wants attention: how bad (a tone), an icon, words, and where to look."""

    tone: str
    icon: str
    text: str
    address: str = ""
    more: str = field(default="")


def shares_of(team: Team, now: datetime) -> list[PoolShare]:
    """The team's share of every pool in which it has a quota, holds or wants something, by the pools' names."""
    by_pool = team_shares(now)
    totals = pool_totals()
    found = []
    for pool in Pool.objects.order_by("name"):
        share = by_pool[pool.pk][team.pk]
        if share.guaranteed or share.allocated or share.pending or share.limit is not None:
            found.append(PoolShare(pool, share, totals[pool.pk].capacity))
    return found


def pool_cards(pools: Sequence[Pool], now: datetime) -> list[PoolCard]:
    """Each pool's numbers, a handful of queries for all of them."""
    totals = pool_totals([pool.pk for pool in pools])
    use = fresh_device_use(now)
    jobs: dict[int, dict[str, int]] = defaultdict(dict)
    unfinished = Job.objects.filter(state__in=["pending", "starting", "running"]).order_by()
    for pool_id, state, count in unfinished.values_list("pool_id", "state").annotate(n=Count("pk")):
        jobs[pool_id][state] = count
    cards = []
    for pool in pools:
        own, states = totals[pool.pk], jobs[pool.pk]
        known = [value for value in use.get(pool.pk, ()) if value is not None]
        cards.append(
            PoolCard(
                pool=pool,
                totals=own,
                used=sum(known) if known and pool.unit != Pool.Unit.CPU else None,
                waiting=states.get("pending", 0),
                running=states.get("running", 0) + states.get("starting", 0),
            )
        )
    return cards


def attention(user: User, team_ids: Collection[int] | None, now: datetime) -> list[Note]:
    """What wants attention in these teams (None: anywhere): idle devices, failing hardware, long waits."""
    notes = [_finding(found) for found in open_findings(user) if _concerns(found, team_ids)]
    notes += _failing(team_ids)
    notes += _long_waits(team_ids, now)
    return notes[:MOST_NOTES]


def _concerns(found: Finding, team_ids: Collection[int] | None) -> bool:
    return team_ids is None or found.team_id in team_ids


def _finding(found: Finding) -> Note:
    if found.kind == Finding.Kind.IDLE and found.job is not None:
        return Note(
            "wait",
            "thermometer",
            _("%(job)s holds GPUs that it does not use") % {"job": found.job.name},
            reverse("job", args=[found.job_id]),
        )
    name = found.node.name if found.node is not None else ""
    address = reverse("pool", args=[found.node.pool.name]) if found.node is not None else ""
    return Note("wait", "gauge", _("Node %(node)s is slower than its like") % {"node": name}, address)


def _failing(team_ids: Collection[int] | None) -> list[Note]:
    """Nodes that are down and failed devices; for a team only where its own jobs are."""
    nodes = Node.objects.filter(Q(state=Node.State.DOWN) | Q(devices__health="failed")).distinct()
    if team_ids is not None:
        nodes = nodes.filter(allocations__team_id__in=team_ids, allocations__released_at__isnull=True)
    notes = []
    for node in nodes.select_related("pool").order_by("name", "pk")[:MOST_NOTES]:
        down = node.state == Node.State.DOWN
        text = _("Node %(node)s is down") if down else _("Node %(node)s has a failed device")
        notes.append(
            Note(
                "bad",
                "server-off" if down else "alert-triangle",
                text % {"node": node.name},
                reverse("pool", args=[node.pool.name]),
            )
        )
    return notes


def _long_waits(team_ids: Collection[int] | None, now: datetime) -> list[Note]:
    waiting = Job.objects.filter(state=Job.State.PENDING, hold="", submitted_at__lt=now - LONG_WAIT)
    if team_ids is not None:
        waiting = waiting.filter(team_id__in=team_ids)
    first = waiting.order_by("submitted_at", "id").first()
    if first is None:
        return []
    count = waiting.count()
    minutes = int((now - first.submitted_at).total_seconds() // 60)
    if count == 1:
        text = _("%(job)s has waited for %(minutes)d minutes") % {"job": first.name, "minutes": minutes}
    else:
        text = _("%(count)d jobs have waited for more than half an hour; %(job)s for %(minutes)d minutes") % {
            "count": count,
            "job": first.name,
            "minutes": minutes,
        }
    reason = first.reasons[0]["message"] if first.reasons else ""
    return [Note("wait", "clock-pause", text, reverse("job", args=[first.pk]), reason)]
