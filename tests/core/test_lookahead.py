"""Look-ahead: its tables by hand, its placements against plain Python, and always the same for the same world."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core import fleet as fleet_module
from scheduling.core import lookahead
from scheduling.core.fleet import Fleet, compile_kernels
from scheduling.core.fragmentation import typical_shapes
from scheduling.core.model import DeviceState, NodeState, Placement, Request
from scheduling.core.placement_shapes import DeviceClass
from tests.core.slow_lookahead import SlowLookahead, drawn_streams
from tests.core.test_fleet_against_slow_fleet import as_found, requests, worlds

A, B = DeviceClass("a", "v", 1000), DeviceClass("b", "v", 1000)
ONE = Request(devices=1, compute_milli=1000, cpu_milli=1000)
HALF = Request(devices=1, compute_milli=500, cpu_milli=1000)
EIGHT = Request(devices=8, compute_milli=1000, cpu_milli=8000)
ON_A = Request(devices=1, compute_milli=1000, models=("a",))


def node(number: int, devices: int = 4, cpu: int = 64000, used: tuple[int, ...] = (), model: str = "a") -> NodeState:
    held = dict(enumerate(used))
    each = (DeviceState(100 * number + i, i, model, "v", 1000, compute_used=held.get(i, 0)) for i in range(devices))
    return NodeState(number, f"n-{number}", number, cpu, 262144, tuple(each))


def tables(demand, classes=(A,), hosts=((8,), (4,)), rooms=((64000, 1 << 20), (64000, 1 << 20))):
    return lookahead.lookahead_tables(demand, classes, 50, np.array(hosts), np.array(rooms))


def ahead(nodes, seen, **options) -> Fleet:
    return Fleet(nodes, score="lookahead", typical=typical_shapes(seen), demand=tuple(seen), **options)


# ---- the tables ------------------------------------------------------------------------------------------------------


def test_shapes_are_merged_without_labels_teams_and_cpu_only_requests():
    labelled = Request(devices=1, compute_milli=500, cpu_milli=1000, node_selector=(("rack", "r1"),), team_id=7)
    assert lookahead.merged([(ONE, 3), (HALF, 2), (labelled, 2), (Request(cpu_milli=5), 9), (EIGHT, 0)]) == [
        (HALF, 4),
        (ONE, 3),
    ]
    with pytest.raises(ValueError, match="-1 times"):
        lookahead.merged([(ONE, -1)])


def test_streams_are_the_same_draw_every_time_with_the_chances_of_the_counts():
    seen = [(ONE, 1), (HALF, 3)]
    found = tables(seen).stream
    assert found.shape == (32, 45, 7)
    assert (found == tables(list(reversed(seen))).stream).all()
    by_hand = drawn_streams([(HALF, 3), (ONE, 1)])
    assert [[(HALF, ONE)[shape] for shape in row] for row in found[:, :, 3].tolist()] == by_hand
    assert 0.7 < (found[:, :, 3] == 0).mean() < 0.8


def test_each_request_of_a_stream_knows_the_least_that_is_still_to_come():
    row = tables([(ONE, 1), (EIGHT, 1), (HALF, 2)]).stream[0]
    for j in range(45):
        assert row[j, 5] == row[j:, 0].min()
        assert row[j, 6] == row[j:, 4].min()


def test_weights_are_scarce_shares_of_demand_scaled_up_to_a_hundred_milli():
    found = tables([(ONE, 999), (EIGHT, 1)])
    assert found.weights.tolist() == [pytest.approx(100.0)]  # 0.5 x 0.001 x 8,000 x 2 nodes / 1 host = 8 at first
    found = tables([(ONE, 1), (EIGHT, 1)])
    assert found.weights.tolist() == [pytest.approx(0.5 * 0.5 * 8000 * 2 / 1)]


def test_a_shape_that_no_node_can_ever_host_weighs_nothing():
    two_of_b = Request(devices=2, compute_milli=1000, models=("b",))
    assert tables([(ONE, 1), (two_of_b, 1)]).weights.tolist() == [0.0]


def test_rates_are_arrivals_at_least_as_demanding_for_every_milli_given_away():
    larger = Request(devices=8, compute_milli=1000, cpu_milli=9000)
    found = tables([(ONE, 6), (EIGHT, 3), (larger, 1)])
    asked = 6 * 1000 + 4 * 8000
    assert found.rates.tolist() == [pytest.approx(4 / asked), pytest.approx(1 / asked)]


def test_loads_are_the_demand_by_name_against_capacity():
    by_name = [(ON_A, 1), (ONE, 3)]
    found = tables(by_name, (A, B), ((8, 0), (0, 24)))
    # a quarter of all demand, so 8 of 32 devices, is for a, which has 8 devices
    assert found.loads.tolist() == [pytest.approx(1.0), 0.0]
    found = tables(by_name, (A, B), ((16, 0), (0, 16)))
    assert found.loads.tolist() == [pytest.approx(0.5), 0.0]
    assert tables([(ONE, 1)], (A, B), ((8, 0), (0, 24))).loads.tolist() == [0.0, 0.0]


def test_typical_shapes_stand_in_for_a_demand():
    typical = typical_shapes([(ONE, 3), (HALF, 1), (Request(cpu_milli=7), 1)])
    found = lookahead.demand_of_typical(typical)
    assert [(request, count) for request, count in found if request.devices] == [(ONE, 600_000), (HALF, 200_000)]


# ---- the choice ------------------------------------------------------------------------------------------------------


def test_a_request_goes_where_the_rest_can_still_be_filled():
    """0.3 of a device is left idle for ever beside 0.7, where nothing is as small; two halves fill one device."""
    seen = [(HALF, 8), (Request(devices=1, compute_milli=700, cpu_milli=1000), 8)]
    fleet = ahead([node(0, 1, used=(300,)), node(1, 1, used=(500,))], seen)
    placement = fleet.place(HALF)
    assert placement is not None
    assert placement.node_id == 1


def test_a_node_reserved_for_a_scarce_shape_is_the_last_choice_but_not_for_that_shape():
    seen = [(ONE, 30), (EIGHT, 10)]
    fleet = ahead([node(0, 8), node(1, 8, used=(1000,))], seen)
    small = Request(devices=1, compute_milli=1000)
    for _ in range(7):
        placement = fleet.place(small)
        assert placement is not None
        assert placement.node_id == 1
        fleet.take(placement)
    large = fleet.place(EIGHT)
    assert large is not None
    assert large.node_id == 0
    last = fleet.place(small)
    assert last is not None  # nothing is kept back from a request that would fit
    assert last.node_id == 0


def test_without_typical_shapes_it_is_binpack():
    fleet = Fleet([node(0), node(1, used=(1000,))], score="lookahead")
    placement = fleet.place(ONE)
    assert placement is not None
    assert placement.node_id == 1


def test_ties_go_to_the_lowest_rank():
    fleet = ahead([node(3), node(1), node(2)], [(ONE, 1)])
    placement = fleet.place(ONE)
    assert placement is not None
    assert (placement.node_id, placement.device_indexes) == (1, (0,))


def test_a_pool_of_cpus_alone_is_placed_by_rank():
    work = Request(cpu_milli=40000)
    fleet = ahead([node(0, 0), node(1, 0)], [(work, 5)])
    assert fleet.place_each([work, work, work]).nodes.tolist() == [0, 1, -1]


def test_place_each_is_place_and_take_one_after_the_other_and_always_the_same():
    nodes = [node(n, 4 + 4 * (n % 2), model="ab"[n % 2]) for n in range(6)]
    seen = [(ONE, 5), (HALF, 9), (EIGHT, 2), (ON_A, 3), (Request(cpu_milli=2000), 2)]
    arrivals = [request for request, count in seen for _ in range(count)] * 2
    runs = [ahead(nodes, seen).place_each(arrivals) for _ in range(2)]
    assert (runs[0].nodes == runs[1].nodes).all()
    fleet, single = ahead(nodes, seen), []
    for request in arrivals:
        placement = fleet.place(request)
        single.append(-1 if placement is None else placement.node)
        if placement is not None:
            fleet.take(placement)
    assert single == runs[0].nodes.tolist()


def test_compiling_ahead_of_use_leaves_nothing_to_be_done():
    compile_kernels("lookahead")
    assert ahead([node(0)], [(ONE, 1)]).place(ONE) is not None


def test_files_of_kernels_change_with_the_parts_that_are_compiled_into_them():
    """numba's cache on disk does not notice a change in another file: write the digest there into both."""
    from scheduling.core import baselines, lookahead_kernels

    parts = Path(fleet_module.__file__).with_name("placement_kernels.py")
    digest = hashlib.sha256(parts.read_bytes()).hexdigest()[:16]
    assert (digest, digest) == (lookahead_kernels.PARTS_FROM, baselines.PARTS_FROM)


