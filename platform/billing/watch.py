"""What the scheduler asks of money (the port ``budgets``), and the watch that lets budgets and packages act on time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from events.services import last_seq

# After these there may be something to watch that was not there before.
MONEY_EVENTS = ("budget.set", "budget.removed", "package.added", "package.confirmed")
FLEET_EVENTS = ("pool.created", "pool.changed", "nodes.added", "nodes.changed", "node.state", "device.health")
# After these what is spent, by whom and how fast may be another.
WORK_EVENTS = (
    *("allocations.bound", "allocations.released", "rate.set", "team.moved", "team.deleted"),
    *("job.submitted", "job.state", "job.released"),
)


class LedgerBudgets:
    """The budgets as they are in the books."""

    def spent(self, team_ids: Collection[int]) -> Mapping[int, Mapping[str, object]]:
        from billing.services.budgets import spent_over

        return spent_over(team_ids)

    def settle(self, now: datetime) -> None:
        from billing.services.budgets import due, look_at_budgets

        if due(now):
            look_at_budgets(now)

    def watch(self, patience: timedelta = timedelta(0)) -> Watch:
        return Watch(patience)


@dataclass
class Watch:
    """Looks at budgets and packages when something happened that concerns them, and at the moment at which, at the
    present rate, something will. ``patience``: how long it may leave what happened since its last look."""

    patience: timedelta = timedelta(0)
    needed: bool = True  # whether there is anything to watch
    _seq: int = -1
    _fleet_seq: int = -1
    _looked_at: datetime | None = None
    _due: datetime | None = None

    def step(self, now: datetime) -> int:
        """Everything that money has to do up to ``now`` is done, or will be within ``patience``; returns how many
        things changed."""
        self._note_fleet(now)
        kinds = (*MONEY_EVENTS, *WORK_EVENTS) if self.needed else MONEY_EVENTS
        seq = last_seq(self._seq, kinds)
        due = self._due is not None and self._due <= now
        if seq == self._seq and not due:
            return 0
        if not due and self._looked_at is not None and now - self._looked_at < self.patience:
            return 0
        return self._look(seq, now)

    def next_change(self) -> datetime | None:
        """When something will happen by itself, if all that runs goes on."""
        return self._due

    def _note_fleet(self, now: datetime) -> None:
        from billing.services.capacity import note_capacity

        seq = last_seq(self._fleet_seq, FLEET_EVENTS)
        if seq != self._fleet_seq:
            note_capacity(now)
            self._fleet_seq = seq

    def _look(self, seq: int, now: datetime) -> int:
        from billing.services.budgets import look_at_budgets
        from billing.services.runout import look_at_packages

        packages = look_at_packages(now)
        budgets = look_at_budgets(now)
        moments = [moment for moment in (packages.next_at, budgets.next_at) if moment is not None]
        self._due = min(moments, default=None)
        self.needed = packages.any or budgets.any
        self._seq, self._looked_at = seq, now
        return packages.changed + budgets.changed
