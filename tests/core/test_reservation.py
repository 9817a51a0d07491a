"""Reservations by hand: who gets one, what it keeps, and who passes. Times are plain numbers."""

from dataclasses import replace

import pytest

from scheduling.core.forecast import forecast
from scheduling.core.model import Policy
from tests.core.little_world import BOB, World, node, one_team


def half_full(**blocker):
    """Four GPUs; a blocker holds two until 60, and ``big`` waits for all four."""
    return one_team(node(gpus=4)).works("blocker", "a", 2, ends_at=60, **blocker).job("big", "a", 4, limit=100)


def test_the_first_job_that_does_not_fit_gets_the_earliest_time_and_place():
    outcome = half_full().decide()
    (kept,) = outcome.plan.reservations
    assert (kept.at, kept.since, kept.pool_id) == (60, 0, 1)
    assert kept.tasks[0].placement.device_indexes == (0, 1, 2, 3)
    numbers = outcome.reason("big").numbers
    assert (outcome.reason("big").code, numbers["kept_since"][:19]) == ("no_fit", "1970-01-01T00:00:00")
    assert outcome.text("big").endswith("room is kept for it, free at the latest by 1970-01-01 00:00 UTC")


@pytest.mark.parametrize(("limit", "starts"), [(59, True), (60, True), (61, False), (None, False)])
def test_who_ends_by_then_goes_ahead(limit, starts):
    outcome = half_full().job("small", "a", 1, limit=limit).decide()
    assert outcome.started == (["small"] if starts else [])
    assert outcome.kept == {"big": 60}
    if not starts:
        assert outcome.reason("small").code == "reserved_for"
        assert outcome.reason("small").numbers["job"] == outcome.world.jobs["big"].id


def test_what_the_reserved_job_will_not_need_is_anybodys():
    world = one_team(node(gpus=8)).works("blocker", "a", 3, ends_at=60).job("big", "a", 7)
    assert world.jobs_of("a", 3).decide().started == ["a-1"]


def test_several_that_end_in_time_do_not_open_the_room_for_one_that_does_not():
    world = half_full().job("s1", "a", 1, limit=10).job("long", "a", 1).job("s2", "a", 1, limit=60)
    outcome = world.decide()
    assert outcome.started == ["s1", "s2"]
    assert outcome.kept == {"big": 60}


def test_with_no_time_limit_in_the_way_the_node_takes_nobody_else():
    world = one_team(node("small", gpus=2), node("large", gpus=4))
    world.works("blocker", "a", 3).works("beside", "a", 1).job("big", "a", 4).jobs_of("a", 2, limit=1)
    outcome = world.decide()
    # On the large node one GPU at least is free, and stays so; the small one could never host it.
    assert outcome.kept == {"big": None}
    assert {start.tasks[0].placement.node for start in outcome.plan.starts} <= {0}


def test_the_place_is_where_least_has_to_go():
    world = World().pool("train", node("one", gpus=4), node("two", gpus=4), score="spread").team("a")
    world.works("r1", "a", 1).works("r2", "a", 1).works("r3", "a", 1).job("big", "a", 4)
    outcome = world.decide()
    (kept,) = outcome.plan.reservations
    busy = [task.placement.node for job in world.running.values() for task in job.tasks]
    assert busy.count(kept.tasks[0].placement.node) == 1
    assert outcome.kept == {"big": None}


def test_a_job_that_is_not_entitled_gets_none_and_keeps_nobody_out():
    world = World().pool("train", node(gpus=4)).team("a").team("b", guaranteed=4)
    world.works("b1", "b", 2, ends_at=60, protected_until=99).job("big", "a", 4).job("b2", "b", 1).job("a2", "a", 1)
    outcome = world.decide()
    assert outcome.kept == {}
    assert set(outcome.started) == {"b2", "a2"}


def test_a_cluster_wide_job_need_not_be_within_its_share():
    world = World().pool("train", node(gpus=4)).team("a").team("b", guaranteed=4)
    world.works("b1", "b", 2, ends_at=60, protected_until=99).job("big", "a", 4, cluster_wide=True).job("a2", "a", 1)
    assert (world.decide().kept, world.decide().started) == ({"big": 60}, [])


