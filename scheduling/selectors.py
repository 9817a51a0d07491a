"""Jobs, shares and events as those who ask may see them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.core.cache import cache
from django.db.models import BigIntegerField, Case, Count, F, Max, Q, QuerySet, Sum, When
from django.db.models.functions import Coalesce

from events.errors import Fault, NotThere
from events.models import Event
from inventory.models import Pool
from inventory.selectors import pool_totals
from quotas.selectors import as_core, quotas_in_force
from scheduling import ports
from scheduling.core import model as core
from scheduling.core.shares import standing
from scheduling.core.tree import Tree
from scheduling.core.units import MILLI_PER_DEVICE
from scheduling.granted import DeviceKind, device_kinds, offers
from scheduling.models import Allocation, AllocationDevice, Job, PriorityClass, Task, TaskGroup
from scheduling.past_use import past_use_of
from scheduling.states import JOB_ACTIVE
from scheduling.telling import jobs_named, reason_shown
from tenants.models import Team
from tenants.policy import visible, visible_team_ids

LARGEST_ID = 2**63 - 1


def visible_jobs(user: Any) -> QuerySet[Job]:
    """The jobs that ``user`` may see, with what every answer tells of them."""
    return Job.objects.filter(visible(user)).select_related("team", "user", "pool", "priority_class")


def visible_job(user: Any, job_id: int) -> Job:
    """The job, if ``user`` may see it; else NotThere, whether or not there is one."""
    found = visible_jobs(user).filter(pk=job_id).first() if job_id <= LARGEST_ID else None
    if found is None:
        raise NotThere("There is no such job, or you may not see it.")
    return found


def jobs_seen(user: Any, ids: Collection[int]) -> frozenset[int] | None:
    """Those of these jobs that ``user`` may see; None where it sees every job."""
    return _jobs_of(visible_team_ids(user), ids)


def named_to(user: Any, job_ids: Collection[int]) -> tuple[frozenset[str] | None, frozenset[int] | None]:
    """The slugs of the teams that ``user`` may see, and those of these jobs; each None where it sees all."""
    teams = visible_team_ids(user)
    if teams is None:
        return None, None
    slugs = frozenset(Team.objects.filter(pk__in=teams).values_list("slug", flat=True))
    return slugs, _jobs_of(teams, job_ids)


def _jobs_of(teams: Collection[int] | None, ids: Collection[int]) -> frozenset[int] | None:
    if teams is None:
        return None
    # Asked of none too: a page takes as many questions whatever its rows name.
    rows = Job.objects.filter(team_id__in=teams, pk__in={0, *ids}).order_by()
    return frozenset(rows.values_list("pk", flat=True))


def reasons_for(user: Any, reasons: Sequence[Mapping[str, Any]], unit: str) -> list[dict[str, Any]]:
    """Stored reasons for a page that ``user`` looks at: nobody's team or job is named that it may not see."""
    teams, jobs = named_to(user, jobs_named(reasons))
    return [reason_shown(each, unit, teams, jobs) for each in reasons]


def class_named(name: str, field: str = "priority_class") -> PriorityClass:
    """The class with this name. Raises NotThere, naming ``field`` and the classes that there are."""
    found = PriorityClass.objects.filter(name=name).first()
    if found is None:
        allowed = list(PriorityClass.objects.order_by("name").values_list("name", flat=True)[:100])
        message = "there is no such priority class"
        raise NotThere(message, faults=[Fault(field, message, "unknown", name, allowed)])
    return found


@dataclass(frozen=True, slots=True)
class Figures:
    """What is told of a job beside its own row. Quantities in its pool's unit, milli."""

    groups: tuple[TaskGroup, ...]
    pools: tuple[str, ...]
    tasks_running: int
    allocated: int
    cost: Decimal
    milli_seconds: Decimal


