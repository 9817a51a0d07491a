"""The frozen picture that a decision is made over, and the plan that comes out.

Everything here is plain data: integers in milli-GPU (1000 = one device), MiB and milli-cores; times are integer
microseconds since the Unix epoch, UTC; ids are the database's integers. ``None`` means "not set", never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from scheduling.core.slicing import ANY, SliceRule

if TYPE_CHECKING:
    from scheduling.core.fleet import Fleet

Score = Literal["binpack", "spread", "fragmentation", "lookahead"]
SCORES: tuple[Score, ...] = ("binpack", "spread", "fragmentation", "lookahead")


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """What one task asks of one node. Equal requests are one *shape*: caches are keyed by it.

    devices 0 is a CPU-only task. With devices k >= 1 each of k different devices of one node gives the same slice:
    ``compute_milli`` (1..1000, None: follows from the memory on each device) and ``memory_mib`` (None: follows from
    the compute on each device; a whole device always gives all its memory). At least one of the two is set. What the
    device's slice rule makes of it is what is granted, see ``slicing``.
    """

    devices: int = 0
    compute_milli: int | None = None
    memory_mib: int | None = None
    cpu_milli: int = 0
    host_memory_mib: int = 0
    models: tuple[str, ...] = ()  # allowed accelerator models, sorted; () = any
    vendors: tuple[str, ...] = ()  # allowed vendors, sorted; () = any
    min_device_memory_mib: int = 0
    node_selector: tuple[tuple[str, str], ...] = ()  # labels that the node must carry, sorted
    team_id: int = 0  # set only in pools that forbid two teams on one device, where it is part of the shape
    tolerations: tuple[tuple[str, str], ...] = ()  # taints that it bears, sorted; the value * bears any value


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One device as the picture is built. ``compute_used``/``memory_used`` are what is bound on it now."""

    id: int
    index: int  # position in its node
    model: str
    vendor: str
    memory_mib: int
    healthy: bool = True
    compute_used: int = 0
    memory_used: int = 0
    team_id: int = 0  # who holds slices of it, where the pool forbids sharing across teams; 0 = nobody
    rule: SliceRule = ANY  # of its model


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node. ``schedulable``: ready and not cordoned. ``rank`` breaks every tie (lower first), unique in a pool."""

    id: int
    name: str
    rank: int
    cpu_milli: int
    host_memory_mib: int
    devices: tuple[DeviceState, ...]
    schedulable: bool = True
    cpu_used: int = 0
    host_memory_used: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[tuple[str, str], ...] = ()  # only tasks that tolerate all of them are placed here


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one task lands: a node (by id and position) and its slice of each chosen device. Nothing is taken by it."""

    node: int  # position in the fleet
    node_id: int
    device_indexes: tuple[int, ...]  # positions in the node, ascending
    device_ids: tuple[int, ...]
    compute_milli: int  # of each device
    memory_mib: tuple[int, ...]  # of each device, in the same order
    cpu_milli: int
    host_memory_mib: int
    counted_mib: int | None = None  # see ``memory_counted``

    @property
    def milli(self) -> int:
        """What the slice counts against quotas and bills: milli-GPU over all its devices."""
        return self.compute_milli * len(self.device_indexes)

    @property
    def memory_counted(self) -> int:
        """What the slice counts against limits of device memory: MiB over all its devices.

        Whole devices for which less memory was named beside count that; the rest comes along, as nobody else could
        have it.
        """
        return sum(self.memory_mib) if self.counted_mib is None else self.counted_mib


@dataclass(frozen=True, slots=True)
class Quota:
    """A team's claim in one pool, in the pool's unit (milli-GPU, or milli-cores in a CPU pool).

    ``memory_limit_mib`` bounds the device memory of the whole subtree beside the ``limit``. Shares are in the unit
    alone: memory entitles to nothing and demand is not capped by it, it only keeps jobs from starting.
    """

    guaranteed: int = 0
    limit: int | None = None
    weight: int = 1
    reserved: int = 0
    per_user_limit: int | None = None
    memory_limit_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Team:
    """A node of the tree. ``parent_id`` None: directly under the root. ``id`` order is age order."""

    id: int
    name: str
    parent_id: int | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """A gang stays inside one domain: nodes whose label ``level`` has the same value (``host``: one node).

    ``required``: it waits until it can. Otherwise it is kept as close together as it fits whole, whatever the level
    that it names: on one host, else in one rack, block or zone, else anywhere; and it never waits because of that.
    """

    level: str
    required: bool = True


