"""What is seen in a scenario's world, compared with what its file wants. Reads only; figures come from the database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import QuerySet, Sum

from inventory.models import Device, Node, Pool
from scheduling import ports
from scheduling.core.decide import decide
from scheduling.core.model import Share
from scheduling.core.units import MILLI_PER_DEVICE, format_gpus
from scheduling.granted import granted_to_groups
from scheduling.models import Allocation, AllocationDevice, Job, Task
from scheduling.simulation.scenario_model import Check, Failure
from scheduling.simulation.scenario_money import budget_events, invoice_failures
from scheduling.simulation.scenario_world import World
from tenants.policy import team_tree

MILLI_SECONDS_PER_GPU_HOUR = 3_600_000


def failures_of(world: World, check: Check, at: str) -> list[Failure]:
    """Where what is seen is not what the check wants: none, or one for each of the jobs that the name stands for."""
    if check.subject == "invoice":
        return invoice_failures(world, check, at)
    if check.subject != "jobs":
        seen = _SEEN[check.subject](world, check)
        return [] if check.wanted.met_by(seen) else [_failure(check, at, check.field, _told(check.fact, seen))]
    found = []
    ids = world.jobs.get(check.name, [])
    names = [check.name] if len(ids) == 1 else [f"{check.name}-{index}" for index in range(len(ids))]
    for name, job in zip(names, Job.objects.filter(pk__in=ids).order_by("pk"), strict=True):
        seen, told = _of_job(world, job, check)
        if not seen:
            found.append(_failure(check, at, f"jobs.{name}.{check.fact}", told))
    if not ids:
        found.append(_failure(check, at, check.field, "no such job: it was refused"))
    return found


def _failure(check: Check, at: str, field: str, seen: str) -> Failure:
    return Failure(check.line, at, field, check.wanted.written, seen)


def _told(fact: str, seen: Any) -> str:
    if fact in ("cost", "gpu_hours"):
        text = f"{seen:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return str(seen) if fact in (*Job.State.values, "memory_mib", "budget_events") else format_gpus(seen)


# ---- jobs ------------------------------------------------------------------------------------------------------------


def _of_job(world: World, job: Job, check: Check) -> tuple[bool, str]:
    """Whether the job is as wanted, and what is seen of it in words."""
    wanted = check.wanted
    if check.fact == "reason":
        codes = [str(reason["code"]) for reason in job.reasons]
        messages = [str(reason["message"]) for reason in job.reasons]
        if job.ended_at is not None:
            codes, messages = [job.ending_reason], [job.end_message]
        told = "; ".join(f"{code} ({message})" for code, message in zip(codes, messages, strict=True)) or "none"
        if wanted.value is None:
            return not any(codes), told
        return wanted.value in codes or any(wanted.value in message for message in messages), told
    if check.fact in ("node", "nodes"):
        held = _live(job).values_list("node_id", "node__name").distinct()
        names = [wanted.value] if check.fact == "node" and wanted.value is not None else wanted.value or ()
        told = ", ".join(sorted(name for _, name in held)) or "none"
        return {node_id for node_id, _ in held} == {_node(world, name).pk for name in names}, told
    if check.fact == "devices":
        return _devices(job, check)
    if check.fact == "template":
        names = {each.template for grants in granted_to_groups(job.pk).values() for each in grants}
        told = ", ".join(sorted(str(name or "none") for name in names)) or "none"
        return names == {wanted.value} or (wanted.value is None and not names), told
    seen: Any = _JOB_FACTS[check.fact](world, job)
    if check.fact in ("started_at", "estimated_start"):
        nothing = "not started" if check.fact == "started_at" else "none"
        told = nothing if seen is None else _since(world, seen)
    else:
        told = _told(check.fact, seen) if check.fact in ("cost", "allocated") else str(seen)
    return wanted.met_by(seen), told


def _live(job: Job) -> QuerySet[Allocation]:
    return Allocation.objects.filter(job=job, released_at__isnull=True).order_by()


def _devices(job: Job, check: Check) -> tuple[bool, str]:
    """Devices as a number, or as a list of ``index`` or ``node/index``."""
    rows = AllocationDevice.objects.filter(allocation__job=job, allocation__released_at__isnull=True)
    held = sorted(set(rows.values_list("device__node__name", "device__index")))
    if not isinstance(check.wanted.value, tuple):
        return check.wanted.met_by(len(held)), str(len(held))
    by_node = any("/" in name for name in check.wanted.value)
    seen = tuple(sorted(f"{node}/{index}" if by_node else str(index) for node, index in held))
    return check.wanted.met_by(seen), f"[{', '.join(seen)}]"


def _since(world: World, moment: datetime) -> str:
    return f"{moment.isoformat()} ({(moment - world.scenario.start).total_seconds():g}s)"


def _job_cost(world: World, job: Job) -> Decimal:
    found = ports.meter.job_costs([job.pk], world.now).get(job.pk)
    return found.amount if found else Decimal(0)


_JOB_FACTS: Mapping[str, Callable[[World, Job], Any]] = {
    "state": lambda world, job: job.state,
    "tasks_running": lambda world, job: Task.objects.filter(job=job, state=Task.State.RUNNING).count(),
    "preemptions": lambda world, job: job.preemptions,
    "started_at": lambda world, job: job.started_at,
    "estimated_start": lambda world, job: job.estimated_start,
    "cost": _job_cost,
    "allocated": lambda world, job: _held(job.pool, Allocation.objects.filter(job=job)),
    "memory_mib": lambda world, job: _memory_held(AllocationDevice.objects.filter(allocation__job=job)),
}


# ---- teams -----------------------------------------------------------------------------------------------------------


def _of_team(world: World, check: Check) -> Any:
    """Of the team with all below it; in one pool, or in all that count the same unit."""
    team = world.teams[check.name]
    if check.fact == "budget_events":
        return budget_events(team.pk)
    if check.pool:
        pools = [world.pools[check.pool]]
    else:
        pools = [pool for pool in world.pools.values() if pool.unit == Pool.Unit.GPU] or list(world.pools.values())
    below = team_tree().below(team.pk)
    if check.fact == "allocated":
        return sum(_held(pool, Allocation.objects.filter(team_id__in=below, pool=pool)) for pool in pools)
    if check.fact == "memory_mib":
        return _memory_held(AllocationDevice.objects.filter(allocation__team_id__in=below, allocation__pool__in=pools))
    if check.fact in ("deserved", "pending"):
        return sum(getattr(share, check.fact) for pool in pools if (share := _share(world, pool, team.pk)) is not None)
    priced = [pool.pk for pool in (pools if check.pool or check.fact == "gpu_hours" else world.pools.values())]
    ids = Job.objects.filter(team_id__in=below, pool_id__in=priced).values_list("pk", flat=True)
    costs = ports.meter.job_costs(ids, world.now).values()
    if check.fact == "cost":
        return sum((cost.amount for cost in costs), Decimal(0))
    return sum((cost.milli_seconds for cost in costs), Decimal(0)) / MILLI_SECONDS_PER_GPU_HOUR


def _share(world: World, pool: Pool, team_id: int) -> Share | None:
    """The team's share as the scheduler would work it out now: a decision over its picture, carried out nowhere."""
    picture = world.clockwork.scheduler.picture
    picture.refresh(world.now)
    return decide(picture.snapshot(world.now)).shares.get(pool.pk, {}).get(team_id)


