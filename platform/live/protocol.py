"""The language of the live socket: JSON texts over a WebSocket at ``/ws/``.

Who may connect: a signed-in browser (session cookie, from an allowed origin), or a script with
``Authorization: Bearer TOKEN`` (scope ``read``). Nothing is ever changed over the socket: it has no commands, only
subscriptions.

From the client
---------------
``{"subscribe": "team", "team": "nlp", "after": 4711}``   jobs, quotas and notices of the team and of all teams below it
``{"subscribe": "pool", "pool": "train", "after": 4711}`` devices, nodes and totals of a pool; ``"snapshot": true``
    sends all of its devices and nodes first
``{"subscribe": "job", "id": 12, "after": 4711}``         one job, with its cost and its use every few seconds
``{"unsubscribe": …}``  with the same words; ``{"ping": anything}`` is answered by ``{"pong": anything}``

``after`` is the last sequence number that the client knows: what it missed since is sent from the event log (the
latest state of each thing, not every step). Left out: from now on. Any subscription may carry a ``ref`` (text or
number), which comes back with the answer.

From the server
---------------
``{"subscribed": {…the subscription…}, "seq": n}``         it holds; what happened up to n is on its way or was known
``{"unsubscribed": {…}}``
``{"ended": {…}, "why": "not_visible"}``                   it held, and is no longer allowed
``{"error": {"code", "message", "field"?, "allowed"?}}``   the message was not understood or not allowed; the socket
    lives on. Codes: ``not_json``, ``invalid``, ``unknown``, ``not_found``, ``too_many``, ``too_large`` (which closes).
A frame, at most four a second:

::

    {"seq": 4711,
     "events": [{"seq": 4709, "at": "2026-03-02T09:00:00.123Z", "kinds": ["job.state"], "team": "nlp",
                 "job": {"id": 12, "version": 3, "name": "train", "state": "running", "pool": "train", "user": "bob",
                         "hold": "", "ending": "", "reasons": [{"code", "message"}], "submitted_at", "started_at",
                         "ended_at", "estimated_start", "exit_code", "preemptions", "tasks", "gpus_milli"}},
                {"seq": 4710, "at": …, "kinds": ["quota.set"], "team": "nlp", "pool": "train"},
                {"seq": 4711, "at": …, "kinds": ["notice"], "team": "nlp", "notice": {"code", "job"?, "numbers"}}],
     "devices": [[id, compute_allocated_milli, memory_allocated_mib, "ok" | "failed", used_milli | null,
                  used_memory_mib | null, [[job_id, "team", compute_milli, memory_mib], …]], …],
     "nodes": [[id, "ready" | "cordoned" | "draining" | "down"], …],
     "pools": {"train": {"capacity_milli", "allocated_milli", "used_milli" | null, "devices", "failed"}},
     "readings": [[job_id, allocated_milli, used_milli | null, memory_mib | null, "cost" | null], …],
     "resync": true}

Keys without content are left out; ``{"seq": n}`` alone is a sign of life (every 15 s). ``seq`` is the place to resume
from. All that happened to one job, device, node or pool since the last frame is one entry: its latest state, with the
kinds of events that led there. ``resync``: too much was missed to tell; read the page anew.

What nobody hears: a job, a name, a user, a slice or a use of a team that it may not see. Of a pool everyone who is
signed in hears the devices' fill and health and the nodes' states; slices only of teams that it may see.

Close codes: 4401 not (or no longer) signed in; 4403 nothing left that may be heard; 4408 too slow to follow; 1009 a
message above 8,192 characters; 1012 the server restarts. A foreign origin is refused with 403 at the handshake.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

LONGEST_MESSAGE = 8192
MOST_SUBSCRIPTIONS = 50
LARGEST_ID = 2**63 - 1
SUBJECTS = {"team": "team", "pool": "pool", "job": "id"}  # what is subscribed to, and the field that names it

SIGNED_OUT, NOTHING_LEFT, TOO_SLOW, TOO_LARGE, BROKEN = 4401, 4403, 4408, 1009, 1011


class Misunderstood(Exception):
    """A message that is not in the protocol or asks for what is not there; told back, changes nothing."""

    def __init__(self, code: str, message: str, *, field: str | None = None, allowed: list[str] | None = None):
        super().__init__(message)
        self.told: dict[str, Any] = {"code": code, "message": message}
        if field is not None:
            self.told["field"] = field
        if allowed is not None:
            self.told["allowed"] = allowed


@dataclass(frozen=True, slots=True)
class Subscription:
    """What somebody wants to hear: ``name`` is a team's slug, a pool's name or a job's id as text."""

    subject: Literal["team", "pool", "job"]
    name: str

    def words(self) -> dict[str, Any]:
        field = SUBJECTS[self.subject]
        return {"subscribe": self.subject, field: int(self.name) if self.subject == "job" else self.name}


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a client, understood."""

    verb: Literal["subscribe", "unsubscribe", "ping"]
    subscription: Subscription | None = None
    after: int | None = None
    snapshot: bool = False
    ref: str | int | None = None
    payload: Any = None


def understood(text: str) -> Message:
    """The message in ``text``. Raises Misunderstood, with the field and what is allowed, for anything else."""
    try:
        body = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Misunderstood("not_json", "A message is a JSON object.") from None
    if not isinstance(body, dict):
        raise Misunderstood("invalid", "A message is a JSON object.")
    verbs = [verb for verb in ("subscribe", "unsubscribe", "ping") if verb in body]
    if len(verbs) != 1:
        allowed = ["subscribe", "unsubscribe", "ping"]
        raise Misunderstood("unknown", "There is nothing else to say over this socket.", allowed=allowed)
    ref = body.get("ref")
    if ref is not None and (isinstance(ref, bool) or not isinstance(ref, str | int)):
        raise Misunderstood("invalid", "ref is a text or a whole number.", field="ref")
    if verbs == ["ping"]:
        return Message("ping", payload=body["ping"], ref=ref)
    verb: Literal["subscribe", "unsubscribe"] = "subscribe" if verbs == ["subscribe"] else "unsubscribe"
    snapshot = body.get("snapshot", False)
    if not isinstance(snapshot, bool):
        raise Misunderstood("invalid", "snapshot is true or false.", field="snapshot")
    return Message(verb, _subscription(verb, body), _after(body), snapshot, ref)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _subscription(verb: str, body: Mapping[str, Any]) -> Subscription:
    subject = body[verb]
    if not isinstance(subject, str) or subject not in SUBJECTS:
        raise Misunderstood("invalid", "One can hear of a team, a pool or a job.", field=verb, allowed=list(SUBJECTS))
    field = SUBJECTS[subject]
    name = body.get(field)
    if subject == "job":
        if isinstance(name, bool) or not isinstance(name, int) or not 0 < name <= LARGEST_ID:
            raise Misunderstood("invalid", "id is the id of a job.", field=field)
        return Subscription("job", str(name))
    if not isinstance(name, str) or not 0 < len(name) <= 63:
        raise Misunderstood("invalid", f"{field} is the name of a {subject}.", field=field)
    return Subscription("team" if subject == "team" else "pool", name)


def _after(body: Mapping[str, Any]) -> int | None:
    after = body.get("after")
    if after is None:
        return None
    if isinstance(after, bool) or not isinstance(after, int) or not 0 <= after <= LARGEST_ID:
        raise Misunderstood("invalid", "after is a sequence number, 0 or more.", field="after")
    return after


def encode(body: object) -> str:
    """Compact JSON; a NaN is an error here, never on the wire."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def moment(at: datetime | None) -> str | None:
    """UTC, to the millisecond, as ``2026-03-02T09:00:00.123Z``."""
    return None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
