"""Topology and tasks apart, in little worlds: where a gang lands, and why it waits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduling.core.gang_rules import matching
from scheduling.core.model import Group, Topology
from tests.core.little_world import World, node, one_team, request

RACK = Topology("rack")
CLOSE = Topology("rack", required=False)


def racks(**sizes):
    """Nodes of 4 GPUs: ``r1=2`` are two of rack r1, ``bare`` carry no label."""
    return [
        node(f"{rack}-{i}", 4, labels=() if rack == "bare" else (("rack", rack),))
        for rack, count in sizes.items()
        for i in range(count)
    ]


def homes(outcome, name):
    """The racks in which its tasks start."""
    fleet = next(iter(outcome.world.pools.values())).fleet
    level = fleet.level("rack")
    found = {int(level.of_node[task.placement.node]) for task in outcome.start(name).tasks}
    return sorted(level.names[number] if number >= 0 else "-" for number in found)


def nodes_of(outcome, name):
    return [task.placement.node for task in outcome.start(name).tasks]


# ---- required --------------------------------------------------------------------------------------------------------


def test_the_tightest_rack_that_holds_all_of_it_is_taken():
    found = one_team(*racks(r1=3, r2=2, r3=1)).job("g", "a", 4, tasks=2, topology=RACK).decide()
    assert homes(found, "g") == ["r2"]


def test_among_equal_racks_the_one_of_the_lowest_rank_is_taken():
    found = one_team(*racks(r1=2, r2=2)).job("g", "a", 4, tasks=2, topology=RACK).decide()
    assert homes(found, "g") == ["r1"]


def test_a_gang_that_fits_in_no_rack_waits_and_tells_the_best():
    found = one_team(*racks(r1=2, r2=1, bare=3)).job("g", "a", 4, tasks=4, topology=RACK).decide()
    reason = found.reason("g")
    assert reason.code == "gang_incomplete"
    assert {key: reason.numbers[key] for key in ("level", "domain", "domains", "fitting", "needed", "unlabelled")} == {
        "level": "rack", "domain": "r1", "domains": 2, "fitting": 2, "needed": 4, "unlabelled": 3,
    }  # fmt: skip
    assert found.text("g") == (
        "4 tasks must start together in one rack of train: rack r1, the best of 2, has room for 2, "
        "and none holds more than 2 even when empty"
    )
    assert reason.helps == {"request": {"topology": {"level": "rack", "required": False}}}


def test_a_rack_that_is_full_now_is_not_too_small_for_ever():
    found = one_team(*racks(r1=2)).runs("a", 1).job("g", "a", 4, tasks=2, topology=RACK).decide()
    assert found.reason("g").numbers["possible"] == 2
    assert found.text("g") == "2 tasks must start together in one rack of train: rack r1 has room for 1"


def test_a_gang_on_one_host():
    world = one_team(*racks(r1=2)).job("g", "a", 1, tasks=4, topology=Topology("host")).decide()
    assert nodes_of(world, "g") == [0, 0, 0, 0]
    world = one_team(*racks(r1=2)).job("g", "a", 1, tasks=5, topology=Topology("host")).decide()
    assert world.text("g") == (
        "5 tasks must start together on one node of train: r1-0, the best of 2, has room for 4, "
        "and none holds more than 4 even when empty"
    )


def test_nodes_without_the_label_are_in_no_rack():
    found = one_team(*racks(bare=3)).job("g", "a", 4, topology=RACK).job("h", "a", 4).decide()
    assert found.started == ["h"]
    assert found.text("g") == "its task must start in one rack of train: the 2 nodes with room carry no label rack"


def test_where_nothing_fits_at_all_the_ordinary_reason_stands():
    found = one_team(*racks(r1=1)).runs("a", 4).job("g", "a", 1, tasks=2, topology=RACK).decide()
    assert found.waiting == {"g": ["no_fit"]}
    assert found.text("g") == "train is full: no GPU is free"


def test_room_of_one_job_is_not_room_of_the_next():
    world = one_team(*racks(r1=2, r2=1))
    found = world.jobs_of("a", 3, 4, tasks=2, topology=RACK).decide()
    assert found.started == ["a-1"]
    assert found.reason("a-2").numbers["fitting"] == 1


def test_two_shapes_share_one_rack_whatever_their_order():
    nodes = [
        node("n", 4, cpu=4, labels=(("rack", "r1"),)),
        node("m", 2, cpu=64, labels=(("rack", "r2"),)),
        node("o", 4, cpu=64, labels=(("rack", "r3"),)),
    ]
    groups = (Group("small", 2, 2, request(0, cpu=16)), Group("large", 1, 1, request(4)))
    found = one_team(*nodes).job("g", "a", groups=groups, topology=RACK).decide()
    assert homes(found, "g") == ["r3"]


@pytest.mark.parametrize("level", ["rack", "zone"])
def test_a_level_that_no_node_carries(level):
    found = one_team(node(gpus=4)).job("g", "a", 1, tasks=2, topology=Topology(level)).decide()
    assert found.text("g") == (
        f"2 tasks must start together in one {level} of train: the one node with room carries no label {level}"
    )


# ---- preferred -------------------------------------------------------------------------------------------------------


def test_a_wish_is_kept_at_the_closest_level_that_holds_all():
    found = one_team(*racks(r1=1, r2=2)).job("g", "a", 2, tasks=3, topology=CLOSE).decide()
    assert homes(found, "g") == ["r2"]
    found = one_team(*racks(r1=1, r2=2)).job("g", "a", 2, tasks=2, topology=CLOSE).decide()
    assert nodes_of(found, "g") == [0, 0]


def test_a_wish_is_no_reason_to_wait():
    found = one_team(*racks(r1=1, bare=1, r2=1)).job("g", "a", 4, tasks=3, topology=CLOSE).decide()
    assert homes(found, "g") == ["-", "r1", "r2"]


def test_an_elastic_wish_looks_for_a_place_to_grow_in():
    found = one_team(*racks(r1=1, r2=2)).job("g", "a", 4, tasks=2, min_tasks=1, topology=CLOSE).decide()
    assert homes(found, "g") == ["r2"]
    assert found.tasks == {"g": 2}


# ---- growing ---------------------------------------------------------------------------------------------------------


def running(world, name):
    """The job ``name`` runs with one task of 4 GPUs, on the first node."""
    world.works(name, "a", 4, at=0)
    assert world.running[name].tasks[0].placement.node == 0
    return world.running[name]


def growing(topology, *nodes, tasks=2, apart=None, gpus=4):
    world = one_team(*nodes)
    job = running(world, "g")
    world.job("g", "a", gpus, tasks=tasks, min_tasks=1, placed=1, growing=True, topology=topology, apart=apart)
    world.jobs["g"] = replace(world.jobs["g"], id=job.id)
    return world.decide()


def test_growth_stays_in_the_rack_of_what_runs():
    found = growing(RACK, *racks(r1=1, r2=2))
    assert found.started == []
    assert found.text("g") == ("one more task must start where its others are, in rack r1: there is room for 0")
    assert homes(growing(RACK, *racks(r1=2, r2=2)), "g") == ["r1"]


def test_growth_of_a_wish_goes_elsewhere_when_it_must():
    assert homes(growing(CLOSE, *racks(r1=1, r2=2)), "g") == ["r2"]
    assert nodes_of(growing(CLOSE, *racks(r2=1, r1=1), *racks(r2=1)), "g") == [2]


def test_growth_where_what_runs_is_in_no_rack_waits():
    found = growing(RACK, *racks(bare=2, r1=1))
    assert found.started == []
    assert "these are in no one rack" in found.text("g")


def test_growth_keeps_apart_from_what_runs():
    found = growing(None, node("n", 8), node("m", 8), apart="host", tasks=3, gpus=1)
    assert nodes_of(found, "g") == [1]
    assert found.reason("g").numbers["fitting"] == 0


# ---- apart -----------------------------------------------------------------------------------------------------------


def test_each_task_on_a_node_of_its_own():
    found = one_team(*racks(r1=3)).job("g", "a", 1, tasks=3, apart="host").decide()
    assert nodes_of(found, "g") == [0, 1, 2]
    found = one_team(*racks(r1=3)).job("g", "a", 1, tasks=4, apart="host").decide()
    assert found.text("g") == "4 tasks must start in train, each on a node of its own: there is room for 3"
    assert found.reason("g").helps == {"request": {"apart": None}}


def test_apart_by_rack_leaves_out_nodes_without_one():
    found = one_team(*racks(r1=2, bare=2, r2=1)).job("g", "a", 1, tasks=2, apart="rack").decide()
    assert homes(found, "g") == ["r1", "r2"]
    found = one_team(*racks(bare=2)).job("g", "a", 1, tasks=2, apart="rack").decide()
    assert found.text("g") == (
        "2 tasks must start in train, each in a rack of its own: the 2 nodes with room carry no label rack"
    )


def test_apart_and_together():
    nodes = [*racks(r1=1, r2=2, r3=3)]
    found = one_team(*nodes).job("g", "a", 1, tasks=3, topology=RACK, apart="host").decide()
    assert homes(found, "g") == ["r3"]
    assert len(set(nodes_of(found, "g"))) == 3
    found = one_team(*nodes).job("g", "a", 1, tasks=4, topology=RACK, apart="host").decide()
    assert found.text("g") == (
        "4 tasks must start together in one rack of train, each on a node of its own: "
        "rack r3, the best of 3, has room for 3, and none holds more than 3 even when empty"
    )


def test_tasks_apart_of_several_shapes_are_matched_with_nodes():
    """The large group would take the only node on which the small one fits too; a matching finds the other."""
    nodes = [node("both", 4, cpu=64), node("gpus", 4, cpu=1)]
    groups = (Group("large", 1, 1, request(4)), Group("small", 1, 1, request(0, cpu=16)))
    found = one_team(*nodes).job("g", "a", groups=groups, apart="host").decide()
    assert sorted((task.group, task.placement.node) for task in found.start("g").tasks) == [(0, 1), (1, 0)]


def test_matching_passes_domains_on():
    def mask(text):
        return np.array([letter == "x" for letter in text])

    fits = {request(1): mask("xxx..."), request(2): mask("xx...."), request(3): mask("x.....")}
    assert matching({request(1): 1, request(2): 1, request(3): 2}, fits) is None
    found = matching({request(1): 1, request(2): 1, request(3): 1}, fits)
    assert found is not None
    assert [found[request(gpus)].tolist().index(True) for gpus in (1, 2, 3)] == [2, 1, 0]


# ---- replacement -----------------------------------------------------------------------------------------------------


def broken(*nodes, **options):
    """A gang of 2 whose member on the first node is left; the other was lost."""
    world = one_team(*nodes)
    job = running(world, "g")
    world.job("g", "a", 4, tasks=2, min_tasks=2, placed=1, growing=True, **options)
    world.jobs["g"] = replace(world.jobs["g"], id=job.id)
    return world, job.id


def test_a_lost_member_is_replaced_before_anything_else_starts():
    world, _ = broken(*racks(r1=2), topology=RACK)
    found = world.job("first", "a", 4, at=0, priority=900).decide()
    assert found.started == ["g"]
    assert found.plan.broken == ()
    assert nodes_of(found, "g") == [1]


def test_a_gang_whose_member_cannot_be_replaced_is_given_up():
    world, job_id = broken(*racks(r1=1, r2=1), topology=RACK)
    found = world.job("first", "a", 4).decide()
    assert found.plan.broken == (job_id,)
    assert found.started == ["first"]


def test_a_held_gang_that_is_short_is_given_up():
    world, job_id = broken(*racks(r1=2), topology=RACK, held="owner")
    assert world.decide().plan.broken == (job_id,)


def test_a_limit_keeps_a_replacement_away():
    world, job_id = broken(*racks(r1=2))
    found = world.quota("a", "train", limit=4).decide()
    assert found.plan.broken == (job_id,)


def test_room_that_others_gave_way_for_is_not_taken_by_a_replacement():
    world, job_id = broken(*racks(r1=2))
    found = world.job("waits", "a", 4, at=0, room_made_at=5).decide()
    assert found.started == ["waits"]
    assert found.plan.broken == (job_id,)


# ---- eviction --------------------------------------------------------------------------------------------------------


def lent(*nodes):
    """``a`` may have all that there is, ``b`` holds it for as long as nobody asks."""
    return World().pool("train", *nodes).team("a", guaranteed=100).team("b")


def test_victims_are_those_of_one_rack():
    world = lent(*racks(r1=2, r2=2)).works_of("b", 4, 4)
    found = world.job("g", "a", 4, tasks=2, topology=RACK).decide()
    assert found.evicted == {"b-r1": "all", "b-r2": "all"} or found.evicted == {"b-r3": "all", "b-r4": "all"}


def test_the_rack_where_least_has_to_go_is_freed():
    world = lent(*racks(r1=2, r2=2)).works_of("b", 3, 4)  # one node of r2 is free
    found = world.job("g", "a", 4, tasks=2, topology=RACK).decide()
    assert found.evicted == {"b-r3": "all"}


def test_no_rack_that_could_be_freed_means_no_victim():
    world = lent(*racks(r1=2, r2=2))
    world.works("own-1", "a", 4, preemptible=False).works("b-1", "b", 4).works("own-2", "a", 4, preemptible=False)
    world.works("b-2", "b", 4)
    found = world.job("g", "a", 4, tasks=2, topology=RACK).decide()
    assert found.evicted == {}
    assert found.waiting == {"g": ["no_fit"]}
    assert found.reason("g").numbers["freeable_milli"] == 4000


def test_what_a_team_may_lose_is_not_spent_on_the_wrong_rack():
    """b may lose two nodes only, and the latest two it started lie in two racks; those of one rack are chosen."""
    world = World().pool("train", *racks(r1=2, r2=2)).team("a", guaranteed=8).team("b", guaranteed=8)
    world.works("b-1", "b", 4, at=1).works("b-2", "b", 4, at=9).works("b-3", "b", 4, at=2).works("b-4", "b", 4, at=8)
    found = world.job("g", "a", 4, tasks=2, topology=RACK).decide()
    assert found.evicted in ({"b-1": "all", "b-2": "all"}, {"b-3": "all", "b-4": "all"})


def test_victims_for_tasks_apart_lie_on_different_nodes():
    world = lent(node("n", 8), node("m", 8)).works_of("b", 4, 4)
    found = world.job("g", "a", 4, tasks=2, apart="host").decide()
    gone = {
        task.placement.node
        for name in found.evicted
        for task in world.running[name].tasks
    }  # fmt: skip
    assert gone == {0, 1}
    assert len(found.evicted) == 2


def test_no_more_give_way_for_a_wish():
    world = lent(*racks(r1=2, r2=2)).works_of("b", 3, 4)
    found = world.job("g", "a", 4, tasks=2, topology=CLOSE).decide()
    assert len(found.evicted) == 1
