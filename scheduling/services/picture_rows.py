"""Parts of the scheduler's picture, and how each is read from rows: pools with their fleets, what is held, who runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TypeVar

from django.db.models import Q

from inventory.models import AcceleratorModel, Device, EngineConnection, Node, Pool
from inventory.slicing import rule_of
from scheduling.core import model as core
from scheduling.core.fleet import Fleet
from scheduling.core.fragmentation import TypicalShape, typical_shapes
from scheduling.core.lookahead import Demand
from scheduling.models import Job, Task, TaskGroup
from scheduling.past_use import PoolMemory

T = TypeVar("T")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
# The scores that learn from what is asked: from how many recent jobs of the pool.
TYPICAL_REQUESTS = 2000
AT_ONCE = 2000  # rows in memory while much is read
UNREAD = ("command", "environment", "image", "end_message")  # columns of a job that no picture shows


def microseconds(moment: datetime) -> int:
    """Microseconds since the epoch: how the core tells time."""
    return (moment - EPOCH) // MICROSECOND


@dataclass(frozen=True, slots=True)
class Held:
    """What one live allocation holds."""

    pool_id: int
    placement: core.Placement
    team_id: int
    user_id: int
    job_id: int
    charge: int
    group: int = 0
    bound_at: int = 0  # microseconds
    releasing: bool = False
    for_job: int | None = None
    gone_by: int | None = None  # microseconds: when what is being stopped has stopped at the latest


@dataclass(frozen=True, slots=True)
class Runner:
    """What the core must know of a job that holds something, beyond what it holds."""

    priority: int
    preemptible: bool
    least: tuple[int, ...]
    min_runtime: int | None  # microseconds; None: the pool's
    ending: bool = False
    evictions: int = 0
    max_evictions: int | None = None  # None: the pool's
    time_limit: int | None = None  # microseconds
    began_at: int = 0  # when all that it was started with ran, as far as that is known; microseconds

    def is_spared(self, pool: Pool) -> bool:
        """Whether it gave way as often as it may be made to in this pool."""
        most = pool.max_evictions if self.max_evictions is None else self.max_evictions
        return most is not None and self.evictions >= most


@dataclass(frozen=True, slots=True)
class Learned:
    """What a pool's recent jobs asked for: the typical shapes, all of it with counts, and how many jobs that was."""

    typical: tuple[TypicalShape, ...]
    demand: Demand
    jobs: int


NOTHING_LEARNED = Learned((), (), 0)


@dataclass
class PoolPicture:
    """One pool as the core sees it, and what changes it."""

    id: int
    name: str
    unit: str
    available: bool
    fleet: Fleet
    score: core.Score  # that the pool asks for; the fleet's own may be what stands in for it
    share_across_teams: bool
    step_milli: int
    row: Pool
    quotas: dict[int, core.Quota] = field(default_factory=dict)
    usage: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    class_usage: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    devices: dict[int, tuple[int, int]] = field(default_factory=dict)  # device id → (node id, model id)
    learned_from: int = 0  # how many jobs what is typical was learned from
    requests_seen: int = 0  # since what is typical was learned
    memory: PoolMemory | None = None  # of the past, where the pool has a half-life
    class_milli: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    memory_usage: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # by team, MiB

    def take(self, placement: core.Placement, team_id: int) -> None:
        """The fleet holds the placement; who holds it matters only where teams are kept apart on a device."""
        self.fleet.take(placement, 0 if self.share_across_teams else team_id)

    def count(self, held: Held, sign: int) -> None:
        """The device memory that counts for its team grows (sign 1) or shrinks (-1) by what is held."""
        self.memory_usage[held.team_id] += sign * held.placement.memory_counted

    def count_of_class(self, held: Held, class_name: str, sign: int) -> None:
        """Of the GPUs that jobs of a class hold in its team, likewise."""
        if self.unit == Pool.Unit.GPU:
            self.class_milli[(held.team_id, class_name)] += sign * held.charge

    def state(self, now: datetime) -> core.PoolState:
        return core.PoolState(
            id=self.id,
            name=self.name,
            fleet=self.fleet,
            quotas=self.quotas,
            usage=self.usage,
            unit="cpu" if self.unit == Pool.Unit.CPU else "gpu",
            available=self.available,
            class_usage=self.class_usage,
            past_use=self.memory.used(now) if self.memory else {},
            half_life=self.row.half_life_s * 1_000_000 if self.memory and self.row.half_life_s else None,
            class_milli=self.class_milli,
            memory_usage=self.memory_usage,
            overtime=self.overtime,
        )

    @property
    def grace(self) -> int:
        """How long what is told to stop may take for it; microseconds."""
        return self.row.grace_s * 1_000_000

    @property
    def overtime(self) -> int:
        """How long a task may hold what it has after its time limit, which is when it is told to stop; microseconds.
        (Simulated ones stop at once.)"""
        return 0 if self.row.engine.kind == EngineConnection.Kind.SIMULATED else self.grace


