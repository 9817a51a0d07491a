"""Makes an engine and the database agree: what should run is launched, what should not is stopped, what is true is
recorded. Idempotent: after a crash on either side the next pass goes on where the last one ended.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import F, Q

from events.services import last_seq, unit_of_work
from inventory.models import EngineConnection, Node
from scheduling.engines.base import Engine, EngineError, Order, Report, Slice
from scheduling.models import Allocation, AllocationDevice, Job
from scheduling.services.reports import record_reports

log = logging.getLogger(__name__)

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

    def step(self, now: datetime) -> int:
        """One pass at ``now``; returns how many rows changed, so that a caller can go on until nothing does."""
        if not self.resumed:
            self._resume(now)
        # What is already true comes first: a stop or a launch for what has ended would be wasted.
        changed = self._observe(now)
        seq = last_seq()
        if seq == self.seen_seq and not self._anew:
            # Whatever wants a launch or a stop comes with an event: without a new one there is nothing to send.
            return changed
        self._anew = False
        changed += self._request_stops(now)
        self._send_stops(now)
        changed += self._launch(now)
        self.seen_seq = seq
        return changed + self._observe(now)

    def _live(self) -> Q:
        return Q(pool__engine=self.connection, released_at__isnull=True)

    def _resume(self, now: datetime) -> None:
        live = list(Allocation.objects.filter(self._live()).order_by("id"))
        self.engine.resume(orders(live), now)
        self.launched = {allocation.pk for allocation in live if allocation.running_at is not None}
        self.stopped = set()
        self.resumed = True

    def _observe(self, now: datetime) -> int:
        reports = self.engine.observe(now)
        for report in reports:
            if report.kind == "ended":
                self.launched.discard(report.allocation_id)
                self.stopped.discard(report.allocation_id)
        return record_reports(reports, now)

    def _request_stops(self, now: datetime) -> int:
        """Allocations of jobs that are ending, or on nodes that are gone, are marked as releasing, with an event."""
        due = Q(job__ending__in=[ending for ending in Job.Ending.values if ending], stop_requested_at__isnull=True)
        with unit_of_work() as journal:
            rows = list(
                Allocation.objects.filter(self._live(), due)
                .order_by("id")
                .values_list("id", "job_id", "team_id", "pool_id")
            )
            if not rows:
                return 0
            Allocation.objects.filter(pk__in=[row[0] for row in rows], released_at__isnull=True).update(
                state=Allocation.State.RELEASING, stop_requested_at=now
            )
            for _, job_id, team_id, pool_id in {row[1]: row for row in rows}.values():
                journal.record("job.releasing", now, team_id=team_id, pool_id=pool_id, job_id=job_id)
        return len(rows)

    def _send_stops(self, now: datetime) -> None:
        rows = Allocation.objects.filter(self._live(), stop_requested_at__isnull=False).annotate(
            grace=F("pool__grace_s"), node_state=F("node__state")
        )
        for row in rows.order_by("id"):
            if row.pk in self.stopped:
                continue
            self.engine.stop(row.pk, 0 if row.node_state == Node.State.DOWN else row.grace, now)
            self.stopped.add(row.pk)

    def _launch(self, now: datetime) -> int:
        due = [
            row
            for row in Allocation.objects.filter(self._live(), state=Allocation.State.BOUND).order_by("id")
            if row.pk not in self.launched
        ]
        failed: list[Report] = []
        for order in orders(due):
            try:
                self.engine.launch(order, now)
            except EngineError as error:
                log.warning("allocation %s could not be launched yet: %s", order.allocation_id, error)
                if now - order.bound_at > LAUNCH_PATIENCE:
                    failed.append(
                        Report(order.allocation_id, "ended", now, None, "failed_to_start", str(error)[:500])
                    )
                self._anew = True
                continue
            self.launched.add(order.allocation_id)
        return record_reports(failed, now)


def orders(allocations: Sequence[Allocation]) -> list[Order]:
    """What the engine is told of each allocation, in order of id."""
    ids = [allocation.pk for allocation in allocations]
    slices: dict[int, list[Slice]] = defaultdict(list)
    for chunk in _chunks(ids):
        rows = AllocationDevice.objects.filter(allocation_id__in=chunk).select_related("device__model")
        for row in rows.order_by("allocation_id", "device__index"):
            slices[row.allocation_id].append(
                Slice(row.device.index, row.device.uuid, row.device.model.name, row.compute_milli, row.memory_mib)
            )
    found = []
    for chunk in _chunks(ids):
        rows = Allocation.objects.filter(pk__in=chunk).select_related(
            "job", "team", "user", "node", "task", "task__group"
        )
        for row in rows.order_by("id"):
            job = row.job
            own = row.task.group.command
            found.append(
                Order(
                    allocation_id=row.pk,
                    job_id=job.pk,
                    job_name=job.name,
                    team=row.team.slug,
                    user=row.user.username,
                    task_index=row.task.index,
                    tasks=job.tasks_wanted,
                    command=tuple(job.command if own is None else own),
                    environment=job.environment,
                    image=job.image,
                    node=row.node.name,
                    slices=tuple(slices[row.pk]),
                    cpu_milli=row.cpu_milli,
                    host_memory_mib=row.host_memory_mib,
                    bound_at=row.bound_at,
                    running_at=row.running_at,
                    time_limit_s=job.time_limit_s,
                    simulated_duration_ms=job.simulated_duration_ms,
                    simulated_exit_code=job.simulated_exit_code,
                )
            )
    return found


def _chunks(ids: Sequence[int], size: int = 500) -> Iterable[Sequence[int]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))


def lose_node(node: Node, engine: Engine, now: datetime) -> int:
    """The node is gone: what ran there is reported lost with it, so that the jobs go back to the queue."""
    live = Allocation.objects.filter(node=node, released_at__isnull=True).order_by("id").values_list("pk", flat=True)
    return record_reports([Report(pk, "ended", now, None, "node_lost") for pk in live], now)


