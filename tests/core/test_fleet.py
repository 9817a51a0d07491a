"""Small worlds with a name, what is asked, and what must come out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from scheduling.core.fleet import Fleet, PlacementRefused
from scheduling.core.model import DeviceState, NodeState, Placement, Request

WHOLE = Request(devices=1, compute_milli=1000)


def node(
    number: int,
    devices: int | Sequence[int] = 4,
    *,
    memory: int = 24000,
    model: str = "a100",
    used: Sequence[int] = (),
    **other,
) -> NodeState:
    """Node ``n-<number>`` with devices of ``memory`` MiB, or of each given size; ``used`` milli on the first ones."""
    sizes = [memory] * devices if isinstance(devices, int) else devices
    states = []
    for index, size in enumerate(sizes):
        milli = used[index] if index < len(used) else 0
        states.append(
            DeviceState(
                100 * number + index, index, model, "nvidia", size, compute_used=milli, memory_used=size * milli // 1000
            )
        )
    return replace(NodeState(number, f"n-{number}", number, 64000, 65536, tuple(states)), **other)


def start_all(fleet: Fleet, request: Request, count: int) -> list[Placement]:
    """Places and takes up to ``count`` tasks, as long as one fits."""
    started = []
    for _ in range(count):
        placement = fleet.place(request)
        if placement is None:
            break
        fleet.take(placement, request.team_id)
        started.append(placement)
    return started


# ---- scores ----------------------------------------------------------------------------------------------------------


@dataclass
class Choice:
    name: str
    nodes: list[NodeState]
    request: Request
    binpack: tuple[int, tuple[int, ...]]
    spread: tuple[int, tuple[int, ...]]
    options: dict = field(default_factory=dict)


CHOICES = [
    Choice("ties go to the lowest rank and the lowest index", [node(1), node(0)], WHOLE, (0, (0,)), (0, (0,))),
    Choice(
        "rank is not the order in which nodes are given, nor their id",
        [node(1, rank=9), node(2, rank=3)],
        WHOLE,
        (2, (200,)),
        (2, (200,)),
    ),
    Choice(
        "a fraction joins the fullest device that has room, or an empty one",
        [node(0, 2, used=(500, 300))],
        Request(devices=1, compute_milli=500),
        (0, (0,)),
        (0, (1,)),
    ),
    Choice(
        "the fullest node is the one with the larger used share, not with less left",
        [node(0, 2), node(1, 8, used=(1000,))],
        WHOLE,
        (1, (101,)),
        (0, (0,)),
    ),
    Choice(
        "a fuller node that does not fit is passed over",
        [node(0, 2, used=(1000, 500)), node(1, 2, used=(500,)), node(2, 2)],
        WHOLE,
        (1, (101,)),
        (2, (200,)),
    ),
    Choice(
        "several devices: the fullest, or the emptiest, that fit, in order of index",
        [node(0, 4, used=(0, 700, 200, 500))],
        Request(devices=2, compute_milli=400),
        (0, (2, 3)),
        (0, (0, 2)),
    ),
    Choice(
        "a CPU-only task looks at CPU",
        [node(0, 2, used=(1000, 1000)), node(1, 0, cpu_used=1000)],
        Request(cpu_milli=1000),
        (1, ()),
        (0, ()),
    ),
    Choice(
        "memory alone, on devices of two sizes in a node: the device of which it is the least part",
        [node(0, [16000, 32000], used=(0, 0))],
        Request(devices=1, memory_mib=8000),
        (0, (1,)),
        (0, (1,)),
    ),
]


@pytest.mark.parametrize("case", CHOICES, ids=lambda case: case.name)
@pytest.mark.parametrize("score", ["binpack", "spread"])
def test_choice(case: Choice, score):
    fleet = Fleet(case.nodes, score=score, **case.options)
    placement = fleet.place(case.request)
    assert placement is not None
    assert (placement.node_id, placement.device_ids) == getattr(case, score)


def test_fragmentation_without_anything_typical_packs():
    nodes = [node(0), node(1, used=(500,))]
    half = Request(devices=1, compute_milli=500)
    assert Fleet(nodes, score="fragmentation").place(half) == Fleet(nodes, score="binpack").place(half)


# ---- slices ----------------------------------------------------------------------------------------------------------

SLICES = [
    ("a fraction takes the same part of the memory, rounded down", Request(devices=1, compute_milli=450), 450, 10372),
    ("a whole device gives all its memory", Request(devices=1, compute_milli=1000), 1000, 23050),
    ("even where less is asked", Request(devices=1, compute_milli=1000, memory_mib=100), 1000, 23050),
    ("memory takes the smallest step that is as large a part", Request(devices=1, memory_mib=2306), 150, 2306),
    ("exactly on a step", Request(devices=1, memory_mib=2305), 100, 2305),
    ("so much memory that all compute goes with it", Request(devices=1, memory_mib=22000), 1000, 23050),
    ("both as given", Request(devices=1, compute_milli=50, memory_mib=20000), 50, 20000),
]


@pytest.mark.parametrize(("name", "request_", "compute", "memory"), SLICES, ids=[case[0] for case in SLICES])
def test_slice(name, request_, compute, memory):
    placement = Fleet([node(0, 1, memory=23050)]).place(request_)
    assert placement is not None
    assert (placement.compute_milli, placement.memory_mib) == (compute, (memory,))


def test_the_sharing_step_is_the_pools():
    placement = Fleet([node(0, 1, memory=1000)], step_milli=10).place(Request(devices=1, memory_mib=101))
    assert placement is not None
    assert placement.compute_milli == 110


def test_all_devices_of_a_task_give_the_same_compute_of_memory_alone():
    fleet = Fleet([node(0, [16000, 32000, 16000])])
    placement = fleet.place(Request(devices=2, memory_mib=8000))
    assert placement is not None
    assert (placement.device_indexes, placement.compute_milli, placement.memory_mib) == ((0, 2), 500, (8000, 8000))
    assert fleet.place(Request(devices=3, memory_mib=8000)) is None


# ---- filters ---------------------------------------------------------------------------------------------------------

MIXED = [
    node(0, 1, model="t4", labels=(("rack", "r1"),)),
    node(1, 1, model="a100", memory=40000, labels=(("rack", "r1"), ("ssd", "yes"))),
    replace(
        node(2, 1, model="mi250"),
        devices=(DeviceState(200, 0, "mi250", "amd", 65536),),
    ),
]
FILTERS = [
    (Request(devices=1, compute_milli=1000), 0),
    (Request(devices=1, compute_milli=1000, models=("a100", "h100")), 1),
    (Request(devices=1, compute_milli=1000, vendors=("amd",)), 2),
    (Request(devices=1, compute_milli=1000, models=("t4",), vendors=("amd",)), None),
    (Request(devices=1, compute_milli=1000, min_device_memory_mib=40000), 1),
    (Request(devices=1, compute_milli=1000, min_device_memory_mib=40001), 2),
    (Request(devices=1, memory_mib=65536), 2),
    (Request(devices=1, memory_mib=65537), None),
    (Request(devices=1, compute_milli=1000, node_selector=(("ssd", "yes"),)), 1),
    (Request(devices=1, compute_milli=1000, node_selector=(("rack", "r1"), ("ssd", "no"))), None),
    (Request(devices=2, compute_milli=1000), None),
    (Request(cpu_milli=64000, models=("nothing that a CPU task would need",)), 0),
    (Request(cpu_milli=64001), None),
    (Request(host_memory_mib=65537), None),
]


@pytest.mark.parametrize(("request_", "want"), FILTERS)
def test_filter(request_, want):
    fleet = Fleet(MIXED)
    placement = fleet.place(request_)
    assert (placement.node_id if placement else None) == want
    assert fleet.headroom(request_).fits == (want is not None)


def test_devices_of_several_models_in_one_node_are_chosen_one_by_one():
    devices = tuple(DeviceState(i, i, "t4" if i % 2 else "a100", "nvidia", 16000) for i in range(4))
    fleet = Fleet([NodeState(1, "n", 0, 1000, 1000, devices)])
    placement = fleet.place(Request(devices=2, compute_milli=1000, models=("t4",)))
    assert placement is not None
    assert placement.device_indexes == (1, 3)


@pytest.mark.parametrize(
    "mistake",
    [
        Request(devices=1),
        Request(devices=1, memory_mib=0),
        Request(devices=1, compute_milli=0),
        Request(devices=1, compute_milli=1001),
        Request(devices=-1, compute_milli=1000),
        Request(cpu_milli=-1),
        Request(devices=1, memory_mib=-5),
    ],
)
def test_a_request_that_cannot_be_meant_is_an_error(mistake):
    with pytest.raises(ValueError, match="in Request"):
        Fleet([node(0)]).place(mistake)


# ---- who shares with whom --------------------------------------------------------------------------------------------


def test_in_an_exclusive_pool_no_device_holds_two_tasks():
    fleet = Fleet([node(0, 2)], exclusive=True)
    half = Request(devices=1, compute_milli=500)
    assert [placement.device_ids for placement in start_all(fleet, half, 3)] == [(0,), (1,)]
    assert (fleet.allocated_milli(), fleet.free_milli()) == (1000, 0)
    seen = fleet.headroom(half)
    assert (seen.fits, seen.short) == (False, "sharing")
    with pytest.raises(PlacementRefused) as refused:
        fleet.take(fleet.placement_on(0, [0], 500, [12000], 0, 0))
    assert refused.value.reason == "sharing"


def test_where_teams_are_kept_apart_a_slice_joins_its_own_team_or_an_empty_device():
    fleet = Fleet([node(0, 2)])
    nlp, ads = (Request(devices=1, compute_milli=300, team_id=team) for team in (1, 2))
    assert start_all(fleet, nlp, 1)[0].device_ids == (0,)
    assert start_all(fleet, ads, 1)[0].device_ids == (1,)
    assert len(start_all(fleet, nlp, 9)) == 2
    assert fleet.headroom(nlp).short == "sharing"
    with pytest.raises(PlacementRefused) as refused:
        fleet.take(fleet.placement_on(0, [1], 300, [7200], 0, 0), team_id=1)
    assert refused.value.reason == "sharing"


def test_a_device_that_was_emptied_is_open_to_every_team():
    fleet = Fleet([node(0, 1)])
    nlp, ads = (Request(devices=1, compute_milli=300, team_id=team) for team in (1, 2))
    first, second = start_all(fleet, nlp, 2)
    fleet.give_back(first)
    assert fleet.place(ads) is None
    fleet.give_back(second)
    assert fleet.place(ads) is not None


def test_a_device_whose_holder_is_not_known_is_shared_with_no_team():
    fleet = Fleet([node(0, 1, used=(300,))])
    assert fleet.place(Request(devices=1, compute_milli=300, team_id=1)) is None
    assert fleet.place(Request(devices=1, compute_milli=300)) is not None


# ---- take, give back, version ----------------------------------------------------------------------------------------


def test_give_back_undoes_take_and_each_change_is_a_new_version():
    fleet = Fleet([node(0, 2)])
    third = Request(devices=2, compute_milli=300, cpu_milli=1000, host_memory_mib=512)
    before = fleet.free_milli(), fleet.free_cpu_milli(), fleet.headroom(third)
    versions = [fleet.version]
    placement = fleet.place(third)
    assert placement is not None
    assert fleet.version == versions[0]
    fleet.take(placement)
    versions.append(fleet.version)
    assert fleet.allocated_milli() == placement.milli == 600
    fleet.give_back(placement)
    versions.append(fleet.version)
    assert (fleet.free_milli(), fleet.free_cpu_milli(), fleet.headroom(third)) == before
    fleet.set_healthy(0, True)
    assert fleet.version == versions[-1]
    fleet.set_healthy(0, False)
    versions.append(fleet.version)
    fleet.set_schedulable(0, False)
    versions.append(fleet.version)
    assert len(set(versions)) == len(versions)


@pytest.mark.parametrize(
    ("reason", "device_ids", "compute", "memory", "cpu", "host"),
    [
        ("compute", [0], 600, [1], 0, 0),
        ("device_memory", [0], 1, [13000], 0, 0),
        ("cpu", [], 0, [], 64001, 0),
        ("host_memory", [1], 1, [1], 0, 65537),
        ("malformed", [100], 1, [1], 0, 0),
        ("malformed", [1, 1], 1, [1, 1], 0, 0),
    ],
)
def test_refused_take(reason, device_ids, compute, memory, cpu, host):
    fleet = Fleet([node(0, 2, used=(500,)), node(1)])
    before = fleet.version, fleet.free_milli()
    with pytest.raises(PlacementRefused) as refused:
        fleet.take(fleet.placement_on(0, device_ids, compute, memory, cpu, host))
    assert refused.value.reason == reason
    assert (fleet.version, fleet.free_milli()) == before


def test_a_placement_of_another_fleet_is_refused():
    elsewhere = Fleet([node(5)]).place(WHOLE)
    assert elsewhere is not None
    with pytest.raises(PlacementRefused, match="not a placement on this fleet"):
        Fleet([node(0)]).take(elsewhere)


def test_a_placement_rebuilt_from_rows_is_the_placement():
    fleet = Fleet([node(3, [16000, 24000])])
    placement = fleet.place(Request(devices=2, compute_milli=1000, cpu_milli=5, host_memory_mib=6))
    assert placement is not None
    assert fleet.placement_on(3, [301, 300], 1000, [24000, 16000], 5, 6) == placement
    with pytest.raises(KeyError):
        fleet.placement_on(4, [300], 1000, [16000], 0, 0)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node(0), node(1, rank=0)], "same rank"),
        ([node(0), node(0, rank=1)], "same id"),
        ([node(0, used=(1001,))], "more than it has"),
        ([node(0, cpu_used=64001)], "more than it has"),
    ],
)
def test_a_fleet_that_cannot_be(nodes, message):
    with pytest.raises(ValueError, match=message):
        Fleet(nodes)


def test_an_empty_fleet_says_no_to_everything():
    fleet = Fleet([])
    assert fleet.place(WHOLE) is None
    assert fleet.count_fitting(WHOLE, 5) == fleet.count_fitting(Request(cpu_milli=1), 5) == 0
    seen = fleet.headroom(WHOLE)
    assert (seen.fits, seen.matching_nodes, seen.short) == (False, 0, None)
    assert (fleet.capacity_milli(), fleet.fragmentation_milli()) == (0, 0.0)


def test_more_shapes_than_are_kept_are_still_placed_right():
    fleet = Fleet([node(0, 2), node(1, 2)])
    shapes = [Request(devices=1, compute_milli=100, cpu_milli=cpu) for cpu in range(5000)]
    assert (fleet.place_each(shapes[:30]).nodes >= 0).sum() == 30
    start_all(fleet, Request(devices=1, compute_milli=100), 10)
    assert fleet.free_milli() == 0
    assert (fleet.place_each(shapes * 2).nodes < 0).all()
    fleet.give_back(fleet.placement_on(0, [1], 100, [2400], 0, 0))
    assert all(fleet.place(shape) is not None for shape in shapes)


# ---- cost ------------------------------------------------------------------------------------------------------------


def in_a_process_of_its_own(code: str) -> str:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=100, check=True
    )
    return done.stdout


def test_importing_the_fleet_does_not_import_numba():
    assert in_a_process_of_its_own("import sys, scheduling.core.fleet; print('numba' in sys.modules)") == "False\n"


@pytest.mark.slow
def test_a_large_fleet_and_more_shapes_than_are_kept_stay_under_300_mb():
    """12,130 nodes with five devices each and 700 shapes, numpy and numba included."""
    # VmHWM, not ru_maxrss: that one is handed on by the process that forked this one, however large it was.
    peak_kib = in_a_process_of_its_own("""
