"""Makes the fleet and the teams of a trace, and plays its jobs through services on a virtual clock."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from billing.services import set_rate
from config.replay.estimates import FirstEstimates, Limits, time_limit_s
from events.errors import Conflict, Invalid
from events.services import unit_of_work
from inventory.models import AcceleratorModel, Pool
from inventory.services import NodeEntry, add_nodes, create_engine, create_pool, set_accelerator_model
from quotas.services import set_quota
from scheduling.core.units import MILLI_PER_DEVICE
from scheduling.engines.simulated import SimulatedEngine
from scheduling.models import Job
from scheduling.services.cycle import Scheduler
from scheduling.services.reconcile import Reconciler
from scheduling.services.recording import NOTHING, Recorder
from scheduling.services.requests import GroupSpec, JobSpec
from scheduling.services.submit import ensure_priority_classes, submit
from scheduling.simulation.clockwork import Clockwork
from scheduling.workload.accelerators import ACCELERATOR_MODELS
from scheduling.workload.records import Trace, TraceJob
from tenants.models import Team, User
from tenants.services import create_team, create_user, set_membership

ESTIMATE_INTERVAL = timedelta(minutes=10)  # of the trace
SAMPLES = 400  # points of the curves over time
NAP_S = 0.1
STEP_MILLI = 10  # traces were recorded with finer slices than our default step
OTHER_RATE = Decimal("1.00")  # per GPU-hour, of models that have no demo rate


@dataclass(frozen=True, slots=True)
class Sample:
    """The pool at a moment: milli-GPU allocated, asked for by all unfinished jobs, expected fragments."""

    at_s: float
    allocated_milli: int
    wanted_milli: int
    fragmented_milli: float
    running: int
    pending: int


@dataclass
class Stage:
    """Everything that a replay plays on."""

    trace: Trace
    pool: Pool
    teams: dict[str, Team]
    users: dict[str, User]
    clockwork: Clockwork
    start: datetime
    samples: list[Sample] = field(default_factory=list)
    submitted: int = 0
    wall_s: float = 0.0
    wanted_milli: int = 0
    limits: Limits = "none"
    estimates: FirstEstimates = field(default_factory=FirstEstimates)


def set_stage(
    trace: Trace, pool_name: str, start: datetime, *, placement: str = "fragmentation", limits: Limits = "none"
) -> Stage:
    """The pool with the trace's nodes, its teams, a user for each, and demo rates. Conflict: the pool is there.

    ``limits``: which time limits its jobs will have, see ``time_limit_s``.
    """
    if Pool.objects.filter(name=pool_name).exists():
        raise Conflict(f"There is already a pool '{pool_name}'; name another.", code="name_taken")
    if Job.objects.filter(state__in=[Job.State.PENDING, Job.State.STARTING, Job.State.RUNNING]).exists():
        raise Conflict("This database has unfinished jobs; a replay needs one without (--data DIR names a folder).")
    if not trace.nodes:
        raise Invalid.at("trace", "holds no nodes, so there is nothing to place on")
    with unit_of_work():
        ensure_priority_classes()
        connection = create_engine(f"replay-{pool_name}", "simulated")
        pool = create_pool(pool_name, connection, start, step_milli=STEP_MILLI, grace_s=0, placement=placement)
        models = _models(trace, start)
        add_nodes(
            pool,
            [
                NodeEntry(
                    node.name,
                    node.cpu_milli,
                    node.host_memory_mib,
                    tuple((models[node.model], node.device_memory_mib, "") for _ in range(node.devices)),
                    dict(node.labels),
                )
                for node in trace.nodes
            ],
            start,
        )
        teams, users = _teams(trace, pool, start)
    scheduler = Scheduler(
        f"replay-{pool_name}",
        reason_interval=timedelta(days=36500),
        estimate_interval=ESTIMATE_INTERVAL,
        recorder=Recorder(NOTHING),
    )
    if not scheduler.lead(start):
        raise Conflict("A scheduler runs on this database. Stop it, or name another folder with --data DIR.")
    clockwork = Clockwork(start, scheduler, [Reconciler(connection, SimulatedEngine())])
    return Stage(trace, pool, teams, users, clockwork, start, limits=limits)


def _models(trace: Trace, now: datetime) -> dict[str, AcceleratorModel]:
    known = {model.name: model for model in ACCELERATOR_MODELS}
    found = {}
    for node in trace.nodes:
        if node.devices and node.model not in found:
            vendor = node.vendor or "other"
            maker = known.get(node.model)
            as_made = maker is not None and maker.memory_mib == node.device_memory_mib
            found[node.model] = set_accelerator_model(
                node.model,
                vendor,
                node.device_memory_mib,
                slicing=maker.slice_rule if maker and as_made else "any",
                slice_templates=maker.stored_templates if maker and as_made else (),
                now=now,
            )
            rate = maker.demo_rate if maker else OTHER_RATE
            set_rate(rate, now, model=found[node.model])
    return found


def _teams(trace: Trace, pool: Pool, now: datetime) -> tuple[dict[str, Team], dict[str, User]]:
    teams: dict[str, Team] = {}
    users: dict[str, User] = {}
    shares = [team.share_milli for team in trace.teams]
    fits = all(share is not None for share in shares) and sum(share or 0 for share in shares) <= trace.capacity_milli
    for each in trace.teams:
        team = Team.objects.filter(slug=each.name, deleted_at=None).first()
        teams[each.name] = team = team or create_team(each.label or each.name, now, slug=each.name)
        user = User.objects.filter(username_key=f"replay-{each.name}").first()
        users[each.name] = user = user or create_user(f"replay-{each.name}", now)
        set_membership(user, team, "member", now)
        if fits and each.share_milli:
            set_quota(team, pool, now, guaranteed=each.share_milli)
    return teams, users


def spec_of(job: TraceJob, pool: Pool, limits: Limits = "none") -> JobSpec:
    """The trace's job as it would have been submitted."""
    group = GroupSpec(
        name="task",
        count=job.tasks,
        min_count=job.tasks,
        devices=job.devices,
        compute_milli=job.gpu_milli if job.devices else None,
        memory_mib=None,
        cpu_milli=job.cpu_milli,
        host_memory_mib=job.memory_mib,
        models=job.models,
        vendors=(),
        node_selector={},
        min_device_memory_mib=0,
        command=None,
    )
    return JobSpec(
        team=job.team,
        pools=(pool,),
        name=job.name,
        groups=(group,),
        command=(),
        environment={},
        image="",
        framework="",
        kind=Job.Kind.BATCH,
        priority=job.priority_class,
        preemptible=True,
        time_limit_s=time_limit_s(None if job.duration_s is None else float(job.duration_s), limits),
        retries=0,
        min_runtime_s=None,
        duration_ms=None if job.duration_s is None else int(job.duration_s * 1000),
        exit_code=0 if job.exit == "succeeded" else 1,
    )


