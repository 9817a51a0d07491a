"""The loops that a running installation consists of beside the web: scheduler, engines, sampler.

Each runs in a thread under ``manage.py up`` or in a process of its own (``manage.py scheduler``). A fault in one pass
is logged and the next pass tries again; a loop ends only when it is told to.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.conf import settings
from django.db import close_old_connections, connection
from django.utils import timezone

from events.services import bell
from inventory.models import EngineConnection, Pool
from inventory.services import FoundDevice, FoundNode, set_engine_state, sync_nodes
from scheduling.engines.base import NodeFound
from scheduling.engines.registry import NoEngine, make_engine
from scheduling.services.cycle import Scheduler
from scheduling.services.lease import LEASE_TIME, LostLease
from scheduling.services.reconcile import Reconciler
from telemetry.sampler import Sampler

log = logging.getLogger(__name__)

POLL_S = 0.25  # how soon a change made by another process is seen
BREATH_S = 0.02  # between two passes, so that a burst is taken together
SAMPLE_S = 5.0
INVENTORY_S = 60.0
TROUBLE_S = 1.0
PRUNE_S = 3600.0


def holder_name() -> str:
    """A name for this process that no other has, for the lease."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


@dataclass
class Loop:
    """Something done again and again until ``stop`` is set. ``step`` returns how long to wait at most after it."""

    name: str
    step: Callable[[datetime], float]
    stop: threading.Event
    end: Callable[[], None] = lambda: None
    wakes: bool = True

    def run(self) -> None:
        seen = 0
        try:
            while not self.stop.is_set():
                wait = self._pass()
                if self.wakes:
                    seen = bell.wait(seen, wait)
                    self.stop.wait(BREATH_S)
                else:
                    self.stop.wait(wait)
        finally:
            try:
                self.end()
            except Exception:
                log.exception("%s did not end cleanly", self.name)
            connection.close()

    def _pass(self) -> float:
        try:
            return self.step(timezone.now())
        except Exception:
            # Whatever it was, the work is still there and nobody else does it: say so and go on.
            log.exception("%s: a pass failed and will be tried again", self.name)
            close_old_connections()
            return TROUBLE_S

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self.run, name=self.name, daemon=True)
        thread.start()
        return thread


@dataclass
class SchedulerLoop:
    """Leads if nobody else does, and runs a cycle whenever something changed."""

    scheduler: Scheduler
    _kept_at: datetime | None = None

    def step(self, now: datetime) -> float:
        if not self.scheduler.lead(now):
            return 1.0
        try:
            result = self.scheduler.cycle(now)
            if result.renewed:
                self._kept_at = now
            elif self._kept_at is None or now - self._kept_at > LEASE_TIME / 4:
                self.scheduler.keep(now)
                self._kept_at = now
        except LostLease:
            log.warning("another scheduler leads now")
            self.scheduler.lease = None
        return POLL_S

    def end(self) -> None:
        self.scheduler.stand_down()


@dataclass
class EngineLoop:
    """Keeps the engines and the database in step, one reconciler a connection."""

    reconcilers: dict[int, Reconciler] = field(default_factory=dict)
    _inventory_at: datetime | None = None

    def step(self, now: datetime) -> float:
        if self._inventory_at is None or now - self._inventory_at > timedelta(seconds=INVENTORY_S):
            self._connect(now)
            self._inventory_at = now
        wait = POLL_S
        for reconciler in list(self.reconcilers.values()):
            if reconciler.step(now):
                wait = 0.0
            moment = reconciler.engine.next_change()
            if moment is not None:
                wait = min(wait, max(0.0, (moment - timezone.now()).total_seconds()))
        return wait

    def _connect(self, now: datetime) -> None:
        """Every enabled connection has a reconciler, and its pools the nodes that its engine sees."""
        for found in EngineConnection.objects.filter(enabled=True).order_by("pk"):
            if found.pk not in self.reconcilers:
                try:
                    engine = make_engine(
                        found, local_root=settings.LOCAL_ENGINE_DIR, local_enabled=settings.LOCAL_ENGINE_ENABLED
                    )
                except NoEngine as error:
                    set_engine_state(found, EngineConnection.State.LOST, now, str(error))
                    continue
                self.reconcilers[found.pk] = Reconciler(found, engine)
            nodes = self.reconcilers[found.pk].engine.inventory(now)
            if nodes is not None:
                for pool in Pool.objects.filter(engine=found).order_by("pk"):
                    sync_nodes(pool, [as_found(node) for node in nodes], now)
            set_engine_state(found, EngineConnection.State.OK, now)

    def prune(self, now: datetime) -> float:
        """Folders of local tasks that ended long ago are gone; what became of them has long been recorded."""
        for reconciler in list(self.reconcilers.values()):
            prune = getattr(reconciler.engine, "prune", None)
            if prune is not None:
                prune(now - timedelta(days=settings.LOCAL_LOG_DAYS))
        return PRUNE_S

    def end(self) -> None:
        for reconciler in self.reconcilers.values():
            reconciler.engine.close()


def as_found(node: NodeFound) -> FoundNode:
    """The engine's word for a node as the inventory's: the inventory knows no engines."""
    devices = tuple(
        FoundDevice(each.index, each.uuid, each.model, each.vendor, each.memory_mib, each.healthy)
        for each in node.devices
    )
    return FoundNode(node.name, node.cpu_milli, node.host_memory_mib, devices, node.ready, dict(node.labels))


def sampler_step(sampler: Sampler, engines: EngineLoop) -> Callable[[datetime], float]:
    """One sampling of all engines, then a pause."""

    def step(now: datetime) -> float:
        sampler.step(now, list(engines.reconcilers.values()))
        return SAMPLE_S

    return step


def core_loops(stop: threading.Event, *, holder: str | None = None) -> Sequence[Loop]:
    """The scheduler, the engines and the sampler, ready to be started."""
    leader = SchedulerLoop(Scheduler(holder or holder_name(), reason_interval=timedelta(seconds=3)))
    engines = EngineLoop()
    return (
        Loop("engines", engines.step, stop, engines.end),
        Loop("scheduler", leader.step, stop, leader.end),
        Loop("pruning", engines.prune, stop, wakes=False),
        Loop("sampler", sampler_step(Sampler(), engines), stop, wakes=False),
    )
