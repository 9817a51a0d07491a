"""Gangs that lost a member with its node: the member is replaced at once, or the whole gang goes back to the queue.

Replacements come before everything else that starts in the cycle, except what others have given way for: nothing is
cheaper than to complete what runs. They keep to the limits of quota and to the gang's rule of place, and no task that
is left is moved. Where no replacement is found now, none is waited for: who waits holds nothing.
"""

from __future__ import annotations

from scheduling.core.cycle import Candidate, Cycle
from scheduling.core.order import job_key
from scheduling.core.reclaim import RoomToMake


def mend(cycle: Cycle, room: RoomToMake) -> None:
    """Every running gang has its least again, or is noted in ``cycle.broken`` and counts as being stopped."""
    cycle.broken += [job.id for job in cycle.snapshot.pending if job.held is not None and job.is_short]
    short = [candidate for candidate in cycle.candidates if candidate.job.is_short]
    for candidate in sorted(short, key=lambda each: job_key(each.job, growing=True)):
        if not _replaced(cycle, candidate):
            cycle.broken.append(candidate.job.id)
    if cycle.broken:
        cycle.drop(cycle.broken)
        room.stop(cycle.broken)


def _replaced(cycle: Cycle, candidate: Candidate) -> bool:
    return any(cycle.give(candidate, at, candidate.ask.least) for at in candidate.choices)
