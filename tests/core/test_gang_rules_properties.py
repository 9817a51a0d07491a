"""Random little fleets: a rule of place always holds, and a gang that has a place under it is placed."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from scheduling.core.decide import decide
from scheduling.core.domains import LEVELS
from scheduling.core.model import Group, PendingJob, Request, Topology
from tests.core.little_world import World, node, request

seeds = st.integers(0, 2**63 - 1)


class Maker:
    """One pool of a few nodes, some in racks and zones, some of them used, and one team."""

    def __init__(self, seed: int, score: str = "binpack"):
        self.dice = Random(seed)
        dice = self.dice
        nodes = []
        for i in range(dice.randint(1, 7)):
            labels = {}
            if dice.random() < 0.8:
                labels["rack"] = f"r{dice.randint(1, 3)}"
            if dice.random() < 0.7:
                labels["zone"] = f"z{dice.randint(1, 2)}"
            nodes.append(
                node(
                    f"n{i}",
                    dice.randint(0, 4),
                    cpu=dice.choice((2, 8)),
                    labels=tuple(sorted(labels.items())),
                    schedulable=dice.random() < 0.9,
                )
            )
        typical = {"typical": ()} if score == "binpack" else {}
        self.world = World().pool("train", *nodes, score=score, **typical).team("a")
        for _ in range(dice.randint(0, 4)):
            gpus = dice.choice((0.5, 1, 2))
            if self.fleet.place(request(gpus)) is not None:
                self.world.runs("a", gpus)

    @property
    def fleet(self) -> Any:
        return self.world.pools["train"].fleet

    def shape(self) -> Request:
        return request(self.dice.choice((0, 0.5, 1, 1, 2)), cpu=self.dice.choice((0, 1, 2)))

    def rule(self) -> tuple[Topology | None, str | None]:
        dice = self.dice
        topology = None
        if dice.random() < 0.8:
            topology = Topology(dice.choice(("rack", "rack", "zone", "host", "block")), dice.random() < 0.7)
        apart = dice.choice(("host", "rack")) if dice.random() < 0.4 else None
        return topology, apart

    def job(self, name: str, groups: int = 1, *, elastic: bool = True) -> PendingJob:
        made = []
        for i in range(groups):
            count = self.dice.randint(1, 4)
            made.append(Group(f"g{i}", count, self.dice.randint(1, count) if elastic else count, self.shape()))
        topology, apart = self.rule()
        self.world.job(name, "a", groups=tuple(made), topology=topology, apart=apart)
        return self.world.jobs[name]


def domain(fleet: Any, level: str, position: int) -> int:
    return int(fleet.level(level).of_node[position])


def check_rule(fleet: Any, job: PendingJob, positions: list[int]) -> None:
    if job.topology is not None and job.topology.required:
        found = {domain(fleet, job.topology.level, position) for position in positions}
        assert len(found) == 1
        assert found != {-1}
    if job.apart is not None:
        found_apart = [domain(fleet, job.apart, position) for position in positions]
        assert -1 not in found_apart
        assert len(set(found_apart)) == len(found_apart)


@settings(max_examples=250, deadline=None)
@given(seeds)
def test_rules_hold_whatever_starts_together(seed):
    made = Maker(seed)
    jobs = {job.id: job for job in (made.job(f"j{i}", made.dice.randint(1, 3)) for i in range(6))}
    free = made.fleet.free_milli()
    plan = decide(made.world.snapshot())
    event(f"{len(plan.starts)} start")
    for start in plan.starts:
        check_rule(made.fleet, jobs[start.job_id], [task.placement.node for task in start.tasks])
        counts = [sum(task.group == i for task in start.tasks) for i in range(len(jobs[start.job_id].groups))]
        assert all(count >= group.min_count for count, group in zip(counts, jobs[start.job_id].groups, strict=True))
    assert made.fleet.free_milli() == free
    assert decide(made.world.snapshot()) == plan
    assert {start.job_id for start in plan.starts} | set(plan.reasons) == set(jobs)


@settings(max_examples=200, deadline=None)
@given(seeds, st.booleans())
def test_a_wish_fits_whenever_no_wish_would(seed, elastic):
    made = Maker(seed)
    job = made.job("g", made.dice.randint(1, 3), elastic=elastic)
    wish = Topology(made.dice.choice(LEVELS), required=False)
    made.world.jobs["g"] = replace(job, topology=wish, apart=None)
    close = decide(made.world.snapshot())
    made.world.jobs["g"] = replace(job, topology=None, apart=None)
    anywhere = decide(made.world.snapshot())
    assert bool(close.starts) == bool(anywhere.starts)


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_a_wish_is_never_wider_than_needed(seed):
    """Of one shape: the closest level at which a domain holds all of it, counted node by node."""
    made = Maker(seed)
    job = made.job("g", elastic=False)
    made.world.jobs["g"] = replace(job, topology=Topology("rack", required=False), apart=None)
    plan = decide(made.world.snapshot())
    if not plan.starts:
        return
    positions = [task.placement.node for task in plan.starts[0].tasks]
    for level in LEVELS:
        if fits_by_hand(made.fleet, job.groups[0], level, None):
            assert len({domain(made.fleet, level, each) for each in positions} - {-1}) == 1
            assert -1 not in {domain(made.fleet, level, each) for each in positions}
            event(level)
            return


def room_of_node(fleet: Any, asked: Request, position: int) -> int:
    """How many tasks one node takes one after the other, tried in the fleet itself."""
    import numpy as np

    taken: list[Any] = []
    while (placement := fleet.place_among(asked, np.array([position], dtype=np.int64))) is not None and len(taken) < 9:
        fleet.take(placement)
        taken.append(placement)
    for placement in reversed(taken):
        fleet.give_back(placement)
    return len(taken)


def fits_by_hand(fleet: Any, group: Group, level: str | None, apart: str | None) -> bool:
    count = len(fleet.level("host").names)
    rooms = {position: room_of_node(fleet, group.request, position) for position in range(count)}
    areas: dict[int, list[int]] = {}
    for position in range(count):
        number = 0 if level is None else domain(fleet, level, position)
        if number >= 0:
            areas.setdefault(number, []).append(position)
    for positions in areas.values():
        if apart is None and sum(rooms[each] for each in positions) >= group.min_count:
            return True
        if apart is not None:
            own = {domain(fleet, apart, each) for each in positions if rooms[each]} - {-1}
            if len(own) >= group.min_count:
                return True
    return False


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_a_gang_of_one_shape_is_placed_exactly_where_some_domain_holds_it(seed):
    made = Maker(seed)
    job = made.job("g")
    plan = decide(made.world.snapshot())
    level = job.topology.level if job.topology is not None and job.topology.required else None
    possible = fits_by_hand(made.fleet, job.groups[0], level, job.apart)
    event(f"possible: {possible}, {level}, {job.apart}")
    assert bool(plan.starts) == possible
    if not possible and fits_by_hand(made.fleet, job.groups[0], None, None):
        (reason,) = plan.reasons[job.id]
        assert reason.code == "gang_incomplete"
        fitting: Any = reason.numbers["fitting"]
        assert fitting < job.groups[0].min_count


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_tasks_apart_of_several_shapes_are_placed_whenever_there_is_a_way(seed):
    made = Maker(seed)
    apart = made.dice.choice(("host", "rack"))
    job = replace(made.job("g", 3, elastic=False), topology=None, apart=apart)
    job = replace(job, groups=tuple(replace(g, count=g.count % 2 + 1, min_count=g.count % 2 + 1) for g in job.groups))
    made.world.jobs["g"] = job
    plan = decide(made.world.snapshot())
    tasks = [group.request for group in job.groups for _ in range(group.count)]
    count = len(made.fleet.level("host").names)
    domains = sorted({domain(made.fleet, apart, each) for each in range(count)} - {-1})
    fits = {
        (asked, number): any(
            domain(made.fleet, apart, each) == number and room_of_node(made.fleet, asked, each) for each in range(count)
        )
        for asked in set(tasks)
        for number in domains
    }
    possible = len(domains) >= len(tasks) and any(
        all(fits[asked, number] for asked, number in zip(tasks, chosen, strict=True))
        for chosen in permutations(domains, len(tasks))
    )
    event(f"possible: {possible}")
    assert bool(plan.starts) == possible


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_what_would_help_helps(seed):
    made = Maker(seed)
    job = made.job("g", made.dice.randint(1, 2), elastic=False)
    plan = decide(made.world.snapshot())
    helps: Any = next((reason.helps for reason in plan.reasons.get(job.id, ()) if reason.helps), None)
    change = (helps or {}).get("request", {})
    if "topology" in change:
        made.world.jobs["g"] = replace(job, topology=Topology(**change["topology"]))
    elif "apart" in change:
        made.world.jobs["g"] = replace(job, apart=None)
    else:
        return
    event(sorted(change)[0])
    assert [start.job_id for start in decide(made.world.snapshot()).starts] == [job.id]


@pytest.mark.parametrize("score", ["spread", "fragmentation", "lookahead"])
def test_every_score_keeps_the_rule(score):
    for seed in range(40):
        made = Maker(seed, score)
        jobs = {job.id: job for job in (made.job(f"j{i}", 2) for i in range(4))}
        for start in decide(made.world.snapshot()).starts:
            check_rule(made.fleet, jobs[start.job_id], [task.placement.node for task in start.tasks])
