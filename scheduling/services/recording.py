"""Keeps what cycles decided over, so that a decision can be worked out again: as many, and as often, as is cheap.

By sizes and by the clock of the cycles alone: every record is paid for with its bytes out of an allowance that grows
with time. So the cycles of a small fleet are all kept, those of a large busy one every few seconds. The oldest go when
there are too many or too large ones.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime

from django.conf import settings

from scheduling.core.codec import Encoder, Recorded, numbered
from scheduling.models import CycleRecord

log = logging.getLogger(__name__)

BURST_BYTES = 4 << 20  # of allowance, at the most: what a quiet hour is good for


@dataclass(frozen=True, slots=True)
class Keeping:
    """How many records and bytes of them are kept, and how many bytes are recorded a second; any of them 0: none."""

    records: int
    bytes: int
    bytes_a_second: int

    @classmethod
    def of_settings(cls) -> Keeping:
        return cls(settings.RECORDED_CYCLES, settings.RECORDED_CYCLE_BYTES, settings.RECORDED_BYTES_A_SECOND)

    @property
    def on(self) -> bool:
        return min(self.records, self.bytes, self.bytes_a_second) > 0


NOTHING = Keeping(0, 0, 0)


@dataclass
class Recorder:
    """One scheduler's records. ``body`` before a commit, ``keep`` inside it, ``forget`` where it may have failed."""

    keeping: Keeping = field(default_factory=Keeping.of_settings)
    _allowance: float = BURST_BYTES
    _paid_at: datetime | None = None
    _encoder: Encoder = field(default_factory=Encoder)
    _kept: deque[tuple[int, int]] | None = None  # (id, size), the oldest first

    def body(self, recorded: Recorded, now: datetime) -> bytes | None:
        """The record of a cycle at ``now``, its number left open; None where none is to be kept of it."""
        if not self.keeping.on or not self._affords(now):
            return None
        try:
            body = self._encoder.encode(recorded)
        except (TypeError, ValueError):
            log.exception("a cycle could not be recorded; it is carried out all the same")
            return None
        self._allowance -= len(body)
        return body if len(body) <= self.keeping.bytes else None

    def keep(self, body: bytes, cycle: int, now: datetime) -> None:
        """The record is kept as that of ``cycle``, and the oldest are gone for it; in the commit of that cycle."""
        if self._kept is None:
            self._kept = deque(CycleRecord.objects.order_by("id").values_list("id", "size"))
        row = CycleRecord(cycle=cycle, at=now, body=numbered(body, cycle), size=len(body))
        row.save(force_insert=True)
        self._kept.append((row.pk, row.size))
        self._prune(self._kept)

    def forget(self) -> None:
        """What is kept is read anew before the next record: another may have kept some, or a commit have failed."""
        self._kept = None

    def _affords(self, now: datetime) -> bool:
        if self._paid_at is not None and now > self._paid_at:
            earned = (now - self._paid_at).total_seconds() * self.keeping.bytes_a_second
            self._allowance = min(BURST_BYTES, self._allowance + earned)
        self._paid_at = now
        return self._allowance > 0

    def _prune(self, kept: deque[tuple[int, int]]) -> None:
        total = sum(size for _, size in kept)
        gone = []
        while len(kept) > self.keeping.records or total > self.keeping.bytes:
            row_id, size = kept.popleft()
            total -= size
            gone.append(row_id)
        if gone:
            CycleRecord.objects.filter(pk__in=gone).delete()