def test_a_job_larger_than_every_node_keeps_nothing():
    outcome = half_full().job("huge", "a", 8, priority=900).job("small", "a", 1).decide()
    assert outcome.kept == {"big": 60}
    assert one_team(node(gpus=4)).works("r", "a", 2).job("huge", "a", 8).job("b", "a", 1).decide().started == ["b"]


def test_the_holder_keeps_it_although_an_older_job_is_there():
    world = half_full(priority=900).job("older", "a", 3, at=-5, limit=500)
    assert world.decide().kept == {"older": 60}
    world.jobs["big"] = replace(world.jobs["big"], room_kept_since=-1)
    assert world.decide().kept == {"big": 60}
    world.jobs["older"] = replace(world.jobs["older"], priority=900)
    assert world.decide().kept == {"older": 60}


def test_a_higher_priority_takes_what_is_kept_only_if_it_must():
    world = one_team(node("one", gpus=4), node("two", gpus=1)).works("blocker", "a", 2, ends_at=60)
    world.job("big", "a", 4, limit=100, room_kept_since=0).job("first", "a", 1, priority=900)
    outcome = world.decide()
    assert outcome.kept == {"big": 60}
    assert outcome.start("first").tasks[0].placement.node == 1
    outcome = world.job("second", "a", 1, priority=900, limit=80).decide()
    assert (set(outcome.started), outcome.kept) == ({"first", "second"}, {"big": 80})


def test_a_held_job_has_no_reservation():
    world = half_full().job("small", "a", 1)
    world.jobs["big"] = replace(world.jobs["big"], held="held", room_kept_since=0)
    assert (world.decide().kept, world.decide().started) == ({}, ["small"])


def test_a_job_that_wants_to_grow_gets_none_but_heeds_it():
    world = half_full().job("grown", "a", 1, tasks=4, min_tasks=1, placed=1, growing=True, at=-9)
    outcome = world.decide()
    assert outcome.kept == {"big": 60}
    # It comes after jobs that wait, and would hold its tasks for ever.
    assert (outcome.started, outcome.reason("grown").code) == ([], "reserved_for")


def test_memory_is_kept_where_compute_would_be_left():
    world = one_team(node(gpus=1, memory_mib=80_000)).works("blocker", "a", 0.5, memory_mib=8_000, ends_at=60)
    world.job("big", "a", 0.5, memory_mib=79_000).job("small", "a", 0.1, memory_mib=8_000)
    outcome = world.decide()
    assert (outcome.kept, outcome.started) == ({"big": 60}, [])


def test_cores_and_memory_of_the_node_are_kept():
    world = one_team(node(gpus=2, cpu=8)).works("blocker", "a", 1, cpu=4, ends_at=60)
    world.job("big", "a", 1, cpu=7).job("cores", "a", 0, cpu=2).job("few", "a", 0, cpu=1)
    outcome = world.decide()
    assert (outcome.kept, outcome.started) == ({"big": 60}, ["few"])


def test_in_a_pool_of_whole_devices():
    world = World().pool("train", node(gpus=2), exclusive=True).team("a")
    world.works("blocker", "a", 0.25, ends_at=60).job("big", "a", 2).job("slice", "a", 0.25)
    assert (world.decide().kept, world.decide().started) == ({"big": 60}, [])


def test_a_device_that_another_team_shares_in_must_be_free_of_all_of_it():
    world = World().pool("train", node(gpus=1)).team("a").team("b")
    world.works("b1", "b", 0.3, ends_at=60, team_id=2, holder=2)
    world.job("big", "a", 0.3, team_id=1).job("b2", "b", 0.3, team_id=2)
    outcome = world.decide()
    # At 60 team b is gone and a has room; b's second slice would keep the device its own.
    assert (outcome.kept, outcome.started) == ({"big": 60}, [])
    assert outcome.reason("b2").code == "reserved_for"