# ---- against plain Python --------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data(), nodes=worlds(), exclusive=st.booleans(), teams=st.booleans())
def test_any_history_gives_what_valuing_every_node_anew_gives(data: st.DataObject, nodes, exclusive, teams):
    shapes = data.draw(st.lists(requests(teams), min_size=1, max_size=6, unique=True))
    seen = data.draw(st.lists(st.tuples(st.sampled_from(shapes), st.integers(1, 9)), max_size=5))
    typical = typical_shapes(seen)
    fleet = Fleet(nodes, score="lookahead", exclusive=exclusive, typical=typical, demand=tuple(seen))
    slow = SlowLookahead(nodes, seen, typical, exclusive=exclusive)
    held: list[tuple[Placement, int]] = []
    for _ in range(data.draw(st.integers(0, 15))):
        action = data.draw(st.sampled_from(("place", "place", "place", "give back", "cordon", "health")))
        if action == "place":
            request = data.draw(st.sampled_from(shapes))
            placement = fleet.place(request)
            assert as_found(placement) == slow.place(request)
            if placement is not None:
                fleet.take(placement, request.team_id)
                slow.change(placement, request.team_id, 1)
                held.append((placement, request.team_id))
        elif action == "give back" and held:
            placement, team = held.pop(data.draw(st.integers(0, len(held) - 1)))
            fleet.give_back(placement)
            slow.change(placement, team, -1)
        elif action == "cordon":
            chosen = data.draw(st.sampled_from(slow.nodes))
            chosen.schedulable = not chosen.schedulable
            fleet.set_schedulable(chosen.id, chosen.schedulable)
        elif action == "health":
            devices = [device for each in slow.nodes for device in each.devices]
            if devices:
                device = data.draw(st.sampled_from(devices))
                device.healthy = not device.healthy
                fleet.set_healthy(device.id, device.healthy)
    for request in shapes:
        assert as_found(fleet.place(request)) == slow.place(request)


