"""The cycle: snapshot → decide → commit. One transaction commits a plan; what changed meanwhile is left out of it."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from django.db import IntegrityError, connection

from events.rows import add_to_rows, insert_rows, set_rows, update_rows
from events.services import Journal, unit_of_work
from inventory.models import Device, Node, Pool
from scheduling import ports
from scheduling.core import model as core
from scheduling.core import reasons as core_reasons
from scheduling.core.codec import Recorded
from scheduling.models import Allocation, AllocationDevice, Decision, Job, Task
from scheduling.services import lease as leases
from scheduling.services.deciding import Standing, collector_resting, decide
from scheduling.services.estimates import Estimates
from scheduling.services.evict import evict, made_room_at
from scheduling.services.mend import send_back
from scheduling.services.past_use import store
from scheduling.services.picture import Picture
from scheduling.services.recording import Recorder
from scheduling.services.refusals import RefusalsTold, record_refusals
from scheduling.states import JOB_ACTIVE

log = logging.getLogger(__name__)

MOST_FIGURES = 500  # rows whose reasons differ in figures only, refreshed by one cycle


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What a cycle did. ``started``, ``evicted`` and ``sent_back`` (gangs that lost a member which cannot be replaced)
    count jobs, ``considered`` the waiting ones it looked at.
    ``renewed``: whether it committed anything, which also renews the lease."""

    started: int = 0
    considered: int = 0
    conflicts: int = 0
    seconds: float = 0.0
    deciding_s: float = 0.0  # of these, in the core
    plan: core.Plan | None = None
    renewed: bool = False
    evicted: int = 0
    sent_back: int = 0


