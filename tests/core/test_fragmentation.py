"""What is typical, and the expected fragment worked out by hand."""

from __future__ import annotations

from itertools import cycle

import pytest

from scheduling.core.fleet import Fleet
from scheduling.core.fragmentation import TypicalShape, typical_shapes
from scheduling.core.model import DeviceState, NodeState, Request
from tests.core.slow_fleet import SlowFleet

WHOLE = Request(devices=1, compute_milli=1000, cpu_milli=4000)
HALF = Request(devices=1, compute_milli=500, cpu_milli=4000)
PAIR = Request(devices=2, compute_milli=1000, cpu_milli=8000)
CPU_ONLY = Request(cpu_milli=16000)


def node(number: int, devices: int, *, used=(), cpu_used: int = 0, model: str = "a100") -> NodeState:
    states = tuple(
        DeviceState(100 * number + i, i, model, "", 1000, True, used[i] if i < len(used) else 0, 0)
        for i in range(devices)
    )
    return NodeState(number, f"n-{number}", number, 16000, 65536, states, cpu_used=cpu_used)


# ---- typical shapes --------------------------------------------------------------------------------------------------


def test_the_most_frequent_shapes_are_typical_until_they_cover_95_percent():
    shapes = typical_shapes([(WHOLE, 60), (CPU_ONLY, 30), (HALF, 6), (PAIR, 4)])
    assert [(shape.devices, shape.compute_milli, shape.cpu_milli) for shape in shapes] == [
        (1, 1000, 4000),
        (0, None, 16000),
        (1, 500, 4000),
    ]
    assert [shape.share for shape in shapes] == pytest.approx([60 / 96, 30 / 96, 6 / 96])


def test_all_shapes_are_typical_where_all_are_needed():
    assert [shape.share for shape in typical_shapes([(WHOLE, 1), (HALF, 3)])] == [0.75, 0.25]


def test_the_same_shape_is_counted_together_whatever_its_host_memory_labels_or_team():
    alike = [Request(devices=1, compute_milli=500, host_memory_mib=i, node_selector=(("a", str(i)),)) for i in range(3)]
    assert len(typical_shapes((request, 1) for request in alike)) == 1


def test_equal_counts_are_ordered_by_cpu_compute_devices_and_models_downwards():
    one = [
        Request(devices=1, compute_milli=500, cpu_milli=1),
        Request(devices=1, compute_milli=500, cpu_milli=2),
        Request(devices=1, compute_milli=1000, cpu_milli=1),
        Request(devices=2, compute_milli=1000, cpu_milli=1),
        Request(devices=1, compute_milli=500, cpu_milli=1, models=("A", "B")),
        Request(devices=1, compute_milli=500, cpu_milli=1, models=("B",)),
    ]
    shapes = typical_shapes((request, 1) for request in one)
    found = [(shape.cpu_milli, shape.compute_milli, shape.devices, shape.models) for shape in shapes]
    assert found == [
        (2, 500, 1, ()),
        (1, 1000, 2, ()),
        (1, 1000, 1, ()),
        (1, 500, 1, ("B",)),
        (1, 500, 1, ("A", "B")),
        (1, 500, 1, ()),
    ]


def test_nothing_seen_is_nothing_typical():
    assert typical_shapes([]) == ()
    assert typical_shapes([(WHOLE, 0)]) == ()
    with pytest.raises(ValueError, match="-1 times"):
        typical_shapes([(WHOLE, -1)])


# ---- expected fragment -----------------------------------------------------------------------------------------------

HAND_MADE = [
    ("every idle milli of an empty node can be used", [(WHOLE, 1)], node(0, 2), 0.0),
    ("a CPU-only request can use no device", [(CPU_ONLY, 1)], node(0, 2), 2000.0),
    ("what is left beside a slice is no use to a whole", [(WHOLE, 1)], node(0, 2, used=(700,)), 300.0),
    ("nor is anything where no device is whole", [(WHOLE, 1)], node(0, 2, used=(700, 900)), 400.0),
    ("but all of it is to a slice that fits it", [(HALF, 1)], node(0, 2, used=(500, 200)), 0.0),
    ("without CPU everything idle is a fragment", [(HALF, 1)], node(0, 2, cpu_used=13000), 2000.0),
    ("two devices wanted and one there", [(PAIR, 1)], node(0, 2, used=(1,)), 1999.0),
    ("half of the requests could use 1000 of 1300", [(WHOLE, 1), (CPU_ONLY, 1)], node(0, 2, used=(700,)), 800.0),
    ("another model is wanted", [(Request(devices=1, compute_milli=500, models=("t4",)), 1)], node(0, 1), 1000.0),
]


