"""The scheduler's picture of pools, teams and jobs: loaded from the database, then kept up by the event log.

The picture is never the truth: a commit checks everything again in its transaction, and ``check`` compares the two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db.models import Count, F, Max, Q, QuerySet

from events.models import Event
from events.services import last_seq
from inventory.models import Device, Pool
from quotas.selectors import as_core, next_change, quotas_in_force
from scheduling import ports
from scheduling.core import model as core
from scheduling.core.fleet import Fleet
from scheduling.core.lookahead import MIN_SEEN
from scheduling.core.units import MILLI_PER_DEVICE
from scheduling.models import Allocation, AllocationDevice, Job, Task, TaskGroup
from scheduling.past_use import PoolMemory, memory_of, next_step
from scheduling.services import restarts
from scheduling.services.budget_holds import under_budget
from scheduling.services.holding import held_numbers
from scheduling.services.picture_rows import (
    AT_ONCE,
    EPOCH,
    MICROSECOND,
    NOTHING_LEARNED,
    UNREAD,
    Held,
    Learned,
    PoolPicture,
    Runner,
    charge,
    chunks,
    ends_at,
    in_parts,
    kept_since,
    learn,
    microseconds,
    node_states,
    request_of,
    runner_of,
    wanting,
)
from scheduling.services.place_rules import topology_of
from scheduling.states import JOB_ACTIVE, JOB_ENDED
from tenants.models import Team

# The scores that learn from what is asked do so anew after so many requests.
RELEARN_AFTER = 2000
FIRST_LEARN = 100
LEARNING = ("fragmentation", "lookahead")

# Events after which parts of the picture are read anew. Our own commits are applied as they are made.
FLEET_EVENTS = (
    "nodes.added",
    "nodes.changed",
    "node.state",
    "device.health",
    "pool.created",
    "pool.changed",
    "engine.state",
    "model.changed",
)
CLAIM_EVENTS = (
    "quota.set",
    "quota.removed",
    "quota.expired",
    "team.created",
    "team.moved",
    "team.changed",
    "team.deleted",
)
# Jobs that wait are held and released one by one, with an event each; those that run and grow are not.
BUDGET_EVENTS = ("budget.set", "budget.removed", "budget.spent", "budget.lifted")
JOB_EVENTS = (
    "job.submitted",
    "job.state",
    "job.held",
    "job.released",
    "job.priority",
    "job.stopping",
    "job.requeued",
    "job.changed",
    "job.shrunk",
    "job.lost_tasks",
    "job.dependency",
    "job.replica",
)
HEEDED = (
    "allocations.released",
    "priority_class.set",
    *FLEET_EVENTS,
    *CLAIM_EVENTS,
    *BUDGET_EVENTS,
    *JOB_EVENTS,
)


class Picture:
    """All of it. ``refresh`` brings it up to the database's last event; ``bound`` applies an own commit.

    ``looks_ahead``: whether pools may be placed by look-ahead now; until it says so fragmentation stands in for it.
    """

    def __init__(self, looks_ahead: Callable[[], bool] = lambda: True) -> None:
        self.looks_ahead = looks_ahead
        self.seq = -1
        self.pools: dict[int, PoolPicture] = {}
        self.teams: tuple[core.Team, ...] = ()
        self.pending: dict[int, core.PendingJob] = {}
        self.held: dict[int, Held] = {}
        self.job_class: dict[int, tuple[int, int, str]] = {}  # job → (pool, team, class) that counts against a cap
        self.job_live: dict[int, int] = defaultdict(int)  # job → its live allocations
        self.runners: dict[int, Runner] = {}  # by job
        self.allocations_of: dict[int, dict[int, None]] = defaultdict(dict)  # job → its live allocations
        self.resting: dict[int, restarts.Resting] = {}  # by service, replicas that wait before their next start
        self.protected_until: datetime | None = None  # when the next job may be told to give way that was not before
        self._running: dict[int, core.RunningJob] = {}  # as last told; without what has changed since
        self.claims_change_at: datetime | None = None
        self.memories: dict[int, PoolMemory] = {}  # of the pools that remember the past
        self.shares_move_at: datetime | None = None  # when shares have moved enough for a decision though nothing came
        self.generation = 0

    # -- loading -------------------------------------------------------------------------------------------------

    def load(self, now: datetime) -> None:
        """The picture is the database's, as of its last event."""
        # The sequence first: what commits between the two reads is read twice, never missed.
        self.seq = Event.objects.aggregate(last=Max("seq"))["last"] or 0
        self.held.clear()
        self.job_class.clear()
        self.job_live.clear()
        self.runners.clear()
        self.allocations_of.clear()
        self._running.clear()
        self.resting.clear()
        self._load_claims(now)
        self.pools = {}
        self._load_pools(Pool.objects.all())
        self.pending = {}
        self._load_jobs(Job.objects.filter(wanting()), now)
        self.generation += 1

    def outdate(self) -> None:
        """What it shows may not be so: the next ``refresh`` reads all of it anew."""
        self.seq = -1

    def refresh(self, now: datetime) -> bool:
        """Brings the picture up to the last event; returns whether anything changed."""
        if self.seq < 0:
            self.load(now)
            return True
        changed = self._claims_due(now) | self._protection_ended(now) | self._shares_moved(now) | self._rests_ended(now)
        last = last_seq(self.seq)
        if last == self.seq:
            return changed
        # Numbers become visible in their order: nothing up to ``last`` is still to come.
        rows = list(
            Event.objects.filter(seq__gt=self.seq, seq__lte=last, kind__in=HEEDED)
            .order_by("seq")
            .values_list("seq", "kind", "pool_id", "job_id", "data", "at")
        )
        self.seq = last
        if not rows:
            return changed
        fleets: set[int] = set()
        jobs: set[int] = set()
        claims = False
        everything = False
        for _, kind, pool_id, job_id, data, at in rows:
            if kind == "allocations.released":
                self.released(data["ids"])
                changed = True
            elif kind == "job.state" and data.get("state") in JOB_ACTIVE:
                if data["state"] == Job.State.RUNNING and job_id in self.runners:
                    self.runners[job_id] = replace(self.runners[job_id], began_at=microseconds(at))
                    self._running.pop(job_id, None)
                continue  # an own commit, or a start that changes no claim
            elif kind == "job.state" and data.get("state") in JOB_ENDED:
                self.pending.pop(job_id or 0, None)
                jobs.discard(job_id or 0)
                changed = True
            elif kind in JOB_EVENTS and job_id is not None:
                jobs.add(job_id)
            elif kind in FLEET_EVENTS:
                everything = everything or pool_id is None
                fleets.add(pool_id or 0)
            elif kind in CLAIM_EVENTS:
                claims = True
            elif kind in BUDGET_EVENTS:
                jobs |= {job.id for job in self.pending.values() if job.growing}
            elif kind == "priority_class.set":
                everything = True
        if everything:
            self.load(now)
            return True
        if claims:
            self._load_claims(now)
            for pool in self.pools.values():
                pool.quotas = self._quotas_of(pool.id)
        if fleets:
            jobs |= self._reload_pools(fleets)
        if jobs:
            for job_id in jobs:
                self.pending.pop(job_id, None)
            for chunk in chunks(sorted(jobs), 500):
                self._load_jobs(Job.objects.filter(pk__among=chunk, state__in=(Job.State.PENDING, *JOB_ACTIVE)), now)
        changed = changed or claims or bool(fleets) or bool(jobs)
        if changed:
            self.generation += 1
        return changed

    @property
    def rests_until(self) -> datetime | None:
        """When the next replica of a service may be started that had to wait until then."""
        return min((each.until for each in self.resting.values()), default=None)

    def _rests_ended(self, now: datetime) -> bool:
        over = [job_id for job_id, each in sorted(self.resting.items()) if each.until <= now]
        for chunk in chunks(over, 500):
            for job_id in chunk:
                self.pending.pop(job_id, None)
                self.resting.pop(job_id, None)
            self._load_jobs(Job.objects.filter(pk__among=chunk, state__in=(Job.State.PENDING, *JOB_ACTIVE)), now)
        self.generation += bool(over)
        return bool(over)

    def _protection_ended(self, now: datetime) -> bool:
        if self.protected_until is None or now < self.protected_until:
            return False
        self.protected_until = None
        self.generation += 1
        return True

    def _shares_moved(self, now: datetime) -> bool:
        if self.shares_move_at is None or now < self.shares_move_at:
            return False
        self.shares_move_at = None
        self.generation += 1
        return True

    def _claims_due(self, now: datetime) -> bool:
        if self.claims_change_at is None or now < self.claims_change_at:
            return False
        self._load_claims(now)
        for pool in self.pools.values():
            pool.quotas = self._quotas_of(pool.id)
        self.generation += 1
        return True

    def _load_claims(self, now: datetime) -> None:
        holders = Allocation.objects.filter(released_at__isnull=True).values("team_id")
        rows = Team.objects.filter(Q(deleted_at=None) | Q(pk__in=holders)).order_by("id")
        self.teams = tuple(core.Team(team.pk, team.slug, team.parent_id) for team in rows)
        self._claims: dict[int, dict[int, core.Quota]] = defaultdict(dict)
        for (pool_id, team_id), row in quotas_in_force(now).items():
            self._claims[pool_id][team_id] = as_core(row)
        self.claims_change_at = next_change(now)

    def _quotas_of(self, pool_id: int) -> dict[int, core.Quota]:
        return dict(self._claims.get(pool_id, {}))

    def _reload_pools(self, pool_ids: Iterable[int]) -> set[int]:
        """These pools and what is held there are as in the database; returns who asks for something else there now,
        because teams are kept apart on a device and were not before, or the other way round."""
        ids = set(pool_ids)
        before = {pool_id: self.pools[pool_id].share_across_teams for pool_id in ids & self.pools.keys()}
        for allocation_id in [key for key, held in self.held.items() if held.pool_id in ids]:
            held = self.held.pop(allocation_id)
            self.allocations_of.pop(held.job_id, None)
            self._running.pop(held.job_id, None)
            self.job_class.pop(held.job_id, None)
            self.job_live.pop(held.job_id, None)
        for pool_id in ids:
            self.pools.pop(pool_id, None)
        self._load_pools(Pool.objects.filter(pk__in=ids))
        others = {
            key for key, shares in before.items() if key in self.pools and self.pools[key].share_across_teams != shares
        }
        return {job.id for job in self.pending.values() if not others.isdisjoint(job.pool_ids)} if others else set()

    def _load_pools(self, pools: QuerySet[Pool]) -> None:
        for pool in pools.select_related("engine").order_by("name"):
            nodes, devices = node_states(pool)
            score: core.Score = pool.placement  # type: ignore[assignment]
            learned = learn(pool) if score in LEARNING else NOTHING_LEARNED
            fleet = Fleet(
                nodes,
                score=self._score(score, learned),
                step_milli=pool.step_milli,
                exclusive=pool.sharing == Pool.Sharing.EXCLUSIVE,
                typical=learned.typical,
                demand=learned.demand,
            )
            self.pools[pool.pk] = PoolPicture(
                id=pool.pk,
                name=pool.name,
                unit=pool.unit,
                available=pool.state == Pool.State.ACTIVE and pool.engine.enabled and pool.engine.state != "lost",
                fleet=fleet,
                score=score,
                share_across_teams=pool.share_across_teams,
                step_milli=pool.step_milli,
                row=pool,
                quotas=self._quotas_of(pool.pk),
                devices=devices,
                learned_from=learned.jobs,
            )
            self._load_held(pool.pk)

    def _load_held(self, pool_id: int, **only: Any) -> None:
        """Counts what is held in the pool; ``only``: a filter of allocations, where the rest is counted already."""
        pool = self.pools[pool_id]
        slices: dict[int, list[tuple[int, int]]] = defaultdict(list)
        on: dict[int, list[int]] = defaultdict(list)  # device → the teams of its slices
        of_these = {f"allocation__{name}": value for name, value in only.items()}
        held = AllocationDevice.objects.filter(
            allocation__pool_id=pool_id, allocation__released_at__isnull=True, **of_these
        )
        of_devices = held.order_by("allocation_id", "device__index")
        rows = of_devices.values_list("allocation_id", "device_id", "memory_mib", "allocation__team_id")
        for allocation_id, device_id, memory_mib, team_id in rows.iterator(AT_ONCE):
            slices[allocation_id].append((device_id, memory_mib))
            on[device_id].append(team_id)
        if not only:
            pool.shared_before = frozenset(device_id for device_id, teams in on.items() if pool.parts(teams))
        live = Allocation.objects.filter(pool_id=pool_id, released_at__isnull=True, **only).annotate(
            class_name=F("job__priority_class__name"),
            position=F("task__group__position"),
            asked_milli=F("task__group__compute_milli"),
            asked_mib=F("task__group__memory_mib"),
        )
        self._load_runners(pool_id, **only)
        for row in live.order_by("id").iterator(AT_ONCE):
            own = slices.pop(row.pk, [])
            placement = pool.fleet.placement_on(
                row.node_id,
                tuple(device_id for device_id, _ in own),
                row.compute_milli,
                tuple(memory_mib for _, memory_mib in own),
                row.cpu_milli,
                row.host_memory_mib,
            )
            if row.asked_milli == MILLI_PER_DEVICE and row.asked_mib is not None:
                placement = replace(placement, counted_mib=row.asked_mib * len(own))
            pool.take(placement, row.team_id)
            self._count(
                row.pk,
                Held(
                    pool_id,
                    placement,
                    row.team_id,
                    row.user_id,
                    row.job_id,
                    charge(pool, placement),
                    row.position,
                    microseconds(row.bound_at),
                    row.stop_requested_at is not None,
                    row.evicted_for_id,
                    self._gone_by(pool, row.stop_requested_at),
                ),
            )
            self._count_class(row.job_id, pool_id, row.team_id, row.class_name)

    def _gone_by(self, pool: PoolPicture, told_at: datetime | None) -> int | None:
        return None if told_at is None else microseconds(told_at) + pool.grace

    def _load_runners(self, pool_id: int, **only: Any) -> None:
        live = Allocation.objects.filter(pool_id=pool_id, released_at__isnull=True, **only).values("job_id")
        jobs = Job.objects.filter(pk__in=live).select_related("priority_class").defer(*UNREAD).order_by("id")
        for some in in_parts(jobs.iterator(AT_ONCE), AT_ONCE):
            least: dict[int, list[int]] = defaultdict(list)
            rows = TaskGroup.objects.filter(job_id__among=[job.pk for job in some]).order_by("job_id", "position")
            for job_id, min_count in rows.values_list("job_id", "min_count"):
                least[job_id].append(min_count)
            for job in some:
                self.runners[job.pk] = runner_of(job, least[job.pk])

    def _load_jobs(self, jobs: QuerySet[Job], now: datetime) -> None:
        wanted = jobs.select_related("priority_class").defer(*UNREAD).order_by("id")
        for rows in in_parts(wanted.iterator(AT_ONCE), AT_ONCE):
            self._load_some(rows, now)

    def _load_some(self, rows: Sequence[Job], now: datetime) -> None:
        groups: dict[int, list[TaskGroup]] = defaultdict(list)
        ids = [job.pk for job in rows]
        growing = [job.pk for job in rows if job.state != Job.State.PENDING]
        placed: dict[int, int] = {}
        for chunk in chunks(ids, 500):
            for group in TaskGroup.objects.filter(job_id__among=chunk).order_by("job_id", "position"):
                groups[group.job_id].append(group)
        for chunk in chunks(growing, 500):
            placed.update(
                Task.objects.filter(job_id__in=chunk)
                .exclude(state=Task.State.PENDING)
                .order_by()
                .values_list("group_id")
                .annotate(count=Count("id"))
            )
        spent = ports.budgets.spent({job.team_id for job in rows})
        told = held_numbers([job for job in rows if job.hold])
        services = [job.pk for job in rows if job.kind == Job.Kind.SERVICE]
        rests = restarts.rests(services, now) if services else {}
        for job in rows:
            self.resting.pop(job.pk, None)
            if job.state != Job.State.PENDING:
                self.runners[job.pk] = runner_of(job, [group.min_count for group in groups[job.pk]])
                self._running.pop(job.pk, None)
                if job.pk in self.job_class:
                    self._count_class(job.pk, *self.job_class[job.pk][:2], job.priority_class.name)
            found = self._pending_job(job, groups[job.pk], placed, told.get(job.pk, {}))
            rest = restarts.resting(rests.get(job.pk, {}), now)
            if found is not None and rest is not None:
                self.resting[job.pk] = rest
                found = restarts.without_resting(found, rest)
            if found is not None:
                self.pending[job.pk] = under_budget(found, job, spent.get(job.team_id))

    def _pending_job(
        self, job: Job, groups: Sequence[TaskGroup], placed: Mapping[int, int], held_numbers: Mapping[str, object]
    ) -> core.PendingJob | None:
        growing = job.state != Job.State.PENDING
        if growing and (job.ending or all(placed.get(group.pk, 0) >= group.count for group in groups)):
            return None
        pools = (job.pool_id,) if growing else tuple(job.pool_ids)
        apart = any(pool_id in self.pools and not self.pools[pool_id].share_across_teams for pool_id in pools)
        return core.PendingJob(
            id=job.pk,
            team_id=job.team_id,
            user_id=job.user_id,
            pool_ids=pools,
            groups=tuple(
                core.Group(
                    name=group.name,
                    count=group.count,
                    min_count=group.min_count,
                    request=request_of(group, job.team_id if apart else 0),
                    placed=placed.get(group.pk, 0) if growing else 0,
                )
                for group in groups
            ),
            submitted_at=microseconds(job.submitted_at),
            priority=job.priority_class.value if job.priority_value is None else job.priority_value,
            cluster_wide=job.priority_class.cluster_wide,
            preemptible=job.preemptible,
            held="budget_spent" if job.hold == Job.Hold.BUDGET else job.hold or None,
            held_numbers=held_numbers,
            max_running_of_class=job.priority_class.max_jobs_per_team,
            max_milli_of_class=job.priority_class.max_milli_per_team,
            priority_class=job.priority_class.name,
            growing=growing,
            room_made_at=None if job.room_made_at is None or growing else microseconds(job.room_made_at),
            min_runtime=None if job.min_runtime_s is None else job.min_runtime_s * 1_000_000,
            topology=topology_of(job.topology),
            apart=job.apart or None,
            evictions=job.preemptions,
            max_evictions=job.max_evictions,
            service=job.kind == Job.Kind.SERVICE,
            room_kept_since=kept_since(job),
            time_limit=None if job.time_limit_s is None else job.time_limit_s * 1_000_000,
        )

    def relearn(self) -> None:
        """Pools that learn what is typical do so anew, once enough requests came since the last time."""
        for pool in self.pools.values():
            if pool.score in LEARNING and self._learns_now(pool):
                learned = learn(pool.row)
                score = self._score(pool.score, learned)
                pool.fleet = pool.fleet.judged_anew(score, learned.typical, learned.demand)
                pool.learned_from, pool.requests_seen = learned.jobs, 0

    def _score(self, asked: core.Score, learned: Learned) -> core.Score:
        return "fragmentation" if asked == "lookahead" and not self._may_look_ahead(learned.jobs) else asked

    def _learns_now(self, pool: PoolPicture) -> bool:
        waits = pool.score == "lookahead" and pool.fleet.score != "lookahead"
        if waits and pool.learned_from >= MIN_SEEN and self.looks_ahead():
            return True
        if waits and pool.learned_from < MIN_SEEN <= pool.learned_from + pool.requests_seen:
            return pool.requests_seen >= FIRST_LEARN
        return pool.requests_seen >= (RELEARN_AFTER if pool.learned_from >= FIRST_LEARN else FIRST_LEARN)

    def _may_look_ahead(self, jobs: int) -> bool:
        return jobs >= MIN_SEEN and self.looks_ahead()

    # -- keeping up ------------------------------------------------------------------------------------------------

    def _count(self, allocation_id: int, held: Held) -> None:
        pool = self.pools[held.pool_id]
        self.held[allocation_id] = held
        pool.usage[(held.team_id, held.user_id)] += held.charge
        if pool.memory:
            pool.memory.enter(held.team_id, held.charge, held.bound_at)
        self.job_live[held.job_id] += 1
        self.allocations_of[held.job_id][allocation_id] = None
        self._running.pop(held.job_id, None)
        pool.count(held, 1)
        if held.job_id in self.job_class:
            pool.count_of_class(held, self.job_class[held.job_id][2], 1)

    def _count_class(self, job_id: int, pool_id: int, team_id: int, class_name: str) -> None:
        """The job, and all that it holds by now, count for this class, and for the one they counted for no more."""
        before = self.job_class.get(job_id, (0, 0, ""))[2]
        if before == class_name:
            return
        pool = self.pools[pool_id]
        self.job_class[job_id] = (pool_id, team_id, class_name)
        for name, sign in ((before, -1), (class_name, 1)) if before else ((class_name, 1),):
            pool.class_usage[(team_id, name)] += sign
            for allocation_id in self.allocations_of[job_id]:
                pool.count_of_class(self.held[allocation_id], name, sign)

    def bound(self, start: core.Start, allocation_ids: Sequence[int], now: datetime) -> None:
        """An own commit: the start's tasks hold their placements now, under these ids, in this order."""
        job_id, pool_id = start.job_id, start.pool_id
        job = self.pending[job_id]
        pool = self.pools[pool_id]
        placed = [group.placed for group in job.groups]
        if not job.growing:
            least = tuple(group.min_count for group in job.groups)
            self.runners[job_id] = Runner(
                job.priority,
                job.preemptible,
                least,
                job.min_runtime,
                evictions=job.evictions,
                max_evictions=job.max_evictions,
                time_limit=job.time_limit,
            )
        at = microseconds(now)
        for allocation_id, task in zip(allocation_ids, start.tasks, strict=True):
            pool.take(task.placement, job.team_id)
            amount = charge(pool, task.placement)
            held = Held(pool_id, task.placement, job.team_id, job.user_id, job_id, amount, task.group, at)
            self._count(allocation_id, held)
            placed[task.group] += 1
        self._count_class(job_id, pool_id, job.team_id, job.priority_class)
        pool.requests_seen += len(allocation_ids)
        del self.pending[job_id]
        rest = self.resting.get(job_id)
        if rest is not None or any(count < group.count for count, group in zip(placed, job.groups, strict=True)):
            groups = tuple(replace(group, placed=count) for group, count in zip(job.groups, placed, strict=True))
            more = replace(
                job,
                groups=groups,
                growing=True,
                pool_ids=(pool_id,),
                room_made_at=None,
                room_kept_since=None,
                room_kept_at=(),
            )
            self.pending[job_id] = more if rest is None else restarts.held_by_rest(more, rest)

    def job_teams(self, evictions: Iterable[core.Eviction]) -> dict[int, int]:
        """Job → team, of those that give way."""
        return {each.job_id: self.held[each.allocation_ids[0]].team_id for each in evictions}

    def evicted(self, evictions: Iterable[core.Eviction], room_made_at: Mapping[int, datetime]) -> None:
        """An own commit: these are being stopped now; ``room_made_at``: for which jobs, since when."""
        for each in evictions:
            for allocation_id in each.allocation_ids:
                if allocation_id in self.held:
                    held = self.held[allocation_id]
                    gone_by = self._gone_by(self.pools[held.pool_id], room_made_at[each.for_job])
                    self.held[allocation_id] = replace(held, releasing=True, for_job=each.for_job, gone_by=gone_by)
            if each.whole:
                self.runners[each.job_id] = replace(self.runners[each.job_id], ending=True)
                self.pending.pop(each.job_id, None)  # it does not grow any more
            self._running.pop(each.job_id, None)
            waiting = self.pending.get(each.for_job)
            if waiting is not None:
                self.pending[each.for_job] = replace(waiting, room_made_at=microseconds(room_made_at[each.for_job]))

    def room_is_kept(self, reservations: Iterable[core.Reservation]) -> None:
        """An own commit: these waiting jobs have a reservation, and no others."""
        kept = {each.job_id: each for each in reservations}
        for job_id, job in self.pending.items():
            if job_id in kept:
                told = kept[job_id]
                self.pending[job_id] = replace(job, room_kept_since=told.since, room_kept_at=told.tasks)
            elif job.room_kept_since is not None:
                self.pending[job_id] = replace(job, room_kept_since=None, room_kept_at=())

    def released(self, allocation_ids: Iterable[int]) -> None:
        """These allocations hold nothing any more; unknown ones are passed over."""
        for allocation_id in allocation_ids:
            held = self.held.pop(allocation_id, None)
            if held is None:
                continue
            pool = self.pools.get(held.pool_id)
            if pool is None:
                continue
            pool.fleet.give_back(held.placement)
            if pool.memory:
                pool.memory.leave(held.team_id, held.charge, held.bound_at)
            key = (held.team_id, held.user_id)
            pool.usage[key] -= held.charge
            if not pool.usage[key]:
                del pool.usage[key]
            pool.count(held, -1)
            if held.job_id in self.job_class:
                pool.count_of_class(held, self.job_class[held.job_id][2], -1)
            self.allocations_of[held.job_id].pop(allocation_id, None)
            self._running.pop(held.job_id, None)
            self._uncount_class(held.job_id)

    def _uncount_class(self, job_id: int) -> None:
        self.job_live[job_id] -= 1
        if self.job_live[job_id] > 0:
            return
        del self.job_live[job_id]
        self.allocations_of.pop(job_id, None)
        self.runners.pop(job_id, None)
        if job_id not in self.job_class:
            return
        pool_id, team_id, class_name = self.job_class.pop(job_id)
        pool = self.pools.get(pool_id)
        if pool is not None:
            pool.class_usage[(team_id, class_name)] -= 1

    def snapshot(self, now: datetime) -> core.Snapshot:
        """The picture as the core decides over it."""
        self._recall(now)
        return core.Snapshot(
            now=microseconds(now),
            teams=self.teams,
            pools=tuple(self.pools[pool_id].state(now) for pool_id in sorted(self.pools)),
            pending=tuple(self.pending[job_id] for job_id in sorted(self.pending)),
            running=self._running_jobs(now),
        )

    def _recall(self, now: datetime) -> None:
        """Pools that remember the past do so up to the picture's event; and when time alone will have moved shares is
        noted."""
        before, self.memories = self.memories, {}
        for pool in self.pools.values():
            memory = before.get(pool.id)
            if memory is None or memory.half_life_s != pool.row.half_life_s:
                memory = memory_of(pool.row, self.seq, now)
            if memory is None:
                continue
            if pool.memory is not memory:
                memory.start_over()
                for held in self.held.values():
                    if held.pool_id == pool.id:
                        memory.enter(held.team_id, held.charge, held.bound_at)
                pool.memory = memory
            memory.catch_up(self.seq)
            self.memories[pool.id] = memory
        self.shares_move_at = next_step([memory.half_life_s for memory in self._waited_for()], now)

    def _waited_for(self) -> list[PoolMemory]:
        """The memories of pools that some job which is not held waits for."""
        if not self.memories:
            return []
        named = {pool_id for job in self.pending.values() if job.held is None for pool_id in job.pool_ids}
        return [memory for pool_id, memory in sorted(self.memories.items()) if pool_id in named]

    def _running_jobs(self, now: datetime) -> tuple[core.RunningJob, ...]:
        """Every job that holds something; and when the next one of them may be told to give way is noted."""
        moment = microseconds(now)
        for job_id, allocations in self.allocations_of.items():
            if job_id not in self._running and allocations and job_id in self.runners:
                self._running[job_id] = self._running_job(job_id, sorted(allocations), moment)
        jobs = tuple(self._running[job_id] for job_id in sorted(self._running))
        ends = [job.protected_until for job in jobs if job.preemptible and job.protected_until > moment]
        self.protected_until = EPOCH + min(ends) * MICROSECOND if ends and self.pending else None
        return jobs

    def _running_job(self, job_id: int, allocation_ids: Sequence[int], now: int) -> core.RunningJob:
        runner = self.runners[job_id]
        held = [self.held[allocation_id] for allocation_id in allocation_ids]
        pool = self.pools[held[0].pool_id]
        ends = [ends_at(each, runner, pool, now) for each in held]
        started_at = min(each.bound_at for each in held)
        own = runner.min_runtime
        min_runtime = pool.row.min_runtime_s * 1_000_000 if own is None else own
        return core.RunningJob(
            id=job_id,
            team_id=held[0].team_id,
            user_id=held[0].user_id,
            pool_id=pool.id,
            priority=runner.priority,
            preemptible=runner.preemptible,
            started_at=started_at,
            tasks=tuple(
                core.RunningTask(
                    allocation_id,
                    each.group,
                    each.placement,
                    each.releasing or runner.ending,
                    each.for_job,
                    pool.holder(each.placement, each.team_id),
                    end,
                )
                for allocation_id, each, end in zip(allocation_ids, held, ends, strict=True)
            ),
            least=runner.least,
            protected_until=started_at + min_runtime if min_runtime else 0,
            spared=runner.is_spared(pool.row),
            priority_class=self.job_class[job_id][2],
            ends_at=None if None in ends else max(end for end in ends if end is not None),
        )

    def check(self) -> list[str]:
        """Where the picture and the database differ, device by device; empty is good. For tests and the watchdog."""
        differences = []
        for pool in self.pools.values():
            held: dict[int, int] = defaultdict(int)
            for each in self.held.values():
                if each.pool_id == pool.id:
                    for device_id in each.placement.device_ids:
                        held[device_id] += each.placement.compute_milli
            rows = Device.objects.filter(node__pool_id=pool.id).values_list("id", "compute_allocated_milli")
            differences += [
                f"device {device_id}: {in_database} in the database, {held[device_id]} in the picture"
                for device_id, in_database in rows
                if in_database != held[device_id]
            ]
        return differences


def looks_ahead_soon() -> bool:
    """Whether some pool that is to be placed by look-ahead has seen at least half the jobs that this needs."""
    pools = Pool.objects.filter(placement=Pool.Placement.LOOKAHEAD)
    return any(Job.objects.filter(pool=pool)[: MIN_SEEN // 2].count() >= MIN_SEEN // 2 for pool in pools)