def job_figures(jobs: Sequence[Job], now: datetime) -> dict[int, Figures]:
    """By job id, for all of ``jobs``; as many queries for a thousand as for one."""
    ids = [job.pk for job in jobs]
    groups: dict[int, list[TaskGroup]] = defaultdict(list)
    for group in TaskGroup.objects.filter(job_id__in=ids).order_by("job_id", "position"):
        groups[group.job_id].append(group)
    live = Allocation.objects.filter(job_id__in=ids, released_at__isnull=True).order_by()
    held = {
        row["job_id"]: row
        for row in live.values("job_id").annotate(
            milli=Sum("milli"), cpu=Sum("cpu_milli"), running=Count("id", filter=Q(state=Allocation.State.RUNNING))
        )
    }
    costs = ports.meter.job_costs(ids, now) if ids else {}
    names = dict(Pool.objects.order_by("id").values_list("id", "name"))
    found = {}
    for job in jobs:
        own, cost = held.get(job.pk), costs.get(job.pk)
        found[job.pk] = Figures(
            groups=tuple(groups[job.pk]),
            pools=tuple(names[pool_id] for pool_id in job.pool_ids if pool_id in names),
            tasks_running=own["running"] if own else 0,
            allocated=0 if own is None else own["cpu"] if job.pool.unit == Pool.Unit.CPU else own["milli"],
            cost=Decimal(0) if cost is None else cost.amount,
            milli_seconds=Decimal(0) if cost is None else cost.milli_seconds,
        )
    return found


def links_of(job_ids: Sequence[int], seen: Collection[int] | None) -> dict[int, tuple[list[int], list[int]]]:
    """By job: (what it comes after, what comes after it), of the teams ``seen`` (None: all), by id."""
    found: dict[int, tuple[list[int], list[int]]] = {job_id: ([], []) for job_id in job_ids}
    links = Job.after.through.objects.filter(Q(from_job_id__in=job_ids) | Q(to_job_id__in=job_ids))
    columns = ("from_job_id", "to_job_id", "from_job__team_id", "to_job__team_id")
    for behind, before, team_behind, team_before in links.order_by("from_job_id", "to_job_id").values_list(*columns):
        if behind in found and (seen is None or team_before in seen):
            found[behind][0].append(before)
        if before in found and (seen is None or team_behind in seen):
            found[before][1].append(behind)
    return found


# ---- shares ----------------------------------------------------------------------------------------------------------


def last_event() -> int:
    """The number of the last event; 0 where there is none."""
    return Event.objects.aggregate(last=Max("seq"))["last"] or 0


@dataclass(frozen=True, slots=True)
class TeamShare:
    """A team's numbers in one pool, its subtree included, milli in the pool's unit.

    ``over_by``: what it holds above its own limit; ``headroom``: what it could still start before a limit, its own or
    one above, binds; None without any. Neither is ever negative. ``memory_allocated_mib``: the device memory that
    counts against limits of it; None in pools where no team has one.
    """

    allocated: int
    guaranteed: int
    deserved: int
    limit: int | None
    pending: int
    demand: int
    over_by: int
    headroom: int | None
    memory_limit_mib: int | None = None
    memory_allocated_mib: int | None = None


def team_shares(now: datetime, pool_ids: Collection[int] | None = None) -> dict[int, dict[int, TeamShare]]:
    """Pool id → team id → its share, as a scheduler that looks at the database now would work it out.

    Kept for ``SHARES_CACHE_SECONDS`` as long as no event comes in: what changes them always leaves one, but for a
    temporary quota that begins or ends, and for time itself where the past is remembered.
    """
    wanted = None if pool_ids is None else sorted(pool_ids)
    key = f"team-shares:{last_event()}:{wanted}".replace(" ", "")
    found = cache.get(key) if settings.SHARES_CACHE_SECONDS else None
    if found is None:
        found = _team_shares(now, wanted)
        if settings.SHARES_CACHE_SECONDS:
            cache.set(key, found, settings.SHARES_CACHE_SECONDS)
    return found


