"""The event log as those who follow it may see it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Q

from events.models import Event
from events.services import bell
from inventory.models import Pool
from scheduling.core.units import gpus_from_milli
from scheduling.selectors import last_event
from scheduling.telling import reason_told
from tenants.models import Membership, Team, User
from tenants.policy import sees_everything, visible_team_ids

# Of events about the fleet itself, what everybody may know: kind → the parts of its data. Other kinds are for those
# who see everything; reasons that an operator wrote may name anything.
FLEET: Mapping[str, tuple[str, ...]] = {
    "pool.created": ("name",),
    "pool.changed": ("changed",),
    "nodes.added": ("names", "count"),
    "nodes.changed": ("names", "count"),
    "node.state": ("node", "before", "after"),
    "device.health": ("device_id", "before", "after"),
    "engine.state": ("engine", "before", "after"),
    "model.created": ("name",),
    "model.changed": ("name", "changed"),
    "fleet.changed": ("devices",),
    "priority_class.set": ("name", "value"),
    "rate.set": ("model", "per_hour", "effective_from"),
}
# About a person: told to that person.
PERSONAL = ("token.issued", "token.revoked")
# Reasons whose sentence may name teams for which something is kept, or jobs that come first or give way.
NAMING = ("over_share", "reserved_for", "waiting_for_preemption")
QUOTA_FIELDS = ("guaranteed", "limit", "reserved", "per_user_limit")
POLL_S = 0.5  # how long an event that another process committed may go unnoticed by who waits
MOST_WAITING = 64
_waiting = threading.BoundedSemaphore(MOST_WAITING)


@dataclass(frozen=True, slots=True)
class Piece:
    """Events in order, and the number to go on from: all up to ``last`` was looked at."""

    events: list[dict[str, Any]]
    last: int


def follow(user: Any, after: int, limit: int, wanted: Mapping[str, Any] | None = None, *, wait_s: float = 0) -> Piece:
    """The first ``limit`` events after number ``after`` that ``user`` may see and the filter ``wanted`` leaves.

    Where there is none, waits up to ``wait_s`` seconds for one (not at all where too many wait already).
    """
    piece = _look(user, after, limit, wanted)
    if piece.events or wait_s <= 0 or not _waiting.acquire(blocking=False):
        return piece
    try:
        end = time.monotonic() + wait_s
        rung = bell.wait(-1, 0)
        while not piece.events and (left := end - time.monotonic()) > 0:
            rung = bell.wait(rung, min(left, POLL_S))
            if last_event() > piece.last:
                piece = _look(user, piece.last, limit, wanted)
        return piece
    finally:
        _waiting.release()


def _look(user: Any, after: int, limit: int, wanted: Mapping[str, Any] | None) -> Piece:
    # The end first: what is committed between the two reads is left for the next time, never passed over.
    end = last_event()
    seen = visible_team_ids(user)
    rows = Event.objects.filter(audible(user, seen), seq__gt=after, seq__lte=end, **(wanted or {}))
    found = list(rows.order_by("seq")[:limit])
    last = found[-1].seq if len(found) == limit else max(after, end)
    return Piece(told(found, user, seen), last)


def audible(user: Any, seen: set[int] | None) -> Q:
    """The events that ``user`` may hear of at all; ``seen``: ids of the teams that it may see, None for all."""
    if seen is None:
        return Q()
    return (
        Q(team_id__in=seen)
        | Q(team_id__isnull=True, kind__in=list(FLEET))
        | Q(team_id__isnull=True, kind__in=PERSONAL, actor_id=user.pk)
    )


def told(events: Sequence[Event], user: Any, seen: set[int] | None) -> list[dict[str, Any]]:
    """The events as they are sent: things by name, data in people's units, nothing of teams that are not seen."""
    teams = dict(Team.objects.filter(pk__in={event.team_id for event in events}).values_list("pk", "slug"))
    pools = dict(Pool.objects.filter(pk__in={event.pool_id for event in events}).values_list("pk", "name"))
    names = _actor_names({event.actor_id for event in events if event.actor_id}, user, seen)
    slugs = None if seen is None else frozenset(Team.objects.filter(pk__in=seen).values_list("slug", flat=True))
    return [
        {
            "seq": event.seq,
            "at": event.at,
            "kind": event.kind,
            "team": teams.get(event.team_id) if event.team_id else None,
            "pool": pools.get(event.pool_id) if event.pool_id else None,
            "job": event.job_id,
            "node": event.node_id,
            "actor": names.get(event.actor_id) if event.actor_id else None,
            "data": _data(event, slugs),
        }
        for event in events
    ]


def _actor_names(ids: Iterable[int], user: Any, seen: set[int] | None) -> dict[int, str]:
    """Names of the actors that the reader may know: itself, members of teams that it sees, and operators."""
    people = User.objects.filter(pk__in=set(ids))
    if not sees_everything(user):
        members = Membership.objects.filter(team_id__in=seen or ()).values("user_id")
        people = people.filter(Q(pk=user.pk) | Q(is_operator=True) | Q(pk__in=members))
    return dict(people.values_list("pk", "username"))


def _data(event: Event, slugs: frozenset[str] | None) -> dict[str, Any]:
    data = {name: value for name, value in event.data.items() if name != "session"}
    if event.team_id is None and slugs is not None:
        data = {name: data[name] for name in FLEET.get(event.kind, ()) if name in data}
    if event.kind == "quota.set":
        changed = data.get("changed", {})
        data["changed"] = {
            name: [None if each is None else gpus_from_milli(each) for each in pair] if name in QUOTA_FIELDS else pair
            for name, pair in changed.items()
        }
        if slugs is not None:
            data.pop("warnings", None)  # they name the team above
    if event.kind == "job.reasons":
        data["reasons"] = [_reason(each, slugs) for each in data.get("reasons", [])]
    return data


def _reason(reason: Mapping[str, Any], slugs: frozenset[str] | None) -> dict[str, Any]:
    if "numbers" in reason:
        return reason_told(reason, "gpu", slugs)
    if slugs is not None and reason["code"] in NAMING:
        return {"code": reason["code"]}
    return dict(reason)
