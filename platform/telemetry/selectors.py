"""Utilization as it is read: the latest, and over time. What is stale or was never told is None."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Case, F, Q, Sum, Value, When

from inventory.models import Device, Node, Pool
from scheduling.models import Allocation, Job
from telemetry.models import DeviceReading, Finding, JobSample, PoolSample, TaskReading
from telemetry.readings import FULL_MILLI, STALE_AFTER, total_known
from tenants.policy import visible, visible_team_ids

# How far back each resolution reaches, finest first; a little less than what pruning keeps.
RESOLUTIONS = ((0, timedelta(hours=2)), (60, timedelta(days=2)), (3600, timedelta(days=400)))
MOST_POINTS = 1500


@dataclass(frozen=True, slots=True)
class DeviceNow:
    """What one device does now; None is unknown."""

    compute_milli: int | None
    memory_mib: int | None


@dataclass(frozen=True, slots=True)
class JobUse:
    """What a job holds and uses now, over all its live allocations. ``used_milli`` sums what is known."""

    allocated_milli: int
    used_milli: int | None
    memory_mib: int | None
    cpu_milli: int | None = None
    host_memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class PoolNow:
    """The devices' busy time in a pool now, in milli; average and maximum over the ``known`` ones only."""

    average_milli: int | None
    maximum_milli: int | None
    known: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Series:
    """Samples over time, oldest first, all lists of one length. ``resolution_s`` 0: as measured, else averages."""

    resolution_s: int
    at: list[datetime]
    allocated_milli: list[int]
    used_milli: list[int | None]
    capacity_milli: list[int | None]
    memory_mib: list[int | None]

    @classmethod
    def empty(cls, resolution_s: int) -> Series:
        return cls(resolution_s, [], [], [], [], [])

    def average_used(self) -> int | None:
        """The mean of what is known, in milli; None where nothing is."""
        found = [value for value in self.used_milli if value is not None]
        return round(sum(found) / len(found)) if found else None


def _fresh(now: datetime) -> Q:
    return Q(at__gte=now - STALE_AFTER, at__lte=now + STALE_AFTER)


def device_readings(now: datetime, device_ids: Iterable[int]) -> dict[int, DeviceNow]:
    """By device: what is known of it now; devices of which nothing is known are left out."""
    ids = list(device_ids)
    found: dict[int, DeviceNow] = {}
    for start in range(0, len(ids), 500):
        rows = DeviceReading.objects.filter(_fresh(now), device_id__in=ids[start : start + 500])
        for device_id, compute, memory in rows.values_list("device_id", "compute_milli", "memory_mib"):
            found[device_id] = DeviceNow(compute, memory)
    return found


def fresh_device_use(now: datetime) -> dict[int, list[int | None]]:
    """By pool: the busy time of each device that reported lately, in milli."""
    found: dict[int, list[int | None]] = defaultdict(list)
    rows = DeviceReading.objects.filter(_fresh(now)).order_by("device_id")
    for pool_id, compute in rows.values_list("device__node__pool_id", "compute_milli"):
        found[pool_id].append(compute)
    return found


def fresh_task_use(now: datetime) -> dict[int, TaskReading]:
    """By live allocation: its latest reading, where it is not stale."""
    rows = TaskReading.objects.filter(_fresh(now), allocation__released_at__isnull=True)
    return {row.allocation_id: row for row in rows.order_by("allocation_id")}


def capacities() -> dict[int, int]:
    """By pool, in its milli: what can be given out (healthy, on ready nodes) and what is held elsewhere."""
    held = F("compute_allocated_milli")
    given = Case(When(health=Device.Health.OK, node__state=Node.State.READY, then=Value(FULL_MILLI)), default=held)
    found = dict(Device.objects.order_by().values_list("node__pool_id").annotate(total=Sum(given)))
    cores = Case(When(state=Node.State.READY, then=F("cpu_milli")), default=F("cpu_allocated_milli"))
    by_cores = Node.objects.filter(pool__unit=Pool.Unit.CPU).order_by().values_list("pool_id")
    return {**found, **dict(by_cores.annotate(total=Sum(cores)))}


def pool_now(pool: Pool, now: datetime) -> PoolNow:
    """How busy the pool's devices are now. Devices that say nothing count as unknown, never as idle."""
    values = [value for value in fresh_device_use(now).get(pool.pk, ()) if value is not None]
    devices = Device.objects.filter(node__pool=pool).count()
    return PoolNow(
        average_milli=round(sum(values) / len(values)) if values else None,
        maximum_milli=max(values, default=None),
        known=len(values),
        unknown=devices - len(values),
    )


