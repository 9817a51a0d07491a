"""What teams used of pools that remember the past: read from the rows of their allocations, the same for everyone.

The scheduler keeps a pool's memory while it runs and stores it from time to time; pages and a scheduler that starts
read what was stored, and what was released since. Whichever way, the sums come out the same to the last unit, because
every allocation adds the same terms (see ``scheduling.core.memory``) and each is counted once, by its release event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.db.models import Min

from events.models import Event
from events.services import last_seq
from inventory.models import Pool
from scheduling.core.memory import Memory, step
from scheduling.models import Allocation, PastUse

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
MOST_ROWS = 200_000  # read anew where nothing is stored, the newest: a few seconds, well within a scheduler's lease
MOST_EVENTS = 50_000  # caught up with; where there are more, the rows are read anew
AT_ONCE = 500
WORTH_STORING = 2000  # releases counted since a memory was last stored, or five times as many events


Row = tuple[int, int, int, datetime, datetime]  # allocation, team, charge, bound_at, released_at


@dataclass
class PoolMemory:
    """One pool's memory. ``released``: all allocations that were released, up to event ``seq``; ``live``: those that
    whoever keeps it has entered. ``new``: how many were counted since it was last stored, at event ``stored_seq``."""

    pool_id: int
    unit: str
    half_life_s: int
    seq: int
    released: Memory
    live: Memory
    new: int = 0
    stored_seq: int | None = None
    held: Counter[int] = field(default_factory=Counter)  # team → what its live allocations come to

    def enter(self, team_id: int, charge: int, bound_at: int) -> None:
        """A live allocation, bound at this microsecond."""
        self.live.begin(team_id, charge, bound_at)
        self.held[team_id] += charge

    def leave(self, team_id: int, charge: int, bound_at: int) -> None:
        """It is no live one any more; its release counts with its event."""
        self.live.end(team_id, charge, bound_at)
        self.held[team_id] -= charge

    def start_over(self) -> None:
        """No live allocation is entered."""
        self.live = Memory(self.live.half_life)
        self.held.clear()

    def used(self, now: datetime) -> dict[int, int]:
        """Team → faded milli-seconds, as the core takes them."""
        return self.released.used(_microseconds(now), {t: n for t, n in self.held.items() if n}, self.live)

    @property
    def is_worth_storing(self) -> bool:
        """Whether who reads what is stored would have much to catch up with."""
        if self.stored_seq is None:
            return True
        return self.new >= WORTH_STORING or self.seq - self.stored_seq >= 5 * WORTH_STORING

    def catch_up(self, upto: int) -> None:
        """Counts what was released up to event ``upto`` and was not counted yet."""
        if upto <= self.seq:
            return
        events = Event.objects.filter(
            kind="allocations.released", pool_id=self.pool_id, seq__gt=self.seq, seq__lte=upto
        )
        told = list(events.order_by("seq").values_list("data", flat=True))
        ids = sorted({pk for data in told for pk in data["ids"]})
        found: list[Row] = []
        for start in range(0, len(ids), AT_ONCE):
            rows = Allocation.objects.filter(pk__in=ids[start : start + AT_ONCE], released_at__isnull=False)
            found += rows.values_list("id", *_columns(self.unit))
        for row in found:  # all of them are there: nothing is counted in part
            self._count(row)
        self.seq = upto

    def read_anew(self, upto: int, now: datetime) -> None:
        """Counts what was released up to event ``upto`` from the rows themselves."""
        self.released, self.new, self.stored_seq = Memory(self.released.half_life), 0, None
        since = EPOCH + max(0, self.released.since(_microseconds(now))) * MICROSECOND
        rows = Allocation.objects.filter(pool_id=self.pool_id, released_at__gt=since).order_by("-id")
        seen = set()
        for row in rows.values_list("id", *_columns(self.unit))[:MOST_ROWS].iterator(chunk_size=10_000):
            seen.add(row[0])
            self._count(row)
        # Looked at last: whatever was released while the rows were read has its event by now.
        later = Event.objects.filter(kind="allocations.released", pool_id=self.pool_id, seq__gt=upto)
        too_early = seen.intersection(pk for data in later.values_list("data", flat=True) for pk in data["ids"])
        for row in Allocation.objects.filter(pk__in=too_early).values_list("id", *_columns(self.unit)):
            self._count(row, -1)
        self.seq = upto

    def _count(self, row: Row, times: int = 1) -> None:
        _, team_id, charge, bound_at, released_at = row
        self.released.begin(team_id, times * charge, _microseconds(bound_at))
        self.released.end(team_id, times * charge, _microseconds(released_at))
        self.new += 1


def memory_of(pool: Pool, upto: int, now: datetime) -> PoolMemory | None:
    """What the pool remembers of released allocations up to event ``upto``; None where it remembers nothing."""
    if pool.half_life_s is None:
        return None
    half_life = pool.half_life_s * 1_000_000
    found = PoolMemory(pool.pk, pool.unit, pool.half_life_s, 0, Memory(half_life), Memory(half_life))
    stored = PastUse.objects.filter(pool=pool, half_life_s=pool.half_life_s).first()
    if stored is None or stored.seq > upto or not _can_catch_up(stored, upto):
        found.read_anew(upto, now)
        return found
    found.released.restore((team_id, period, amount) for team_id, period, amount in stored.sums)
    found.seq = found.stored_seq = stored.seq
    found.catch_up(upto)
    return found


def _can_catch_up(stored: PastUse, upto: int) -> bool:
    """Whether all events since then are still there, and not too many."""
    if upto - stored.seq > MOST_EVENTS:
        return False
    first = Event.objects.aggregate(first=Min("seq"))["first"] or 0
    return first <= stored.seq + 1


def past_use_of(pools: Iterable[Pool], now: datetime) -> dict[int, Mapping[int, int]]:
    """Pool id → team id → what it used, faded, for those of the pools that remember: read from the database alone."""
    found: dict[int, Mapping[int, int]] = {}
    for pool in pools:
        memory = None if pool.half_life_s is None else memory_of(pool, last_seq(), now)
        if memory is not None:
            rows = Allocation.objects.filter(pool=pool, released_at__isnull=True)
            for team_id, charge, bound_at, _ in rows.order_by("id").values_list(*_columns(pool.unit)):
                memory.enter(team_id, charge, _microseconds(bound_at))
            found[pool.pk] = memory.used(now)
    return found


def next_step(half_lives_s: Iterable[int], now: datetime) -> datetime | None:
    """When shares have moved enough for a new decision though only time passed; None where none remembers."""
    steps = [step(half_life_s * 1_000_000) for half_life_s in half_lives_s]
    return now + min(steps) * MICROSECOND if steps else None


def _columns(unit: str) -> tuple[str, str, str, str]:
    return ("team_id", "cpu_milli" if unit == Pool.Unit.CPU else "milli", "bound_at", "released_at")


def _microseconds(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND
