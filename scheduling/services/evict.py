"""Carries out evictions: who gives way is told to stop, on record, in the transaction of the cycle that decided it.

What is being stopped holds its devices until its engine confirms that it is gone; see ``reconcile`` and ``reports``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.db.models import F

from events.rows import insert_rows
from events.services import Journal
from scheduling.core import model as core
from scheduling.models import Allocation, Decision, Job
from scheduling.states import JOB_ACTIVE

ENDING_REASONS = {"reclaim": "reclaimed", "preempt": "preempted"}


def evict(
    evictions: Sequence[core.Eviction], teams: Mapping[int, int], cycle: int, now: datetime, journal: Journal
) -> list[core.Eviction]:
    """Carries out the evictions that still make sense, and returns them; ``teams``: job → team.

    All that are for one job are carried out, or none: where that job no longer waits, or one that should give way to
    it is ending by itself, nobody is stopped for it now. The caller has locked the jobs.
    """
    good = _still_good(evictions)
    if not good:
        return []
    for each in good:
        Allocation.objects.filter(pk__in=each.allocation_ids, released_at__isnull=True).update(
            state=Allocation.State.RELEASING, stop_requested_at=now, evicted_for=each.for_job
        )
        changes: dict[str, object] = {"version": F("version") + 1}
        if each.whole:
            changes |= {
                "ending": Job.Ending.REQUEUE,
                "ending_reason": ENDING_REASONS[each.rule],
                "preemptions": F("preemptions") + 1,
            }
        Job.objects.filter(pk=each.job_id).update(**changes)
        journal.record(
            "job.evicted",
            now,
            team_id=teams[each.job_id],
            pool_id=each.pool_id,
            job_id=each.job_id,
            rule=each.rule,
            whole=each.whole,
            tasks=len(each.allocation_ids),
        )
    for job_id, moment in made_room_at(good, now).items():
        Job.objects.filter(pk=job_id).update(room_made_at=moment)
    insert_rows(
        Decision(
            at=now,
            cycle=cycle,
            kind=Decision.Kind.EVICT,
            job_id=each.job_id,
            team_id=teams[each.job_id],
            pool_id=each.pool_id,
            rule=each.rule,
            numbers={**each.numbers, "tasks": len(each.allocation_ids), "for_job": each.for_job},
        )
        for each in good
    )
    return good


def made_room_at(evictions: Sequence[core.Eviction], now: datetime) -> dict[int, datetime]:
    """Job → since when others give way to it: a microsecond apart, so that they are served in the plan's order."""
    jobs = dict.fromkeys(each.for_job for each in evictions)
    return {job_id: now + timedelta(microseconds=i) for i, job_id in enumerate(jobs)}


def _still_good(evictions: Sequence[core.Eviction]) -> list[core.Eviction]:
    if not evictions:
        return []
    ids = {each.for_job for each in evictions} | {each.job_id for each in evictions}
    state = {job.pk: job for job in Job.objects.filter(pk__in=ids).only("pk", "state", "ending", "hold")}
    allocations = {pk for each in evictions for pk in each.allocation_ids}
    stopping = set(
        Allocation.objects.filter(pk__in=allocations)
        .exclude(released_at__isnull=True, stop_requested_at__isnull=True)
        .values_list("pk", flat=True)
    )
    spoiled = {
        each.for_job
        for each in evictions
        if not _waits(state.get(each.for_job))
        or not _runs(state.get(each.job_id))
        or not stopping.isdisjoint(each.allocation_ids)
    }
    return [each for each in evictions if each.for_job not in spoiled]


def _waits(job: Job | None) -> bool:
    return job is not None and job.state == Job.State.PENDING and not job.hold


def _runs(job: Job | None) -> bool:
    return job is not None and job.state in JOB_ACTIVE and not job.ending