def job_use(now: datetime, job_ids: Iterable[int]) -> dict[int, JobUse]:
    """By job that holds something: what it holds and what it uses now."""
    ids = list(job_ids)
    held: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for start in range(0, len(ids), 500):
        rows = Allocation.objects.filter(job_id__in=ids[start : start + 500], released_at__isnull=True)
        for allocation_id, job_id, milli in rows.order_by("id").values_list("id", "job_id", "milli"):
            held[job_id].append((allocation_id, milli))
    allocation_ids = [allocation_id for own in held.values() for allocation_id, _ in own]
    readings: dict[int, TaskReading] = {}
    for start in range(0, len(allocation_ids), 500):
        chunk = allocation_ids[start : start + 500]
        readings.update(
            {row.allocation_id: row for row in TaskReading.objects.filter(_fresh(now), allocation_id__in=chunk)}
        )
    return {job_id: _job_use(own, readings) for job_id, own in sorted(held.items())}


def _job_use(own: Sequence[tuple[int, int]], readings: dict[int, TaskReading]) -> JobUse:
    told = [reading for allocation_id, _ in own if (reading := readings.get(allocation_id)) is not None]
    return JobUse(
        allocated_milli=sum(milli for _, milli in own),
        used_milli=total_known(reading.compute_milli for reading in told),
        memory_mib=total_known(reading.memory_mib for reading in told),
        cpu_milli=total_known(reading.cpu_milli for reading in told),
        host_memory_mib=total_known(reading.host_memory_mib for reading in told),
    )


def resolution_for(start: datetime, end: datetime, now: datetime) -> int:
    """The finest resolution, in seconds, that reaches back to ``start`` and does not give too many points."""
    for resolution, reach in RESOLUTIONS:
        points = (end - start).total_seconds() / (resolution or 5)
        if start >= now - reach and points <= MOST_POINTS * 2:
            return resolution
    return RESOLUTIONS[-1][0]


def pool_series(pool: Pool, start: datetime, end: datetime, now: datetime, *, team_id: int | None = None) -> Series:
    """[start, end) of the pool as a whole, or of a team's part of it (teams below included)."""
    resolution = resolution_for(start, end, now)
    part = Q(team__isnull=True) if team_id is None else Q(team_id=team_id)
    rows = PoolSample.objects.filter(part, pool=pool, resolution_s=resolution, at__gte=start, at__lt=end).order_by("at")
    series = Series.empty(resolution)
    for row in rows:
        series.at.append(row.at)
        series.allocated_milli.append(row.allocated_milli)
        series.used_milli.append(row.used_milli)
        series.capacity_milli.append(row.capacity_milli)
    return series


def team_series(user: object, pool: Pool, start: datetime, end: datetime, now: datetime) -> dict[str, Series]:
    """By slug of each team that ``user`` may see: its part of the pool in [start, end)."""
    resolution = resolution_for(start, end, now)
    rows = PoolSample.objects.filter(
        pool=pool, team__isnull=False, resolution_s=resolution, at__gte=start, at__lt=end
    ).select_related("team")
    ids = visible_team_ids(user)  # type: ignore[arg-type]
    if ids is not None:
        rows = rows.filter(team_id__in=ids)
    found: dict[str, Series] = {}
    for row in rows.order_by("team__slug", "team_id", "at"):
        assert row.team is not None
        series = found.setdefault(row.team.slug, Series.empty(resolution))
        series.at.append(row.at)
        series.allocated_milli.append(row.allocated_milli)
        series.used_milli.append(row.used_milli)
    return found


def job_series(job: Job, start: datetime, end: datetime, now: datetime) -> Series:
    """The job's use in [start, end)."""
    resolution = resolution_for(start, end, now)
    series = Series.empty(resolution)
    rows = JobSample.objects.filter(job=job, resolution_s=resolution, at__gte=start, at__lt=end)
    for row in rows.order_by("at"):
        series.at.append(row.at)
        series.allocated_milli.append(row.allocated_milli)
        series.used_milli.append(row.used_milli)
        series.memory_mib.append(row.memory_mib)
    return series


def open_findings(user: object) -> list[Finding]:
    """What wants attention in the teams that ``user`` may see, the newest first; findings about the fleet included."""
    rows = Finding.objects.filter(visible(user) | Q(team__isnull=True), ended_at__isnull=True)  # type: ignore[arg-type]
    return list(rows.select_related("team", "job", "node"))
