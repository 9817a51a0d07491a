"""The one door for writes to readings, samples and findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Max

from events.services import require_aware
from inventory.models import Device, EngineConnection, Pool
from scheduling.engines.base import DeviceUse, TaskUse, Utilization
from scheduling.models import Allocation, AllocationDevice, Job
from scheduling.services.idle import end_idle_job, warn_of_idleness
from telemetry.idleness import idle_jobs, keep_idle_since
from telemetry.models import DeviceReading, Finding, JobSample, PoolSample, TaskReading
from telemetry.readings import FULL_MILLI, LARGEST_CPU_MILLI, LARGEST_MEMORY_MIB, known, total_known
from telemetry.selectors import capacities, fresh_device_use, fresh_task_use
from tenants.policy import team_tree

IDLE_AFTER = timedelta(minutes=10)
IDLE_BELOW_MILLI = 20  # of 1000: 2 %
# Within the window at least every second sample must be known, or nobody can say that nothing was done.
IDLE_SAMPLES = 30


def record_utilization(connection: EngineConnection, utilization: Utilization, now: datetime) -> int:
    """The readings of the connection's devices and live allocations are those of this scrape; returns how many.

    A device that the scrape leaves out is unknown from now on. A sample for an allocation that is released, or that
    belongs to another engine, counts for nobody.
    """
    require_aware(now)
    with transaction.atomic():
        devices = _device_rows(connection, utilization.devices, now)
        tasks = _task_rows(connection, utilization.tasks, now)
        keep_idle_since(connection, tasks, utilization.devices, now)
        DeviceReading.objects.bulk_create(
            devices,
            update_conflicts=True,
            unique_fields=["device"],
            update_fields=["at", "compute_milli", "memory_mib"],
            batch_size=1000,
        )
        TaskReading.objects.bulk_create(
            tasks,
            update_conflicts=True,
            unique_fields=["allocation"],
            update_fields=["at", "compute_milli", "memory_mib", "cpu_milli", "host_memory_mib", "idle_since"],
            batch_size=1000,
        )
        for left_out in (
            DeviceReading.objects.filter(device__node__pool__engine=connection),
            TaskReading.objects.filter(allocation__pool__engine=connection, allocation__released_at__isnull=True),
        ):
            left_out.filter(at__lt=now, compute_milli__isnull=False).update(compute_milli=None, memory_mib=None)
        unseen = TaskReading.objects.filter(allocation__pool__engine=connection, at__lt=now, idle_since__isnull=False)
        unseen.update(idle_since=None)
    return len(devices) + len(tasks)


def _device_rows(connection: EngineConnection, uses: Sequence[DeviceUse], now: datetime) -> list[DeviceReading]:
    by_place: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    if uses:
        rows = Device.objects.filter(node__pool__engine=connection).order_by("id")
        for device_id, node, index, memory in rows.values_list("id", "node__name", "index", "memory_mib"):
            by_place[(node, index)].append((device_id, memory))
    found: dict[int, DeviceReading] = {}
    for use in uses:
        places = by_place[(use.node, use.index)]
        if len(places) != 1:
            continue  # not ours, or two pools have a node of this name: whose it is cannot be told
        device_id, memory = places[0]
        found[device_id] = DeviceReading(
            device_id=device_id,
            at=now,
            compute_milli=known(use.compute_milli, FULL_MILLI),
            memory_mib=known(use.memory_mib, memory),
        )
    return [found[device_id] for device_id in sorted(found)]


def _task_rows(connection: EngineConnection, uses: Sequence[TaskUse], now: datetime) -> list[TaskReading]:
    if not uses:
        return []
    live = Allocation.objects.filter(pool__engine=connection, released_at__isnull=True)
    devices: dict[int, int] = dict.fromkeys(live.order_by("id").values_list("id", flat=True), 0)
    held = AllocationDevice.objects.filter(
        allocation__pool__engine=connection, allocation__released_at__isnull=True
    ).order_by("id")
    for allocation_id in held.values_list("allocation_id", flat=True):
        devices[allocation_id] = devices.get(allocation_id, 0) + 1
    found = {
        use.allocation_id: TaskReading(
            allocation_id=use.allocation_id,
            at=now,
            compute_milli=known(use.compute_milli, FULL_MILLI * devices[use.allocation_id]),
            memory_mib=known(use.memory_mib, LARGEST_MEMORY_MIB),
            cpu_milli=known(use.cpu_milli, LARGEST_CPU_MILLI),
            host_memory_mib=known(use.host_memory_mib, LARGEST_MEMORY_MIB),
        )
        for use in uses
        if use.allocation_id in devices
    }
    return [found[allocation_id] for allocation_id in sorted(found)]


def sample_pools(now: datetime) -> int:
    """One sample of every pool, of every team that holds something in it, and of every job that holds something.

    A team's sample includes the teams below it. Used is the sum of what is known; None where nothing is.
    """
    require_aware(now)
    with transaction.atomic():
        live = list(
            Allocation.objects.filter(released_at__isnull=True)
            .order_by("id")
            .values_list("id", "job_id", "team_id", "pool_id", "milli", "cpu_milli")
        )
        use = fresh_task_use(now)
        rows = _pool_rows(live, use, now)
        PoolSample.objects.bulk_create(rows, ignore_conflicts=True, batch_size=1000)
        jobs = _job_rows(live, use, now)
        JobSample.objects.bulk_create(jobs, ignore_conflicts=True, batch_size=1000)
    return len(rows) + len(jobs)


LiveRow = tuple[int, int, int, int, int, int]  # id, job, team, pool, milli, cpu_milli


def _pool_rows(live: Sequence[LiveRow], use: dict[int, TaskReading], now: datetime) -> list[PoolSample]:
    tree = team_tree()
    device_use = fresh_device_use(now)
    capacity = capacities()
    rows = []
    for pool in Pool.objects.order_by("id"):
        own = [row for row in live if row[3] == pool.pk]
        in_cores = pool.unit == Pool.Unit.CPU
        allocated: dict[int, int] = defaultdict(int)
        used: dict[int, list[int | None]] = defaultdict(list)
        for allocation_id, _, team_id, _, milli, cpu_milli in own:
            reading = use.get(allocation_id)
            value = None if reading is None else reading.cpu_milli if in_cores else reading.compute_milli
            for above in tree.line(team_id):
                allocated[above] += cpu_milli if in_cores else milli
                used[above].append(value)
        total = sum(row[5] if in_cores else row[4] for row in own)
        whole = (
            total_known([r.cpu_milli for row in own if (r := use.get(row[0])) is not None])
            if in_cores
            else total_known(device_use.get(pool.pk, ()))
        )
        rows.append(
            PoolSample(
                pool=pool, at=now, capacity_milli=capacity.get(pool.pk, 0), allocated_milli=total, used_milli=whole
            )
        )
        rows += [
            PoolSample(
                pool=pool,
                team_id=team_id,
                at=now,
                allocated_milli=allocated[team_id],
                used_milli=total_known(used[team_id]),
            )
            for team_id in sorted(allocated)
        ]
    return rows


def _job_rows(live: Sequence[LiveRow], use: dict[int, TaskReading], now: datetime) -> list[JobSample]:
    by_job: dict[int, list[LiveRow]] = defaultdict(list)
    for row in live:
        by_job[row[1]].append(row)
    return [
        JobSample(
            job_id=job_id,
            at=now,
            allocated_milli=sum(row[4] for row in own),
            used_milli=total_known([r.compute_milli for row in own if (r := use.get(row[0])) is not None]),
            memory_mib=total_known([r.memory_mib for row in own if (r := use.get(row[0])) is not None]),
        )
        for job_id, own in sorted(by_job.items())
    ]


# -- findings ---------------------------------------------------------------------------------------------------------


def find_idle(now: datetime) -> tuple[int, int]:
    """Jobs that hold devices and left them below 2 % for ten minutes have an open finding; those that use them again
    or hold nothing any more have none. Returns how many were opened and how many ended."""
    require_aware(now)
    with transaction.atomic():
        samples = _recent_samples(now)
        open_ones = {
            finding.job_id: finding
            for finding in Finding.objects.select_for_update(no_key=True).filter(
                kind=Finding.Kind.IDLE, ended_at__isnull=True, job__isnull=False
            )
        }
        opened = []
        for job_id, own in sorted(samples.items()):
            if job_id not in open_ones and _is_idle(own, now):
                opened.append((job_id, own))
        teams = dict(Job.objects.filter(pk__in=[job_id for job_id, _ in opened]).values_list("pk", "team_id"))
        Finding.objects.bulk_create(
            (
                Finding(
                    kind=Finding.Kind.IDLE,
                    team_id=teams[job_id],
                    job_id=job_id,
                    began_at=own[0][0],
                    numbers={"allocated_milli": own[-1][1], "below_milli": IDLE_BELOW_MILLI},
                )
                for job_id, own in opened
            ),
            ignore_conflicts=True,
        )
        over = [
            finding.pk for job_id, finding in open_ones.items() if job_id is None or _is_busy(samples.get(job_id, []))
        ]
        Finding.objects.filter(pk__in=over, ended_at__isnull=True).update(ended_at=now)
    return len(opened), len(over)


def end_idle(now: datetime) -> tuple[int, int]:
    """Interactive jobs that did nothing for as long as their pool lets them are told to stop; those that did for half
    of that have an event ``job.idle`` that says when they will be, one for each time that they fall idle. Returns how
    many were told to stop and how many were warned. See ``idleness``."""
    require_aware(now)
    stopped = warned = 0
    for idle in idle_jobs(now):
        if now >= idle.ends_at:
            stopped += end_idle_job(idle.job.pk, now, since=idle.since, limit=idle.limit)
        elif now >= idle.since + idle.limit / 2:
            warned += warn_of_idleness(idle.job.pk, now, since=idle.since, ends_at=idle.ends_at)
    return stopped, warned


Sample = tuple[datetime, int, int | None]  # at, allocated milli, used milli


def _recent_samples(now: datetime) -> dict[int, list[Sample]]:
    """By job that holds something now: its raw samples of the window, oldest first."""
    holding = Allocation.objects.filter(released_at__isnull=True, milli__gt=0).order_by().values("job_id").distinct()
    found: dict[int, list[Sample]] = defaultdict(list)
    rows = JobSample.objects.filter(
        job_id__in=holding, resolution_s=0, at__gt=now - IDLE_AFTER - timedelta(minutes=1), at__lte=now
    )
    for job_id, at, allocated, used in rows.order_by("job_id", "at").values_list(
        "job_id", "at", "allocated_milli", "used_milli"
    ):
        found[job_id].append((at, allocated, used))
    return found


def _idle(sample: Sample) -> bool:
    return sample[2] is not None and sample[2] * FULL_MILLI < IDLE_BELOW_MILLI * sample[1]


def _is_idle(samples: Sequence[Sample], now: datetime) -> bool:
    told = [sample for sample in samples if sample[2] is not None]
    return len(told) >= IDLE_SAMPLES and told[0][0] <= now - IDLE_AFTER and all(_idle(sample) for sample in told)


def _is_busy(samples: Sequence[Sample]) -> bool:
    """Whether an idle finding is over: nothing is held any more, or the newest known sample shows work."""
    told = [sample for sample in samples if sample[2] is not None]
    return not samples or bool(told and not _idle(told[-1]))


# -- averages and pruning ---------------------------------------------------------------------------------------------

MINUTE_S, HOUR_S = 60, 3600
KEEP_RAW, KEEP_MINUTES, KEEP_HOURS = timedelta(hours=2), timedelta(days=2), timedelta(days=400)


def roll_up(now: datetime) -> int:
    """Every whole minute and hour that is over has its averages, ``at`` its beginning; returns how many were added.

    An average leaves out what was unknown. A team that has no sample at a moment held nothing then.
    """
    require_aware(now)
    added = 0
    for source, target, reach in ((0, MINUTE_S, KEEP_RAW), (MINUTE_S, HOUR_S, KEEP_MINUTES)):
        with transaction.atomic():
            added += _roll_pools(source, target, reach, now) + _roll_jobs(source, target, reach, now)
    return added


def _window(last: datetime | None, target: int, reach: timedelta, now: datetime) -> tuple[datetime, datetime]:
    """[start, end): the whole periods of ``target`` seconds that are over at ``now`` and not averaged yet."""
    end = _floor(now, target)
    start = _floor(now - reach, target)
    if last is not None:
        start = max(start, last + timedelta(seconds=target))
    return start, end


def _floor(moment: datetime, seconds: int) -> datetime:
    return moment - timedelta(seconds=moment.timestamp() % seconds)


def _roll_pools(source: int, target: int, reach: timedelta, now: datetime) -> int:
    added = 0
    for pool_id in Pool.objects.order_by("id").values_list("id", flat=True):
        own = PoolSample.objects.filter(pool_id=pool_id)
        last = own.filter(resolution_s=target, team__isnull=True).aggregate(last=Max("at"))["last"]
        start, end = _window(last, target, reach, now)
        moments: dict[datetime, int] = defaultdict(int)
        groups: dict[tuple[datetime, int | None], list[PoolSample]] = defaultdict(list)
        for row in own.filter(resolution_s=source, at__gte=start, at__lt=end).order_by("at", "id"):
            period = _floor(row.at, target)
            groups[(period, row.team_id)].append(row)
            moments[period] += row.team_id is None
        averages = [
            PoolSample(
                pool_id=pool_id,
                team_id=team_id,
                at=period,
                resolution_s=target,
                capacity_milli=_mean([row.capacity_milli for row in rows]),
                allocated_milli=round(sum(row.allocated_milli for row in rows) / max(moments[period], len(rows))),
                used_milli=_mean([row.used_milli for row in rows]),
                deserved_milli=_mean([row.deserved_milli for row in rows]),
            )
            for (period, team_id), rows in groups.items()
        ]
        PoolSample.objects.bulk_create(averages, ignore_conflicts=True, batch_size=1000)
        added += len(averages)
    return added


def _roll_jobs(source: int, target: int, reach: timedelta, now: datetime) -> int:
    newest = JobSample.objects.order_by("-id")
    last = newest.filter(resolution_s=target).values_list("at", flat=True).first()
    start, end = _window(last, target, reach, now)
    groups: dict[tuple[datetime, int], list[JobSample]] = defaultdict(list)
    # Rows are written in the order of time, so the newest by id are enough: no index on time is needed.
    for row in newest.filter(resolution_s=source).iterator(chunk_size=2000):
        if row.at < start:
            break
        if row.at < end:
            groups[(_floor(row.at, target), row.job_id)].append(row)
    averages = [
        JobSample(
            job_id=job_id,
            at=period,
            resolution_s=target,
            allocated_milli=round(sum(row.allocated_milli for row in rows) / len(rows)),
            used_milli=_mean([row.used_milli for row in rows]),
            memory_mib=_mean([row.memory_mib for row in rows]),
        )
        for (period, job_id), rows in sorted(groups.items())
    ]
    JobSample.objects.bulk_create(averages, ignore_conflicts=True, batch_size=1000)
    return len(averages)


def _mean(values: Iterable[int | None]) -> int | None:
    found = [value for value in values if value is not None]
    return round(sum(found) / len(found)) if found else None


def prune(now: datetime) -> int:
    """Samples past their time are gone, and the readings of allocations that are released; returns how many went."""
    require_aware(now)
    gone = 0
    for resolution, keep in ((0, KEEP_RAW), (MINUTE_S, KEEP_MINUTES), (HOUR_S, KEEP_HOURS)):
        for model in (PoolSample, JobSample):
            gone += model._default_manager.filter(resolution_s=resolution, at__lt=now - keep).delete()[0]
    return gone + TaskReading.objects.filter(allocation__released_at__isnull=False).delete()[0]
