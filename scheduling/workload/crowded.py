"""A crowded pool for measurements: a fleet of 12,130 nodes that is full, and 10,000 jobs of 100 teams that wait for it.

Everything is drawn from ``random.Random`` with a fixed seed: the same world every time. One job of the queue can start
(``Crowd.startable``): it asks for so little CPU that it fits beside the one device that is free, nobody else does; and
it ends long before that device is needed by the job that it is kept for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from scheduling.core.fleet import Fleet
from scheduling.core.fragmentation import typical_shapes
from scheduling.core.model import (
    DeviceState,
    Group,
    NodeState,
    PendingJob,
    Placement,
    PoolState,
    Quota,
    Request,
    RunningJob,
    RunningTask,
    Score,
    Snapshot,
    Team,
)
from scheduling.core.units import MILLI_PER_DEVICE
from scheduling.workload.records import TraceNode

POOL = 1
SUBMITTED_AT = 1_750_000_000_000_000  # microseconds; the first of the queue
SECOND = 1_000_000
HOUR_S = 3600
LEAST_CPU = 1000  # milli-cores: what every job of the queue asks for at least, but the one that can start
SEED = 11
WHOLE_SIZES = (8, 4, 2, 1)
FRACTIONS = (500, 250)


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything. ``depth``: levels of teams; ``members``: people in each team that has no teams below."""

    jobs: int = 10_000
    teams: int = 100
    depth: int = 2
    members: int = 7
    shapes: int = 60
    running: int = 20_000


@dataclass(frozen=True, slots=True)
class Crowd:
    """A snapshot, the id of the one job in it that can start, and how many devices there are."""

    snapshot: Snapshot
    startable: int
    nodes: int
    devices: int


def copied(nodes: Sequence[TraceNode], count: int) -> list[TraceNode]:
    """``count`` nodes: the given ones again and again, with names of their own."""
    found = []
    for number in range(count):
        node = nodes[number % len(nodes)]
        found.append(replace(node, name=f"{node.name}.{number // len(nodes)}"))
    return found


