"""What the scheduler needs from apps above it, as interfaces that they fill in when they load.

``scheduling`` may not import ``billing``; yet a usage record opens and closes in the transaction that binds and frees.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from inventory.models import EngineConnection
    from scheduling.engines.base import Utilization
    from scheduling.models import Allocation


@dataclass(frozen=True, slots=True)
class Cost:
    """What was used and what it costs until a moment: exact, not rounded. ``milli_seconds``: milli-GPU × seconds."""

    amount: Decimal
    milli_seconds: Decimal
    running: bool


class Meter(Protocol):
    """Keeps the accounts of allocations. All calls are made inside the caller's transaction."""

    def opened(self, allocations: Sequence[Allocation], at: datetime) -> None:
        """Each allocation has one open usage record that begins at ``at``."""

    def closed(self, allocations: Sequence[Allocation], at: datetime, *, waived: str = "") -> None:
        """No allocation has an open record; what was used until ``at`` is recorded, rate by rate. Again: nothing."""

    def settled_until(self, allocation_ids: Iterable[int]) -> Mapping[int, datetime]:
        """Up to when what each allocation used is on record for good; those of which nothing is are left out."""

    def job_costs(self, job_ids: Iterable[int], now: datetime) -> Mapping[int, Cost]:
        """The cost so far of each job, its open records counted up to ``now``; jobs without usage are left out."""

    def price_per_hour(self, pool_id: int, model_id: int | None, class_id: int, milli: int, now: datetime) -> Decimal:
        """What ``milli`` would cost an hour at the rate in force at ``now``."""


class Watch(Protocol):
    """Lets money act on time: what is spent holds jobs and releases them, what runs out is cut."""

    def step(self, now: datetime) -> int:
        """Everything that is due at ``now`` has happened; returns how many things changed."""

    def next_change(self) -> datetime | None:
        """When something will happen by itself, if all that runs goes on as it does; None: never."""


class Budgets(Protocol):
    """Knows which teams may start nothing new because money is spent. Asked inside the caller's transaction."""

    def spent(self, team_ids: Collection[int]) -> Mapping[int, Mapping[str, object]]:
        """Of these teams those whose waiting jobs are held, because a budget of theirs or of a team above is spent;
        each with the numbers of the reason ``budget_spent``: team, budget, spent."""

    def settle(self, now: datetime) -> None:
        """What ``spent`` says is so at ``now``: a period that turned meanwhile has turned."""

    def watch(self, patience: timedelta = timedelta(0)) -> Watch:
        """A watch of one's own. ``patience``: how long it may leave what happened since its last look."""


class NothingToWatch:
    """Nobody set a budget, and nobody bought anything."""

    def step(self, now: datetime) -> int:
        return 0

    def next_change(self) -> datetime | None:
        return None


class NoBudgets:
    """The same, where no app above says otherwise."""

    def spent(self, team_ids: Collection[int]) -> Mapping[int, Mapping[str, object]]:
        return {}

    def settle(self, now: datetime) -> None:
        """There is nothing that could turn."""

    def watch(self, patience: timedelta = timedelta(0)) -> Watch:
        return NothingToWatch()


class Idleness(Protocol):
    """Ends interactive jobs that do nothing, by what is measured of them. Above scheduling, where samples are kept."""

    def watches(self) -> bool:
        """Whether any job runs now that would be ended for doing nothing."""

    def look(self, connection: EngineConnection, utilization: Utilization, now: datetime) -> None:
        """What is used at ``now`` is on record, and jobs that did nothing for too long are told to stop."""


meter: Meter
idleness: Idleness
budgets: Budgets = NoBudgets()
