"""Properties of Fleet over generated worlds: whatever happened before, it answers as a fleet that looks everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.fleet import Fleet, PlacementRefused
from scheduling.core.fragmentation import typical_shapes
from scheduling.core.model import DeviceState, NodeState, Placement, Request
from tests.core.slow_fleet import SlowFleet

MODELS = ("a100", "t4")
SCORES = ("binpack", "spread", "fragmentation")  # look-ahead: see test_lookahead.py
VENDORS = ("nvidia", "amd")
MEMORIES = (1000, 1003, 1600)
TAINTS = (("dedicated", "nlp"), ("spot", "yes"))
EVERY = (("dedicated", "*"), ("spot", "*"))
LABELS = (("rack", "r1"), ("rack", "r2"), ("ssd", "yes"))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[NodeState, ...]:
    """Up to five small nodes; in about half of them all devices are of one class, as in most real ones."""
    ranks = draw(st.permutations(range(draw(st.integers(1, 5)))))
    nodes: list[NodeState] = []
    for number, rank in enumerate(ranks):
        kinds = st.tuples(st.sampled_from(MODELS), st.sampled_from(VENDORS), st.sampled_from(MEMORIES))
        alike = draw(st.none() | kinds)
        devices = []
        for index in range(draw(st.integers(0, 4))):
            model, vendor, memory = alike or draw(kinds)
            devices.append(
                DeviceState(100 * number + index, index, model, vendor, memory, healthy=draw(st.integers(0, 9)) > 0)
            )
        nodes.append(
            NodeState(
                id=number,
                name=f"n-{number}",
                rank=rank,
                cpu_milli=draw(st.sampled_from((4000, 8000))),
                host_memory_mib=draw(st.sampled_from((4096, 8192))),
                devices=tuple(devices),
                schedulable=draw(st.integers(0, 9)) > 0,
                labels=tuple(sorted(draw(st.sets(st.sampled_from(LABELS), max_size=2)))),
                taints=draw(st.sampled_from(((), (), (TAINTS[0],), TAINTS))),
            )
        )
    return tuple(nodes)


@st.composite
def requests(draw: st.DrawFn, teams: bool) -> Request:
    devices = draw(st.sampled_from((0, 1, 1, 1, 2, 3)))
    compute, memory = draw(
        st.sampled_from(
            [
                *((1000, None), (1000, None), (500, None), (300, None), (450, None)),
                *((None, 400), (None, 990), (None, 1001)),
                *((300, 600), (50, 900), (1000, 200)),
            ]
        )
    )
    return Request(
        devices=devices,
        compute_milli=compute if devices else None,
        memory_mib=memory if devices else None,
        cpu_milli=draw(st.sampled_from((0, 500, 1500, 5000))),
        host_memory_mib=draw(st.sampled_from((0, 512, 5000))),
        models=draw(st.sampled_from(((), (), ("a100",), ("a100", "t4"), ("h100",)))),
        vendors=draw(st.sampled_from(((), (), ("nvidia",)))),
        min_device_memory_mib=draw(st.sampled_from((0, 0, 1003))),
        node_selector=draw(st.sampled_from(((), (), (LABELS[0],), (LABELS[0], LABELS[2])))),
        team_id=draw(st.integers(1, 2)) if teams else 0,
        tolerations=draw(st.sampled_from(((), (TAINTS[0],), TAINTS, (("dedicated", "ads"),), EVERY))),
    )


def both(nodes, score, exclusive, seen) -> tuple[Fleet, SlowFleet]:
    typical = typical_shapes(seen)
    fleet = Fleet(nodes, score=score, exclusive=exclusive, typical=typical)
    return fleet, SlowFleet(nodes, score, exclusive=exclusive, typical=typical)


def as_found(placement: Placement | None):
    if placement is None:
        return None
    return placement.node_id, placement.device_ids, placement.compute_milli, placement.memory_mib


@settings(max_examples=300, deadline=None)
@given(data=st.data(), nodes=worlds(), score=st.sampled_from(SCORES), exclusive=st.booleans(), teams=st.booleans())
def test_any_history(data: st.DataObject, nodes, score, exclusive, teams):
    shapes = data.draw(st.lists(requests(teams), min_size=1, max_size=6, unique=True))
    seen = data.draw(st.lists(st.tuples(st.sampled_from(shapes), st.integers(1, 5)), max_size=4))
    fleet, slow = both(nodes, score, exclusive, seen)
    device_ids = [device.id for node in nodes for device in node.devices]
    healthy = {device.id: device.healthy for node in nodes for device in node.devices}
    held: list[tuple[Placement, int]] = []
    for _ in range(data.draw(st.integers(0, 25))):
        action = data.draw(st.sampled_from(("place", "place", "place", "give back", "cordon", "health")))
        version = fleet.version
        if action == "place":
            request = data.draw(st.sampled_from(shapes))
            placement = fleet.place(request)
            assert as_found(placement) == slow.place(request)
            assert fleet.place(request) == placement
            among = data.draw(st.sets(st.integers(0, len(nodes) - 1)))
            there = fleet.place_among(request, np.array(sorted(among), dtype=np.int64))
            assert as_found(there) == slow.place(request, among)
            assert fleet.version == version
            if placement is not None:
                fleet.take(placement, request.team_id)
                slow.change(placement, request.team_id, 1)
                held.append((placement, request.team_id))
                assert fleet.version != version
        elif action == "give back" and held:
            placement, team = held.pop(data.draw(st.integers(0, len(held) - 1)))
            fleet.give_back(placement)
            slow.change(placement, team, -1)
            assert fleet.version != version
        elif action == "cordon":
            node = data.draw(st.sampled_from(slow.nodes))
            node.schedulable = not node.schedulable
            fleet.set_schedulable(node.id, node.schedulable)
            assert fleet.version != version
        elif action == "health" and device_ids:
            device_id = data.draw(st.sampled_from(device_ids))
            healthy[device_id] = not healthy[device_id]
            fleet.set_healthy(device_id, healthy[device_id])
            next(d for node in slow.nodes for d in node.devices if d.id == device_id).healthy = healthy[device_id]
    agree_on_sums(fleet, slow)
    for request in shapes:
        agree_on_headroom(fleet, slow, request)


def agree_on_sums(fleet: Fleet, slow: SlowFleet) -> None:
    devices = [(node, device) for node in slow.nodes for device in node.devices]
    serving = [device for node, device in devices if node.schedulable and device.healthy]
    elsewhere = [device for node, device in devices if not (node.schedulable and device.healthy)]
    assert fleet.total_milli() == 1000 * len(devices)
    assert fleet.allocated_milli() == sum(1000 - device.compute_free for _, device in devices)
    assert fleet.free_milli() == sum(slow.open_compute(device) for device in serving)
    assert fleet.schedulable_milli() == 1000 * len(serving)
    assert fleet.capacity_milli() == 1000 * len(serving) + sum(1000 - device.compute_free for device in elsewhere)
    assert fleet.total_cpu_milli() == sum(node.cpu for node in slow.nodes)
    assert fleet.allocated_cpu_milli() == sum(node.cpu - node.cpu_free for node in slow.nodes)
    assert fleet.free_cpu_milli() == sum(node.cpu_free for node in slow.nodes if node.schedulable)
    assert fleet.schedulable_cpu_milli() == sum(node.cpu for node in slow.nodes if node.schedulable)
    assert fleet.capacity_cpu_milli() == fleet.schedulable_cpu_milli() + sum(
        node.cpu - node.cpu_free for node in slow.nodes if not node.schedulable
    )
    assert abs(fleet.fragmentation_milli() - slow.fragmentation()) < 1e-6


def agree_on_headroom(fleet: Fleet, slow: SlowFleet, request: Request) -> None:
    seen = fleet.headroom(request)
    assert seen.fits == (slow.place(request) is not None) == (fleet.place(request) is not None)
    assert seen.fits == (fleet.count_fitting(request, 1) == 1)
    limit = 4
    assert fleet.count_fitting(request, limit) == slow.most_tasks(request, limit)

    each = fleet.tasks_by_node(request, limit)
    assert min(limit, int(each.sum())) == slow.most_tasks(request, limit)
    assert (each > 0).tolist() == [bool(slow.choices(request, node)) for node in slow.nodes]

    labelled = [node for node in slow.nodes if set(request.node_selector) <= node.labels]
    if request.devices:
        labelled = [node for node in labelled if any(slow._allowed(request, device) for device in node.devices)]
    matching = [node for node in labelled if slow.tolerated(request, node)]
    assert seen.tainted_nodes == len(labelled) - len(matching)
    assert bool(seen.taints) == (seen.tainted_nodes > 0)
    there = [node for node in matching if node.schedulable]
    usable = [d for node in there for d in node.devices if request.devices and d.healthy and slow._allowed(request, d)]
    assert seen.matching_nodes == len(matching)
    assert seen.cordoned_nodes == len(matching) - len(there)
    assert seen.free_milli == sum(slow.open_compute(device) for device in usable)
    assert seen.largest_piece_milli == max((slow.open_compute(device) for device in usable), default=0)
    assert seen.free_devices == sum(slow.open_compute(device) == 1000 for device in usable)
    assert seen.largest_free_memory_mib == max((d.memory_free for d in usable if slow.open_compute(d)), default=0)
    assert seen.free_cpu_milli == sum(node.cpu_free for node in there)
    assert seen.largest_free_cpu_milli == max((node.cpu_free for node in there), default=0)
    assert seen.largest_free_host_memory_mib == max((node.host_free for node in there), default=0)
    assert (seen.short is None) == (seen.fits or not there)
    if there and seen.possible_nodes == 0:
        assert not seen.fits


@settings(max_examples=60, deadline=None)
@given(data=st.data(), nodes=worlds(), score=st.sampled_from(SCORES))
def test_a_run_in_one_call_is_the_same_as_one_by_one(data: st.DataObject, nodes, score):
    shapes = data.draw(st.lists(requests(False), min_size=1, max_size=5, unique=True))
    arriving = data.draw(st.lists(st.sampled_from(shapes), max_size=20))
    typical = typical_shapes((request, 1) for request in arriving)
    fleet, other = (Fleet(nodes, score=score, typical=typical) for _ in range(2))
    placed = fleet.place_each(arriving)
    for i, request in enumerate(arriving):
        placement = other.place(request)
        assert (placed.nodes[i], placed.milli[i]) == ((placement.node, placement.milli) if placement else (-1, 0))
        if placement:
            other.take(placement)
        assert abs(placed.fragmentation_milli[i] - other.fragmentation_milli()) < 1e-6
    assert (fleet.allocated_milli(), fleet.version) == (other.allocated_milli(), other.version)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), nodes=worlds())
def test_a_fleet_built_from_what_is_held_goes_on_like_the_one_that_took_it(data: st.DataObject, nodes):
    shapes = data.draw(st.lists(requests(False), min_size=1, max_size=4, unique=True))
    fleet = Fleet(nodes, score="binpack")
    used: dict[int, tuple[int, int]] = {}
    on_node: dict[int, tuple[int, int]] = {}
    for request in data.draw(st.lists(st.sampled_from(shapes), max_size=10)):
        placement = fleet.place(request)
        if placement is None:
            continue
        fleet.take(placement)
        for device_id, memory in zip(placement.device_ids, placement.memory_mib, strict=True):
            before = used.get(device_id, (0, 0))
            used[device_id] = (before[0] + placement.compute_milli, before[1] + memory)
        cpu, host = on_node.get(placement.node_id, (0, 0))
        on_node[placement.node_id] = (cpu + placement.cpu_milli, host + placement.host_memory_mib)
    rebuilt = Fleet([_holding(node, used, on_node) for node in nodes], score="binpack")
    for request in shapes:
        assert rebuilt.place(request) == fleet.place(request)
        assert rebuilt.headroom(request) == fleet.headroom(request)
    assert rebuilt.free_milli() == fleet.free_milli()


def _holding(node: NodeState, used, on_node) -> NodeState:
    devices = tuple(
        DeviceState(d.id, d.index, d.model, d.vendor, d.memory_mib, d.healthy, *used.get(d.id, (0, 0)))
        for d in node.devices
    )
    cpu, host = on_node.get(node.id, (0, 0))
    return NodeState(
        node.id, node.name, node.rank, node.cpu_milli, node.host_memory_mib, devices, node.schedulable, cpu, host,
        node.labels, node.taints,
    )  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(
    compute=st.integers(-5, 1100),
    memory=st.integers(-5, 1100),
    cpu=st.integers(-5, 4100),
    host=st.integers(-5, 4100),
    already=st.sampled_from((0, 300, 1000)),
)
def test_no_placement_whatever_takes_more_than_there_is_or_gives_back_more_than_is_held(
    compute, memory, cpu, host, already
):
    device = DeviceState(7, 0, "a100", "nvidia", 1000, compute_used=already, memory_used=already)
    fleet = Fleet([NodeState(1, "n", 0, 4000, 4000, (device,), cpu_used=already, host_memory_used=already)])
    placement = fleet.placement_on(1, [7], compute, (memory,), cpu, host)
    meant = compute > 0 and memory >= 0 and cpu >= 0 and host >= 0
    fits = compute <= 1000 - already and memory <= 1000 - already and cpu <= 4000 - already and host <= 4000 - already
    before = fleet.allocated_milli(), fleet.free_cpu_milli(), fleet.version
    if meant and fits:
        fleet.take(placement)
        fleet.give_back(placement)
        assert (fleet.allocated_milli(), fleet.free_cpu_milli()) == before[:2]
    else:
        with pytest.raises(PlacementRefused):
            fleet.take(placement)
        assert (fleet.allocated_milli(), fleet.free_cpu_milli(), fleet.version) == before
    if meant and max(compute, memory, cpu, host) <= already:
        fleet.give_back(placement)
    else:
        with pytest.raises(PlacementRefused) as refused:
            fleet.give_back(placement)
        assert refused.value.reason == ("not_held" if meant and compute <= 1000 else "malformed")
        assert (fleet.allocated_milli(), fleet.free_cpu_milli()) == before[:2]
