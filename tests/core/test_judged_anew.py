"""A fleet that is judged anew places as one that was built so, and the one that it came from goes on as before."""

from typing import Any

import pytest

from scheduling.core.fleet import Fleet
from scheduling.core.fragmentation import typical_shapes
from scheduling.core.model import DeviceState, NodeState, Request

SHAPES = (
    Request(1, 500, cpu_milli=1000),
    Request(1, 1000, cpu_milli=4000),
    Request(2, 1000, cpu_milli=8000),
    Request(1, 250, cpu_milli=500),
)
DEMAND = tuple((shape, 5 - i) for i, shape in enumerate(SHAPES))


def nodes() -> list[NodeState]:
    return [
        NodeState(
            node,
            f"n{node}",
            node,
            32_000,
            65_536,
            tuple(DeviceState(node * 8 + i, i, "A100" if node % 2 else "T4", "nvidia", 80) for i in range(4)),
        )
        for node in range(1, 7)
    ]


def used(**options) -> Fleet:
    fleet = Fleet(nodes(), **options)
    for number in range(9):
        # The same places whatever the score: by node and device.
        device = (number % 6 + 1) * 8 + number % 4
        fleet.take(fleet.placement_on(number % 6 + 1, [device], 250 if number % 2 else 1000, [20], 1000, 0))
    return fleet


def placed(fleet: Fleet) -> list[tuple[int, tuple[int, ...]] | None]:
    found = []
    for number in range(14):
        placement = fleet.place(SHAPES[number % 4])
        found.append(None if placement is None else (placement.node_id, placement.device_ids))
        if placement is not None:
            fleet.take(placement)
    return found


@pytest.mark.parametrize("score", ["binpack", "spread", "fragmentation", "lookahead"])
@pytest.mark.parametrize("before", ["binpack", "fragmentation", "lookahead"])
def test_it_places_as_one_that_was_built_so(before, score):
    typical = typical_shapes(DEMAND)
    learned = {"typical": typical, "demand": DEMAND} if before in ("fragmentation", "lookahead") else {}
    old = used(score=before, **learned)
    old.warm(SHAPES)
    known: dict[str, Any] = {}
    if score in ("fragmentation", "lookahead"):
        known = {"typical": typical, "demand": DEMAND}
    anew = old.judged_anew(score, **known)
    assert anew.version != old.version
    assert anew.allocated_milli() == old.allocated_milli()
    assert placed(anew) == placed(used(score=score, **known))


def test_the_old_one_is_as_it_was():
    old = used(score="binpack")
    before = old.allocated_milli()
    anew = old.judged_anew("spread")
    expected = placed(used(score="binpack"))
    placed(anew)
    assert old.allocated_milli() == before
    assert old.score == "binpack"
    assert placed(old) == expected


def test_placements_of_one_are_good_in_the_other():
    old = used(score="binpack")
    placement = old.place(SHAPES[0])
    assert placement is not None
    old.take(placement)
    anew = old.judged_anew("fragmentation", typical_shapes(DEMAND))
    held = anew.allocated_milli()
    anew.give_back(placement)
    assert anew.allocated_milli() == held - placement.milli
