"""When waiting jobs will start, as far as that can be told: worked out beside the cycles and stored on the jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from events.services import unit_of_work
from scheduling.core import model as core
from scheduling.core.forecast import forecast
from scheduling.models import Job
from scheduling.services.picture import Picture
from scheduling.services.picture_rows import EPOCH, MICROSECOND, chunks, microseconds

MOST_WRITES = 2000  # estimates that one refresh stores; the next goes on with the rest


@dataclass
class Estimates:
    """The estimates of one scheduler. ``interval``: how often they are worked out anew while things change.

    They are a function of the picture and the moment: a scheduler that starts anew works out the same. What is stored
    already is read from the database by the first refresh.
    """

    interval: timedelta = timedelta(0)
    _due: bool = True
    _worked_out_at: datetime | None = None
    _found: Mapping[int, int] = field(default_factory=dict)  # job → microseconds
    _stored: dict[int, int] | None = None

    def outdate(self) -> None:
        """Something was decided since: they are to be worked out anew."""
        self._due = True

    def refresh(self, picture: Picture, policy: core.Policy, now: datetime) -> int:
        """Waiting jobs carry their estimates, or none where there is none; returns how many rows changed.

        Works nothing out where nothing was decided since the last time, unless a moment has passed by which a job was
        to have started.
        """
        passed = any(moment < microseconds(now) for moment in self._found.values())
        fresh = self._worked_out_at is not None and now - self._worked_out_at < self.interval
        if not fresh and (self._due or passed):
            self._found = forecast(picture.snapshot(now), policy)
            self._worked_out_at, self._due = now, False
        return self._store(picture)

    def _store(self, picture: Picture) -> int:
        if self._stored is None:
            rows = Job.objects.filter(estimated_start__isnull=False).exclude(started_at__isnull=False)
            self._stored = {
                job_id: microseconds(moment)
                for job_id, moment in rows.values_list("pk", "estimated_start")
                if moment is not None
            }
        waiting = {job_id for job_id, job in picture.pending.items() if not job.growing}
        wanted = {job_id: moment for job_id, moment in self._found.items() if job_id in waiting}
        changed = [key for key in sorted({*wanted, *self._stored}) if wanted.get(key) != self._stored.get(key)]
        changed = changed[:MOST_WRITES]
        if not changed:
            return 0
        with unit_of_work():
            for chunk in chunks(changed, 500):
                rows = [Job(pk=key, estimated_start=_moment(wanted.get(key))) for key in chunk]
                # What started meanwhile has none any more, and none is given to it.
                Job.objects.exclude(state__in=(Job.State.STARTING, Job.State.RUNNING)).bulk_update(
                    rows, ["estimated_start"]
                )
        for key in changed:
            if key in wanted:
                self._stored[key] = wanted[key]
            else:
                del self._stored[key]
        return len(changed)


def _moment(microseconds_since: int | None) -> datetime | None:
    return None if microseconds_since is None else EPOCH + microseconds_since * MICROSECOND
