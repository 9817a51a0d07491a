"""The decision: from a frozen picture to a plan, the same plan for the same picture.

A job that does not start is passed over: it blocks neither later jobs of its team, nor other teams, nor other pools.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from scheduling.core.cycle import Candidate, Cycle, PoolCycle
from scheduling.core.explain import Explanations
from scheduling.core.mend import mend
from scheduling.core.model import Plan, Policy, Reservation, Snapshot, Start
from scheduling.core.order import Walk
from scheduling.core.queues import Queue, cluster_wide_in_order, entry, oldest_waiting, pools_in_order, queues_of
from scheduling.core.reclaim import RoomToMake
from scheduling.core.reservation import Reservations


def decide(snapshot: Snapshot, policy: Policy | None = None) -> Plan:
    """What starts now, where, and why everything else waits. The snapshot's fleets are left as they were found.

    Raises ValueError where the picture itself is wrong: teams that form no tree, a job of a team that is not in it.
    The shares in the plan count what it starts as allocated.
    """
    cycle = Cycle(snapshot, policy or Policy())
    room = RoomToMake(cycle)
    reserved = Reservations(cycle)
    try:
        _start(cycle, room, reserved)
        evictions = room.make()
        reservations = reserved.of_plan({each.for_job for each in evictions})
        return Plan(
            starts=cycle.starts(),
            reasons=Explanations(cycle, reservations).by_job(),
            shares={pool_id: pool.standing_now().by_team() for pool_id, pool in cycle.pools.items()},
            evictions=evictions,
            broken=tuple(sorted(cycle.broken)),
            refusals=room.refusals(evictions),
            reservations=reservations,
        )
    finally:
        reserved.lift()
        room.close()
        cycle.give_back()


@dataclass(frozen=True, slots=True)
class NextStarts:
    """What starts now, and for whom room is kept."""

    starts: tuple[Start, ...]
    reservations: tuple[Reservation, ...]


def next_starts(snapshot: Snapshot, policy: Policy) -> NextStarts:
    """What ``decide`` would start and reserve, where nobody is told to give way; and nothing else."""
    cycle = Cycle(snapshot, policy)
    room = RoomToMake(cycle)
    reserved = Reservations(cycle)
    try:
        _start(cycle, room, reserved)
        return NextStarts(cycle.starts(), reserved.of_plan(()))
    finally:
        reserved.lift()
        room.close()
        cycle.give_back()


def _start(cycle: Cycle, room: RoomToMake, reserved: Reservations) -> None:
    """Everything that can start is given its room, in order; who cannot may have room kept for it."""
    room.keep_what_was_made()
    mend(cycle, room)
    reserved.keep_holders()
    _start_cluster_wide(cycle, reserved)
    pools = pools_in_order(cycle)
    while pools:
        for pool in pools:
            _walk(cycle, pool, reserved)
        pools = reserved.started_elsewhere()
    reserved.lift()


def _start_cluster_wide(cycle: Cycle, reserved: Reservations) -> None:
    """Jobs of classes that an operator lets go ahead of other teams' jobs: all of these before any other."""
    for candidate in cluster_wide_in_order(cycle):
        while candidate.claims is None and _give_next(cycle, candidate, until=None):
            reserved.settle(candidate)
        reserved.consider(candidate, None)


def _walk(cycle: Cycle, pool: PoolCycle, reserved: Reservations) -> None:
    """Starts what can start in turn, until nothing more fits in this pool."""
    pool.refresh()
    more = True
    while more:
        pool.refused_where_it_lands = pool.kept_less = False
        started = _pass(cycle, pool, reserved)
        # A refusal stands until the end of the cycle, but for jobs that ask for device memory only: what they count
        # depends on where they land, and that has moved if something was started after them; and for jobs that had to
        # stay out of room that was kept, and is so no more.
        more = started and (pool.refused_where_it_lands or pool.kept_less)


def _pass(cycle: Cycle, pool: PoolCycle, reserved: Reservations) -> bool:
    """One walk over all queues of the pool until each is used up; True where anything was given."""
    queues = queues_of(pool)
    walk = Walk(pool.account.standing, pool.account.allocated, queues, oldest_waiting(pool))
    gave = False
    while (leaf := walk.next_leaf()) is not None:
        if _serve(cycle, pool, queues[leaf], reserved):
            gave = True
            walk.settle(leaf)
        else:
            walk.drop(leaf)
    return gave


def _serve(cycle: Cycle, pool: PoolCycle, queue: Queue, reserved: Reservations) -> bool:
    """Gives something to the first job of one team's queue that can be given anything; False when none can."""
    while queue:
        _, candidate = heapq.heappop(queue)
        if _give_next(cycle, candidate, until=pool):
            reserved.settle(candidate)
            if candidate.pool is pool and candidate.has_offers():
                heapq.heappush(queue, entry(candidate))
            return True
        reserved.consider(candidate, pool)
    return False


def _give_next(cycle: Cycle, candidate: Candidate, until: PoolCycle | None) -> bool:
    """Gives the candidate its least, or one task more, in the first of its pools that can, none after ``until``."""
    for pool in candidate.choices:
        if any(cycle.give(candidate, pool, wants) for wants in candidate.offers()):
            return True
        if pool is until:
            return False
    return False