def test_larger_nodes_filled_to_the_end_agree_with_plain_python():
    """Nodes of eight devices, shapes of two, four and eight, until nothing fits: reservations come and go."""
    two, four = Request(devices=2, compute_milli=1000, cpu_milli=3000), Request(devices=4, compute_milli=1000)
    share = Request(devices=1, compute_milli=330, cpu_milli=500, host_memory_mib=9000)
    seen = [(share, 40), (HALF, 20), (ONE, 20), (two, 6), (four, 3), (EIGHT, 3)]
    nodes = [node(n, 8 if n < 3 else 2, cpu=24000) for n in range(5)]
    typical = typical_shapes(seen)
    fleet, slow = ahead(nodes, seen), SlowLookahead(nodes, seen, typical)
    kinds = [request for request, _ in seen]
    reserved = set()
    for step in range(60):
        request = kinds[math.floor(step * 2.618) % len(kinds)]
        reserved.add(frozenset(slow.reserved()))
        placement = fleet.place(request)
        assert as_found(placement) == slow.place(request)
        if placement is not None:
            fleet.take(placement)
            slow.change(placement, 0, 1)
    assert len(reserved) > 1


def test_asking_what_could_be_hosted_leaves_the_scores_as_they_are():
    asked = [(Request(1, 1000), 3), (Request(1, 500), 2), (Request(cpu_milli=9000), 1)]
    nodes = [
        NodeState(n, f"n{n}", n, 8000, 64_000, (DeviceState(n * 10, 0, "A", "nvidia", 80_000),)) for n in range(1, 5)
    ]
    fleet = Fleet(nodes, score="lookahead", typical=typical_shapes(asked), demand=asked)
    whole, too_large = asked[0][0], asked[2][0]
    for _ in range(4):
        assert fleet.possible_nodes(whole) == frozenset(range(4))
        assert fleet.possible_nodes(too_large) == frozenset()
        assert fleet.place(too_large) is None
        placement = fleet.place(whole)
        assert placement is not None
        fleet.take(placement)
    assert fleet.place(whole) is None
