"""Replicas of services: each is started again when it ends by itself, ever later while it does so at once.

A replica that ran for less than STABLE waits before its next start: FIRST after the first such end, twice as long
after each further one in a row, at most LONGEST. How many ended so in a row is read from its allocations, so nothing
is forgotten by a restart and nothing has to be kept. What the platform stopped or lost is no end of its own: such a
replica is started again as soon as there is room.

A service runs as long as it has a replica. When the last one is gone it waits in the queue, at its old place, until as
many as it needs at the least may start again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from scheduling.core import model as core
from scheduling.models import Allocation, Job, Task

FIRST = timedelta(seconds=1)
LONGEST = timedelta(minutes=5)
STABLE = timedelta(minutes=10)
MOST_LOOKED_AT = 10  # short lives in a row after which the wait is the longest anyway
WINDOW = MOST_LOOKED_AT * (STABLE + LONGEST)  # how far back lives are looked at: so many short ones fit into it
# Ends that are the platform's doing, not the job's: no retry is used up, and no replica waits for them.
PLATFORM_ENDS = frozenset({"node_lost", "lost_at_start"})


def wait_after(in_a_row: int) -> timedelta:
    """How long a replica waits that ended ``in_a_row`` times after less than STABLE; a stable one that ended: 1."""
    doublings = min(max(in_a_row, 1) - 1, 20)
    return min(LONGEST, FIRST * 2**doublings)


@dataclass(frozen=True, slots=True)
class Rest:
    """A replica that ended by itself and is started again from ``until`` on; ``in_a_row``: how often it ended early,
    at the most looked at."""

    task_id: int
    group: int
    until: datetime
    in_a_row: int
    exit_code: int | None
    reason: str


def rests(job_ids: Sequence[int], now: datetime) -> dict[int, dict[int, Rest]]:
    """Job → task → its rest, over or not, of every waiting replica of these services whose last life it ended itself.

    Jobs of other kinds are left out.
    """
    waiting = Task.objects.filter(job_id__in=job_ids, job__kind=Job.Kind.SERVICE, state=Task.State.PENDING)
    tasks = {
        task_id: (job_id, group)
        for task_id, job_id, group in waiting.filter(restarts__gt=0).values_list("id", "job_id", "group__position")
    }
    lives: dict[int, list[Allocation]] = defaultdict(list)
    released = Allocation.objects.filter(task_id__in=list(tasks), released_at__gt=now - WINDOW)
    for row in released.order_by("-id"):
        if len(lives[row.task_id]) < MOST_LOOKED_AT:
            lives[row.task_id].append(row)
    found: dict[int, dict[int, Rest]] = defaultdict(dict)
    for task_id in sorted(tasks):
        last = lives[task_id][0] if lives[task_id] else None
        if last is None or not ended_by_itself(last):
            continue
        assert last.released_at is not None
        job_id, group = tasks[task_id]
        in_a_row = _short_lives(lives[task_id])
        until = last.released_at + wait_after(in_a_row)
        found[job_id][task_id] = Rest(task_id, group, until, in_a_row, last.exit_code, last.end_reason)
    return dict(found)


def ended_by_itself(life: Allocation) -> bool:
    """Whether nobody told it to stop and no node was lost under it."""
    return life.stop_requested_at is None and life.end_reason not in PLATFORM_ENDS


def _short_lives(newest_first: Iterable[Allocation]) -> int:
    """How many lives in a row, the last one first, ended by themselves before STABLE; what others ended counts not."""
    count = 0
    for life in newest_first:
        if not ended_by_itself(life):
            continue
        assert life.released_at is not None
        if life.running_at is not None and life.released_at - life.running_at >= STABLE:
            break
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class Resting:
    """What of a service rests at a moment: the tasks, how many of each group, until when the first of them does, and
    the numbers of the reason ``crash_loop``."""

    tasks: frozenset[int]
    by_group: Mapping[int, int]
    until: datetime
    numbers: Mapping[str, Any]


def resting(own: Mapping[int, Rest], now: datetime) -> Resting | None:
    """Those of the rests that are not over at ``now``; None where all are."""
    on = sorted((rest for rest in own.values() if rest.until > now), key=lambda rest: (rest.until, rest.task_id))
    if not on:
        return None
    by_group = Counter(rest.group for rest in on)
    first = on[0]
    numbers = {
        "replicas": len(on),
        "in_a_row": first.in_a_row,
        "exit_code": first.exit_code,
        "ended": first.reason,
        "next_try": first.until.isoformat(timespec="seconds"),
    }
    return Resting(frozenset(rest.task_id for rest in on), by_group, first.until, numbers)


def without_resting(job: core.PendingJob, rest: Resting) -> core.PendingJob:
    """The service as the core decides over it: replicas that rest are not there to be placed."""
    groups = tuple(
        replace(group, count=max(group.placed, group.count - rest.by_group.get(position, 0)))
        for position, group in enumerate(job.groups)
    )
    return held_by_rest(replace(job, groups=groups), rest)


def held_by_rest(job: core.PendingJob, rest: Resting) -> core.PendingJob:
    """The service, held by ``crash_loop`` where nothing is left to place, or not the least that must start together."""
    if job.growing:
        ready = any(group.count > group.placed for group in job.groups)
    else:
        ready = all(group.count >= group.min_count for group in job.groups)
    if ready or job.held is not None:
        return job
    return replace(job, held="crash_loop", held_numbers=rest.numbers)