@dataclass(frozen=True, slots=True)
class Group:
    """Tasks of one kind in a job: ``count`` wanted, at least ``min_count`` to start, ``placed`` already bound."""

    name: str
    count: int
    min_count: int
    request: Request
    placed: int = 0


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A job with tasks to place: one that waits, or a running elastic one that wants more (``growing``).

    A growing job names first the pool it runs in, and grows only there.
    """

    id: int
    team_id: int
    user_id: int
    pool_ids: tuple[int, ...]  # in order of preference
    groups: tuple[Group, ...]
    submitted_at: int  # microseconds
    priority: int = 500
    cluster_wide: bool = False
    preemptible: bool = True
    held: str | None = None  # why it is passed over: a held reason code, or None
    held_numbers: Mapping[str, object] = field(default_factory=dict)
    max_running_of_class: int | None = None  # cap on the team's running jobs of this class
    max_milli_of_class: int | None = None  # cap on what they hold together, in milli-GPU
    priority_class: str = "normal"
    growing: bool = False
    min_runtime: int | None = (
        None  # how long it is left alone once it has started; microseconds; None: as the pool says
    )
    room_made_at: int | None = None  # since when others give way to it, and it has not started yet; microseconds
    room_kept_since: int | None = None  # since when it has a reservation, and it has not started yet; microseconds
    room_kept_at: tuple[TaskStart, ...] = ()  # the place of that reservation as it was last told; () where forgotten
    time_limit: int | None = None  # how long it may run; microseconds; None: for ever
    topology: Topology | None = None
    apart: str | None = None  # a level: no two of its tasks share a domain of it
    evictions: int = 0  # how often it gave way as a whole
    max_evictions: int | None = None  # after how many it gives way no more; None: as the pool says
    service: bool = False  # its tasks are replicas: while it runs, each that is missing is placed by itself

    @property
    def degraded(self) -> bool:
        """Whether it is a service that runs with fewer replicas than its least."""
        return self.service and self.growing and any(group.placed < group.min_count for group in self.groups)

    @property
    def is_short(self) -> bool:
        """Whether it runs with fewer tasks than it needs. A service can do with any of its replicas."""
        return self.growing and not self.service and any(group.placed < group.min_count for group in self.groups)


@dataclass(frozen=True, slots=True)
class RunningTask:
    """One task that holds its placement. ``releasing``: it is being stopped, and holds it until that is confirmed.

    ``for_job``: the waiting job that it gives way to. ``holder``: the team id under which the fleet knows it, 0 where
    the pool does not keep teams apart on a device. ``ends_at``: when it is gone at the latest, by its own time limit or
    by the end of its grace; None: as its job says.
    """

    allocation_id: int
    group: int  # position in the job's groups
    placement: Placement
    releasing: bool = False
    for_job: int | None = None
    holder: int = 0
    ends_at: int | None = None  # microseconds


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that holds something: who may be told to give way, and down to what.

    ``least``: by group, the tasks that must go on if any does. It is left alone until ``protected_until``.
    """

    id: int
    team_id: int
    user_id: int
    pool_id: int
    priority: int
    preemptible: bool
    started_at: int  # microseconds
    tasks: tuple[RunningTask, ...]  # by ascending allocation id
    least: tuple[int, ...]
    protected_until: int = 0  # microseconds
    ends_at: int | None = None  # when its time limit ends it, if nothing else does; microseconds; None: it has none
    spared: bool = False  # it gave way as often as it may be made to: it is no victim any more


