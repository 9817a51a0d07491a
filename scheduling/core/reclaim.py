"""Room that is made: who gives way so that a job that is entitled to run now can start, and who waits for it.

A job is *entitled* as far up the tree as its team and the teams above it stay within what they deserve, the job
included. Up to there it may reclaim from teams that hold more than they deserve; and in its own team it may preempt
what has a lower priority, which then counts as given back. Everything is tried in the pool's future first (see
``future``): nobody gives way unless the job provably starts once they are gone, and nobody who is not needed for it.

No eviction is undone by another one. The team that reclaims stays within what it deserves, so it is no victim itself;
and demand, which shares follow from, is the same before and after. Where shares move with time besides, because the
pool remembers the past, ``past_claims`` tells how that holds too.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator

from scheduling.core.cycle import Candidate, Cycle, PoolCycle
from scheduling.core.eviction_search import Search
from scheduling.core.future import Claim, Future
from scheduling.core.model import Eviction, EvictionRefusal, RunningJob
from scheduling.core.order import Walk
from scheduling.core.queues import Queue, cluster_wide_in_order, oldest_waiting, pools_in_order, queues_of


class RoomToMake:
    """What one cycle does for jobs that others give way to, from keeping room for them to telling others to go."""

    def __init__(self, cycle: Cycle):
        self._cycle = cycle
        running: dict[int, list[RunningJob]] = {}
        for job in cycle.snapshot.running:
            if job.pool_id in cycle.pools:
                running.setdefault(job.pool_id, []).append(job)
        self._futures = {pool_id: Future(cycle.pools[pool_id], jobs) for pool_id, jobs in sorted(running.items())}
        cycle.futures = self._futures

    def keep_what_was_made(self) -> None:
        """Jobs that others gave way to start now if these are gone; until then nobody takes what they wait for."""
        claimants = [each for each in self._cycle.candidates if each.waits and each.job.room_made_at is not None]
        for candidate in sorted(claimants, key=lambda each: (each.job.room_made_at, each.job.id)):
            least = candidate.ask.least
            if not least or any(self._cycle.give(candidate, at, least) for at in candidate.choices):
                continue
            for at in candidate.choices:
                future = self._futures.get(at.pool.id)
                if future is not None and self._claim(candidate, at, future):
                    break

    def _claim(self, candidate: Candidate, at: PoolCycle, future: Future) -> bool:
        future.enter()
        try:
            claim = None
            if self._cycle.refusal(candidate, at, candidate.ask.least) is None:
                claim = future.place(candidate)
            if claim is not None:
                self._hold(claim, at, future)
        finally:
            future.leave()
        if claim is not None:
            self._cycle.waits_for[candidate.job.id] = (at, future.leaving_for(candidate.job.id))
        return claim is not None

    def _hold(self, claim: Claim, at: PoolCycle, future: Future) -> None:
        future.claims.append(claim)
        claim.candidate.claims = at
        self._cycle.caps.take(claim.candidate.job, at.pool, claim.charge, starts=True)

    def stop(self, job_ids: Collection[int]) -> None:
        """All that these jobs hold is being stopped from now on."""
        for future in self._futures.values():
            future.stop(job_ids)

    def make(self) -> tuple[Eviction, ...]:
        """Who gives way to whom, in the order in which it was found out; the present is as it was before."""
        if not self._futures:
            return ()
        for pool_id in self._futures:
            self._cycle.pools[pool_id].refresh()
        evictions: list[Eviction] = []
        for future in self._futures.values():
            future.enter()
        kept = {key: len(future.claims) for key, future in self._futures.items()}
        try:
            searches = {key: Search(self._cycle, future) for key, future in self._futures.items()}
            for search, candidate in self._in_order(searches):
                evictions += search.evictions_for(candidate)
            sure = set().union(*(future.confirm(kept[key]) for key, future in self._futures.items()))
        finally:
            for key, future in self._futures.items():
                future.leave(keep=min(kept[key], len(future.claims)))
        evictions = [each for each in evictions if each.for_job in sure]
        for eviction in evictions:
            at, jobs = self._cycle.waits_for.get(eviction.for_job, (self._cycle.pools[eviction.pool_id], []))
            self._cycle.waits_for[eviction.for_job] = (at, sorted({*jobs, eviction.job_id}))
        return tuple(evictions)

    def refusals(self, evictions: Iterable[Eviction]) -> tuple[EvictionRefusal, ...]:
        """For whom nobody gives way, and why. Who starts, or waits for others to be gone, is not among them."""
        helped = {each.for_job for each in evictions} | self._cycle.waits_for.keys()
        started = {candidate.job.id for candidate in self._cycle.started}
        return tuple(each for each in self._cycle.refusals.values() if each.job_id not in helped | started)

    def close(self) -> None:
        for future in self._futures.values():
            future.close()

    def _in_order(self, searches: dict[int, Search]) -> Iterator[tuple[Search, Candidate]]:
        """Each waiting job with each pool where room could be made for it, in the order in which jobs start."""
        for candidate in cluster_wide_in_order(self._cycle):
            yield from self._where(searches, candidate, until=None)
        for pool in pools_in_order(self._cycle):
            if pool.pool.id in searches:
                yield from self._walk(searches, pool)

    def _walk(self, searches: dict[int, Search], pool: PoolCycle) -> Iterator[tuple[Search, Candidate]]:
        queues = queues_of(pool)
        walk = Walk(pool.account.standing, pool.account.allocated, queues, oldest_waiting(pool))
        while (leaf := walk.next_leaf()) is not None:
            for candidate in _drain(queues[leaf]):
                yield from self._where(searches, candidate, until=pool)
                if candidate.claims is pool:
                    for touched in (leaf, *searches[pool.pool.id].touched):
                        walk.settle(touched)
                    break
            else:
                walk.drop(leaf)

    def _where(
        self, searches: dict[int, Search], candidate: Candidate, until: PoolCycle | None
    ) -> Iterator[tuple[Search, Candidate]]:
        for at in candidate.choices:
            if candidate.waits and candidate.claims is None and at.pool.id in searches:
                yield searches[at.pool.id], candidate
            if at is until:
                return


def _drain(queue: Queue) -> Iterator[Candidate]:
    while queue:
        yield heapq.heappop(queue)[1]
