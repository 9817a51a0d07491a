"""Claims that rest on the past: how reclaim stays calm where shares move with time.

Where the past is remembered, shares move while nobody asks for more or less: who was given much counts less and less.
A team could then take back what it gave, give it again, and so on. So what is claimed is judged twice. A claim that
would stand if nobody had a past, with victims that would be too much then, acts at once: such shares stand still. One
that rests on the past alone stops only what has run for a whole half-life, so nothing is stopped more often than that.
Guarantees know no past: whoever stays within its guarantee has the first kind of claim always.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.core.cycle import PoolCycle


class PastClaims:
    """Tells for one pool, as the cycle found it, what a claim may stop."""

    def __init__(self, at: PoolCycle, now: int):
        self._allocated = at.account.allocated
        self._long_ago: int | None = None  # what started later is stopped by no claim that rests on the past
        if at.pool.half_life is not None and any(at.pool.past_use.values()):
            self._long_ago = now - at.pool.half_life
            plain = at.standing_now(remembering=False)
            self._deserved = plain.deserved
            self._floor = [max(pair) for pair in zip(plain.deserved, plain.guaranteed, strict=True)]

    def may_stop(
        self, started_at: int, claimants: Iterable[int], claimed: int, losers: Iterable[int], lost: int
    ) -> bool:
        """Whether a claim of ``claimed`` at these positions may take ``lost`` from those of the losers, of a job that
        started then; that the shares allow it is known."""
        if self._long_ago is None or started_at <= self._long_ago:
            return True
        allocated = self._allocated
        return all(allocated[i] + claimed <= self._deserved[i] for i in claimants) and all(
            allocated[i] - lost >= self._floor[i] for i in losers
        )
