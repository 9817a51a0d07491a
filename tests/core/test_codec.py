"""A recorded cycle is decided again exactly, whatever the fleets went through; and what is no record is refused."""

from dataclasses import fields, make_dataclass, replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core import codec, columns
from scheduling.core.codec import BadRecord, Encoder, Recorded, decode
from scheduling.core.decide import decide
from scheduling.core.fleet import Fleet
from scheduling.core.fleet_state import option_kinds, options_of, state_of, states_now
from scheduling.core.fragmentation import typical_shapes
from scheduling.core.model import (
    SCORES,
    Placement,
    Plan,
    Policy,
    Request,
    Snapshot,
    Topology,
)
from tests.core import test_decide_properties, test_reclaim_properties
from tests.core.little_world import World

seeds = st.integers(0, 2**32 - 1)


def recorded(snapshot: Snapshot, policy: Policy | None = None) -> Recorded:
    policy = policy or Policy()
    return Recorded(7, snapshot, policy, decide(snapshot, policy))


def with_score(snapshot: Snapshot, score: str) -> Snapshot:
    """The same world, its fleets placing by that score, which learned from what its jobs ask for."""
    asked = [(group.request, group.count) for job in snapshot.pending for group in job.groups]
    learned = {"typical": typical_shapes(asked), "demand": asked if score == "lookahead" else ()}
    pools = tuple(
        replace(
            pool,
            fleet=Fleet(
                states_now(pool.fleet),
                **{**options_of(pool.fleet), "score": score, **learned},
            ),
        )
        for pool in snapshot.pools
    )
    return replace(snapshot, pools=pools)


def use(fleet: Fleet, random: Random) -> None:
    """Tasks come and go, nodes and devices fail and come back."""
    held: list[Placement] = []
    for _ in range(random.randint(0, 12)):
        if held and random.random() < 0.45:
            fleet.give_back(held.pop(random.randrange(len(held))))
            continue
        team = random.choice([0, 1, 2])
        request = random.choice(
            [
                Request(1, random.choice([100, 250, 500, 1000]), team_id=team),
                Request(1, memory_mib=random.choice([3000, 9000]), team_id=team),
                Request(cpu_milli=500),
                Request(2, 500, cpu_milli=250, team_id=team),
            ]
        )
        placement = fleet.place(request)
        if placement is not None:
            fleet.take(placement, team)
            held.append(placement)
    for node in fleet.states:
        if random.random() < 0.2:
            fleet.set_schedulable(node.id, random.random() < 0.5)
        for device in node.devices:
            if random.random() < 0.1:
                fleet.set_healthy(device.id, random.random() < 0.5)


def assert_comes_back(made: Recorded) -> None:
    record = Encoder().encode(made)
    back = decode(record)
    assert (back.cycle, back.policy, back.plan) == (made.cycle, made.policy, made.plan)
    assert decide(back.snapshot, back.policy) == made.plan
    for pool, other in zip(made.snapshot.pools, back.snapshot.pools, strict=True):
        assert np.array_equal(state_of(pool.fleet).devices, state_of(other.fleet).devices)
        assert np.array_equal(state_of(pool.fleet).nodes, state_of(other.fleet).nodes)
        assert replace(pool, fleet=other.fleet) == other
    assert replace(made.snapshot, pools=()) == replace(back.snapshot, pools=())
    # Deciding changed nothing, so the record of the same cycle is the same bytes.
    assert Encoder().encode(made) == record


@pytest.mark.parametrize("score", SCORES)
@given(seeds, st.integers(0, 2))
@settings(max_examples=25, deadline=None)
def test_any_world_is_decided_again_as_it_was(score, seed, most):
    random = Random(seed)
    snapshot = with_score(test_decide_properties.Maker(seed).picture().snapshot, score)
    for pool in snapshot.pools:
        use(pool.fleet, random)
    assert_comes_back(recorded(snapshot, Policy(max_starts=most or None)))


@pytest.mark.parametrize("score", SCORES)
@given(seeds)
@settings(max_examples=25, deadline=None)
def test_any_eviction_is_decided_again_as_it_was(score, seed):
    assert_comes_back(recorded(with_score(test_reclaim_properties.Maker(seed).snapshot(), score)))


def test_a_cycle_goes_on_where_the_fleet_was_left_by_the_one_before():
    """The record is of the fleet as it is at that moment, not as it was made."""
    world = World().pool("train").team("a").jobs_of("a", 3, 3)
    encoder = Encoder()
    first = recorded(world.snapshot())
    assert decode(encoder.encode(first)).plan == first.plan
    for start in first.plan.starts:
        for task in start.tasks:
            world.pools["train"].fleet.take(task.placement)
    second = recorded(world.snapshot())
    assert len(second.plan.starts) == 0 != len(first.plan.starts)
    back = decode(encoder.encode(second))
    assert decide(back.snapshot, back.policy) == second.plan


