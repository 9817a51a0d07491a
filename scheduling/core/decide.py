"""The decision: from a frozen picture to a plan, the same plan for the same picture.

A job that does not start is passed over: it blocks neither later jobs of its team, nor other teams, nor other pools.
"""

from __future__ import annotations

import heapq

from scheduling.core.cycle import Candidate, Cycle, PoolCycle
from scheduling.core.explain import Explanations
from scheduling.core.mend import mend
from scheduling.core.model import Plan, Policy, Snapshot
from scheduling.core.order import Walk
from scheduling.core.queues import Queue, cluster_wide_in_order, entry, oldest_waiting, pools_in_order, queues_of
from scheduling.core.reclaim import RoomToMake


def decide(snapshot: Snapshot, policy: Policy | None = None) -> Plan:
    """What starts now, where, and why everything else waits. The snapshot's fleets are left as they were found.

    Raises ValueError where the picture itself is wrong: teams that form no tree, a job of a team that is not in it.
    The shares in the plan count what it starts as allocated.
    """
    cycle = Cycle(snapshot, policy or Policy())
    room = RoomToMake(cycle)
    try:
        room.keep_what_was_made()
        mend(cycle, room)
        _start_cluster_wide(cycle)
        for pool in pools_in_order(cycle):
            _walk(cycle, pool)
        evictions = room.make()
        return Plan(
            starts=cycle.starts(),
            reasons=Explanations(cycle).by_job(),
            shares={pool_id: pool.standing_now().by_team() for pool_id, pool in cycle.pools.items()},
            evictions=evictions,
            broken=tuple(sorted(cycle.broken)),
            refusals=room.refusals(evictions),
        )
    finally:
        room.close()
        cycle.give_back()


def _start_cluster_wide(cycle: Cycle) -> None:
    """Jobs of classes that an operator lets go ahead of other teams' jobs: all of these before any other."""
    for candidate in cluster_wide_in_order(cycle):
        while candidate.claims is None and _give_next(cycle, candidate, until=None):
            pass


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
    queues = queues_of(pool)
    walk = Walk(pool.account.standing, pool.account.allocated, queues, oldest_waiting(pool))
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
                heapq.heappush(queue, entry(candidate))
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
