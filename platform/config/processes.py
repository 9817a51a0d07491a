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
from django.db import DatabaseError, close_old_connections, connection
from django.utils import timezone

from events.services import bell
from inventory.models import EngineConnection, Pool
from inventory.services import FoundDevice, FoundNode, set_engine_state, sync_nodes
from scheduling import ports
from scheduling.core.fleet import compile_kernels
from scheduling.engines.base import NodeFound
from scheduling.engines.registry import NoEngine, make_engine
from scheduling.services import lease as leases
from scheduling.services.cycle import Scheduler
from scheduling.services.picture import looks_ahead_soon
from scheduling.services.reconcile import Reconciler
from telemetry.sampler import Sampler

log = logging.getLogger(__name__)

POLL_S = 0.25  # how soon a change made by another process is seen
BREATH_S = 0.02  # between two passes, so that a burst is taken together
SAMPLE_S = 5.0
INVENTORY_S = 60.0
TROUBLE_S = 1.0
STANDBY_S = 1.0  # between two looks whether the one who leads still does
PRUNE_S = 3600.0
PATIENCE = timedelta(seconds=5)  # how long what is spent may be looked at late; what is foreseen is on time
ESTIMATE_S = 15.0  # between two estimates of when waiting jobs start, while things change
AHEAD_S = 10.0  # between two looks whether look-ahead will be needed soon
ENGINES = "engines"  # the name of their lease


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
    watch: ports.Watch = field(default_factory=lambda: ports.budgets.watch(PATIENCE))
    _kept_at: datetime | None = None

    def step(self, now: datetime) -> float:
        if not self.scheduler.lead(now):
            return STANDBY_S
        self._watch_money(now)
        try:
            result = self.scheduler.cycle(now)
            self.scheduler.estimate(now)
            if result.renewed:
                self._kept_at = now
            elif self._kept_at is None or now - self._kept_at > leases.LEASE_TIME / 4:
                self.scheduler.keep(now)
                self._kept_at = now
        except leases.LostLease:
            log.warning("another scheduler leads now")
            self.scheduler.lease = None
        return POLL_S

    def _watch_money(self, now: datetime) -> None:
        """Budgets hold and release before the cycle decides; a fault in the books does not stop the scheduler."""
        try:
            self.watch.step(now)
        except Exception:
            log.exception("budgets and packages: a look failed and will be tried again")

    def end(self) -> None:
        self.scheduler.stand_down()


