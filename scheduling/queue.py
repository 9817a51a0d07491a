"""A pool's queue in the order in which the scheduler walks it, for people to look at.

The scheduler decides over its own picture; this reads the same numbers from the database and uses the same core.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import F, Q, Sum

from inventory.models import Pool
from inventory.selectors import pool_totals
from quotas.selectors import as_core, quotas_in_force
from scheduling.core import model as core
from scheduling.core.order import NEVER, Walk
from scheduling.core.shares import Standing, standing
from scheduling.core.tree import Tree
from scheduling.models import Allocation, Job, TaskGroup
from scheduling.past_use import past_use_of
from tenants.models import Team

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST_ORDERED = 2000  # waiting jobs of a pool that are put in order; a page shows far fewer


@dataclass(frozen=True, slots=True)
class Queued:
    """A waiting job at its place in the queue, with what it asks for in the pool's unit."""

    place: int
    job: Job
    wanted: int


def standing_of(pool: Pool, now: datetime) -> Standing:
    """What every team holds, wants and deserves of the pool."""
    tree = Tree(core.Team(pk, slug, parent) for pk, slug, parent in Team.objects.values_list("pk", "slug", "parent_id"))
    quotas = {team_id: as_core(row) for (_, team_id), row in quotas_in_force(now, pool.pk).items()}
    past_use = past_use_of([pool], now).get(pool.pk)
    capacity = pool_totals([pool.pk])[pool.pk].capacity
    return standing(tree, quotas, capacity, _running(pool), _waiting(pool), past_use)


def _running(pool: Pool) -> dict[int, int]:
    amount = "cpu_milli" if pool.unit == Pool.Unit.CPU else "milli"
    live = Allocation.objects.filter(pool=pool, released_at__isnull=True).order_by()
    return dict(live.values_list("team_id").annotate(total=Sum(amount)))


def _candidates(pool: Pool) -> Q:
    return Q(pool=pool, state=Job.State.PENDING, hold="")


def _waiting(pool: Pool) -> dict[int, int]:
    jobs = Job.objects.filter(_candidates(pool)).order_by()
    if pool.unit != Pool.Unit.CPU:
        return dict(jobs.values_list("team_id").annotate(total=Sum("milli_wanted")))
    groups = TaskGroup.objects.filter(job__in=jobs).order_by()
    return dict(groups.values_list("job__team_id").annotate(total=Sum(F("cpu_milli") * F("count"))))


def _wanted(pool: Pool, jobs: Sequence[Job]) -> dict[int, int]:
    if pool.unit != Pool.Unit.CPU:
        return {job.pk: job.milli_wanted for job in jobs}
    groups = TaskGroup.objects.filter(job__in=[job.pk for job in jobs]).order_by()
    return dict(groups.values_list("job_id").annotate(total=Sum(F("cpu_milli") * F("count"))))


def queue(pool: Pool, now: datetime, most: int) -> list[Queued]:
    """The first ``most`` waiting jobs of the pool in the order in which it is their turn, if each got what it asks for.

    Jobs of cluster-wide classes come first; held ones have no place.
    """
    rows = Job.objects.filter(_candidates(pool)).select_related("team", "user", "priority_class")
    jobs = list(rows.order_by("submitted_at", "id")[:MOST_ORDERED])
    jobs.sort(key=_key)
    wanted = _wanted(pool, jobs)
    ahead = [job for job in jobs if job.priority_class.cluster_wide]
    others = [job for job in jobs if not job.priority_class.cluster_wide]
    order = ahead + (_walk(standing_of(pool, now), others, wanted) if others else [])
    return [Queued(place, job, wanted.get(job.pk, 0)) for place, job in enumerate(order[:most], 1)]


def _microseconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def _key(job: Job) -> tuple[int, bool, int, int]:
    value = job.priority_class.value if job.priority_value is None else job.priority_value
    return (-value, False, _microseconds(job.submitted_at), job.pk)


def _walk(found: Standing, jobs: Sequence[Job], wanted: dict[int, int]) -> list[Job]:
    tree = found.tree
    queues: dict[int, deque[Job]] = defaultdict(deque)
    for job in jobs:
        queues[tree.leaf(job.team_id)].append(job)
    allocated = list(found.allocated)

    def oldest(leaf: int) -> int:
        return min((_microseconds(job.submitted_at) for job in queues[leaf]), default=NEVER)

    walk = Walk(found, allocated, list(queues), oldest)
    order: list[Job] = []
    while (leaf := walk.next_leaf()) is not None:
        if not queues[leaf]:
            walk.drop(leaf)
            continue
        job = queues[leaf].popleft()
        order.append(job)
        for position in tree.path(leaf):
            allocated[position] += wanted.get(job.pk, 0)
        walk.settle(leaf)
    return order
