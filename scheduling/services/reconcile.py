"""Makes an engine and the database agree: what should run is launched, what should not is stopped, what is true is
recorded. Idempotent: after a crash on either side the next pass goes on where the last one ended.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import F, Q

from events.services import Journal, last_seq, unit_of_work
from inventory.models import EngineConnection, Node
from inventory.services import set_node_state
from scheduling.engines.base import Engine, EngineError, Order, Report, Slice
from scheduling.models import Allocation, AllocationDevice, Job
from scheduling.services.reports import record_reports
from scheduling.states import JOB_ACTIVE

log = logging.getLogger(__name__)

WAKING_EVENTS = ("allocations.bound", "job.stopping", "job.evicted", "node.state")
# What an order tells that is in the rows as it is: field of the order → column; whole objects take ten times as long.
ORDER_COLUMNS = {
    "job_id": "job_id",
    "job_name": "job__name",
    "team": "team__slug",
    "user": "user__username",
    "task_index": "task__index",
    "tasks": "job__tasks_wanted",
    "environment": "job__environment",
    "image": "job__image",
    "node": "node__name",
    "cpu_milli": "cpu_milli",
    "host_memory_mib": "host_memory_mib",
    "bound_at": "bound_at",
    "running_at": "running_at",
    "time_limit_s": "job__time_limit_s",
    "simulated_duration_ms": "job__simulated_duration_ms",
    "simulated_exit_code": "job__simulated_exit_code",
}
OTHER_COLUMNS = ("job__command", "task__group__command", "job__kind", "job__started_at")
SLICE_COLUMNS = ("device__index", "device__uuid", "device__model__name", "compute_milli", "memory_mib")
LAUNCH_PATIENCE = timedelta(minutes=5)


@dataclass
class Reconciler:
    """One engine connection and the engine behind it. ``step`` is one pass; it may be called as often as one likes."""

    connection: EngineConnection
    engine: Engine
    launched: set[int] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)
    resumed: bool = False
    seen_seq: int = -1
    _anew: bool = False
    _untold: list[Report] = field(default_factory=list)

    def step(self, now: datetime) -> int:
        """One pass at ``now``; returns how many rows changed, so that a caller can go on until nothing does."""
        if not self.resumed:
            self._resume(now)
        # What is already true comes first: a stop or a launch for what has ended would be wasted.
        changed = self._observe(now)
        # Whatever wants a launch or a stop comes with an event of these kinds: without a new one nothing is to send.
        seq = last_seq(self.seen_seq, WAKING_EVENTS)
        if seq == self.seen_seq and not self._anew:
            return changed
        self._anew = True  # should anything below fail, the next pass does it all again
        to_launch, to_stop, unmarked, lost, drained = self._look()
        # A node may be set down by whoever may set states; what ran there is then lost with it, here at the latest.
        changed += record_reports([Report(each, "ended", now, None, "node_lost") for each in lost], now)
        changed += self._drain(drained, now)
        if unmarked:
            changed += self._mark_stops(unmarked, now)
        delayed = self._stop(to_stop, now)
        launched, waiting = self._launch(to_launch, now)
        self._anew, self.seen_seq = delayed or waiting, seq
        return changed + launched + self._observe(now)

    def _live(self) -> Q:
        return Q(pool__engine=self.connection, released_at__isnull=True)

    def _resume(self, now: datetime) -> None:
        live = dict(Allocation.objects.filter(self._live()).order_by("id").values_list("pk", "running_at"))
        self.engine.resume(orders(list(live)), now)
        self.launched = {allocation_id for allocation_id, running_at in live.items() if running_at is not None}
        self.stopped = set()
        self.resumed = True

    def _observe(self, now: datetime) -> int:
        # An engine tells each thing once: what could not be recorded this time is kept for the next.
        self._untold += self.engine.observe(now)
        try:
            changed = record_reports(self._untold, now)
            told, self._untold = self._untold, []
        except Exception:
            changed, told = self._record_apart(now)
            if not told:
                raise
        for report in told:
            if report.kind == "ended":
                self.launched.discard(report.allocation_id)
                self.stopped.discard(report.allocation_id)
        return changed

    def _record_apart(self, now: datetime) -> tuple[int, list[Report]]:
        """Records allocation by allocation, so that one that cannot be recorded keeps only itself waiting."""
        changed = 0
        told: list[Report] = []
        kept: list[Report] = []
        by_allocation: dict[int, list[Report]] = defaultdict(list)
        for report in self._untold:
            by_allocation[report.allocation_id].append(report)
        for allocation_id, reports in by_allocation.items():
            try:
                changed += record_reports(reports, now)
                told += reports
            except Exception:
                log.exception("the reports of allocation %s cannot be recorded yet", allocation_id)
                kept += reports
        self._untold = kept
        return changed, told

    def _look(self) -> tuple[list[int], list[tuple[int, int]], list[int], list[int], list[int]]:
        """Ids of live allocations: to launch; to stop, with grace; of these not marked yet; on nodes that are down; and
        of jobs that must leave a node that is draining."""
        to_launch: list[int] = []
        to_stop: list[tuple[int, int]] = []
        unmarked: list[int] = []
        lost: list[int] = []
        drained: list[int] = []
        wanting = Q(state=Allocation.State.BOUND) | Q(stop_requested_at__isnull=False) | ~Q(job__ending="")
        wanting |= Q(node__state__in=(Node.State.DOWN, Node.State.DRAINING))
        rows = Allocation.objects.filter(self._live(), wanting).order_by("id")
        for row in rows.values_list("id", "state", "stop_requested_at", "job__ending", "pool__grace_s", "node__state"):
            allocation_id, state, stop_requested_at, ending, grace, node_state = row
            if node_state == Node.State.DOWN:
                lost.append(allocation_id)
                if allocation_id not in self.stopped:
                    to_stop.append((allocation_id, 0))
            elif stop_requested_at is not None or ending:
                if stop_requested_at is None:
                    unmarked.append(allocation_id)
                if allocation_id not in self.stopped:
                    to_stop.append((allocation_id, grace))
            elif node_state == Node.State.DRAINING:
                drained.append(allocation_id)
            elif state == Allocation.State.BOUND and allocation_id not in self.launched:
                to_launch.append(allocation_id)
        return to_launch, to_stop, unmarked, lost, drained

    def _drain(self, allocation_ids: Sequence[int], now: datetime) -> int:
        """The jobs of these allocations go back to the queue as a whole; returns how many. Their tasks are stopped by
        the next pass, with their pool's grace."""
        if not allocation_ids:
            return 0
        with unit_of_work() as journal:
            ids = set(Allocation.objects.filter(pk__in=allocation_ids).values_list("job_id", flat=True))
            jobs = Job.objects.select_for_update(no_key=True).filter(pk__in=ids, ending="", state__in=JOB_ACTIVE)
            replicas = self._drain_replicas(allocation_ids, now, journal)
            jobs = jobs.exclude(kind=Job.Kind.SERVICE)
            found = list(jobs.order_by("pk").values_list("pk", "team_id", "pool_id", "state"))
            Job.objects.filter(pk__in=[each[0] for each in found]).update(
                ending=Job.Ending.REQUEUE, ending_reason="drained", version=F("version") + 1
            )
            for job_id, team_id, pool_id, state in found:
                common = {"team_id": team_id, "pool_id": pool_id, "job_id": job_id}
                journal.record("job.stopping", now, **common, state=state, ending=Job.Ending.REQUEUE, reason="drained")
        return len(found) + replicas

    def _drain_replicas(self, allocation_ids: Sequence[int], now: datetime, journal: Journal) -> int:
        """Of services only the replicas on these allocations are stopped: they are placed elsewhere, and the others
        stay where they are. Returns how many."""
        live = Allocation.objects.filter(
            pk__in=allocation_ids, job__kind=Job.Kind.SERVICE, job__ending="", released_at__isnull=True
        )
        rows = list(live.order_by("pk").values_list("pk", "job_id", "team_id", "pool_id", "job__state"))
        Allocation.objects.filter(pk__in=[row[0] for row in rows]).update(
            state=Allocation.State.RELEASING, stop_requested_at=now
        )
        for job_id, team_id, pool_id, state in sorted({row[1:] for row in rows}):
            # The next pass sends the stops: this kind of event wakes it, here and in the scheduler's picture.
            common = {"team_id": team_id, "pool_id": pool_id, "job_id": job_id}
            journal.record("job.stopping", now, **common, state=state, reason="drained")
        return len(rows)

    def _mark_stops(self, allocation_ids: Sequence[int], now: datetime) -> int:
        """The allocations are releasing, on record before any stop is sent, with an event a job."""
        with unit_of_work() as journal:
            Allocation.objects.filter(pk__in=allocation_ids, released_at__isnull=True).update(
                state=Allocation.State.RELEASING, stop_requested_at=now
            )
            jobs = Job.objects.filter(allocations__in=allocation_ids).distinct().order_by("id")
            for job_id, team_id, pool_id in jobs.values_list("id", "team_id", "pool_id"):
                journal.record("job.releasing", now, team_id=team_id, pool_id=pool_id, job_id=job_id)
        return len(allocation_ids)

    def _stop(self, to_stop: Sequence[tuple[int, int]], now: datetime) -> bool:
        """Sends the stops; returns whether any could not be sent and must be tried again."""
        delayed = False
        for allocation_id, grace in to_stop:
            try:
                self.engine.stop(allocation_id, grace, now)
            except EngineError as error:
                log.warning("allocation %s could not be stopped yet: %s", allocation_id, error)
                delayed = True
                continue
            self.stopped.add(allocation_id)
        return delayed

    def _launch(self, allocation_ids: Sequence[int], now: datetime) -> tuple[int, bool]:
        """Sends the launches; returns how many rows changed and whether any launch must be tried again."""
        if not allocation_ids:
            return 0, False
        waiting = False
        failed: list[Report] = []
        for order in orders(allocation_ids):
            try:
                self.engine.launch(order, now)
            except EngineError as error:
                log.warning("allocation %s could not be launched yet: %s", order.allocation_id, error)
                waiting = True
                if now - order.bound_at > LAUNCH_PATIENCE:
                    failed.append(Report(order.allocation_id, "ended", now, None, "lost_at_start", str(error)[:500]))
                continue
            self.launched.add(order.allocation_id)
        return record_reports(failed, now), waiting