def play(
    stage: Stage, *, speed: float | None, progress: Callable[[int], object], stopped: Callable[[], bool] = lambda: False
) -> None:
    """All jobs are submitted at their times and have run as far as they ever will; jobs without an end run on.

    ``speed``: virtual seconds a second; None: as fast as it goes. ``progress`` hears of jobs that were submitted.
    Once ``stopped`` says so, within a moment nothing more is submitted or waited for.
    """
    begun = time.perf_counter()
    batches = _batches(stage.trace.jobs)
    span = float(batches[-1][0]) if batches else 0.0
    every = max(span / SAMPLES, 1.0)
    next_sample = 0.0
    for submit_s, jobs in batches:
        moment = stage.start + timedelta(seconds=float(submit_s))
        _wait(stage, moment, begun, speed, stopped)
        if stopped():
            break
        stage.clockwork.run_until(moment)
        _submit(stage, jobs)
        stage.clockwork.settle()
        _note_estimates(stage)
        if float(submit_s) >= next_sample:
            _sample(stage)
            next_sample = float(submit_s) + every
        progress(len(jobs))
    while not stopped() and (next_moment := stage.clockwork.next_change()) is not None:
        step = max(next_moment, stage.clockwork.now + timedelta(seconds=every))
        _wait(stage, step, begun, speed, stopped)
        if stopped():
            break
        stage.clockwork.run_until(step)
        _note_estimates(stage)
        _sample(stage)
    stage.wall_s = time.perf_counter() - begun


def _batches(jobs: Sequence[TraceJob]) -> list[tuple[Decimal, list[TraceJob]]]:
    by_time: dict[Decimal, list[TraceJob]] = defaultdict(list)
    for job in jobs:
        by_time[Decimal(job.submit_s)].append(job)
    return sorted(by_time.items())


def _wait(stage: Stage, moment: datetime, begun: float, speed: float | None, stopped: Callable[[], bool]) -> None:
    if speed is not None:
        due = begun + (moment - stage.start).total_seconds() / speed
        # In short naps: a signal does not end a sleep that it only took note of.
        while not stopped() and (left := due - time.perf_counter()) > 0:
            time.sleep(min(left, NAP_S))


def _submit(stage: Stage, jobs: Sequence[TraceJob]) -> None:
    with unit_of_work() as journal:
        by_team: dict[str, list[TraceJob]] = defaultdict(list)
        for job in jobs:
            by_team[job.team].append(job)
        for team, own in sorted(by_team.items()):
            specs = [spec_of(job, stage.pool, stage.limits) for job in own]
            submit(stage.users[team], specs, stage.clockwork.now, journal, many=True)
    stage.submitted += len(jobs)


def _note_estimates(stage: Stage) -> None:
    if stage.limits != "none":
        stage.estimates.note(stage.pool)


def _sample(stage: Stage) -> None:
    picture = stage.clockwork.scheduler.picture
    pool = picture.pools[stage.pool.pk]
    wanted = sum(
        group.count * group.request.devices * (group.request.compute_milli or MILLI_PER_DEVICE)
        for job in picture.pending.values()
        for group in job.groups
    )
    allocated = pool.fleet.allocated_milli()
    stage.samples.append(
        Sample(
            at_s=(stage.clockwork.now - stage.start).total_seconds(),
            allocated_milli=allocated,
            wanted_milli=allocated + wanted,
            fragmented_milli=pool.fleet.fragmentation_milli(),
            running=len(picture.job_live),
            pending=len(picture.pending),
        )
    )