def _team_shares(now: datetime, pool_ids: Sequence[int] | None) -> dict[int, dict[int, TeamShare]]:
    # As in the scheduler's picture: deleted teams stay in the tree while they hold something.
    holders = Allocation.objects.filter(released_at__isnull=True).values("team_id")
    rows = Team.objects.filter(Q(deleted_at=None) | Q(pk__in=holders)).order_by("id")
    tree = Tree(core.Team(team_id, slug, parent_id) for team_id, slug, parent_id in _with_ancestors(rows))
    pools = list(
        Pool.objects.order_by("id") if pool_ids is None else Pool.objects.filter(pk__in=pool_ids).order_by("id")
    )
    totals = pool_totals(pool_ids)
    quotas: dict[int, dict[int, core.Quota]] = defaultdict(dict)
    for (pool_id, team_id), row in quotas_in_force(now).items():
        quotas[pool_id][team_id] = as_core(row)
    running, pending, memory = _running(pools), _pending(pools), _memory(quotas)
    past_use = past_use_of(pools, now)
    found = {}
    for pool in pools:
        own = {team_id: amount for team_id, amount in pending[pool.pk].items() if team_id in tree.position_of}
        capacity = totals[pool.pk].capacity
        result = standing(tree, quotas[pool.pk], capacity, running[pool.pk], own, past_use.get(pool.pk))
        found[pool.pk] = {
            team_id: _team_share(tree, result.share(position), position, result.limit, result.allocated)
            for team_id, position in tree.position_of.items()
        }
        if pool.pk in memory:
            found[pool.pk] = _with_memory(found[pool.pk], tree, quotas[pool.pk], memory[pool.pk])
    return found


def _memory(quotas: Mapping[int, Mapping[int, core.Quota]]) -> dict[int, dict[int, int]]:
    """Pool id → team id → the MiB of device memory that count for its own jobs, in pools where it is limited at all.

    Whole devices for which less memory was named beside count that, as in ``core.model.Placement.memory_counted``.
    """
    limited = [key for key, own in quotas.items() if any(each.memory_limit_mib is not None for each in own.values())]
    group = "allocation__task__group__"
    named = When(**{f"{group}compute_milli": MILLI_PER_DEVICE}, then=Coalesce(f"{group}memory_mib", "memory_mib"))
    slices = AllocationDevice.objects.filter(
        allocation__released_at__isnull=True, allocation__pool_id__in=limited
    ).order_by()
    found: dict[int, dict[int, int]] = {pool_id: {} for pool_id in limited}
    rows = slices.values("allocation__pool_id", "allocation__team_id")
    for row in rows.annotate(mib=Sum(Case(named, default=F("memory_mib"), output_field=BigIntegerField()))):
        found[row["allocation__pool_id"]][row["allocation__team_id"]] = row["mib"]
    return found


def _with_memory(
    shares: Mapping[int, TeamShare], tree: Tree, quotas: Mapping[int, core.Quota], own: Mapping[int, int]
) -> dict[int, TeamShare]:
    held = [0] * len(tree)
    for team_id, memory_mib in own.items():
        for position in tree.path(tree.leaf_of[team_id]):
            held[position] += memory_mib
    return {
        team_id: replace(
            share,
            memory_limit_mib=quotas[team_id].memory_limit_mib if team_id in quotas else None,
            memory_allocated_mib=held[tree.position_of[team_id]],
        )
        for team_id, share in shares.items()
    }


def _with_ancestors(rows: Iterable[Team]) -> list[tuple[int, str, int | None]]:
    """(id, slug, parent) of the teams; a parent that is not among them is left out, so that all hang on the root."""
    teams = list(rows)
    ids = {team.pk for team in teams}
    return [(team.pk, team.slug, team.parent_id if team.parent_id in ids else None) for team in teams]


