"""What is true of the books at every moment, whatever was killed or raced: read from the database alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import timedelta

from django.db.models import Sum

from billing.models import UsageRecord
from events.models import Event
from inventory.models import Device, Node
from scheduling.models import Allocation, AllocationDevice, Job
from scheduling.states import JOB_ENDED


def used() -> int:
    """Milli-GPU that live allocations hold."""
    live = Allocation.objects.filter(released_at__isnull=True)
    return live.aggregate(sum=Sum("milli"))["sum"] or 0


def faults_in_the_books() -> list[str]:
    """Every account that does not add up, in words; empty is good."""
    return [*_devices(), *_nodes(), *_usage(), *_jobs()]


def _devices() -> list[str]:
    held: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    live = AllocationDevice.objects.filter(allocation__released_at__isnull=True)
    for device_id, compute, memory in live.values_list("device_id", "compute_milli", "memory_mib"):
        held[device_id][0] += compute
        held[device_id][1] += memory
    rows = Device.objects.values_list("id", "compute_allocated_milli", "memory_allocated_mib")
    return [
        f"device {key}: {(compute, memory)} booked, {held[key]} held"
        for key, compute, memory in rows
        if held[key] != [compute, memory]
    ]


def _nodes() -> list[str]:
    live = Allocation.objects.filter(released_at__isnull=True).order_by().values_list("node_id")
    held = {key: (cpu, memory) for key, cpu, memory in live.annotate(Sum("cpu_milli"), Sum("host_memory_mib"))}
    rows = Node.objects.values_list("id", "cpu_allocated_milli", "host_memory_allocated_mib")
    return [
        f"node {key}: {(cpu, memory)} booked" for key, cpu, memory in rows if held.get(key, (0, 0)) != (cpu, memory)
    ]


def _usage() -> list[str]:
    open_ones = Counter(UsageRecord.objects.filter(ended_at__isnull=True).values_list("allocation_id", flat=True))
    live = set(Allocation.objects.filter(released_at__isnull=True).values_list("id", flat=True))
    faults = [f"allocation {key}: {open_ones[key]} open records" for key in live if open_ones[key] != 1]
    faults += [f"allocation {key} is released and has an open record" for key in open_ones if key not in live]
    sums = UsageRecord.objects.filter(ended_at__isnull=False).order_by().values_list("allocation_id")
    billed = dict(sums.annotate(Sum("microseconds")))
    ended = Allocation.objects.filter(released_at__isnull=False).values_list("id", "bound_at", "released_at")
    for key, bound_at, released_at in ended:
        assert released_at is not None
        lasted = (released_at - bound_at) // timedelta(microseconds=1)
        if billed.get(key, 0) != lasted:
            faults.append(f"allocation {key} held for {lasted} µs, billed for {billed.get(key)}")
    return faults


def _jobs() -> list[str]:
    faults = []
    live = Counter(Allocation.objects.filter(released_at__isnull=True).values_list("job_id", flat=True))
    ends = Counter(
        Event.objects.filter(kind="job.state", data__state__in=list(JOB_ENDED)).values_list("job_id", flat=True)
    )
    for job in Job.objects.order_by("id"):
        ended = job.state in JOB_ENDED
        if ends[job.pk] != int(ended):
            faults.append(f"job {job.pk} is {job.state} and ended {ends[job.pk]} times")
        if live[job.pk] and (ended or job.state == Job.State.PENDING):
            faults.append(f"job {job.pk} is {job.state} and holds {live[job.pk]} allocations")
        if not live[job.pk] and job.state in (Job.State.STARTING, Job.State.RUNNING):
            faults.append(f"job {job.pk} is {job.state} and holds nothing")
    return faults