def test_nothing_at_all_is_a_cycle_too():
    assert_comes_back(recorded(Snapshot(0, (), (), ())))
    assert_comes_back(recorded(World().pool("empty", unit="cpu").team("a").snapshot()))


def test_what_json_has_no_word_for_comes_back_as_it_was():
    world = World().pool("train").team("a")
    numbers = {"pair": (1, (2, "x")), "by_id": {7: [1, None, True]}, "()": "a key like our mark", "half": 0.1}
    world.job("a", "a", held="held", held_numbers=numbers)
    made = recorded(world.snapshot())
    back = decode(Encoder().encode(made)).snapshot.pending[0].held_numbers
    assert back == numbers
    assert isinstance(back["pair"], tuple)
    assert isinstance(back["by_id"][7], list)


def test_numbers_of_any_size_come_back():
    world = World().pool("train").team("a", limit=10**12).job("a", "a", at=2**62, priority=-(2**31))
    made = recorded(world.snapshot())
    back = decode(Encoder().encode(made)).snapshot
    assert (back.pending, back.pools[0].quotas) == (made.snapshot.pending, made.snapshot.pools[0].quotas)


def test_a_fleet_keeps_every_option_it_is_made_with():
    fleet = World().pool("train", score="spread", step_milli=100, exclusive=True).pools["train"].fleet
    assert options_of(fleet).keys() == option_kinds().keys()
    assert (options_of(fleet)["score"], options_of(fleet)["step_milli"]) == ("spread", 100)


# ---- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (int, [1, 2, 2]),
        (bool, [True, True]),
        (int | None, [None, 0, None]),
        (tuple[int, ...], [(), (1,), (1, 2)]),
        (tuple[tuple[str, str], ...], [(), (("a", "b"),)]),
        (tuple[int, str], [(1, "a"), (2, "b")]),
        (Topology | None, [None, Topology("rack", False), None]),
        (frozenset[str], [frozenset({"b", "a"}), frozenset()]),
        (dict[tuple[int, str], int], [{(1, "a"): 2}, {}]),
        (list[int], [[1], []]),
        (object, [{"a": (1, [2])}, None]),
        (int, []),
        (Topology, []),
    ],
)
def test_columns_of_every_kind_come_back(kind, values):
    assert columns.unpack(kind, columns.pack(kind, values), len(values)) == values


def test_a_type_that_is_no_plain_data_is_refused_by_name():
    with pytest.raises(TypeError, match="complex"):
        columns.pack(complex, [1j])
    with pytest.raises(TypeError, match="object"):
        columns.pack(object, [object()])


def test_a_field_more_or_less_is_told_by_name():
    more = make_dataclass("Topology", [("level", str), ("required", bool), ("apart", bool)], frozen=True)
    made = columns.pack(more, [more("rack", True, False)])
    with pytest.raises(columns.OtherVersion, match="Topology has apart: it was made by another version"):
        columns.unpack(Topology, made, 1)
    with pytest.raises(columns.OtherVersion, match="lacks apart"):
        columns.unpack(more, columns.pack(Topology, [Topology("rack")]), 1)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def record() -> bytes:
    return Encoder().encode(recorded(World().pool("train").team("a").jobs_of("a", 2, 8).snapshot()))


def test_what_is_no_record_is_said_to_be_none(record):
    for other in (b"", b"PK\x03\x04", record[1:], b"{}"):
        with pytest.raises(BadRecord, match="not the record of a cycle"):
            decode(other)


def test_a_record_that_is_cut_short_or_changed_anywhere_is_damaged(record):
    number = range(len(codec.MARK) + 2, len(codec.MARK) + 10)  # of the cycle: it is put there last
    for at in (each for each in range(len(codec.MARK), len(record), 97) if each not in number):
        with pytest.raises(BadRecord):
            decode(record[:at])
        with pytest.raises(BadRecord):
            decode(record[:at] + bytes([record[at] ^ 1]) + record[at + 1 :])
    with pytest.raises(BadRecord, match="damaged"):
        decode(record + b"\0")


def test_a_record_of_another_version_says_so(record):
    version = codec.HEAD.pack(2, 0, 0)[:2]
    at = len(codec.MARK)
    with pytest.raises(BadRecord, match="version 2; this program reads version 1"):
        decode(record[:at] + version + record[at + 2 :])


def test_a_record_gets_its_number_afterwards(record):
    assert codec.cycle_of(record) == decode(record).cycle == 7
    again = codec.numbered(record, 2**40)
    assert (decode(again).cycle, decode(again).plan) == (2**40, decode(record).plan)
    assert codec.numbered(again, 7) == record


def test_every_field_of_a_plan_is_recorded():
    made = recorded(World().pool("train").team("a").job("a", "a").snapshot())
    assert columns.pack(Plan, [made.plan])["each"].keys() == {each.name for each in fields(Plan)}
