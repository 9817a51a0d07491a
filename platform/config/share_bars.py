"""A share as lengths on one scale: what the bar on overview, pool and quota pages draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class Share(Protocol):
    """A team's numbers in one pool, in the pool's unit (``scheduling.core.model.Share`` is one)."""

    @property
    def guaranteed(self) -> int: ...
    @property
    def deserved(self) -> int: ...
    @property
    def allocated(self) -> int: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def pending(self) -> int: ...


def per_cent(part: int, whole: int) -> str:
    """``part`` of ``whole`` as an SVG length, within 0 and 100 %."""
    tenths = min(1000, max(0, part * 1000 // whole)) if whole > 0 else 0
    return f"{tenths / 10:g}%"


@dataclass(frozen=True, slots=True)
class ShareBar:
    """Lengths along the bar. Inside the guarantee, above it and waiting follow one another without a gap."""

    inside: str
    above_at: str
    above: str
    waiting_at: str
    waiting: str
    guaranteed: str
    deserved: str
    limit: str | None
    has_guarantee: bool
    over_limit: bool

    @classmethod
    def of(cls, share: Any, capacity: int | None = None) -> ShareBar:
        """The bar of ``share``. Its scale ends at the largest of its numbers, or at the pool's capacity where no
        limit is nearer, so that bars of one pool can be compared."""
        own = max(share.guaranteed, share.deserved, share.allocated)
        end = max(own, capacity if share.limit is None and capacity else share.limit or 0, 1)
        inside = min(share.allocated, share.guaranteed)
        above = share.allocated - inside
        waiting = max(0, min(share.pending, end - share.allocated))
        return cls(
            inside=per_cent(inside, end),
            above_at=per_cent(inside, end),
            above=per_cent(above, end),
            waiting_at=per_cent(share.allocated, end),
            waiting=per_cent(waiting, end),
            guaranteed=per_cent(share.guaranteed, end),
            deserved=per_cent(share.deserved, end),
            limit=None if share.limit is None else per_cent(share.limit, end),
            has_guarantee=share.guaranteed > 0,
            over_limit=share.limit is not None and share.allocated > share.limit,
        )