@dataclass
class Scheduler:
    """A scheduler process: holds a lease and a picture, and runs cycles. ``reason_interval``: how often the figures
    in a waiting job's reasons are refreshed in the database where only the figures changed. ``looks_ahead``: whether
    pools may be placed by look-ahead already, whose first use would hold up a cycle while it is compiled.
    ``estimate_interval``: how often starts are estimated anew while things change."""

    holder: str
    policy: core.Policy = field(default_factory=core.Policy)
    reason_interval: timedelta = timedelta(0)
    lease: leases.Lease | None = None
    looks_ahead: Callable[[], bool] = lambda: True
    recorder: Recorder = field(default_factory=Recorder)
    picture: Picture = field(init=False)
    last_plan: core.Plan | None = None
    estimate_interval: timedelta = timedelta(0)
    estimates: Estimates = field(init=False)
    _standing: Standing = field(default_factory=Standing)
    _unsettled: bool = False  # the last cycle started something while others wait: they have not been judged beside it
    _told: dict[int, tuple[datetime, tuple[core.Reason, ...]]] = field(default_factory=dict)
    _refused: RefusalsTold = field(default_factory=RefusalsTold)

    def __post_init__(self) -> None:
        self.picture = Picture(self.looks_ahead)
        self.estimates = Estimates(self.estimate_interval)

    def lead(self, now: datetime) -> bool:
        """Whether this scheduler leads at ``now``; on becoming the leader its picture is read anew."""
        if self.lease is None:
            self.lease = leases.acquire(self.holder, now)
            if self.lease is not None:
                # Read by the first cycle, which then decides: what waits may have been able to start all along.
                self.picture = Picture(self.looks_ahead)
                self.estimates = Estimates(self.estimate_interval)
                self._told.clear()
                self._refused.forget()
                self.recorder.forget()
        return self.lease is not None

    def keep(self, now: datetime) -> None:
        """The lease runs on though there was nothing to decide. Raises LostLease."""
        assert self.lease is not None
        leases.renew(self.lease, now)

    def stand_down(self) -> None:
        """Another may lead at once."""
        if self.lease is not None:
            leases.give_up(self.lease)
            self.lease = None

    def cycle(self, now: datetime, *, force: bool = False) -> CycleResult:
        """One cycle at ``now``. Without ``force`` nothing is decided where nothing changed since the last one, and
        that started nothing beside jobs that wait: what has just started may have to give way to one of these.

        Raises LostLease, with nothing committed, where another leads. A commit that the database refuses (something
        changed behind the picture) rolls back whole; the picture is read anew for the next cycle, which then decides
        again though nothing may have happened since. So it is after any other fault, wherever it came: a picture that
        was brought up to date half way, or a commit that may or may not have been one, is not decided over.
        """
        assert self.lease is not None
        try:
            return self._cycle(now, force)
        except leases.LostLease:
            self.lease = None
            raise
        except Exception:
            self.picture.outdate()
            self.recorder.forget()
            raise

    def estimate(self, now: datetime) -> int:
        """Waiting jobs carry estimates of their start, as the last cycle left things; returns how many changed."""
        assert self.lease is not None
        if self.picture.seq < 0:
            return 0  # it is to be read anew first
        return self.estimates.refresh(self.picture, self.policy, now)

    @collector_resting()
    def _cycle(self, now: datetime, force: bool) -> CycleResult:
        begun = time.perf_counter()
        changed = self.picture.refresh(now)
        if not changed and not force and not self._unsettled:
            return CycleResult()
        self.picture.relearn()
        snapshot = self.picture.snapshot(now)
        self.estimates.outdate()
        deciding = time.perf_counter()
        plan = self._standing.plan_for(snapshot, self.policy)
        if plan is None:
            plan = decide(snapshot, self.policy)
            self._standing.keep(snapshot, self.policy, plan)
        deciding = time.perf_counter() - deciding
        try:
            committed = self._commit(plan, now, begun, snapshot)
        except IntegrityError as error:
            log.warning("the database refused a plan; the picture is read anew: %s", error)
            self.picture.outdate()
            self.recorder.forget()
            refused = len(plan.starts) + len(plan.evictions)
            return CycleResult(conflicts=refused, considered=len(snapshot.pending))
        started, evicted, conflicts, back = committed or (0, 0, 0, 0)
        self.last_plan = plan
        self._unsettled = started > 0 and bool(plan.reasons)
        store(self.picture.memories.values(), now)
        if conflicts:
            self.picture.outdate()
        seconds = time.perf_counter() - begun
        renewed = committed is not None
        return CycleResult(started, len(snapshot.pending), conflicts, seconds, deciding, plan, renewed, evicted, back)

    def _commit(
        self, plan: core.Plan, now: datetime, begun: float, snapshot: core.Snapshot | None = None
    ) -> tuple[int, int, int, int] | None:
        """How many starts and evictions were kept, how many left out, and how many broken gangs were sent back; None
        where there was nothing to commit. ``snapshot``: what the plan was made over, for the record."""
        assert self.lease is not None
        reasons = self._reasons_to_tell(plan, now)
        refusals = self._refused.due(plan.refusals, self.picture.pending, now)
        decided = bool(plan.starts or plan.evictions or plan.broken or refusals)
        if not decided and not reasons:
            return None
        record = None
        if snapshot is not None and decided:
            record = self.recorder.body(Recorded(0, snapshot, self.policy, plan), now)
        with unit_of_work() as journal:
            cycle = leases.renew(self.lease, now, cycle_ms=int((time.perf_counter() - begun) * 1000))
            _lock_jobs({*(start.job_id for start in plan.starts), *reasons, *_jobs_of(plan.evictions), *plan.broken})
            good = _still_good(plan.starts, self.picture)
            bound = _bind(good, self.picture, cycle, now, journal)
            back = send_back(plan.broken, cycle, now, journal)
            changed = {job_id for job_id, found in reasons.items() if self._codes_differ(job_id, found)}
            gone = evict(plan.evictions, self.picture.job_teams(plan.evictions), cycle, now, journal)
            record_refusals(
                refusals, {each.job_id: self.picture.pending[each.job_id].team_id for each in refusals}, cycle, now
            )
            starting = {start.job_id for start in good}
            reasons = {job_id: found for job_id, found in reasons.items() if self._still_told(job_id, starting)}
            _tell(reasons, changed, starting, self.picture, now, journal)
            if record is not None:
                self.recorder.keep(record, cycle, now)
        self._refused.told(refusals, now)
        self.picture.evicted(gone, made_room_at(gone, now))
        self.picture.room_is_kept(plan.reservations)
        for start, ids in zip(good, bound, strict=True):
            self.picture.bound(start, ids, now)
            self._told.pop(start.job_id, None)
            self._refused.forget([start.job_id])
        for job_id, found in reasons.items():
            self._told[job_id] = (now, found)
        left_out = len(plan.starts) - len(good) + len(plan.evictions) - len(gone)
        return len(good), len(gone), left_out, back

    def _still_told(self, job_id: int, starting: Set[int]) -> bool:
        """Whether its reasons are told although it may start in this very cycle: then only what a service lacks is."""
        job = self.picture.pending.get(job_id)
        return job is not None and (job.service or job_id not in starting)

    def _codes_differ(self, job_id: int, found: tuple[core.Reason, ...]) -> bool:
        told = self._told.get(job_id)
        return told is None or _what(told[1]) != _what(found)

    def _reasons_to_tell(self, plan: core.Plan, now: datetime) -> dict[int, tuple[core.Reason, ...]]:
        """Reasons that differ from those last told; where only figures differ, not more often than the interval."""
        due: dict[int, tuple[core.Reason, ...]] = {}
        figures: list[tuple[datetime, int]] = []
        for job_id, found in plan.reasons.items():
            job = self.picture.pending.get(job_id)
            if job is None or not _is_told(job):
                continue
            told = self._told.get(job_id)
            if told is not None:
                when, before = told
                if before == found:
                    continue
                if _what(before) == _what(found):
                    if now - when >= self.reason_interval:
                        figures.append((when, job_id))
                    continue
            due[job_id] = found
        # A long queue's figures are told a part at a time, those that were told longest ago first.
        for _, job_id in sorted(figures)[:MOST_FIGURES]:
            due[job_id] = plan.reasons[job_id]
        for gone in [job_id for job_id in self._told if not self._waits(job_id, plan)]:
            del self._told[gone]
        return due

    def _waits(self, job_id: int, plan: core.Plan) -> bool:
        job = self.picture.pending.get(job_id)
        return job is not None and _is_told(job) and job_id in plan.reasons


