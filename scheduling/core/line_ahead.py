"""What a raised limit would have to be for a job that is not the first to wait for it.

Whoever raises a limit lets in the jobs that stand before, too. So what is suggested to a job is the limit that covers
those before it in its team's queue and itself; it is given only as far down the queue as it is sure that nothing else
decides who comes next: a job before it that the same limit refuses and that would still not start could have room kept
for it, and where jobs of several teams wait for one limit, or jobs with several pools, the walk decides among them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scheduling.core.admission import Refusal
from scheduling.core.charges import memory_of
from scheduling.core.cycle import Candidate, Cycle, PoolCycle
from scheduling.core.model import Reason, TaskStart
from scheduling.core.order import job_key

MOST_TOLD = 10  # of the jobs that wait for one limit
FIELDS = {"over_limit": "limit", "over_user_limit": "per_user_limit", "over_memory_limit": "memory_limit_mib"}

Reasons = dict[int, tuple[Reason, ...]]
Line = tuple[int, str, str]  # pool, code, team


def with_those_ahead(cycle: Cycle, reasons: Reasons) -> None:
    """``reasons`` by job: where a raised limit would help, it covers those who would be let in before the job. The
    fleets are left as they are."""
    lines: dict[Line, list[Candidate]] = defaultdict(list)
    for candidate in cycle.candidates:
        for each in reasons.get(candidate.job.id, ()):
            if each.code in FIELDS and each.pool_id is not None:
                lines[each.pool_id, each.code, str(each.numbers["team"])].append(candidate)
    for line, waiting in lines.items():
        _tell(cycle.pools[line[0]], line, waiting, reasons)


def _tell(at: PoolCycle, line: Line, waiting: list[Candidate], reasons: Reasons) -> None:
    queue = sorted(waiting, key=lambda each: job_key(each.job, growing=not each.waits))
    one_queue = len({each.leaf for each in queue}) == 1
    in_order = one_queue and not any(each.job.cluster_wide or len(each.choices) > 1 for each in queue)
    sure, ahead = in_order or len(queue) == 1, _Ahead(at)
    for place, candidate in enumerate(queue):
        found = next(each for each in reasons[candidate.job.id] if (each.pool_id, each.code) == line[:2])
        helps = None
        if sure and place < MOST_TOLD and found.helps is not None:
            helps = ahead.limit_for(candidate, found)
        sure = sure and helps is not None and _lets_the_next_one_be(candidate, queue[place + 1 : place + 2], line[1])
        if found.helps != helps:
            reasons[candidate.job.id] = tuple(
                replace(each, helps=helps) if each is found else each for each in reasons[candidate.job.id]
            )
    ahead.give_back()


def _lets_the_next_one_be(candidate: Candidate, following: list[Candidate], code: str) -> bool:
    """Whether it takes no more, once it has started, before the next in line has had its turn; and whether, where the
    limit is one of each member's, both are the same member's."""
    if not following:
        return True
    job, other = candidate.job, following[0].job
    if code == "over_user_limit" and job.user_id != other.user_id:
        return False
    return not any(candidate.extra) or other.priority == job.priority


def waits_for_limit(at: PoolCycle, refusal: Refusal | Reason) -> bool:
    """Whether the reservation in force is of a job that waits for the limit that refuses: that is raised for both."""
    kept = at.kept
    if kept is None or kept.found.binding is None or refusal.code not in FIELDS:
        return False
    return at.account.name(kept.found.binding) == refusal.numbers["team"]


class _Ahead:
    """What those before in the line would take."""

    def __init__(self, at: PoolCycle):
        self._at = at
        self._taken: list[list[TaskStart]] = []
        self._charge: Any = 0

    def limit_for(self, candidate: Candidate, reason: Reason) -> Mapping[str, object] | None:
        """The limit under which it starts after them; None where something else would be in its way then."""
        at, job = self._at, candidate.job
        if not candidate.waits or (self._taken and (job.max_running_of_class or job.max_milli_of_class) is not None):
            return None
        least = candidate.ask.least
        if at.kept is not None and not waits_for_limit(at, reason) and at.kept.keeps_out(candidate, least):
            return None
        tasks = (at.room.take(at.frugal(least)) if at.depends_on_place(least) else None) or at.room.take(least)
        if tasks is None:
            return None
        self._taken.append(tasks)
        self._charge = self._charge + at.charge_of_tasks(tasks)
        refusals = at.account.refusals(candidate.leaf, job.user_id, self._charge, preemptible=job.preemptible)
        if any((each.code, each.numbers["team"]) != (reason.code, reason.numbers["team"]) for each in refusals):
            return None
        return _raised(reason, self._charge) | ({"jobs_ahead": len(self._taken) - 1} if len(self._taken) > 1 else {})

    def give_back(self) -> None:
        for tasks in reversed(self._taken):
            self._at.room.undo(tasks)


def _raised(reason: Reason, charge: Any) -> dict[str, object]:
    numbers: Mapping[str, Any] = reason.numbers
    if reason.code == "over_memory_limit":
        needed = numbers["allocated_mib"] + memory_of(charge)
        changed: dict[str, object] = {FIELDS[reason.code]: needed, "by_mib": needed - numbers["limit_mib"]}
    else:
        needed = numbers["allocated"] + int(charge)
        changed = {FIELDS[reason.code]: needed, "by_milli": needed - numbers["limit"]}
    return {"quota": {"team": numbers["team"], **changed}}
