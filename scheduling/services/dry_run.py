"""A submission tried out: what the next cycle would do with it. Nothing is written, and no scheduler is asked.

The jobs are read and permitted as real ones are, become what they would be in the queue, and the same ``decide`` runs
over this process's following picture with them in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from inventory.models import Pool
from scheduling.core import model as core
from scheduling.core.decide import decide
from scheduling.core.forecast import forecast
from scheduling.models import Job, PriorityClass, TaskGroup
from scheduling.prices import price_of, price_range
from scheduling.services.cycle import reason_json
from scheduling.services.following import FollowingPicture, KeptPicture, kept_picture
from scheduling.services.picture_rows import EPOCH, MICROSECOND, PoolPicture
from scheduling.services.requests import GroupSpec, JobSpec
from scheduling.services.submit import permitted, read_payload, rows_of
from tenants.models import User

FIRST_ID = 1 << 62  # jobs that are only tried out come after every real one


@dataclass(frozen=True, slots=True)
class Landing:
    """Where one task would run, what it asked for and what it would be given. Milli and MiB are of each device."""

    task: int  # its index in the whole job
    group: GroupSpec
    node: str
    model: str | None
    device_indexes: tuple[int, ...]
    compute_milli: int
    memory_mib: tuple[int, ...]
    cpu_milli: int
    host_memory_mib: int


@dataclass(frozen=True, slots=True)
class Standing:
    """The team's numbers in the pool once the job runs, milli of the pool's unit.

    ``headroom``: what it could still start before a limit, its own or one above, binds; None without any.
    """

    allocated: int
    guaranteed: int
    deserved: int
    limit: int | None
    headroom: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What would become of one job. ``pool``: where it would start, else its first choice.

    ``reasons`` as they are stored with a job that waits; empty where all of it would start now. ``gives_way``: ids of
    the jobs that would be told to give way for it, or already are. ``estimated_start`` None: nobody can say. Prices are
    of an hour: of what would start where that is known, of all that is asked for on the cheapest and dearest model
    where it is not.
    """

    spec: JobSpec
    pool: Pool
    fits: bool
    landings: tuple[Landing, ...]
    requested: int
    granted: int
    reasons: tuple[Mapping[str, Any], ...]
    gives_way: tuple[int, ...]
    estimated_start: datetime | None
    lowest_price: Decimal
    highest_price: Decimal
    standing: Standing


def dry_run(user: User, payload: Any, now: datetime, *, kept: KeptPicture = kept_picture) -> list[Outcome]:
    """What would become of the jobs of ``payload`` (one or a list) if they were submitted now, all together.

    Raises what ``submit_payload`` would.
    """
    specs = read_payload(payload)
    permit = permitted(user, specs, many=isinstance(payload, list), lock=False)
    jobs, groups = rows_of(user, specs, permit, now)
    with kept.at(now) as picture:
        tried = list(_as_if_waiting(picture, jobs, groups))
        snapshot = picture.snapshot(now)
        snapshot = replace(snapshot, pending=(*snapshot.pending, *tried))
        plan = decide(snapshot)
        trial = _Trial(picture, snapshot, plan, now)
        return [trial.outcome(spec, job, pending) for spec, job, pending in zip(specs, jobs, tried, strict=True)]


def _as_if_waiting(
    picture: FollowingPicture, jobs: Sequence[Job], groups: Sequence[TaskGroup]
) -> Iterator[core.PendingJob]:
    of_job: dict[int, list[TaskGroup]] = {}
    for group in groups:
        of_job.setdefault(id(group.job), []).append(group)
    for number, job in enumerate(jobs):
        job.pk = FIRST_ID + number
        yield picture.as_if_waiting(job, of_job[id(job)])