def crowd(nodes: Sequence[TraceNode], size: Size, *, score: Score = "fragmentation", borrowing: bool = False) -> Crowd:
    """``nodes`` full of running jobs, and the queue before them.

    Everyone holds about the same and is guaranteed just that, so nobody is entitled to more. ``borrowing``: half of the
    teams hold everything, all are guaranteed the same, and the others are entitled to take theirs back.
    """
    random = Random(SEED)
    teams = tuple(_teams(size))
    leaves = _leaves(teams)
    asks = list(drawn_asks(size.shapes, random))
    fleet, free = _fleet(nodes, score, asks)
    holders = leaves[: max(1, len(leaves) // 2)] if borrowing else leaves
    running = tuple(_fill(fleet, free, holders, size))
    usage = _usage(running)
    pending, startable = _queue(size, leaves, asks, random)
    devices = sum(node.devices for node in nodes)
    even = devices * MILLI_PER_DEVICE // len(leaves)
    quotas = {team_id: Quota(guaranteed=even if borrowing else _held(usage, team_id), weight=0) for team_id in leaves}
    pool = PoolState(id=POOL, name="crowded", fleet=fleet, quotas=quotas, usage=usage)
    now = SUBMITTED_AT + size.jobs * SECOND
    return Crowd(Snapshot(now, teams, (pool,), pending, running), startable, len(nodes), devices)


def _teams(size: Size) -> Iterator[Team]:
    """Ten departments (fewer where there are fewer teams), below each a chain of levels, the teams at the lowest."""
    departments = min(10, size.teams)
    number = 0
    lowest: list[int | None] = []
    for department in range(departments):
        parent: int | None = None
        for level in range(size.depth - 1):
            number += 1
            yield Team(number, f"department-{department}-{level}", parent)
            parent = number
        lowest.append(parent)
    for team in range(size.teams):
        number += 1
        yield Team(number, f"team-{team}", lowest[team % departments])


def _leaves(teams: Sequence[Team]) -> list[int]:
    parents = {team.parent_id for team in teams}
    return [team.id for team in teams if team.id not in parents]


def drawn_asks(count: int, random: Random) -> Iterator[tuple[int, Request]]:
    """(tasks, request) of ``count`` different shapes: parts of a device, single ones, several, some of them gangs."""
    seen: set[Request] = set()
    while len(seen) < count:
        devices = random.choice((1, 1, 1, 1, 2, 4, 8))
        milli = random.choice((100, 250, 500, 750, 1000, 1000)) if devices == 1 else MILLI_PER_DEVICE
        request = Request(
            devices=devices,
            compute_milli=milli,
            cpu_milli=LEAST_CPU * random.randint(1, 16 if count <= 200 else 200),
            host_memory_mib=1024 * random.choice((0, 4, 16, 64)),
        )
        if request not in seen:
            seen.add(request)
            yield random.choice((1, 1, 1, 1, 2, 4)), request


def _fleet(nodes: Sequence[TraceNode], score: Score, asks: Sequence[tuple[int, Request]]) -> tuple[Fleet, NodeState]:
    """The empty fleet, and the node of it whose last device stays free: the first that has devices."""
    demand = tuple((request, tasks) for tasks, request in asks)
    states = []
    device_id = 0
    for number, node in enumerate(nodes, start=1):
        memory = node.device_memory_mib or 1
        devices = tuple(DeviceState(device_id + i + 1, i, node.model, node.vendor, memory) for i in range(node.devices))
        device_id += node.devices
        states.append(NodeState(number, node.name, number, node.cpu_milli, node.host_memory_mib, devices))
    free = next(state for state in states if state.devices)
    learning = score in ("fragmentation", "lookahead")
    typical = typical_shapes(demand) if learning else ()
    return Fleet(states, score=score, typical=typical, demand=demand if learning else ()), free


def _fill(fleet: Fleet, free: NodeState, holders: Sequence[int], size: Size) -> Iterator[RunningJob]:
    """Jobs that take every device but the last of ``free``, whose CPU they leave too little of for anyone but one.

    Of whole devices as long as ``size.running`` allows; what is left by then goes to one job, devices by the node.
    """
    last = free.devices[-1]
    keep = Placement(free.rank - 1, free.id, (last.index,), (last.id,), MILLI_PER_DEVICE, (last.memory_mib,), 0, 0)
    fleet.take(keep)
    number = 0
    for request, most in fillers(size.running):
        for _ in range(most):
            placement = fleet.place(request)
            if placement is None:
                break
            fleet.take(placement)
            number += 1
            yield _running(number, holders[number % len(holders)], placement, size)
    placement = Placement(free.rank - 1, free.id, (), (), 0, (), free.cpu_milli - LEAST_CPU // 2, 0)
    fleet.take(placement)
    fleet.give_back(keep)
    yield _running(number + 1, holders[0], placement, size)


def fillers(running: int) -> Iterator[tuple[Request, int]]:
    """What the pool is filled with, and at most how often: large ones first, as long as there is a place."""
    for devices, part in zip(WHOLE_SIZES, (4, 3, 5, 8), strict=True):
        yield Request(devices, MILLI_PER_DEVICE), running * part // 20
    for devices in WHOLE_SIZES:
        yield Request(devices, MILLI_PER_DEVICE), 1 << 30
    for milli in FRACTIONS:
        yield Request(1, milli), 1 << 30


def _running(number: int, team_id: int, placement: Placement, size: Size) -> RunningJob:
    return RunningJob(
        id=10_000_000 + number,
        team_id=team_id,
        user_id=team_id * 1000 + number % size.members,
        pool_id=POOL,
        priority=500,
        preemptible=True,
        started_at=SUBMITTED_AT - number * SECOND,
        tasks=(RunningTask(number, 0, placement),),
        least=(1,),
        ends_at=SUBMITTED_AT + (size.jobs + HOUR_S * (1 + number % 48)) * SECOND,
    )


def _queue(
    size: Size, leaves: Sequence[int], asks: Sequence[tuple[int, Request]], random: Random
) -> tuple[tuple[PendingJob, ...], int]:
    """The waiting jobs, and the id of the one that can start: somewhere in the last tenth of the queue."""
    startable = size.jobs - random.randrange(max(1, size.jobs // 10))
    jobs = []
    for job_id in range(1, size.jobs + 1):
        tasks, request = random.choice(asks)
        if job_id == startable:
            tasks, request = 1, Request(1, MILLI_PER_DEVICE, cpu_milli=LEAST_CPU // 2)
        team_id = random.choice(leaves)
        jobs.append(
            PendingJob(
                id=job_id,
                team_id=team_id,
                user_id=team_id * 1000 + random.randrange(size.members),
                pool_ids=(POOL,),
                groups=(Group("main", tasks, tasks, request),),
                submitted_at=SUBMITTED_AT + job_id * SECOND,
                time_limit=60 * SECOND if job_id == startable else None,
            )
        )
    return tuple(jobs), startable


def _usage(running: Sequence[RunningJob]) -> dict[tuple[int, int], int]:
    usage: Counter[tuple[int, int]] = Counter()
    for job in running:
        usage[job.team_id, job.user_id] += sum(task.placement.milli for task in job.tasks)
    return dict(usage)


def _held(usage: dict[tuple[int, int], int], team_id: int) -> int:
    return sum(amount for (holder, _), amount in usage.items() if holder == team_id)
