"""Ways to share one pool, for comparison: ours, first-in-first-out, strict quotas. Each decides over the same world.

All take whole gangs of whole devices; only ours makes anyone give way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduling.core.decide import decide
from scheduling.core.fleet import Fleet
from scheduling.core.model import (
    Eviction,
    Group,
    PendingJob,
    PoolState,
    Quota,
    Request,
    RunningJob,
    Snapshot,
    Start,
    TaskStart,
    Team,
)
from scheduling.core.room import Ask, Room

POOL = 1
ONE = 1  # the team that all jobs are of where teams do not count
NO_NUMBERS: Mapping[str, object] = {}


@dataclass(frozen=True)
class World:
    """What a policy decides over. ``guarantees`` by team, milli."""

    now: int
    teams: tuple[Team, ...]
    guarantees: Mapping[int, int]
    fleet: Fleet
    pending: tuple[PendingJob, ...]  # by (submitted_at, id)
    running: tuple[RunningJob, ...]  # by id
    usage: Mapping[tuple[int, int], int]


Decision = tuple[Sequence[Start], Sequence[Eviction]]
FairPolicy = Callable[[World], Decision]


def allotment(world: World) -> Decision:
    """Ours: guarantees, the rest shared out anew at every moment, what is lent taken back for who is entitled to it."""
    quotas = {team_id: Quota(guaranteed=amount) for team_id, amount in world.guarantees.items()}
    plan = decide(_snapshot(world, world.teams, quotas, world.pending, world.running, world.usage))
    return plan.starts, plan.evictions


def allotment_takes_nothing_back(world: World) -> Decision:
    """Ours, but what is lent is only given up when it ends by itself."""
    quotas = {team_id: Quota(guaranteed=amount) for team_id, amount in world.guarantees.items()}
    plan = decide(_snapshot(world, world.teams, quotas, world.pending, (), world.usage))
    return plan.starts, ()


def strict_quotas(world: World) -> Decision:
    """Everyone has what it is guaranteed and never more, in the order of submission, passing over what does not fit."""
    quotas = {team_id: Quota(guaranteed=amount, limit=amount) for team_id, amount in world.guarantees.items()}
    plan = decide(_snapshot(world, world.teams, quotas, world.pending, (), world.usage))
    return plan.starts, ()


def first_fit(world: World) -> Decision:
    """First in, first out, teams or not; a job that does not fit is passed over."""
    pending = tuple(replace(job, team_id=ONE, user_id=ONE) for job in world.pending)
    usage = {(ONE, ONE): sum(world.usage.values())}
    plan = decide(_snapshot(world, (Team(ONE, "all"),), {}, pending, (), usage))
    return plan.starts, ()


def first_in_first_out(world: World) -> Decision:
    """First in, first out, teams or not; a job that does not fit is waited for."""
    room = Room(world.fleet)
    starts = []
    for job in world.pending:
        tasks = room.take(Ask(job.groups).least)
        if tasks is None:
            break
        starts.append(Start(job.id, POOL, tuple(tasks), "share", NO_NUMBERS))
    room.give_back()
    return starts, ()


POLICIES: Mapping[str, FairPolicy] = {
    "allotment": allotment,
    "nothing taken back": allotment_takes_nothing_back,
    "fifo": first_in_first_out,
    "fifo, first fit": first_fit,
    "strict quotas": strict_quotas,
}


def whole_devices(name: str, tasks: int, devices: int) -> tuple[Group, ...]:
    """One gang of equal tasks, all or nothing."""
    return (Group(name, tasks, tasks, Request(devices, 1000)),)


def held_milli(tasks: Sequence[TaskStart]) -> int:
    return sum(task.placement.milli for task in tasks)


def _snapshot(
    world: World,
    teams: tuple[Team, ...],
    quotas: Mapping[int, Quota],
    pending: tuple[PendingJob, ...],
    running: tuple[RunningJob, ...],
    usage: Mapping[tuple[int, int], int],
) -> Snapshot:
    pool = PoolState(POOL, "philly", world.fleet, quotas, usage)
    return Snapshot(world.now, teams, (pool,), pending, running)
