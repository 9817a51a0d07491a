"""The one door through which events are written, in one transaction with the change that they tell of."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from events.models import Event
from events.rows import insert_rows

# Any constant will do; it must only differ from the other advisory locks of this project.
EVENT_ORDER_LOCK = 0x414C4C01


class NaiveTime(ValueError):
    """A datetime without a time zone was given where a moment is meant."""


def require_aware(now: datetime) -> datetime:
    """``now`` itself; raises NaiveTime where it has no time zone, because it then names no moment."""
    if now.tzinfo is None:
        raise NaiveTime(f"{now!r} has no time zone")
    return now


class Bell:
    """Wakes loops of this process when something was committed. Those of other processes poll."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0

    def ring(self) -> None:
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait(self, seen: int, timeout: float) -> int:
        """Returns the current count, as soon as it differs from ``seen`` or after ``timeout`` seconds."""
        with self._condition:
            self._condition.wait_for(lambda: self._count != seen, timeout)
            return self._count


bell = Bell()


@dataclass
class Journal:
    """The events of the transaction that is open; written, in this order, as its last act."""

    events: list[Event] = field(default_factory=list)

    def record(
        self,
        kind: str,
        now: datetime,
        *,
        team_id: int | None = None,
        pool_id: int | None = None,
        job_id: int | None = None,
        node_id: int | None = None,
        actor_id: int | None = None,
        **data: Any,
    ) -> None:
        self.events.append(
            Event(
                at=require_aware(now),
                kind=kind,
                team_id=team_id,
                pool_id=pool_id,
                job_id=job_id,
                node_id=node_id,
                actor_id=actor_id,
                data=data,
            )
        )


@contextmanager
def unit_of_work() -> Iterator[Journal]:
    """A transaction with a journal. Nested ones share the outermost's journal and become savepoints.

    After it, either everything is committed, the events last and in order, or nothing is. On PostgreSQL the events
    are inserted under a lock that is held until the commit: so numbers become visible in their order and a reader
    that follows the sequence never misses one that commits late. (SQLite has one writer at a time anyway.)
    """
    outer: Journal | None = getattr(connection, "allotment_journal", None)
    if outer is not None:
        mark = len(outer.events)
        try:
            with transaction.atomic():
                yield outer
        except BaseException:
            del outer.events[mark:]
            raise
        return
    journal = Journal()
    connection.allotment_journal = journal  # type: ignore[attr-defined]
    try:
        with transaction.atomic():
            yield journal
            _write(journal)
    finally:
        connection.allotment_journal = None  # type: ignore[attr-defined]


def _write(journal: Journal) -> None:
    if not journal.events:
        return
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [EVENT_ORDER_LOCK])
    insert_rows(journal.events)
    transaction.on_commit(bell.ring)


def last_seq(after: int = 0, kinds: Sequence[str] = ()) -> int:
    """The number of the newest event after ``after`` (of these ``kinds``, if given); ``after`` itself where none is.

    As plain SQL: loops ask this many times a second.
    """
    marks = ", ".join(["%s"] * len(kinds))
    of_kinds = f" AND kind IN ({marks})" if kinds else ""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT MAX(seq) FROM events_event WHERE seq > %s{of_kinds}", [after, *kinds])  # noqa: S608
        return cursor.fetchone()[0] or after


def prune_events(before: datetime, *, at_most: int = 50_000) -> int:
    """Deletes the oldest events from before ``before``, at most so many at once; returns how many went."""
    oldest = Event.objects.filter(at__lt=require_aware(before)).order_by("seq").values_list("seq", flat=True)[:at_most]
    last = max(oldest, default=None)
    if last is None:
        return 0
    return Event.objects.filter(seq__lte=last, at__lt=before).delete()[0]