def runner_of(job: Job, least: Sequence[int]) -> Runner:
    return Runner(
        priority=job.priority_class.value if job.priority_value is None else job.priority_value,
        preemptible=job.preemptible,
        least=tuple(least),
        min_runtime=None if job.min_runtime_s is None else job.min_runtime_s * 1_000_000,
        ending=bool(job.ending),
        evictions=job.preemptions,
        max_evictions=job.max_evictions,
        time_limit=None if job.time_limit_s is None else job.time_limit_s * 1_000_000,
        began_at=0 if job.started_at is None else microseconds(job.started_at),
    )


def ends_at(held: Held, runner: Runner, pool: PoolPicture, now: int) -> int | None:
    """When what is held is free again at the latest; None: nobody knows.

    An engine counts a task's time limit from when the task runs, which is not before it was bound; until it is known to
    run, the time that the launch takes is not counted. What is being stopped has its grace from when it was told so.
    """
    if held.releasing and held.gone_by is not None:
        return held.gone_by
    if runner.ending:
        return now + pool.grace  # it is told so about now
    if runner.time_limit is None:
        return None
    return max(held.bound_at, runner.began_at) + runner.time_limit + pool.overtime


def kept_since(job: Job) -> int | None:
    """Since when the job has a reservation, by its reasons as they were last told: that is the only record of it."""
    if job.state != Job.State.PENDING:
        return None
    told = [(reason.get("numbers") or {}).get("kept_since") for reason in job.reasons]
    moments = [microseconds(datetime.fromisoformat(each)) for each in told if each]
    return min(moments, default=None)


def wanting() -> Q:
    """Jobs that may want a placement: those that wait, and elastic ones that run with tasks still waiting."""
    elastic = Q(state__in=["starting", "running"], ending="", tasks__state=Task.State.PENDING)
    return Q(pk__in=Job.objects.filter(state=Job.State.PENDING).values("pk")) | Q(
        pk__in=Job.objects.filter(elastic).values("pk")
    )


def chunks(ids: Sequence[int], size: int) -> Iterable[Sequence[int]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))


def in_parts(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """The rows in their order, ``size`` at a time."""
    following = iter(rows)
    while part := list(islice(following, size)):
        yield part


def charge(pool: PoolPicture, placement: core.Placement) -> int:
    """What a placement counts against quotas, in the pool's unit."""
    return placement.cpu_milli if pool.unit == Pool.Unit.CPU else placement.milli


def request_of(group: TaskGroup, team_id: int = 0) -> core.Request:
    """What each task of the group asks of a node; ``team_id`` where the pool keeps teams apart on a device."""
    return core.Request(
        devices=group.devices,
        compute_milli=group.compute_milli,
        memory_mib=group.memory_mib,
        cpu_milli=group.cpu_milli,
        host_memory_mib=group.host_memory_mib,
        models=tuple(group.models_allowed),
        vendors=tuple(group.vendors_allowed),
        min_device_memory_mib=group.min_device_memory_mib,
        node_selector=tuple(sorted(group.node_selector.items())),
        team_id=team_id,
        tolerations=tuple(sorted(group.tolerations.items())),
    )


def node_states(pool: Pool) -> tuple[list[core.NodeState], dict[int, tuple[int, int]]]:
    """The pool's nodes as the core takes them, free of allocations (those are counted one by one), and its devices."""
    by_node: dict[int, list[core.DeviceState]] = defaultdict(list)
    devices: dict[int, tuple[int, int]] = {}
    models = AcceleratorModel.objects.filter(devices__node__pool=pool).order_by().distinct()
    rules = {model.pk: rule_of(model) for model in models}  # one object for all devices of a model
    # Plain values, a part at a time: as objects, and all at once, a large fleet's devices would need 100 MiB meanwhile.
    fields = ("id", "node_id", "index", "model_id", "model__name", "model__vendor", "memory_mib", "health")
    rows = Device.objects.filter(node__pool=pool).order_by("node_id", "index").values_list(*fields)
    for device_id, node_id, index, model_id, model, vendor, memory_mib, health in rows.iterator(AT_ONCE):
        devices[device_id] = (node_id, model_id)
        healthy = health == Device.Health.OK
        state = core.DeviceState(device_id, index, model, vendor, memory_mib, healthy, rule=rules[model_id])
        by_node[node_id].append(state)
    nodes = [
        core.NodeState(
            id=node.pk,
            name=node.name,
            rank=node.rank,
            cpu_milli=node.cpu_milli,
            host_memory_mib=node.host_memory_mib,
            devices=tuple(by_node[node.pk]),
            schedulable=node.state == Node.State.READY,
            labels=tuple(sorted((str(key), str(value)) for key, value in node.labels.items())),
            taints=tuple(sorted((str(key), str(value)) for key, value in node.taints.items())),
        )
        for node in Node.objects.filter(pool=pool).order_by("rank").iterator(AT_ONCE)
    ]
    return nodes, devices


def learn(pool: Pool) -> Learned:
    """From the pool's most recent jobs."""
    recent = list(Job.objects.filter(pool=pool).order_by("-id").values_list("pk", flat=True)[:TYPICAL_REQUESTS])
    counts: dict[core.Request, int] = defaultdict(int)
    for chunk in chunks(sorted(recent), 500):
        for group in TaskGroup.objects.filter(job_id__in=chunk).order_by("job_id", "position"):
            counts[request_of(group)] += group.count
    demand = tuple(sorted(counts.items(), key=str))
    return Learned(typical_shapes(demand), demand, len(recent))
