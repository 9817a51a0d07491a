"""Asks the engines what is used and keeps it: the last reading of everything, now and then a sample of the pools."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scheduling.services.reconcile import Reconciler
from telemetry.services import record_utilization, sample_pools

log = logging.getLogger(__name__)


@dataclass
class Sampler:
    """``step`` is called every few seconds. An engine that cannot be asked leaves its devices unknown, and only its."""

    sample_every: timedelta = timedelta(seconds=10)
    _sampled_at: datetime | None = None
    _silent: set[int] = field(default_factory=set)

    def step(self, now: datetime, reconcilers: Sequence[Reconciler]) -> int:
        """Readings are those of ``now``; returns how many there are."""
        readings = sum(self._ask(reconciler, now) for reconciler in reconcilers)
        if self._sampled_at is None or not timedelta(0) <= now - self._sampled_at < self.sample_every:
            sample_pools(now)
            self._sampled_at = now
        return readings

    def _ask(self, reconciler: Reconciler, now: datetime) -> int:
        connection = reconciler.connection
        try:
            utilization = reconciler.engine.utilization(now)
        except Exception:
            # Whatever an engine's driver raises, the other engines are still asked. Said once, not every few seconds.
            if connection.pk not in self._silent:
                log.warning("engine %s does not tell its utilization", connection.name, exc_info=True)
            self._silent.add(connection.pk)
            return 0
        self._silent.discard(connection.pk)
        return record_utilization(connection, utilization, now)