from pathlib import Path
from scheduling.core.fleet import Fleet
from scheduling.core.fragmentation import typical_shapes
from scheduling.core.model import DeviceState, NodeState, Request
shapes = [Request(devices=1, compute_milli=50 + 50 * (i % 10), cpu_milli=i) for i in range(700)]
nodes = (
    NodeState(n, "", n, 96000, 393216, tuple(DeviceState(5 * n + i, i, "m", "v", 32768) for i in range(5)))
    for n in range(12130)
)
fleet = Fleet(nodes, score="fragmentation", typical=typical_shapes((shape, 1) for shape in shapes[:35]))
assert (fleet.place_each(shapes).nodes >= 0).all()
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line))
""")
    assert int(peak_kib) < 300_000


# ---- how many fit ----------------------------------------------------------------------------------------------------

COUNTS = [
    ("one slice each", [node(0, 2)], Request(devices=1, compute_milli=300), 6),
    ("whole devices", [node(0, 4, used=(0, 50)), node(1, 2)], WHOLE, 5),
    ("k whole devices of one node", [node(0, 5), node(1, 3)], Request(devices=2, compute_milli=1000), 3),
    ("k slices of different devices", [node(0, 3)], Request(devices=2, compute_milli=500), 3),
    ("of which one is fuller", [node(0, 3, used=(0, 500, 500))], Request(devices=2, compute_milli=500), 2),
    ("held back by CPU", [node(0, 4, cpu_used=61000)], Request(devices=1, compute_milli=50, cpu_milli=1000), 3),
    ("held back by memory", [node(0, 1)], Request(devices=1, compute_milli=50, memory_mib=7000), 3),
    ("no devices at all", [node(0), node(1)], Request(cpu_milli=16000), 8),
    ("up to the limit", [node(0), node(1)], Request(cpu_milli=1), 50),
]


@pytest.mark.parametrize(("name", "nodes", "request_", "want"), COUNTS, ids=[case[0] for case in COUNTS])
def test_count_fitting(name, nodes, request_, want):
    assert Fleet(nodes).count_fitting(request_, 50) == want


# ---- headroom --------------------------------------------------------------------------------------------------------

SHORT = [
    ("compute", [node(0, 2, used=(700, 600))], Request(devices=1, compute_milli=500)),
    ("devices", [node(0, 2, used=(700,)), node(1, 1)], Request(devices=2, compute_milli=1000)),
    ("devices", [node(0, 2)], Request(devices=3, compute_milli=1000)),
    ("device_memory", [node(0, 1)], Request(devices=1, memory_mib=30000)),
    ("device_memory", [node(0, 1)], Request(devices=1, compute_milli=100, memory_mib=30000)),
    (
        "cpu",
        [node(0, 1, used=(1000,)), node(1, 1, cpu_used=60000)],
        Request(devices=1, compute_milli=1000, cpu_milli=5000),
    ),
    ("host_memory", [node(0, 1)], Request(devices=1, compute_milli=1000, host_memory_mib=70000)),
    ("cpu", [node(0, 0)], Request(cpu_milli=64001)),
    ("host_memory", [node(0, 0)], Request(cpu_milli=1, host_memory_mib=65537)),
    (None, [node(0, schedulable=False)], WHOLE),
    (None, [node(0)], WHOLE),
]


@pytest.mark.parametrize(("short", "nodes", "request_"), SHORT)
def test_what_is_short_on_the_nearest_node(short, nodes, request_):
    assert Fleet(nodes).headroom(request_).short == short


def test_an_all_failed_node_is_short_of_devices():
    fleet = Fleet([node(0, 1)])
    fleet.set_healthy(0, False)
    assert fleet.headroom(WHOLE).short == "devices"


def test_headroom_tells_what_could_ever_fit():
    fleet = Fleet([node(0, 4), node(1, 8, used=(1000,) * 8), node(2, 8, schedulable=False), node(3, 8, model="t4")])
    seen = fleet.headroom(Request(devices=8, compute_milli=1000, models=("a100",)))
    assert (seen.matching_nodes, seen.possible_nodes, seen.cordoned_nodes) == (3, 2, 1)
    assert (seen.free_milli, seen.free_devices, seen.most_devices) == (4000, 4, 4)


# ---- cases from public bug reports -----------------------------------------------------------------------------------


def test_open_06_three_12_gb_shares_on_one_24_gb_card():
    fleet = Fleet([node(0, 8, used=(1000,) * 7)])
    share = Request(devices=1, compute_milli=300, memory_mib=12000)
    for _ in range(20):
        started = start_all(fleet, share, 3)
        assert [(placement.device_indexes, placement.memory_mib) for placement in started] == [((7,), (12000,))] * 2
        assert fleet.allocated_milli() == 7600
        seen = fleet.headroom(share)
        assert (seen.fits, seen.short, seen.largest_piece_milli) == (False, "device_memory", 400)
        assert seen.largest_free_memory_mib == 0
        for placement in started:
            fleet.give_back(placement)


def test_open_09_mib_stay_mib():
    fleet = Fleet([node(0, 1, memory=46068)])
    part = Request(devices=1, compute_milli=50, memory_mib=4000)
    assert len(start_all(fleet, part, 12)) == 11
    assert fleet.allocated_milli() == 550
    seen = fleet.headroom(part)
    assert (seen.short, seen.largest_free_memory_mib) == ("device_memory", 2068)


def test_open_10_whole_devices_of_different_size():
    fleet = Fleet([node(0, [24576] * 7 + [24000])])
    placement = fleet.place(Request(devices=8, compute_milli=1000))
    assert placement is not None
    assert placement.memory_mib == (24576,) * 7 + (24000,)
    assert (sum(placement.memory_mib), placement.milli) == (196032, 8000)
    fleet.take(placement)
    assert fleet.free_milli() == 0


def test_open_11_sixty_percent_of_a_card_each():
    fleet = Fleet([node(0, 8), node(1, 8)])
    job = Request(devices=1, compute_milli=600)
    first = start_all(fleet, job, 10)
    assert len({placement.device_ids for placement in first}) == 10
    assert fleet.allocated_milli() == 6000
    assert len(start_all(fleet, job, 7)) == 6
    assert (fleet.allocated_milli(), fleet.free_milli()) == (9600, 6400)
    seen = fleet.headroom(job)
    assert (seen.short, seen.largest_piece_milli, seen.free_milli) == ("compute", 400, 6400)


@pytest.mark.parametrize("score", ["binpack", "spread"])
def test_open_12_all_four_cards_are_used(score):
    fleet = Fleet([node(0, 4, memory=23000)], score=score)
    job = Request(devices=1, compute_milli=50, memory_mib=10000)
    first = start_all(fleet, job, 5)
    assert len(first) == 5
    assert max(sum(p.device_ids == (device,) for p in first) for device in range(4)) == 2
    assert len(start_all(fleet, job, 4)) == 3
    seen = fleet.headroom(job)
    assert (seen.short, seen.largest_free_memory_mib) == ("device_memory", 3000)


def test_open_33_a_broken_card_in_use_leaves_the_healthy_one_usable():
    fleet = Fleet([node(0, 2)])
    (on_first,) = start_all(fleet, WHOLE, 1)
    assert on_first.device_ids == (0,)
    fleet.set_healthy(0, False)
    assert (fleet.total_milli(), fleet.capacity_milli(), fleet.free_milli()) == (2000, 2000, 1000)
    (second,) = start_all(fleet, WHOLE, 1)
    assert second.device_ids == (1,)
    assert (fleet.total_milli(), fleet.free_milli()) == (2000, 0)
    fleet.give_back(on_first)
    assert fleet.place(WHOLE) is None
    assert (fleet.capacity_milli(), fleet.allocated_milli()) == (1000, 1000)
    fleet.set_healthy(0, True)
    assert fleet.place(WHOLE) is not None


def test_open_34_a_cordoned_node_is_not_free_capacity():
    fleet = Fleet([node(1), node(2)])
    (kept,) = start_all(fleet, WHOLE, 1)
    assert kept.node_id == 1
    fleet.set_schedulable(1, False)
    four = Request(devices=4, compute_milli=1000)
    assert [placement.node_id for placement in start_all(fleet, four, 2)] == [2]
    assert (fleet.schedulable_milli(), fleet.total_milli()) == (4000, 8000)
    assert fleet.capacity_milli() == 5000  # with what still runs on the cordoned node
    seen = fleet.headroom(four)
    assert (seen.fits, seen.matching_nodes, seen.cordoned_nodes) == (False, 2, 1)
    fleet.set_schedulable(1, True)
    assert fleet.place(four) is None
    assert fleet.headroom(four).most_devices == 3
    fleet.give_back(kept)
    assert fleet.place(four) is not None