def _team_share(
    tree: Tree, share: core.Share, position: int, limits: Sequence[int | None], allocated: Sequence[int]
) -> TeamShare:
    rooms = [max(0, limit - allocated[each]) for each in tree.path(position) if (limit := limits[each]) is not None]
    return TeamShare(
        allocated=share.allocated,
        guaranteed=share.guaranteed,
        deserved=share.deserved,
        limit=share.limit,
        pending=share.pending,
        demand=share.demand,
        over_by=0 if share.limit is None else max(0, share.allocated - share.limit),
        headroom=min(rooms, default=None),
    )


def _running(pools: Sequence[Pool]) -> dict[int, dict[int, int]]:
    """Pool id → team id → what its own jobs hold, those that are being stopped included."""
    units = {pool.pk: pool.unit for pool in pools}
    found: dict[int, dict[int, int]] = {pool.pk: {} for pool in pools}
    live = Allocation.objects.filter(released_at__isnull=True, pool_id__in=list(units)).order_by()
    for row in live.values("pool_id", "team_id").annotate(gpu=Sum("milli"), cpu=Sum("cpu_milli")):
        found[row["pool_id"]][row["team_id"]] = row["cpu" if units[row["pool_id"]] == Pool.Unit.CPU else "gpu"]
    return found


SHAPE = (
    "devices",
    "compute_milli",
    "memory_mib",
    "cpu_milli",
    "min_device_memory_mib",
    "models_allowed",
    "vendors_allowed",
)


def _pending(pools: Sequence[Pool]) -> dict[int, Counter[int]]:
    """Pool id → team id → what its own jobs wait for, in every pool that they name; held ones do not count.

    What runs and still wants tasks counts with those, where it runs. Equal requests are counted by the database.
    """
    by_id = {pool.pk: pool for pool in pools}
    found: dict[int, Counter[int]] = {pool.pk: Counter() for pool in pools}
    waiting = TaskGroup.objects.filter(job__state=Job.State.PENDING, job__hold="").order_by()
    rows = list(waiting.values("job__team_id", "job__pool_ids", *SHAPE).annotate(tasks=Sum("count")))
    growing = Task.objects.filter(
        state=Task.State.PENDING, job__state__in=sorted(JOB_ACTIVE), job__ending="", job__hold=""
    ).order_by()
    shape = {name: F(f"group__{name}") for name in SHAPE}
    rows += [
        {**row, "job__pool_ids": [row["job__pool_id"]]}
        for row in growing.values("job__team_id", "job__pool_id", **shape).annotate(tasks=Count("id"))
    ]
    kinds = device_kinds(by_id) if any(_may_be_rounded(row) for row in rows) else {}
    for row in rows:
        for pool_id in dict.fromkeys(row["job__pool_ids"]):
            pool = by_id.get(pool_id)
            if pool is not None:
                each = (
                    row["cpu_milli"] if pool.unit == Pool.Unit.CPU else _least_milli(row, pool, kinds.get(pool_id, ()))
                )
                found[pool_id][row["job__team_id"]] += each * row["tasks"]
    return found


def _may_be_rounded(row: Mapping[str, Any]) -> bool:
    """Whether what it counts depends on the devices: all that asks for a part of one, or for memory."""
    return row["devices"] > 0 and row["compute_milli"] != MILLI_PER_DEVICE


def _least_milli(row: Mapping[str, Any], pool: Pool, kinds: Sequence[DeviceKind]) -> int:
    """The least that one such task can count: on the device where its slice is the smallest."""
    if not _may_be_rounded(row):
        return row["devices"] * (row["compute_milli"] or 0)
    asked = TaskGroup(**{name: row[name] for name in SHAPE})
    found = offers(asked, asked.models_allowed, asked.vendors_allowed, kinds, pool.step_milli)
    # A fraction that nothing here serves still waits for that much; of memory alone it is not known how much that is.
    return found[0].granted.milli if found else row["devices"] * (row["compute_milli"] or 0)
