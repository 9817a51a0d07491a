"""What each state is called, its tone (a token in ``static/css/tokens.css``) and its icon, the same on every page.

A status is told by its word and its icon as well as by its colour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


@dataclass(frozen=True, slots=True)
class Status:
    """How a state is shown. ``tone`` is one of the ``--tone-*`` tokens."""

    label: str | Promise
    tone: str
    icon: str


JOB: Mapping[str, Status] = {
    "pending": Status(_("Pending"), "wait", "hourglass"),
    "held": Status(_("Held"), "hold", "player-pause"),
    "starting": Status(_("Starting"), "start", "rocket"),
    "running": Status(_("Running"), "run", "player-play"),
    "stopping": Status(_("Stopping"), "wait", "player-stop"),
    "succeeded": Status(_("Succeeded"), "good", "circle-check"),
    "failed": Status(_("Failed"), "bad", "alert-circle"),
    "cancelled": Status(_("Cancelled"), "quiet", "ban"),
}
ALLOCATION: Mapping[str, Status] = {
    "bound": Status(_("Bound"), "start", "rocket"),
    "running": Status(_("Running"), "run", "player-play"),
    "releasing": Status(_("Stopping"), "wait", "player-stop"),
    "released": Status(_("Released"), "quiet", "check"),
}
NODE: Mapping[str, Status] = {
    "ready": Status(_("Ready"), "good", "circle-check"),
    "cordoned": Status(_("Cordoned"), "wait", "lock"),
    "draining": Status(_("Draining"), "wait", "player-skip-forward"),
    "down": Status(_("Down"), "bad", "server-off"),
}
DEVICE: Mapping[str, Status] = {
    "ok": Status(_("Healthy"), "good", "circle-check"),
    "failed": Status(_("Failed"), "bad", "alert-triangle"),
}
POOL: Mapping[str, Status] = {
    "active": Status(_("Active"), "good", "circle-check"),
    "paused": Status(_("Paused"), "wait", "player-pause"),
}
ENGINE: Mapping[str, Status] = {
    "ok": Status(_("Reachable"), "good", "plug-connected"),
    "unknown": Status(_("Not seen yet"), "quiet", "plug"),
    "lost": Status(_("Out of reach"), "bad", "plug-connected-x"),
}
KINDS: Mapping[str, Mapping[str, Status]] = {
    "job": JOB,
    "task": JOB,
    "allocation": ALLOCATION,
    "node": NODE,
    "device": DEVICE,
    "pool": POOL,
    "engine": ENGINE,
}
UNKNOWN = Status(_("Unknown"), "quiet", "help")


def status_of(kind: str, state: str) -> Status:
    """The status of ``state`` among those of ``kind``; a state that nobody named is shown as unknown, never hidden."""
    return KINDS[kind].get(state, UNKNOWN)


def job_state_shown(state: str, hold: str, ending: str) -> str:
    """What people call a job's state: one that waits and is held is ``held``, one that is told to stop ``stopping``."""
    if state == "pending" and hold:
        return "held"
    if state in ("starting", "running") and ending == "cancelled":
        return "stopping"
    return state
