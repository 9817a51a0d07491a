"""The queues of a cycle: who waits in which pool, in what order, and since when."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable

from scheduling.core.cycle import Candidate, Cycle, PoolCycle
from scheduling.core.order import NEVER, JobKey, job_key

Queue = list[tuple[JobKey, Candidate]]


def pools_in_order(cycle: Cycle) -> list[PoolCycle]:
    """Pools that are rarely a second choice first: what is left of them decides who comes to the others."""
    return sorted(cycle.pools.values(), key=lambda pool: (pool.after_another, pool.pool.id))


def cluster_wide_in_order(cycle: Cycle) -> list[Candidate]:
    """Jobs of classes that an operator lets go ahead of other teams' jobs."""
    ahead = [candidate for candidate in cycle.candidates if candidate.job.cluster_wide]
    return sorted(ahead, key=lambda candidate: job_key(candidate.job, growing=not candidate.waits))


def queues_of(pool: PoolCycle) -> dict[int, Queue]:
    """The candidates of the pool by leaf of the tree, each a heap in the order of jobs inside a team."""
    queues: dict[int, Queue] = defaultdict(list)
    for candidate in pool.candidates:
        if candidate.claims is None and candidate.pool in (None, pool) and candidate.has_offers():
            queues[candidate.leaf].append(entry(candidate))
    for queue in queues.values():
        heapq.heapify(queue)
    return dict(queues)


def entry(candidate: Candidate) -> tuple[JobKey, Candidate]:
    return job_key(candidate.job, growing=not candidate.waits), candidate


def oldest_waiting(pool: PoolCycle) -> Callable[[int], int]:
    """Tells since when the longest waiting job of a leaf waits, jobs that were passed over included."""
    waiting: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in sorted(pool.candidates, key=lambda candidate: -candidate.job.submitted_at):
        if candidate.waits:
            waiting[candidate.leaf].append(candidate)

    def oldest(leaf: int) -> int:
        queue = waiting[leaf]
        while queue and not queue[-1].waits:
            queue.pop()
        return queue[-1].job.submitted_at if queue else NEVER

    return oldest
