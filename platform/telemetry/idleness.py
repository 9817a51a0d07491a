"""Idle interactive jobs: what counts as doing nothing, since when a job does, and what follows.

A task does nothing while what it holds is used by less than 1 %: the compute of its devices, or of its cores where it
holds no device. Only what was measured counts. A reading that is missing, unknown or older than it may be breaks the
span, and it begins anew with the next one; so a job is never ended for what nobody knows. A job is idle since the last
of its tasks is. After half of its pool's limit its people are told (event ``job.idle``), after all of it the job is
stopped: it is ``cancelled``, for the reason ``idle``. (It did not fail, and it did not come to an end of its own.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from inventory.models import EngineConnection
from scheduling.core.units import MILLI_PER_DEVICE
from scheduling.engines.base import DeviceUse, Utilization
from scheduling.models import Allocation, AllocationDevice, Job
from telemetry.models import TaskReading
from telemetry.readings import FULL_MILLI, is_fresh, known, total_known

IDLE_PART = 100  # less than one in so many is no use at all
# Jobs that their pool ends when they do nothing; the way to the job goes before.
WATCHED = {"kind": Job.Kind.INTERACTIVE, "ending": "", "pool__idle_limit_s__isnull": False}


class MeasuredIdleness:
    """``scheduling.ports.Idleness`` over what telemetry measures."""

    def watches(self) -> bool:
        return watched_allocations().exists()

    def look(self, connection: EngineConnection, utilization: Utilization, now: datetime) -> None:
        from telemetry import services  # which reads this module

        services.record_utilization(connection, utilization, now)
        services.end_idle(now)


def watched_allocations(also: Q | None = None) -> QuerySet[Allocation]:
    """What watched jobs hold."""
    watched = Q(**{f"job__{key}": value for key, value in WATCHED.items()})
    return Allocation.objects.filter(watched & (also or Q()), released_at__isnull=True)


def keep_idle_since(
    connection: EngineConnection, readings: Sequence[TaskReading], devices: Iterable[DeviceUse], now: datetime
) -> None:
    """Each reading of ``now`` of a watched job's task says since when it does nothing; None: it works, or who knows."""
    by_id = {reading.allocation_id: reading for reading in readings}
    rows = watched_allocations(Q(pool__engine=connection)).select_related("node").order_by("pk")
    watched = [allocation for allocation in rows if allocation.pk in by_id]
    if not watched:
        return
    before = TaskReading.objects.in_bulk([allocation.pk for allocation in watched])
    held = _devices_held_whole(watched)
    busy = {(use.node, use.index): known(use.compute_milli, FULL_MILLI) for use in devices}
    for allocation in watched:
        reading, last = by_id[allocation.pk], before.get(allocation.pk)
        own = [busy.get((allocation.node.name, index)) for index in held.get(allocation.pk, ())]
        if not _does_nothing(allocation, reading, own):
            continue
        goes_on = last is not None and last.idle_since is not None and last.at <= now and is_fresh(last.at, now)
        reading.idle_since = last.idle_since if goes_on and last is not None else now


def _devices_held_whole(allocations: Sequence[Allocation]) -> dict[int, list[int]]:
    """Allocation → positions of its devices in their node, of those that hold all of each."""
    found: dict[int, list[int]] = defaultdict(list)
    rows = AllocationDevice.objects.filter(allocation__in=allocations, compute_milli=MILLI_PER_DEVICE)
    for allocation_id, index in rows.order_by("id").values_list("allocation_id", "device__index"):
        found[allocation_id].append(index)
    return dict(found)


def _does_nothing(allocation: Allocation, reading: TaskReading, devices: Sequence[int | None]) -> bool:
    """Whether it is known that nothing of what it holds is used. Where the task's own use is not told, that of its
    devices says it, if nobody shares them."""
    if not allocation.milli:
        return _nothing_of(reading.cpu_milli, allocation.cpu_milli)
    used = reading.compute_milli
    if used is None and devices and None not in devices:
        used = total_known(devices)
    return _nothing_of(used, allocation.milli)


def _nothing_of(used: int | None, held: int) -> bool:
    return used is not None and held > 0 and used * IDLE_PART < held


@dataclass(frozen=True, slots=True)
class IdleJob:
    """A job that does nothing: since when, and how long its pool lets it."""

    job: Job
    since: datetime
    limit: timedelta

    @property
    def ends_at(self) -> datetime:
        return self.since + self.limit


def idle_jobs(now: datetime) -> list[IdleJob]:
    """All watched jobs of whose every task it is known at ``now`` that it does nothing, by id."""
    jobs = Job.objects.filter(**WATCHED, state=Job.State.RUNNING).select_related("pool").order_by("pk")
    by_id = {job.pk: job for job in jobs}
    since = _since(by_id, now)
    found = []
    for job_id, job in by_id.items():
        moment = since.get(job_id)
        if moment is not None and job.pool.idle_limit_s is not None:
            found.append(IdleJob(job, moment, timedelta(seconds=job.pool.idle_limit_s)))
    return found


def _since(jobs: Mapping[int, Job], now: datetime) -> dict[int, datetime | None]:
    """Job → since when all of its live tasks do nothing; None where that is not known of one."""
    found: dict[int, datetime | None] = {}
    live = Allocation.objects.filter(job_id__in=list(jobs), released_at__isnull=True).order_by("pk")
    for job_id, at, own in live.values_list("job_id", "reading__at", "reading__idle_since"):
        idle = own if own is not None and at <= now and is_fresh(at, now) else None
        before = found.get(job_id, idle)
        found[job_id] = None if idle is None or before is None else max(before, idle)
    return found