def _memory_held(slices: QuerySet[AllocationDevice]) -> int:
    """Of devices, MiB."""
    live = slices.filter(allocation__released_at__isnull=True).order_by()
    return live.aggregate(sum=Sum("memory_mib"))["sum"] or 0


def _held(pool: Pool, allocations: QuerySet[Allocation]) -> int:
    column = "cpu_milli" if pool.unit == Pool.Unit.CPU else "milli"
    return allocations.filter(released_at__isnull=True).order_by().aggregate(sum=Sum(column))["sum"] or 0


# ---- pools, nodes, counts --------------------------------------------------------------------------------------------


def _of_pool(world: World, check: Check) -> int:
    pool = world.pools[check.name]
    picture = world.clockwork.scheduler.picture
    picture.refresh(world.now)
    fleet = picture.pools[pool.pk].fleet
    if check.fact == "allocated":
        return _held(pool, Allocation.objects.filter(pool=pool))
    if check.fact == "fragmented":
        return _fragmented(pool)
    if pool.unit == Pool.Unit.CPU:
        return fleet.free_cpu_milli() if check.fact == "free" else fleet.capacity_cpu_milli()
    return fleet.free_milli() if check.fact == "free" else fleet.capacity_milli()


def _fragmented(pool: Pool) -> int:
    """What is free on devices in service that are partly taken: nothing that a whole-GPU request could use."""
    partly = Device.objects.filter(
        node__pool=pool,
        node__state=Node.State.READY,
        health=Device.Health.OK,
        compute_allocated_milli__gt=0,
        compute_allocated_milli__lt=MILLI_PER_DEVICE,
    )
    return sum(MILLI_PER_DEVICE - taken for taken in partly.values_list("compute_allocated_milli", flat=True))


def _of_node(world: World, check: Check) -> int:
    node = Node.objects.select_related("pool").get(pk=_node(world, check.name).pk)
    in_service = node.state == Node.State.READY
    if node.pool.unit == Pool.Unit.CPU:
        if check.fact == "allocated":
            return node.cpu_allocated_milli
        return node.cpu_milli - node.cpu_allocated_milli if in_service else 0
    devices = list(node.devices.values_list("compute_allocated_milli", "health"))
    if check.fact == "allocated":
        return sum(taken for taken, _ in devices)
    healthy = [taken for taken, health in devices if health == Device.Health.OK]
    return sum(MILLI_PER_DEVICE - taken for taken in healthy) if in_service else 0


def _node(world: World, name: str) -> Node:
    return world.nodes[name]


def _of_counts(world: World, check: Check) -> int:
    return Job.objects.filter(state=check.fact).count()


_SEEN: Mapping[str, Callable[[World, Check], Any]] = {
    "teams": _of_team,
    "pools": _of_pool,
    "nodes": _of_node,
    "counts": _of_counts,
}


# ---- what always holds -----------------------------------------------------------------------------------------------


def differences(world: World) -> Iterable[str]:
    """Where the accounts of devices differ from the slices that live on them, or from the scheduler's picture."""
    held: dict[int, list[int]] = {}
    rows = AllocationDevice.objects.filter(allocation__released_at__isnull=True)
    for device_id, compute, memory in rows.values_list("device_id", "compute_milli", "memory_mib"):
        sums = held.setdefault(device_id, [0, 0])
        sums[0] += compute
        sums[1] += memory
    accounts = Device.objects.order_by("id").values_list("id", "compute_allocated_milli", "memory_allocated_mib")
    for device_id, compute, memory in accounts:
        if held.get(device_id, [0, 0]) != [compute, memory]:
            slices = held.get(device_id, [0, 0])
            yield f"device {device_id} is booked with {compute} milli and {memory} MiB, its slices hold {slices}"
    world.clockwork.scheduler.picture.refresh(world.now)
    yield from world.clockwork.scheduler.picture.check()