def _is_told(job: core.PendingJob) -> bool:
    """Whether its reasons are told. Why a job that runs gets no more is not its state; what a service lacks is."""
    return not job.growing or job.service


def _what(reasons: Sequence[core.Reason]) -> list[tuple[str, object]]:
    """What reasons say beyond figures: their codes, and since when room is kept, which is told nowhere else."""
    return [(reason.code, reason.numbers.get("kept_since")) for reason in reasons]


def _jobs_of(evictions: Sequence[core.Eviction]) -> set[int]:
    return {job_id for each in evictions for job_id in (each.job_id, each.for_job)}


def _lock_jobs(job_ids: Set[int]) -> None:
    """All jobs that the commit writes to, in order of id: who cancels several at once takes theirs so too, and the two
    never wait for each other. (SQLite has one writer.)"""
    if connection.vendor == "postgresql":
        list(Job.objects.select_for_update(no_key=True).filter(pk__among=job_ids).order_by("pk").values_list("pk"))


def _still_good(starts: Sequence[core.Start], picture: Picture) -> list[core.Start]:
    """The starts whose jobs still wait, or still run where they are to grow, and whose nodes and devices are still in
    service, their rows locked."""
    if not starts:
        return []
    job_ids = [start.job_id for start in starts]
    rows = (
        Job.objects.select_for_update(no_key=True)
        .filter(pk__among=job_ids, state__in=(Job.State.PENDING, *JOB_ACTIVE), ending="", hold="")
        .order_by("pk")
        .values_list("pk", "state")
    )
    # A job that went back to the queue meanwhile wants its whole gang again, not the rest of it.
    jobs = {job_id for job_id, state in rows if (state in JOB_ACTIVE) == picture.pending[job_id].growing}
    node_ids = {task.placement.node_id for start in starts for task in start.tasks}
    nodes = set(
        Node.objects.select_for_update(no_key=True)
        .filter(pk__among=node_ids, state=Node.State.READY)
        .order_by("pk")
        .values_list("pk", flat=True)
    )
    device_ids = {device for start in starts for task in start.tasks for device in task.placement.device_ids}
    failed = set(Device.objects.filter(pk__among=device_ids, health=Device.Health.FAILED).values_list("pk", flat=True))
    return [
        start
        for start in starts
        if start.job_id in jobs
        and all(
            task.placement.node_id in nodes and failed.isdisjoint(task.placement.device_ids) for task in start.tasks
        )
    ]


