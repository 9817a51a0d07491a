"""A picture that keeps up with commits that other processes make, from the event log alone.

The scheduler's own picture applies what its commits do as it makes them. This one hears of a job that was bound, grew,
shrank, gives way or ends, and reads anew what that job holds. Each ``refresh`` reads events and rows of one moment, so
that what it shows has been true, all of it at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

from django.conf import settings

from events.models import Event
from events.reading import one_moment
from scheduling.core import model as core
from scheduling.core.fleet import PlacementRefused
from scheduling.models import Allocation, Job, TaskGroup
from scheduling.services.holding import held_numbers
from scheduling.services.picture import Picture
from scheduling.services.picture_rows import chunks
from scheduling.states import JOB_ACTIVE

# Events after which a job holds something else, or holds it on other terms.
HOLDING_EVENTS = (
    "job.state",
    "job.grew",
    "job.shrunk",
    "job.evicted",
    "job.stopping",
    "job.releasing",
    "job.requeued",
    "job.priority",
    "job.reasons",  # among them since when room is kept for it
)


class FollowingPicture(Picture):
    """As ``Picture``, for who commits no placements: nothing is told to it, ``refresh`` finds out."""

    def refresh(self, now: datetime) -> bool:
        """Brings the picture up to the last event, whoever wrote it; returns whether anything changed."""
        with one_moment():
            before = self.seq
            changed = super().refresh(now)
            if before >= 0 and self.seq > before:
                changed = self._follow(before, now) or changed
            self.relearn()
            return changed

    def as_if_waiting(self, job: Job, groups: Sequence[TaskGroup]) -> core.PendingJob:
        """A job that is no row (it has an id all the same) as the core would see it in the queue."""
        found = self._pending_job(job, groups, {}, held_numbers([job]).get(job.pk, {}))
        assert found is not None, "a job that waits is never complete"
        return found

    def _follow(self, before: int, now: datetime) -> bool:
        """What the events after ``before`` say of who holds what."""
        rows = Event.objects.filter(seq__gt=before, seq__lte=self.seq, kind__in=HOLDING_EVENTS)
        moved = {
            job_id
            for kind, job_id, data in rows.values_list("kind", "job_id", "data")
            if job_id is not None
            and (kind != "job.state" or data.get("state") != Job.State.RUNNING)  # it holds what it held when it started
        }
        if not moved:
            return False
        try:
            self._read_holders(moved, now)
        except (PlacementRefused, KeyError):
            # Something changed of which no event tells: what is there now is read as a whole.
            self.load(now)
        self.generation += 1
        return True

    def _read_holders(self, job_ids: set[int], now: datetime) -> None:
        """What these jobs hold and want is as it is in the database."""
        known = [each for job_id in sorted(job_ids) for each in self.allocations_of.get(job_id, ())]
        self.released(known)
        for chunk in chunks(sorted(job_ids), 500):
            live = Allocation.objects.filter(job_id__in=chunk, released_at__isnull=True).order_by()
            for pool_id in sorted(set(live.values_list("pool_id", flat=True))):
                self._load_held(pool_id, job_id__in=chunk)
        now_held = {each: self.held[each] for job_id in job_ids for each in self.allocations_of.get(job_id, ())}
        for allocation_id in now_held.keys() - set(known):
            self.pools[now_held[allocation_id].pool_id].requests_seen += 1
        wanting = job_ids | _given_way_to(job_ids)
        for job_id in wanting:
            self.pending.pop(job_id, None)
        for chunk in chunks(sorted(wanting), 500):
            self._load_jobs(Job.objects.filter(pk__in=chunk, state__in=(Job.State.PENDING, *JOB_ACTIVE)), now)


def _given_way_to(job_ids: set[int]) -> set[int]:
    """The waiting jobs that something of these gives or gave way to: no event of their own tells of it."""
    found: set[int] = set()
    for chunk in chunks(sorted(job_ids), 500):
        rows = Allocation.objects.filter(job_id__in=chunk, evicted_for__state=Job.State.PENDING).order_by()
        found.update(rows.values_list("evicted_for_id", flat=True))
    return found


class KeptPicture:
    """This process's one following picture: read at its first use, then followed; used by one thread at a time.

    One that was not used for ``kept`` is read anew instead. (Events are there for days, so none is missed by then.)
    """

    def __init__(self, kept: timedelta | None = None) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._picture: FollowingPicture | None = None
        self._used_at: datetime | None = None

    @contextmanager
    def at(self, now: datetime) -> Iterator[FollowingPicture]:
        """The picture as of the last event. Whatever goes wrong inside, the next one starts from a fresh one."""
        with self._lock:
            kept = timedelta(seconds=settings.PICTURE_KEPT_SECONDS) if self._kept is None else self._kept
            picture = self._picture
            if picture is None or self._used_at is None or not timedelta(0) <= now - self._used_at < kept:
                picture = FollowingPicture()
            self._picture = None
            picture.refresh(now)
            yield picture
            self._picture, self._used_at = (picture, now) if kept else (None, None)


kept_picture = KeptPicture()
