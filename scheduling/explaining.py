"""All that is known of why a job is where it is: for operators, who may see everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduling.core import model as core
from scheduling.core.codec import BadRecord, Recorded, decode
from scheduling.core.recompute import decided_again, differences
from scheduling.models import CycleRecord, Decision, Job
from scheduling.queue import MOST_ORDERED, queue
from scheduling.telling import decision_told, reason_told

NOT_KEPT = "not kept"
SAME, DIFFERS, UNREADABLE = "the same", "different", "unreadable"


@dataclass(frozen=True, slots=True)
class Check:
    """Whether a decision comes out the same now: ``verdict``, and what is different or in the way."""

    verdict: str
    told: tuple[str, ...] = ()


def explanation(job: Job, now: datetime, most: int) -> dict[str, Any]:
    """JSON-ready: the job's state, why it waits, its place, and its latest ``most`` decisions, the first of them first,
    each decided again where the cycle was recorded."""
    decisions = list(Decision.objects.filter(job=job).select_related("pool").order_by("-id")[:most])[::-1]
    checks = checked(decisions)
    return {
        "job": job.pk,
        "name": job.name,
        "team": job.team.slug,
        "user": job.user.username,
        "pool": job.pool.name,
        "state": job.state,
        "hold": job.hold,
        "submitted_at": job.submitted_at.isoformat(),
        "estimated_start": None if job.estimated_start is None else job.estimated_start.isoformat(),
        "reasons": [reason_told(each, job.pool.unit, None) for each in job.reasons],
        "queue": place_of(job, now),
        "decisions": [_told(each, check) for each, check in zip(decisions, checks, strict=True)],
    }


def place_of(job: Job, now: datetime) -> dict[str, Any] | None:
    """Its place in its pool's queue and how many wait there; None where it does not wait, or too far behind to say."""
    if job.state != Job.State.PENDING or job.hold:
        return None
    line = queue(job.pool, now, MOST_ORDERED)
    place = next((each.place for each in line if each.job.pk == job.pk), None)
    return None if place is None else {"place": place, "of": len(line), "pool": job.pool.name}


def record_of(cycle: int) -> bytes | None:
    """What was kept of the cycle, if anything."""
    row = CycleRecord.objects.filter(cycle=cycle).order_by("-id").first()
    return None if row is None else bytes(row.body)


def checked(decisions: Sequence[Decision]) -> list[Check]:
    """Each decision against what its recorded cycle comes to now. A cycle is decided again once."""
    known: dict[int, Check | tuple[Recorded, core.Plan, list[str]]] = {}
    found = []
    for each in decisions:
        if each.cycle not in known:
            known[each.cycle] = _again(each.cycle)
        cycle = known[each.cycle]
        found.append(cycle if isinstance(cycle, Check) else _check(each, *cycle))
    return found


def _again(cycle: int) -> Check | tuple[Recorded, core.Plan, list[str]]:
    record = record_of(cycle)
    if record is None:
        return Check(NOT_KEPT)
    try:
        recorded = decode(record)
    except BadRecord as error:
        return Check(UNREADABLE, (str(error),))
    plan = decided_again(recorded)
    return recorded, plan, differences(recorded.plan, plan)


def _check(decision: Decision, recorded: Recorded, plan: core.Plan, different: list[str]) -> Check:
    if not _is_in(decision, plan):
        return Check(DIFFERS, ("this decision is not made again", *different))
    return Check(DIFFERS, tuple(different)) if different else Check(SAME)


def _is_in(decision: Decision, plan: core.Plan) -> bool:
    """Whether the plan decides what the ledger says, by the same rule and the same numbers."""
    part: Sequence[core.Start | core.Eviction | core.EvictionRefusal] = plan.starts
    if decision.kind == Decision.Kind.EVICT:
        part = plan.evictions
    elif decision.kind == Decision.Kind.REFUSE:
        part = plan.refusals
    return any(
        (each.job_id, each.pool_id, each.rule) == (decision.job_id, decision.pool_id, decision.rule)
        and dict(each.numbers).items() <= decision.numbers.items()
        for each in part
    )


def _told(decision: Decision, check: Check) -> dict[str, Any]:
    message, numbers = decision_told(decision.kind, decision.rule, decision.numbers, decision.pool.unit, None)
    return {
        "at": decision.at.isoformat(),
        "cycle": decision.cycle,
        "kind": decision.kind,
        "pool": decision.pool.name,
        "unit": decision.pool.unit,
        "rule": decision.rule,
        "message": message,
        "numbers": numbers,
        "again": check.verdict,
        "differences": list(check.told),
    }