def _bind(
    starts: Sequence[core.Start], picture: Picture, cycle: int, now: datetime, journal: Journal
) -> list[list[int]]:
    """The starts' tasks hold their devices: accounts, allocations, usage, ledger and events. Ids by start, in order."""
    if not starts:
        return []
    take_devices([task.placement for start in starts for task in start.tasks], 1)
    tasks = _tasks_for(starts, picture)
    allocations: list[Allocation] = []
    for start, own in zip(starts, tasks, strict=True):
        job = picture.pending[start.job_id]
        pool = picture.pools[start.pool_id]
        for task_start, task_id in zip(start.tasks, own, strict=True):
            placement = task_start.placement
            model = pool.devices[placement.device_ids[0]][1] if placement.device_ids else None
            allocations.append(
                Allocation(
                    task_id=task_id,
                    job_id=job.id,
                    team_id=job.team_id,
                    user_id=job.user_id,
                    pool_id=start.pool_id,
                    node_id=placement.node_id,
                    model_id=model,
                    milli=placement.milli,
                    compute_milli=placement.compute_milli if placement.device_ids else 0,
                    cpu_milli=placement.cpu_milli,
                    host_memory_mib=placement.host_memory_mib,
                    bound_at=now,
                )
            )
    insert_rows(allocations)
    placements = [task.placement for start in starts for task in start.tasks]
    insert_rows(
        AllocationDevice(
            allocation_id=allocation.pk,
            device_id=device_id,
            compute_milli=placement.compute_milli,
            memory_mib=memory,
        )
        for allocation, placement in zip(allocations, placements, strict=True)
        for device_id, memory in zip(placement.device_ids, placement.memory_mib, strict=True)
    )
    update_rows(Task, (task_id for own in tasks for task_id in own), state=Task.State.STARTING)
    _start_jobs(starts, picture)
    _open_usage(allocations, picture, now)
    _record(starts, picture, cycle, now, journal)
    ids = iter(allocation.pk for allocation in allocations)
    return [[next(ids) for _ in start.tasks] for start in starts]


def _start_jobs(starts: Sequence[core.Start], picture: Picture) -> None:
    by_pool: dict[int, list[int]] = defaultdict(list)
    for start in starts:
        job = picture.pending[start.job_id]
        if not job.growing:
            by_pool[start.pool_id].append(start.job_id)
        elif job.service and start.job_id not in picture.resting:
            update_rows(Job, [start.job_id], reasons=[])  # of what was missing, which it then told
    for pool_id, job_ids in sorted(by_pool.items()):
        update_rows(
            Job,
            job_ids,
            only={"state": Job.State.PENDING},
            state=Job.State.STARTING,
            pool=pool_id,
            reasons=[],
            estimated_start=None,
            room_made_at=None,
        )


def _tasks_for(starts: Sequence[core.Start], picture: Picture) -> list[list[int]]:
    """For each start the ids of the waiting tasks that it places, group by group, lowest index first; no replica that
    is to wait before its next start."""
    resting = {task for start in starts if (rest := picture.resting.get(start.job_id)) for task in rest.tasks}
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
    rows = Task.objects.filter(job_id__among=[start.job_id for start in starts], state=Task.State.PENDING)
    for task_id, job_id, position in rows.order_by("-job_id", "-index").values_list("id", "job_id", "group__position"):
        if task_id not in resting:
            waiting[(job_id, position)].append(task_id)
    return [[waiting[(start.job_id, task.group)].pop() for task in start.tasks] for start in starts]


def take_devices(placements: Sequence[core.Placement], sign: int) -> None:
    """The accounts of nodes and devices grow (sign 1) or shrink (-1). The database refuses too much."""
    devices: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    nodes: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for placement in placements:
        for device_id, memory in zip(placement.device_ids, placement.memory_mib, strict=True):
            devices[device_id][0] += sign * placement.compute_milli
            devices[device_id][1] += sign * memory
        nodes[placement.node_id][0] += sign * placement.cpu_milli
        nodes[placement.node_id][1] += sign * placement.host_memory_mib
    change_accounts(devices, nodes)


