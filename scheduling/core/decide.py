"""The decision: from a frozen picture to a plan, the same plan for the same picture.

A job that does not start is passed over: it blocks neither later jobs of its team, nor other teams, nor other pools.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable

from scheduling.core.cycle import Candidate, Cycle, PoolCycle
from scheduling.core.explain import Explanations
from scheduling.core.model import Plan, Policy, Snapshot
from scheduling.core.order import NEVER, JobKey, Walk, job_key

Queue = list[tuple[JobKey, Candidate]]


def decide(snapshot: Snapshot, policy: Policy | None = None) -> Plan:
    """What starts now, where, and why everything else waits. The snapshot's fleets are left as they were found.

    Raises ValueError where the picture itself is wrong: teams that form no tree, a job of a team that is not in it.
    The shares in the plan count what it starts as allocated.
    """
    cycle = Cycle(snapshot, policy or Policy())
    try:
        _start_cluster_wide(cycle)
        for pool in _pools_in_order(cycle):
            _walk(cycle, pool)
        # Reclaim across teams, then priority preemption inside a team, come here: for jobs that are entitled to run
        # now and were passed over for want of room, or of room below a common ancestor's limit.
        return Plan(
            starts=cycle.starts(),
            reasons=Explanations(cycle).by_job(),
            shares={pool_id: pool.standing_now().by_team() for pool_id, pool in cycle.pools.items()},
        )
    finally:
        cycle.give_back()


def _start_cluster_wide(cycle: Cycle) -> None:
    """Jobs of classes that an operator lets go ahead of other teams' jobs: all of these before any other."""
    ahead = [candidate for candidate in cycle.candidates if candidate.job.cluster_wide]
    ahead.sort(key=lambda candidate: job_key(candidate.job, growing=not candidate.waits))
    for candidate in ahead:
        while _give_next(cycle, candidate, until=None):
            pass


def _pools_in_order(cycle: Cycle) -> list[PoolCycle]:
    """Pools that are rarely a second choice first: what is left of them decides who comes to the others."""
    return sorted(cycle.pools.values(), key=lambda pool: (pool.after_another, pool.pool.id))


def _walk(cycle: Cycle, pool: PoolCycle) -> None:
    """Starts what can start in turn, until nothing more fits in this pool."""
    pool.refresh()
    more = True
    while more:
        pool.refused_where_it_lands = False
        started = _pass(cycle, pool)
        # A refusal stands until the end of the cycle, but for jobs that ask for device memory only: what they count
        # depends on where they land, and that has moved if something was started after them.
        more = started and pool.refused_where_it_lands


def _pass(cycle: Cycle, pool: PoolCycle) -> bool:
    """One walk over all queues of the pool until each is used up; True where anything was given."""
    queues = _queues(pool)
    walk = Walk(pool.account.standing, pool.account.allocated, queues, _oldest_waiting(pool))
    gave = False
    while (leaf := walk.next_leaf()) is not None:
        if _serve(cycle, pool, queues[leaf]):
            gave = True
            walk.settle(leaf)
        else:
            walk.drop(leaf)
    return gave


def _serve(cycle: Cycle, pool: PoolCycle, queue: Queue) -> bool:
    """Gives something to the first job of one team's queue that can be given anything; False when none can."""
    while queue:
        _, candidate = heapq.heappop(queue)
        if _give_next(cycle, candidate, until=pool):
            if candidate.pool is pool and candidate.has_offers():
                heapq.heappush(queue, _entry(candidate))
            return True
        # The reservation against starvation is made here: the first candidate that comes by, is entitled and finds no
        # room gets the earliest time and place at which it can start, and who comes later must not delay it.
    return False


def _give_next(cycle: Cycle, candidate: Candidate, until: PoolCycle | None) -> bool:
    """Gives the candidate its least, or one task more, in the first of its pools that can, none after ``until``."""
    for pool in candidate.choices:
        if any(cycle.give(candidate, pool, wants) for wants in candidate.offers()):
            return True
        if pool is until:
            return False
    return False


def _queues(pool: PoolCycle) -> dict[int, Queue]:
    """The candidates of the pool by leaf of the tree, each a heap in the order of jobs inside a team."""
    queues: dict[int, Queue] = defaultdict(list)
    for candidate in pool.candidates:
        if candidate.pool in (None, pool) and candidate.has_offers():
            queues[candidate.leaf].append(_entry(candidate))
    for queue in queues.values():
        heapq.heapify(queue)
    return dict(queues)


def _entry(candidate: Candidate) -> tuple[JobKey, Candidate]:
    return job_key(candidate.job, growing=not candidate.waits), candidate


def _oldest_waiting(pool: PoolCycle) -> Callable[[int], int]:
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
