"""How the services ask the core for a plan: undisturbed, and not again where nothing has changed.

A plan that starts nobody and tells nobody to give way changes nothing; as long as what it was made from is the same,
and no moment has come that it looked ahead to, it is what would be decided again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from scheduling.core import decide as core_decide
from scheduling.core import model as core


def decide(snapshot: core.Snapshot, policy: core.Policy) -> core.Plan:
    """The core's plan. It makes much that is soon given up and nothing that only the collector could free, while every
    full collection walks the whole picture: with 12,000 nodes that is half of the time."""
    with collector_resting():
        return core_decide.decide(snapshot, policy)


@contextmanager
def collector_resting() -> Iterator[None]:
    """No collection begins by itself meanwhile. For what makes much that is gone again by its end: what a collection
    finds alive in the middle of it is kept for long, and sooner or later all of that is walked."""
    resting = not gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not resting:
            gc.enable()


@dataclass
class Standing:
    """The last plan, if it stands. ``keep`` after a decision, ``plan_for`` before the next one."""

    _plan: core.Plan | None = None
    _seen: tuple[Any, ...] = field(default=())
    _until: int | None = None  # the first moment that could lead to another plan by itself; microseconds

    def keep(self, snapshot: core.Snapshot, policy: core.Policy, plan: core.Plan) -> None:
        acts = plan.starts or plan.evictions or plan.broken
        stands = not acts and not any(pool.past_use for pool in snapshot.pools)
        self._plan, self._seen = (plan, _seen(snapshot, policy)) if stands else (None, ())
        self._until = min((each for each in _moments(snapshot) if each > snapshot.now), default=None)

    def plan_for(self, snapshot: core.Snapshot, policy: core.Policy) -> core.Plan | None:
        if self._plan is None or (self._until is not None and snapshot.now >= self._until):
            return None
        if self._seen != _seen(snapshot, policy):
            return None
        return self._plan


def _moments(snapshot: core.Snapshot) -> Iterator[int]:
    """When something ends or loses its protection. Whoever had to stay out of room that is kept until such a moment
    has to stay out of it all the more as the moment comes nearer."""
    for job in snapshot.running:
        yield job.protected_until
        if job.ends_at is not None:
            yield job.ends_at
        yield from (task.ends_at for task in job.tasks if task.ends_at is not None)


def _seen(snapshot: core.Snapshot, policy: core.Policy) -> tuple[Any, ...]:
    """What a plan is made from, but for the moment. Fleets by their versions: they, and what is counted of them, change
    only with these. Jobs that have not changed are the same objects, so long queues are compared at once."""
    pools = tuple((pool.id, pool.name, pool.fleet, pool.fleet.version, pool.available) for pool in snapshot.pools)
    quotas = tuple(dict(pool.quotas) for pool in snapshot.pools)
    return (policy, snapshot.teams, snapshot.pending, snapshot.running, pools, quotas)