@pytest.mark.parametrize(("name", "seen", "state", "want"), HAND_MADE, ids=[case[0] for case in HAND_MADE])
def test_expected_fragment(name, seen, state, want):
    assert Fleet([state], typical=typical_shapes(seen)).fragmentation_milli() == pytest.approx(want)


def test_failed_devices_and_cordoned_nodes_are_no_fragments():
    fleet = Fleet([node(0, 2), node(1, 2)], typical=typical_shapes([(CPU_ONLY, 1)]))
    assert fleet.fragmentation_milli() == 4000.0
    fleet.set_healthy(1, False)
    assert fleet.fragmentation_milli() == 3000.0
    fleet.set_schedulable(1, False)
    assert fleet.fragmentation_milli() == 1000.0


def test_a_typical_slice_of_memory_asks_each_size_of_device_its_own_compute():
    typical = (TypicalShape(0, 1, None, (), 1.0, memory_mib=500),)
    small = DeviceState(1, 0, "a100", "", 1000, compute_used=600)  # 400 left, half of the device is wanted
    large = DeviceState(2, 1, "a100", "", 2000, compute_used=600)  # 400 left, a quarter is wanted
    assert Fleet([NodeState(0, "n", 0, 1, 1, (small, large))], typical=typical).fragmentation_milli() == 400.0


# ---- the score -------------------------------------------------------------------------------------------------------


def test_a_slice_goes_where_it_spoils_least():
    """Wholes are typical. Beside a slice 300 are lost already; an empty device would lose 500 more."""
    fleet = Fleet([node(0, 2), node(1, 2, used=(500,))], score="fragmentation", typical=typical_shapes([(WHOLE, 1)]))
    placement = fleet.place(HALF)
    assert placement is not None
    assert placement.device_ids == (100,)


def test_scores_are_truncated_so_that_small_differences_are_ties_and_rank_decides():
    """Beside 950 used, 30 more make 30 milli of fragment go away: sigmoid(0.03) is 50.7 points, truncated to 50.
    Beside 940 used it is 30 as well, so both nodes score 50, as an exact tie would."""
    small = Request(devices=1, compute_milli=30)
    typical = typical_shapes([(WHOLE, 1)])
    tie = Fleet([node(1, 1, used=(950,)), node(0, 1, used=(1000,)), node(2, 1, used=(940,))],
                score="fragmentation", typical=typical)  # fmt: skip
    placement = tie.place(small)
    assert placement is not None
    assert placement.node_id == 1


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_long_run_on_larger_nodes_chooses_as_the_plain_sum_does(exclusive):
    """Many shapes, 8 devices a node, three models: every choice and the fragment after it, to the last bit."""
    shapes = [
        Request(devices=devices, compute_milli=compute, cpu_milli=cpu, models=models)
        for devices, compute in ((1, 460), (1, 1000), (1, 810), (2, 1000), (1, 220), (4, 1000), (1, 50))
        for cpu in (500, 3200, 8000)
        for models in ((), ("m1",), ("m0", "m2"))
    ] + [Request(cpu_milli=cpu) for cpu in (1000, 7000)]
    nodes = [node(i, (8, 2, 4)[i % 3], model=f"m{i % 3}", used=(100 * (i % 5),)) for i in range(9)]
    typical = typical_shapes((shape, 1 + (7 * i) % 13) for i, shape in enumerate(shapes))
    fleet = Fleet(nodes, score="fragmentation", typical=typical, exclusive=exclusive)
    slow = SlowFleet(nodes, "fragmentation", typical=typical, exclusive=exclusive)
    held = []
    steps = cycle((29, 17, 41, 5))
    position = 0
    for turn in range(160):
        position = (position + next(steps)) % len(shapes)
        request = shapes[position]
        placement = fleet.place(request)
        want = slow.place(request)
        assert (placement and (placement.node_id, placement.device_ids)) == (want and want[:2])
        if placement:
            fleet.take(placement)
            slow.change(placement, 0, 1)
            held.append(placement)
        if turn % 3 == 2 and held:
            gone = held.pop(position % len(held))
            fleet.give_back(gone)
            slow.change(gone, 0, -1)
        assert fleet.fragmentation_milli() == pytest.approx(slow.fragmentation(), abs=1e-6)