def orders(ids: Sequence[int]) -> list[Order]:
    """What the engine is told of each of these allocations, in order of id."""
    slices: dict[int, list[Slice]] = defaultdict(list)
    for chunk in _chunks(ids):
        rows = AllocationDevice.objects.filter(allocation_id__among=chunk).order_by("allocation_id", "device__index")
        for allocation_id, *of_device in rows.values_list("allocation_id", *SLICE_COLUMNS):
            slices[allocation_id].append(Slice(*of_device))
    found = []
    for chunk in _chunks(ids):
        rows = Allocation.objects.filter(pk__among=chunk).order_by("id")
        for row in rows.values_list("pk", *ORDER_COLUMNS.values(), *OTHER_COLUMNS):
            allocation_id, *columns, of_job, own, kind, began = row
            told = dict(zip(ORDER_COLUMNS, columns, strict=True))
            told["time_limit_s"] = _time_left(told["time_limit_s"], kind, began, told["bound_at"])
            command = tuple(of_job if own is None else own)
            found.append(Order(allocation_id, slices=tuple(slices[allocation_id]), command=command, **told))
    return found


def _time_left(limit: int | None, kind: str, began: datetime | None, bound_at: datetime) -> int | None:
    """Seconds that a task bound then may run. A replica that joins a service later ends with it, and not after it."""
    if limit is None or kind != Job.Kind.SERVICE or began is None:
        return limit
    late = max(0, int((bound_at - began).total_seconds()))
    return max(1, limit - late)


def _chunks(ids: Sequence[int], size: int = 500) -> Iterable[Sequence[int]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))


def lose_node(node: Node, engine: Engine, now: datetime, *, reason: str = "", actor_id: int | None = None) -> int:
    """The node is down, and what ran there is lost with it: its jobs go back to the queue. Returns how many tasks.

    Two transactions, because a cycle locks jobs before nodes; between them, the reconciler sees the node and does the
    second. What the engine still says of these tasks later changes nothing.
    """
    set_node_state(node, Node.State.DOWN, now, reason=reason, actor_id=actor_id)
    live = list(
        Allocation.objects.filter(node=node, released_at__isnull=True).order_by("id").values_list("pk", flat=True)
    )
    lost = record_reports([Report(pk, "ended", now, None, "node_lost") for pk in live], now)
    for pk in live:
        with suppress(EngineError):  # whoever is out there to be told; mostly nobody is
            engine.stop(pk, 0, now)
    return lost
