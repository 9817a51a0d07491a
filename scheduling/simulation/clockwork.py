"""Drives a scheduler and its engines through virtual time: from event to event, never by waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scheduling import ports
from scheduling.core import model as core
from scheduling.services.cycle import Scheduler
from scheduling.services.reconcile import Reconciler


class Unsettled(Exception):
    """The world kept changing at one moment without end: a fault of the policy or of ours."""


@dataclass
class Watcher:
    """Looks at what is used, as a sampler does, while a job runs that would be ended for doing nothing; only then."""

    every: timedelta = timedelta(seconds=30)  # a reading that is older says nothing any more
    next_look: datetime | None = None

    def step(self, now: datetime, scheduler: Scheduler, reconcilers: Sequence[Reconciler]) -> int:
        """Looks if it is time to; returns 1 where it did, for then something may have changed."""
        if self.next_look is not None and now < self.next_look:
            return 0
        limited = any(pool.row.idle_limit_s is not None for pool in scheduler.picture.pools.values())
        if not limited or not ports.idleness.watches():
            self.next_look = None
            return 0
        for reconciler in reconcilers:
            ports.idleness.look(reconciler.connection, reconciler.engine.utilization(now), now)
        self.next_look = now + self.every
        return 1


@dataclass
class Clockwork:
    """``now`` is the virtual moment. Everything that is due at it has happened after ``settle``.

    ``pace`` is told (present moment, next one) before time goes on, so that a caller can make people wait for it.
    """

    now: datetime
    scheduler: Scheduler
    reconcilers: Sequence[Reconciler]
    decisions: int = 0
    cycles: int = 0
    deciding_s: float = field(default=0.0)
    pace: Callable[[datetime, datetime], None] | None = None
    watch: ports.Watch = field(default_factory=lambda: ports.budgets.watch())
    watcher: Watcher | None = None

    def settle(self, rounds: int = 200) -> core.Plan | None:
        """Cycles and reconciles at this moment until nothing changes; returns the last plan that was made, if any."""
        plan = None
        for _ in range(rounds):
            changed = sum(reconciler.step(self.now) for reconciler in self.reconcilers)
            changed += self.watch.step(self.now)
            if self.watcher is not None:
                changed += self.watcher.step(self.now, self.scheduler, self.reconcilers)
            result = self.scheduler.cycle(self.now)
            if result.plan is not None:
                plan = result.plan
                self.cycles += 1
                self.deciding_s += result.deciding_s
                self.decisions += result.considered
            moved = result.started or result.evicted or result.conflicts or result.sent_back
            if not changed and not moved:
                self.scheduler.estimate(self.now)
                return plan
        raise Unsettled(f"still changing at {self.now.isoformat()} after {rounds} rounds")

    def next_change(self) -> datetime | None:
        """The next moment at which something happens by itself: an engine reports, a quota begins or ends, a job may be
        told to give way that was left alone until then, shares have moved with what was used meanwhile, a replica is
        started again, a budget is spent or its period ends, a package runs out."""
        moments = [moment for each in self.reconcilers if (moment := each.engine.next_change()) is not None]
        picture = self.scheduler.picture
        look = self.watcher.next_look if self.watcher is not None else None
        due = (picture.claims_change_at, picture.protected_until, picture.shares_move_at, picture.rests_until)
        moments += [moment for moment in (*due, look, self.watch.next_change()) if moment is not None]
        return min(moments, default=None)

    def run_until(self, end: datetime) -> None:
        """Time goes on to ``end`` (inclusive), with a settling at every moment at which something happens by itself."""
        while (moment := self.next_change()) is not None and moment <= end:
            self._go_to(moment)
            self.settle()
        self._go_to(end)

    def _go_to(self, moment: datetime) -> None:
        if moment > self.now:
            if self.pace is not None:
                self.pace(self.now, moment)
            self.now = moment
