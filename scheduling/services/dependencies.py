"""Jobs that come after others: named at submission, held until all of those have succeeded.

A job can only name jobs that are there, or that stand before it in the same list: so none comes after itself, and no
circle can be made. Predecessors are locked before followers by whoever writes to both, each in order of id, and a
follower's other predecessors are looked at once it is locked: of two that end at the same moment, the later one to
lock sees the success of the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from django.db.models import Q

from events.errors import Fault
from events.rows import insert_rows
from events.services import Journal
from scheduling.models import Job
from scheduling.services.holding import settle_holds
from tenants.models import User
from tenants.policy import roles, sees_everything, visible_team_ids

if TYPE_CHECKING:
    from scheduling.services.requests import JobSpec

MAX_LINKS = 10_000  # of one submission
LARGEST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Predecessors:
    """What one job of a submission comes after: ``ids`` of jobs that are there, ``earlier`` positions in its list.

    ``waits``: whether one of them has not succeeded yet.
    """

    ids: tuple[int, ...] = ()
    earlier: tuple[int, ...] = ()
    waits: bool = False


NONE = Predecessors()


def find_predecessors(
    user: User, specs: Sequence[JobSpec], *, many: bool, lock: bool
) -> tuple[list[Predecessors], list[Fault]]:
    """For each spec what it comes after, the existing ones locked if asked; and a fault for each that is not to be
    found.

    A number is the id of a job that ``user`` may see or has submitted, a text the name of one earlier job of the list.
    """
    if not any(spec.after for spec in specs):
        return [NONE] * len(specs), []
    known = _existing(user, {each for spec in specs for each in spec.after if isinstance(each, int)}, lock=lock)
    faults: list[Fault] = []
    found: list[Predecessors] = []
    positions: dict[str, list[int]] = defaultdict(list)
    for position, spec in enumerate(specs):
        where = f"[{position}].after" if many else "after"
        for each in spec.after:
            if isinstance(each, int) and each not in known:
                faults.append(Fault(where, f"there is no job {each}, or you may not see it", "unknown", each))
            elif isinstance(each, str) and len(positions[each]) != 1:
                faults.append(_no_such_name(where, each, positions))
        ids = tuple(sorted(each for each in spec.after if isinstance(each, int) and each in known))
        earlier = tuple(sorted(p for each in spec.after if isinstance(each, str) for p in positions[each]))
        found.append(Predecessors(ids, earlier, bool(earlier) or any(known[each] != _DONE for each in ids)))
        positions[spec.name].append(position)
    links = sum(len(each.ids) + len(each.earlier) for each in found)
    if links > MAX_LINKS:
        faults.append(Fault("after", f"one submission names at most {MAX_LINKS} predecessors, this one {links}"))
    return found, faults


_DONE = Job.State.SUCCEEDED


def _existing(user: User, ids: Iterable[int], *, lock: bool) -> dict[int, str]:
    """Id → state of those jobs that are there and the user may name; locked, they cannot end meanwhile."""
    wanted = sorted(each for each in ids if 0 < each <= LARGEST_ID)
    if not wanted:
        return {}
    rows = Job.objects.filter(pk__in=wanted)
    if lock:
        rows = rows.select_for_update(no_key=True, of=("self",))
    seen = visible_team_ids(user)
    if seen is not None:
        # A token that may submit but not read names what its owner submitted in the teams that it is good for.
        own = Q(user_id=user.pk)
        rows = rows.filter(Q(team_id__in=seen) | (own if sees_everything(user) else own & Q(team_id__in=roles(user))))
    return dict(rows.order_by("pk").values_list("pk", "state"))


def _no_such_name(where: str, name: str, positions: Mapping[str, Sequence[int]]) -> Fault:
    if positions[name]:
        message = f"several earlier jobs of this list are named {name!r}; a name must mean one"
        return Fault(where, message, value=name)
    allowed = sorted(each for each, held in positions.items() if len(held) == 1)[:100]
    message = f"no earlier job of this list is named {name!r}; a job that is there already is named by its id"
    return Fault(where, message, value=name, allowed=allowed)


def link(jobs: Sequence[Job], predecessors: Sequence[Predecessors]) -> None:
    """Each new job comes after its predecessors, on record."""
    through = Job.after.through
    insert_rows(
        through(from_job_id=job.pk, to_job_id=before)
        for job, own in zip(jobs, predecessors, strict=True)
        for before in (*own.ids, *(jobs[position].pk for position in own.earlier))
    )


# ---- ends ------------------------------------------------------------------------------------------------------------


def followers_of(job_ids: Iterable[int]) -> dict[int, list[int]]:
    """By job that has any: the jobs that come after it, by id."""
    found: dict[int, list[int]] = defaultdict(list)
    links = Job.after.through.objects.filter(to_job_id__in=list(job_ids))
    for before, follower in links.order_by("to_job_id", "from_job_id").values_list("to_job_id", "from_job_id"):
        found[before].append(follower)
    return dict(found)


def predecessors_ended(ended: Mapping[int, str], now: datetime, journal: Journal) -> int:
    """Jobs that waited for these (id → how it ended, on record already) and for nothing else are free; returns how
    many holds changed. Every follower's history has an event, so that what it says of its wait is looked at anew."""
    followers = followers_of(ended) if ended else {}
    if not followers:
        return 0
    ids = {each for own in followers.values() for each in own}
    locked = Job.objects.select_for_update(no_key=True, of=("self",)).filter(pk__in=ids, state=Job.State.PENDING)
    waiting = {job.pk: job for job in locked.order_by("pk")}
    for before, own in followers.items():
        for job_id in own:
            job = waiting.get(job_id)
            if job is not None:
                common = {"team_id": job.team_id, "pool_id": job.pool_id, "job_id": job_id}
                journal.record("job.dependency", now, **common, after=before, ended=ended[before], state=job.state)
    return settle_holds(list(waiting.values()), now, journal)