def test_a_gang_over_nodes_keeps_what_is_free_on_each():
    world = one_team(node("one", gpus=2), node("two", gpus=2), node("three", gpus=2))
    world.works("r1", "a", 2, ends_at=60).works("r2", "a", 2, ends_at=90)
    world.job("gang", "a", 2, tasks=2).job("long", "a", 1).job("short", "a", 2, limit=60)
    assert (world.decide().kept, world.decide().started) == ({"gang": 60}, ["short"])
    world.jobs["short"] = replace(world.jobs["short"], time_limit=61)
    assert world.decide().started == []


def test_what_is_being_stopped_counts_as_gone_soonest():
    world = one_team(node(gpus=4)).works("r", "a", 2, releasing=1).job("big", "a", 4).job("small", "a", 1)
    assert world.decide().kept == {"big": 0}
    assert world.decide().started == []


def test_nobody_is_made_to_give_way_for_what_would_delay_it():
    """b is entitled to a GPU that a's small job borrows; big (a gang) could not start sooner by any eviction."""
    world = World().pool("train", node(gpus=4)).team("a", guaranteed=3).team("b", guaranteed=1)
    world.works("long", "a", 2, ends_at=60, protected_until=99).works("borrowed", "a", 2, ends_at=60)
    world.job("big", "b", 1, limit=10)
    outcome = world.decide()
    assert outcome.evicted == {"borrowed": "all"}
    assert outcome.kept == {}, "others give way to it: it needs no reservation"


def test_two_pools_each_with_its_own():
    world = World().pool("x", node(gpus=2)).pool("y", node(gpus=2)).team("a")
    world.works("rx", "a", 1, pool="x", ends_at=50).works("ry", "a", 1, pool="y", ends_at=70)
    world.job("big-x", "a", 2, pool="x").job("big-y", "a", 2, pools=["y", "x"])
    assert world.decide().kept == {"big-x": 50, "big-y": 70}


def test_who_starts_in_its_second_choice_keeps_nothing_in_its_first():
    world = World().pool("x", node(gpus=2)).pool("y", node(gpus=2)).team("a")
    world.works("rx", "a", 1, pool="x").job("big", "a", 2, pools=["x", "y"]).job("small", "a", 1, pool="x")
    outcome = world.decide()
    assert outcome.kept == {}
    assert outcome.where == {"big": "y", "small": "x"}


def test_one_members_limit_keeps_out_nobody_else():
    world = World().pool("train", node(gpus=8)).team("a", per_user_limit=4)
    world.works("r", "a", 2, ends_at=60).job("big", "a", 4).job("own", "a", 1).job("other", "a", 1, user=BOB)
    outcome = world.decide()
    assert outcome.kept == {"big": 60}
    assert outcome.started == ["other"]


# ---- estimates -------------------------------------------------------------------------------------------------------


def test_estimates_one_after_the_other():
    world = half_full().job("next", "a", 3, limit=50).job("last", "a", 4)
    ids = {name: job.id for name, job in world.jobs.items()}
    assert forecast(world.snapshot()) == {ids["big"]: 60, ids["next"]: 160, ids["last"]: 210}


def test_none_behind_what_has_no_end_or_is_overdue_or_held():
    world = one_team(node(gpus=4)).works("blocker", "a", 4).job("w", "a", 1)
    assert forecast(world.snapshot()) == {}
    world = half_full()
    world.now = 61
    assert forecast(world.snapshot()) == {}
    world.now = 0
    world.jobs["big"] = replace(world.jobs["big"], held="held")
    assert forecast(world.snapshot()) == {}


def test_a_forecast_ends_where_the_policy_says():
    world = half_full().job("next", "a", 3, limit=50).job("last", "a", 4)
    assert set(forecast(world.snapshot(), Policy(max_moments=2)).values()) == {60, 160}
    assert set(forecast(world.snapshot(), Policy(max_forecast_starts=1)).values()) == {60}
    assert set(forecast(world.snapshot(), Policy(max_looks=6)).values()) == {60}
    assert forecast(world.snapshot(), Policy(max_moments=0)) == {}