@dataclass
class EngineLoop:
    """Keeps the engines and the database in step, one reconciler a connection; in one process at a time, by a lease of
    its own, because two would launch the same task twice where they do not stand on the same machine.

    An engine that fails in whatever way is left alone for a moment; the others go on.
    """

    holder: str = field(default_factory=holder_name)
    reconcilers: dict[int, Reconciler] = field(default_factory=dict)
    lease: leases.Lease | None = None
    _inventory_at: datetime | None = None
    _kept_at: datetime | None = None
    _resting: dict[int, datetime] = field(default_factory=dict)

    def step(self, now: datetime) -> float:
        if not self._leads(now):
            return STANDBY_S
        if self._inventory_at is None or now - self._inventory_at > timedelta(seconds=INVENTORY_S):
            self._connect(now)
            self._inventory_at = now
        wait = POLL_S
        for key, reconciler in list(self.reconcilers.items()):
            if key in self._resting and now < self._resting[key]:
                continue
            self._resting.pop(key, None)
            try:
                changed = reconciler.step(now)
                moment = reconciler.engine.next_change()
            except DatabaseError:
                raise
            except Exception:
                log.exception("engine %s: a pass failed and will be tried again", reconciler.connection.name)
                self._resting[key] = now + timedelta(seconds=TROUBLE_S)
                continue
            if changed:
                wait = 0.0
            elif moment is not None:
                wait = min(wait, max(0.0, (moment - timezone.now()).total_seconds()))
        return wait

    def _leads(self, now: datetime) -> bool:
        try:
            if self.lease is None:
                self.lease = leases.acquire(self.holder, now, name=ENGINES)
            elif self._kept_at is None or not timedelta(0) <= now - self._kept_at <= leases.LEASE_TIME / 4:
                leases.renew(self.lease, now, name=ENGINES)
            else:
                return True
        except leases.LostLease:
            log.warning("another process keeps the engines now")
            self._let_go()
        self._kept_at = now
        return self.lease is not None

    def _let_go(self) -> None:
        """What runs goes on; who keeps the engines next finds it again."""
        reconcilers, self.reconcilers = list(self.reconcilers.values()), {}
        self.lease, self._inventory_at = None, None
        for reconciler in reconcilers:
            reconciler.engine.close()

    def _connect(self, now: datetime) -> None:
        """Every enabled connection has a reconciler, and its pools the nodes that its engine sees; what cannot be
        reached is known to be lost, so that nothing new is started there."""
        for found in EngineConnection.objects.filter(enabled=True).order_by("pk"):
            try:
                self._meet(found, now)
            except DatabaseError:
                raise
            except Exception as error:
                log.log(
                    logging.INFO if isinstance(error, NoEngine) else logging.ERROR,
                    "engine %s is out of reach",
                    found.name,
                    exc_info=not isinstance(error, NoEngine),
                )
                set_engine_state(found, EngineConnection.State.LOST, now, str(error))
            else:
                set_engine_state(found, EngineConnection.State.OK, now)

    def _meet(self, found: EngineConnection, now: datetime) -> None:
        if found.pk not in self.reconcilers:
            engine = make_engine(
                found, local_root=settings.LOCAL_ENGINE_DIR, local_enabled=settings.LOCAL_ENGINE_ENABLED
            )
            self.reconcilers[found.pk] = Reconciler(found, engine)
        nodes = self.reconcilers[found.pk].engine.inventory(now)
        if nodes is not None:
            for pool in Pool.objects.filter(engine=found).order_by("pk"):
                sync_nodes(pool, [as_found(node) for node in nodes], now)

    def prune(self, now: datetime) -> float:
        """Folders of local tasks that ended long ago are gone; what became of them has long been recorded."""
        for reconciler in list(self.reconcilers.values()):
            prune = getattr(reconciler.engine, "prune", None)
            if prune is not None:
                prune(now - timedelta(days=settings.LOCAL_LOG_DAYS))
        return PRUNE_S

    def end(self) -> None:
        if self.lease is not None:
            lease = self.lease
            self._let_go()
            leases.give_up(lease, name=ENGINES)


@dataclass
class LookAheadLoop:
    """Has look-ahead compiled by the time a pool has seen enough requests to be placed by it, beside the scheduler:
    that takes some 20 s of one core the first time on a machine."""

    compiled: threading.Event = field(default_factory=threading.Event)

    def step(self, now: datetime) -> float:
        if not self.compiled.is_set() and looks_ahead_soon():
            compile_kernels("lookahead")
            self.compiled.set()
        return AHEAD_S


def as_found(node: NodeFound) -> FoundNode:
    """The engine's word for a node as the inventory's: the inventory knows no engines."""
    devices = tuple(
        FoundDevice(each.index, each.uuid, each.model, each.vendor, each.memory_mib, each.healthy)
        for each in node.devices
    )
    return FoundNode(node.name, node.cpu_milli, node.host_memory_mib, devices, node.ready, dict(node.labels))


def sampler_step(sampler: Sampler, engines: EngineLoop) -> Callable[[datetime], float]:
    """One sampling of all engines, where they are kept, then a pause."""

    def step(now: datetime) -> float:
        if engines.lease is None:
            return STANDBY_S
        sampler.step(now, list(engines.reconcilers.values()))
        return SAMPLE_S

    return step


def core_loops(stop: threading.Event, *, holder: str | None = None) -> Sequence[Loop]:
    """The scheduler, the engines and the sampler, ready to be started."""
    holder = holder or holder_name()
    ahead = LookAheadLoop()
    leader = SchedulerLoop(
        Scheduler(
            holder,
            reason_interval=timedelta(seconds=3),
            looks_ahead=ahead.compiled.is_set,
            estimate_interval=timedelta(seconds=ESTIMATE_S),
        )
    )
    engines = EngineLoop(holder)
    return (
        Loop("engines", engines.step, stop, engines.end),
        Loop("scheduler", leader.step, stop, leader.end),
        Loop("pruning", engines.prune, stop, wakes=False),
        Loop("sampler", sampler_step(Sampler(), engines), stop, wakes=False),
        Loop("look-ahead", ahead.step, stop, wakes=False),
    )