@dataclass(frozen=True, slots=True)
class PoolState:
    """One pool now. ``usage``: what each (team, user) holds, in the pool's unit, releasing devices included."""

    id: int
    name: str
    fleet: Fleet
    quotas: Mapping[int, Quota]  # by team id; a team without an entry has Quota()
    usage: Mapping[tuple[int, int], int]
    unit: Literal["gpu", "cpu"] = "gpu"
    available: bool = True  # False: its engine is out of reach or the operator paused it
    class_usage: Mapping[tuple[int, str], int] = field(default_factory=dict)  # (team, class) → running jobs
    past_use: Mapping[int, int] = field(default_factory=dict)  # team → what it used, decayed; empty: not remembered
    half_life: int | None = None  # of the pool's memory of the past; microseconds; None: it has none
    class_milli: Mapping[tuple[int, str], int] = field(default_factory=dict)  # (team, class) → milli-GPU held
    memory_usage: Mapping[int, int] = field(default_factory=dict)  # team → MiB of device memory that count for it
    overtime: int = 0  # how long after its time limit a task may still hold what it has; microseconds


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a cycle decides over. ``now`` in microseconds."""

    now: int
    teams: tuple[Team, ...]
    pools: tuple[PoolState, ...]
    pending: tuple[PendingJob, ...]
    running: tuple[RunningJob, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """What an operator chose for the installation.

    ``max_rescues``: for how many waiting jobs one cycle makes others give way; the next cycle goes on with the rest.
    ``max_moments``, ``max_forecast_starts``, ``max_looks``: where a forecast ends, see ``forecast``.
    """

    max_starts: int | None = None  # bound on starts in one cycle; None = all that fit
    max_rescues: int = 25
    max_moments: int = 64
    max_forecast_starts: int = 2000
    max_looks: int = 100_000


@dataclass(frozen=True, slots=True)
class Share:
    """One team's numbers in one pool, its subtree included. Units of the pool. Held jobs are no demand."""

    demand: int  # allocated and pending, capped by the limits of the subtree
    guaranteed: int  # its own, or the sum of its children's where that is more
    deserved: int
    allocated: int
    limit: int | None
    pending: int


@dataclass(frozen=True, slots=True)
class Reason:
    """One "no": a code, the numbers that it saw, and the smallest change that would help where there is one.

    ``numbers`` is JSON-ready (integers in the pool's unit, strings, lists). The text for people is
    ``scheduling.core.reasons.message(reason)``.
    """

    code: str
    numbers: Mapping[str, object] = field(default_factory=dict)
    pool_id: int | None = None
    helps: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class TaskStart:
    """One task of a started job: which group, and where."""

    group: int  # position in PendingJob.groups
    placement: Placement


@dataclass(frozen=True, slots=True)
class Start:
    """A job (or the growth of one) that begins now, all its ``tasks`` together.

    For the ledger: the ``rule`` that let it start, and the ``numbers`` of its team just before. ``rule`` is
    ``cluster_wide``, ``guarantee`` (the team was below its guarantee), ``share`` (it was not), ``growth``, or
    ``replacement`` (of members that were lost with their node).
    """

    job_id: int
    pool_id: int
    tasks: tuple[TaskStart, ...]
    rule: str
    numbers: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Eviction:
    """A running job gives way to ``for_job``: as a ``whole``, or with these tasks only, and goes on with the others.

    ``rule`` is ``reclaim`` (its team holds more than it deserves) or ``preempt`` (a job of its own team with a higher
    priority waits); ``numbers`` are those of its team just before, for the ledger.
    """

    job_id: int
    pool_id: int
    allocation_ids: tuple[int, ...]
    whole: bool
    for_job: int
    rule: str
    numbers: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class EvictionRefusal:
    """A waiting job for which others might have given way, and why none does. At most one for a job.

    ``rule`` is one of ``scheduling.core.refusals.RULES``; ``numbers`` are those of its team, and of what others hold.
    """

    job_id: int
    pool_id: int
    rule: str
    numbers: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room that is kept for a waiting job: it starts at ``at`` at the latest, if jobs end at their time limits.

    ``at`` None: nobody knows when, because jobs without a time limit stand in the way; then the nodes of ``tasks`` take
    nobody else. ``tasks``: where it would start. ``since``: when it got the reservation. Times in microseconds.
    """

    job_id: int
    pool_id: int
    at: int | None
    since: int
    tasks: tuple[TaskStart, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a cycle decided, in order. Every pending job is in ``starts`` or has a reason; both if it may grow on.

    ``broken``: jobs that run with fewer tasks than their least, because a node was lost, and for which no replacement
    was found now. They go back to the queue as a whole: a gang holds nothing while it waits.
    """

    starts: tuple[Start, ...]
    reasons: Mapping[int, tuple[Reason, ...]]  # by job id
    shares: Mapping[int, Mapping[int, Share]]  # pool id → team id → share, with the starts carried out
    evictions: tuple[Eviction, ...] = ()
    broken: tuple[int, ...] = ()  # job ids, ascending
    refusals: tuple[EvictionRefusal, ...] = ()  # in the order in which it was found out
    reservations: tuple[Reservation, ...] = ()  # at most one a pool, by ascending pool id
