"""How long a cycle takes with a long queue. Processor time, so that a busy machine does not fail it."""

import time
from random import Random
from typing import Any

import pytest

from scheduling.core.decide import decide
from scheduling.core.fleet import Fleet
from scheduling.core.model import (
    DeviceState,
    Group,
    NodeState,
    PendingJob,
    PoolState,
    Quota,
    Request,
    RunningJob,
    RunningTask,
    Snapshot,
    Team,
)

pytestmark = pytest.mark.slow

TEAMS = (
    *(Team(i, f"department-{i}") for i in range(1, 11)),
    *(Team(10 + i, f"team-{i}", i % 10 + 1) for i in range(1, 101)),
)


def queue(count):
    """Jobs of 60 shapes, spread over all teams and seven members each."""
    random = Random(3)
    asks = []
    for _ in range(60):
        milli, devices = random.choice([50, 100, 250, 500, 1000]), random.choice([1, 1, 1, 2, 4, 8])
        tasks = random.choice([1, 1, 1, 1, 2, 4])
        asks.append((tasks, Request(devices, 1000 if devices > 1 else milli, cpu_milli=random.choice([1000, 8000]))))
    for i in range(1, count + 1):
        tasks, request = random.choice(asks)
        yield PendingJob(i, random.randint(11, 110), i % 7, (1,), (Group("main", tasks, tasks, request),), i)


def fleet(used):
    held = 81_920 * used // 1000
    return Fleet(
        NodeState(
            i,
            f"n{i}",
            i,
            64_000,
            524_288,
            tuple(DeviceState(i * 8 + j, j, "A100", "nvidia", 81_920, True, used, held) for j in range(8)),
        )
        for i in range(1, 777)
    )


@pytest.mark.parametrize(
    ("used", "quotas", "starts"),
    [
        (1000, {}, False),
        (0, {team.id: Quota(limit=0) for team in TEAMS}, False),
        (0, {team.id: Quota(per_user_limit=10, reserved=500, guaranteed=500) for team in TEAMS}, False),
        (0, {}, True),
    ],
    ids=["full", "over limits", "over members' limits", "until full"],
)
def test_ten_thousand_waiting_jobs_of_a_hundred_teams(used, quotas, starts):
    pool = PoolState(1, "train", fleet(used), quotas, {})
    snapshot = Snapshot(0, TEAMS, (pool,), tuple(queue(10_000)))
    plan = decide(snapshot)
    assert bool(plan.starts) is starts
    assert len(plan.starts) + len(plan.reasons) == 10_000
    began = time.process_time()
    decide(snapshot)
    assert time.process_time() - began < 1


def busy(greedy):
    """A full fleet with 3,104 jobs on two GPUs each; ``greedy``: half of the teams hold all of it."""
    nodes, two = fleet(0), Request(2, 1000)
    running: list[Any] = []
    usage: dict[Any, int] = {}
    for number in range(1, 4 * 776 + 1):
        team = 11 + number % (50 if greedy else 100)
        placement = nodes.place(two)
        nodes.take(placement)
        usage[team, 1] = usage.get((team, 1), 0) + placement.milli
        tasks = (RunningTask(number, 0, placement),)
        running.append(RunningJob(100_000 + number, team, 1, 1, 500, True, number, tasks, (1,)))
    return nodes, usage, tuple(running)


@pytest.mark.parametrize("greedy", [False, True], ids=["everyone at its share", "half of the teams borrow"])
def test_ten_thousand_waiting_jobs_that_could_make_others_give_way(greedy):
    nodes, usage, running = busy(greedy)
    quotas = {team.id: Quota(guaranteed=60_000) for team in TEAMS[10:]}
    pool = PoolState(1, "train", nodes, quotas, usage)
    snapshot = Snapshot(0, TEAMS, (pool,), tuple(queue(10_000)), running)
    plan = decide(snapshot)
    assert bool(plan.evictions) is greedy
    began = time.process_time()
    decide(snapshot)
    assert time.process_time() - began < 1