class _Trial:
    """One decision, read job by job."""

    def __init__(self, picture: FollowingPicture, snapshot: core.Snapshot, plan: core.Plan, now: datetime):
        self._picture = picture
        self._snapshot = snapshot
        self._plan = plan
        self._now = now
        self._starts = {start.job_id: start for start in plan.starts}
        self._parents = {team.id: team.parent_id for team in snapshot.teams}
        self._estimates: Mapping[int, int] | None = None
        self._gives_way: dict[int, set[int]] = {}
        for each in plan.evictions:
            self._gives_way.setdefault(each.for_job, set()).add(each.job_id)
        self._ranges: dict[Any, tuple[Decimal, Decimal]] = {}

    def outcome(self, spec: JobSpec, job: Job, pending: core.PendingJob) -> Outcome:
        start = self._starts.get(pending.id)
        pool = self._picture.pools[start.pool_id if start is not None else job.pool_ids[0]]
        reasons = self._plan.reasons.get(pending.id, ())
        granted = 0 if start is None else sum(_charge(pool, task.placement) for task in start.tasks)
        requested = granted if start is not None and not reasons else _least(pool, pending)
        low, high = self._prices(spec, job.priority_class, pool, start, requested)
        return Outcome(
            spec=spec,
            pool=pool.row,
            fits=start is not None,
            landings=() if start is None else tuple(self._landings(spec, pool, start)),
            requested=requested,
            granted=granted,
            reasons=tuple(reason_json(each, self._unit(each.pool_id, pool)) for each in reasons),
            gives_way=tuple(sorted(self._gives_way.get(pending.id, set()) | _leaving(reasons))),
            estimated_start=self._now if start is not None else self._estimate(pending.id),
            lowest_price=low,
            highest_price=high,
            standing=self._standing(pool, pending.team_id, 0 if start is not None else requested),
        )

    def _estimate(self, job_id: int) -> datetime | None:
        if self._estimates is None:
            self._estimates = forecast(self._snapshot)
        moment = self._estimates.get(job_id)
        return None if moment is None else EPOCH + moment * MICROSECOND

    def _unit(self, pool_id: int | None, otherwise: PoolPicture) -> Any:
        pool = self._picture.pools.get(pool_id or 0, otherwise)
        return "cpu" if pool.unit == Pool.Unit.CPU else "gpu"

    def _landings(self, spec: JobSpec, pool: PoolPicture, start: core.Start) -> Iterator[Landing]:
        """Tasks are numbered through all groups, as a real job's are; those of a group start from its first on."""
        firsts = [sum(group.count for group in spec.groups[:position]) for position in range(len(spec.groups))]
        for each in start.tasks:
            placement = each.placement
            state = pool.fleet.states[placement.node]
            model = next((one.model for one in state.devices if one.id in placement.device_ids), None)
            yield Landing(
                task=firsts[each.group],
                group=spec.groups[each.group],
                node=state.name,
                model=model,
                device_indexes=placement.device_indexes,
                compute_milli=placement.compute_milli if placement.device_ids else 0,
                memory_mib=placement.memory_mib,
                cpu_milli=placement.cpu_milli,
                host_memory_mib=placement.host_memory_mib,
            )
            firsts[each.group] += 1

    def _prices(
        self, spec: JobSpec, chosen: PriorityClass, pool: PoolPicture, start: core.Start | None, wanted: int
    ) -> tuple[Decimal, Decimal]:
        if start is not None:
            held = ((_model(pool, task.placement), _charge(pool, task.placement)) for task in start.tasks)
            price = price_of(pool.id, held, chosen.pk, self._now)
            return price, price
        wished = frozenset(name for group in spec.groups for name in group.models)
        key = (pool.id, wished, wanted, chosen.pk)
        if key not in self._ranges:
            self._ranges[key] = price_range(pool.row, spec, wanted, chosen.pk, self._now)
        return self._ranges[key]

    def _standing(self, pool: PoolPicture, team_id: int, more: int) -> Standing:
        """``more``: what the job would hold beside all that this decision starts."""
        shares = self._plan.shares[pool.id]
        own = shares[team_id]
        rooms = [
            share.limit - share.allocated - more for share in self._line(shares, team_id) if share.limit is not None
        ]
        return Standing(
            allocated=own.allocated + more,
            guaranteed=own.guaranteed,
            deserved=own.deserved,
            limit=own.limit,
            headroom=max(0, min(rooms)) if rooms else None,
        )

    def _line(self, shares: Mapping[int, core.Share], team_id: int) -> Iterator[core.Share]:
        current: int | None = team_id
        while current is not None:
            yield shares[current]
            current = self._parents.get(current)


def _charge(pool: PoolPicture, placement: core.Placement) -> int:
    return placement.cpu_milli if pool.unit == Pool.Unit.CPU else placement.milli


def _model(pool: PoolPicture, placement: core.Placement) -> int | None:
    return pool.devices[placement.device_ids[0]][1] if placement.device_ids else None


def _least(pool: PoolPicture, job: core.PendingJob) -> int:
    """What all tasks of the job count in the pool: the least that they could, where memory alone is asked for."""
    total = 0
    for group in job.groups:
        request = group.request
        if pool.unit == Pool.Unit.CPU:
            each = request.cpu_milli
        elif request.compute_milli is None and request.devices:
            each = pool.fleet.least_milli(request)
        else:
            each = request.devices * (request.compute_milli or 0)
        total += group.count * each
    return total


def _leaving(reasons: Sequence[core.Reason]) -> set[int]:
    """Jobs that are being stopped already, where the job would wait for them to be gone."""
    found: set[int] = set()
    for reason in reasons:
        if reason.code == "waiting_for_preemption":
            found.update(reason.numbers["jobs"])  # type: ignore[arg-type]
    return found
