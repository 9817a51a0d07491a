"""What always holds of an installation once it has settled, read from its tables alone.

Each check asks the database, and adds up by itself: nothing here asks the code that decided or that kept the books.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

from billing.models import UsageRecord
from inventory.models import Device, Node, Pool
from quotas.selectors import quotas_in_force
from scheduling.core.decide import decide
from scheduling.core.reasons import REASONS
from scheduling.models import Allocation, AllocationDevice, Decision, Job, Task, TaskGroup
from scheduling.selectors import team_shares
from scheduling.services.cycle import Scheduler
from scheduling.services.picture import Picture
from scheduling.states import JOB_ACTIVE, JOB_ENDED
from tenants.models import Team


def live() -> list[Allocation]:
    return list(Allocation.objects.filter(released_at=None).order_by("id"))


def held_by_team(pool: Pool) -> Counter[int]:
    """Team id → what it and all below it hold in the pool, in its unit."""
    parents = dict(Team.objects.values_list("id", "parent_id"))
    held: Counter[int] = Counter()
    for allocation in Allocation.objects.filter(released_at=None, pool=pool):
        team: int | None = allocation.team_id
        while team is not None:
            held[team] += allocation.cpu_milli if pool.unit == Pool.Unit.CPU else allocation.milli
            team = parents[team]
    return held


def no_device_and_no_node_holds_more_than_it_has() -> None:
    devices: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for row in AllocationDevice.objects.filter(allocation__released_at=None):
        devices[row.device_id][0] += row.compute_milli
        devices[row.device_id][1] += row.memory_mib
    for device in Device.objects.all():
        compute, memory = devices[device.pk]
        assert (device.compute_allocated_milli, device.memory_allocated_mib) == (compute, memory), device.pk
        assert 0 <= compute <= 1000, device.pk
        assert 0 <= memory <= device.memory_mib, device.pk
    nodes: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for allocation in live():
        nodes[allocation.node_id][0] += allocation.cpu_milli
        nodes[allocation.node_id][1] += allocation.host_memory_mib
    for node in Node.objects.all():
        cpu, memory = nodes[node.pk]
        assert (node.cpu_allocated_milli, node.host_memory_allocated_mib) == (cpu, memory), node.name
        assert 0 <= cpu <= node.cpu_milli, node.name
        assert 0 <= memory <= node.host_memory_mib, node.name


def an_allocation_counts_what_its_slices_are() -> None:
    slices: dict[int, list[int]] = defaultdict(list)
    for row in AllocationDevice.objects.all():
        slices[row.allocation_id].append(row.compute_milli)
    for allocation in Allocation.objects.all():
        own = slices[allocation.pk]
        assert allocation.milli == sum(own)
        assert set(own) <= {allocation.compute_milli}


def no_team_rises_above_its_limit(pool: Pool, now: datetime, before: Counter[int]) -> None:
    """Above a limit only where it was there before the limit was lowered, and then never more than before."""
    held = held_by_team(pool)
    for (_, team_id), row in quotas_in_force(now, pool.pk).items():
        if row.limit is not None:
            assert held[team_id] <= max(row.limit, before[team_id]), (team_id, held[team_id], row.limit)


def nobody_holds_more_than_one_member_may(pool: Pool, now: datetime, rows: list[int], since: int) -> None:
    """Judged of what was bound since (ids above ``since``): with it, nobody is above the limit for one member."""
    fresh = [each for each in live() if each.pk > since and each.pool_id == pool.pk]
    for (_, team_id), row in quotas_in_force(now, pool.pk).items():
        if row.per_user_limit is None or team_id not in rows:
            continue
        own = Counter[int]()
        for each in live():
            if each.team_id == team_id and each.pool_id == pool.pk:
                own[each.user_id] += each.milli
        for each in fresh:
            if each.team_id == team_id and each.milli:
                assert own[each.user_id] <= row.per_user_limit


def gangs_are_whole() -> None:
    """A job that goes on has at least the least of every group; one that waits or has ended holds nothing."""
    holding: dict[int, Counter[int]] = defaultdict(Counter)
    for job_id, group_id in Allocation.objects.filter(released_at=None).values_list("job_id", "task__group_id"):
        holding[job_id][group_id] += 1
    ended_well = Counter(Task.objects.filter(state=Task.State.SUCCEEDED).order_by().values_list("group_id", flat=True))
    groups: dict[int, list[TaskGroup]] = defaultdict(list)
    for group in TaskGroup.objects.all():
        groups[group.job_id].append(group)
    for job in Job.objects.all():
        held = holding[job.pk]
        if job.state in JOB_ACTIVE and not job.ending and job.kind != Job.Kind.SERVICE:
            for group in groups[job.pk]:
                assert held[group.pk] + ended_well[group.pk] >= group.min_count, job.pk
                assert held[group.pk] <= group.count, job.pk
        elif job.state == Job.State.PENDING:
            assert not held, job.pk
            assert not job.ending, job.pk
        elif job.state in JOB_ENDED:
            assert not held, job.pk
            assert not Task.objects.filter(job=job, state__in=["pending", "starting", "running"]).exists(), job.pk


def tasks_and_allocations_agree() -> None:
    holding = set(Allocation.objects.filter(released_at=None).values_list("task_id", flat=True))
    at_work = set(Task.objects.filter(state__in=["starting", "running"]).values_list("pk", flat=True))
    assert at_work <= holding
    assert not holding & set(Task.objects.filter(state__in=["succeeded"]).values_list("pk", flat=True))


def every_second_is_on_record_once() -> None:
    spans: dict[int, list[UsageRecord]] = defaultdict(list)
    for record in UsageRecord.objects.order_by("started_at", "id"):
        spans[record.allocation_id].append(record)
    for allocation in Allocation.objects.all():
        own = spans.pop(allocation.pk, [])
        assert own, f"allocation {allocation.pk} has no usage"
        assert own[0].started_at == allocation.bound_at
        for earlier, later in pairwise(own):
            assert earlier.ended_at == later.started_at
        assert own[-1].ended_at == allocation.released_at
        for record in own:
            assert record.milli == allocation.milli
            if record.ended_at is not None:
                assert record.microseconds == (record.ended_at - record.started_at).total_seconds() * 1_000_000
                if record.waived or record.per_hour is None:
                    assert record.amount == 0
                else:
                    exact = Decimal(record.milli) * record.microseconds * record.per_hour / (1000 * 3600 * 10**6)
                    assert record.amount is not None
                    assert abs(record.amount - exact) < Decimal("1e-11")
    assert not spans


def who_waits_knows_why() -> None:
    for job in Job.objects.filter(state=Job.State.PENDING):
        assert job.reasons, job.pk
        for each in job.reasons:
            assert each["message"]
            assert each["code"] in REASONS, each


def what_people_see_is_what_is_held(pool: Pool, now: datetime) -> None:
    held = held_by_team(pool)
    for team_id, share in team_shares(now)[pool.pk].items():
        assert share.allocated == held[team_id]
        assert 0 <= share.deserved <= share.demand


def nobody_gave_way_for_nothing(since: int) -> None:
    """Every job for which others gave way has started, or waits for the last of them to stop."""
    for decision in Decision.objects.filter(pk__gt=since, kind=Decision.Kind.EVICT):
        job = Job.objects.get(pk=decision.numbers["for_job"])
        stopping = Allocation.objects.filter(evicted_for=job, released_at=None).exists()
        started = Decision.objects.filter(pk__gt=decision.pk, kind=Decision.Kind.START, job=job).exists()
        assert stopping or started, f"job {job.pk} is {job.state}: {decision.rule} of {decision.job_id}"


def the_picture_is_the_databases(scheduler: Scheduler, now: datetime) -> None:
    """A picture that is read anew leads to the same plan, which is to do nothing more; so does the same one again."""
    assert scheduler.picture.check() == []
    anew = Picture()
    anew.load(now)
    kept, read = scheduler.picture.snapshot(now), anew.snapshot(now)
    # The very place that was promised with a reservation is remembered by who promised it only.
    assert tuple(replace(job, room_kept_at=()) for job in kept.pending) == read.pending
    assert kept.running == read.running
    assert kept.teams == read.teams
    for mine, theirs in zip(kept.pools, read.pools, strict=True):
        assert _more_than_nothing(mine.usage) == _more_than_nothing(theirs.usage)
        assert mine.quotas == theirs.quotas
        assert _more_than_nothing(mine.class_usage) == _more_than_nothing(theirs.class_usage)
    first, again, fresh = decide(kept), decide(kept), decide(read)
    assert first == again
    assert (fresh.starts, fresh.evictions) == (first.starts, first.evictions) == ((), ())
    assert {job: [each.code for each in why] for job, why in fresh.reasons.items()} == {
        job: [each.code for each in why] for job, why in first.reasons.items()
    }


def _more_than_nothing(amounts: Mapping[Any, int]) -> dict[Any, int]:
    return {key: amount for key, amount in amounts.items() if amount}