def change_accounts(devices: Mapping[int, Sequence[int]], nodes: Mapping[int, Sequence[int]]) -> None:
    """Adds (compute, memory) to devices and (CPU, host memory) to nodes; rows in order of id, so that two never
    deadlock. Raises IntegrityError where a device or node would hold more than it has, or less than nothing."""
    add_to_rows(Node, ("cpu_allocated_milli", "host_memory_allocated_mib"), nodes)
    add_to_rows(Device, ("compute_allocated_milli", "memory_allocated_mib"), devices)


def _open_usage(allocations: Sequence[Allocation], picture: Picture, now: datetime) -> None:
    for allocation in allocations:
        allocation.pool = picture.pools[allocation.pool_id].row
    ports.meter.opened([each for each in allocations if each.pool.billing_start == Pool.BillingStart.BOUND], now)


def _record(starts: Sequence[core.Start], picture: Picture, cycle: int, now: datetime, journal: Journal) -> None:
    decisions = []
    devices: dict[int, set[int]] = defaultdict(set)
    for start in starts:
        job = picture.pending[start.job_id]
        devices[start.pool_id].update(device for task in start.tasks for device in task.placement.device_ids)
        decisions.append(
            Decision(
                at=now,
                cycle=cycle,
                kind=Decision.Kind.GROW if job.growing else Decision.Kind.START,
                job_id=job.id,
                team_id=job.team_id,
                pool_id=start.pool_id,
                rule=start.rule,
                numbers=dict(start.numbers),
            )
        )
        common: dict[str, Any] = {"team_id": job.team_id, "pool_id": start.pool_id, "job_id": job.id}
        if job.growing:
            journal.record("job.grew", now, **common, tasks=len(start.tasks))
        else:
            journal.record("job.state", now, **common, before=Job.State.PENDING, state=Job.State.STARTING)
    insert_rows(decisions)
    for pool_id, ids in sorted(devices.items()):
        journal.record("allocations.bound", now, pool_id=pool_id)
        journal.record("fleet.changed", now, pool_id=pool_id, devices=sorted(ids))


def reason_json(reason: core.Reason, unit: Literal["gpu", "cpu"]) -> dict[str, Any]:
    """A reason as it is stored and told: its code, a sentence, its numbers and what would help."""
    return {
        "code": reason.code,
        "message": core_reasons.message(reason, unit),
        "numbers": dict(reason.numbers),
        "helps": dict(reason.helps) if reason.helps else None,
    }


def _tell(
    reasons: Mapping[int, tuple[core.Reason, ...]],
    changed: set[int],
    starting: Set[int],
    picture: Picture,
    now: datetime,
    journal: Journal,
) -> None:
    """The waiting jobs' rows carry these reasons; of those in ``changed`` (other codes) their readers hear. Who is
    among ``starting`` has started on record already, and lacks the rest."""
    if not reasons:
        return
    rows = []
    for job_id, found in reasons.items():
        job = picture.pending.get(job_id)
        if job is None or not _is_told(job):
            continue
        unit = _unit(picture, job.pool_ids[0])
        rows.append((job, [reason_json(reason, unit) for reason in found]))
    for growing, states in ((False, [Job.State.PENDING]), (True, sorted(JOB_ACTIVE))):
        of_these = {job.id: [told] for job, told in rows if (job.growing or job.id in starting) == growing}
        for state in states:
            set_rows(Job, ["reasons"], of_these, only={"state": state}, counts_up=False)
    for job, told in rows:
        if job.id not in changed or job.growing or job.id in starting:
            continue
        journal.record(
            "job.reasons",
            now,
            team_id=job.team_id,
            pool_id=job.pool_ids[0],
            job_id=job.id,
            state=Job.State.PENDING,
            reasons=[{"code": each["code"], "message": each["message"]} for each in told],
        )


def _unit(picture: Picture, pool_id: int) -> Literal["gpu", "cpu"]:
    pool = picture.pools.get(pool_id)
    return "cpu" if pool is not None and pool.unit == Pool.Unit.CPU else "gpu"
