"""Parts of the scheduler's picture, and how each is read from rows: pools with their fleets, what is held, who runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TypeVar

from django.db.models import Q

from inventory.models import Device, Node, Pool
from scheduling.core import model as core
from scheduling.core.fleet import Fleet
from scheduling.core.fragmentation import TypicalShape, typical_shapes
from scheduling.core.lookahead import Demand
from scheduling.models import Job, Task, TaskGroup

T = TypeVar("T")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
# The scores that learn from what is asked: from how many recent jobs of the pool.
TYPICAL_REQUESTS = 2000
AT_ONCE = 2000  # rows in memory while much is read
UNREAD = ("command", "environment", "image", "reasons", "end_message")  # columns of a job that no picture shows


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


@dataclass(frozen=True, slots=True)
class Runner:
    """What the core must know of a job that holds something, beyond what it holds."""

    priority: int
    preemptible: bool
    least: tuple[int, ...]
    min_runtime: int | None  # microseconds; None: the pool's
    ending: bool = False


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

    def take(self, placement: core.Placement, team_id: int) -> None:
        """The fleet holds the placement; who holds it matters only where teams are kept apart on a device."""
        self.fleet.take(placement, 0 if self.share_across_teams else team_id)

    def state(self) -> core.PoolState:
        return core.PoolState(
            id=self.id,
            name=self.name,
            fleet=self.fleet,
            quotas=self.quotas,
            usage=self.usage,
            unit="cpu" if self.unit == Pool.Unit.CPU else "gpu",
            available=self.available,
            class_usage=self.class_usage,
        )


def runner_of(job: Job, least: Sequence[int]) -> Runner:
    return Runner(
        priority=job.priority_class.value if job.priority_value is None else job.priority_value,
        preemptible=job.preemptible,
        least=tuple(least),
        min_runtime=None if job.min_runtime_s is None else job.min_runtime_s * 1_000_000,
        ending=bool(job.ending),
    )


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
    )


def node_states(pool: Pool) -> tuple[list[core.NodeState], dict[int, tuple[int, int]]]:
    """The pool's nodes as the core takes them, free of allocations (those are counted one by one), and its devices."""
    by_node: dict[int, list[core.DeviceState]] = defaultdict(list)
    devices: dict[int, tuple[int, int]] = {}
    # Plain values, a part at a time: as objects, and all at once, a large fleet's devices would need 100 MiB meanwhile.
    fields = ("id", "node_id", "index", "model_id", "model__name", "model__vendor", "memory_mib", "health")
    rows = Device.objects.filter(node__pool=pool).order_by("node_id", "index").values_list(*fields)
    for device_id, node_id, index, model_id, model, vendor, memory_mib, health in rows.iterator(AT_ONCE):
        devices[device_id] = (node_id, model_id)
        state = core.DeviceState(device_id, index, model, vendor, memory_mib, health == Device.Health.OK)
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
