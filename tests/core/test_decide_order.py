"""Whose job starts, in one pool and over several."""

from scheduling.core.decide import decide
from scheduling.core.model import Snapshot
from tests.core.little_world import World, node, one_team

# ---- whose turn ------------------------------------------------------------------------------------------------------


def test_the_last_free_devices_go_to_the_team_that_has_less():
    world = World().pool("train", node(gpus=4)).team("a").team("b").runs("a", times=2)
    outcome = world.job("a2", "a").job("b0", "b").job("b1", "b").decide()
    assert outcome.started == ["b0", "b1"]
    assert (outcome.share("a").deserved, outcome.share("b").deserved) == (2000, 2000)


def test_teams_below_their_guarantee_go_first():
    world = World().pool("train", node(gpus=4)).team("a", weight=9).team("b", guaranteed=3, weight=0)
    assert world.jobs_of("a", 4).jobs_of("b", 4).decide().started == ["b-1", "b-2", "b-3", "a-1"]


def test_then_the_lowest_allocated_to_deserved():
    world = World().pool("train", node(gpus=6)).team("a", weight=1).team("b", weight=2)
    outcome = world.jobs_of("a", 6).jobs_of("b", 6).decide()
    assert outcome.started == ["a-1", "b-1", "b-2", "a-2", "b-3", "b-4"]


def test_then_whose_oldest_job_waits_longest_also_when_that_job_was_passed_over():
    world = World().pool("train", node(gpus=2)).team("a").team("b")
    world.job("a-big", "a", 5, at=3).job("a-small", "a", at=4).job("b-small", "b", at=2).job("b-next", "b", at=9)
    assert world.decide().started == ["b-small", "a-small"]
    world.job("a-huge", "a", 8, at=1)
    assert world.decide().started == ["a-small", "b-small"]


def test_who_deserves_nothing_comes_last():
    world = World().pool("train", node(gpus=3)).team("a", weight=0).team("b")
    assert world.jobs_of("a", 2).jobs_of("b", 2).decide().started == ["b-1", "b-2", "a-1"]


def test_priority_orders_inside_a_team_only():
    world = World().pool("train", node(gpus=3)).team("a").team("b")
    world.job("a-low", "a", priority=100).job("a-high", "a", priority=900).job("b-low", "b", priority=100)
    assert world.decide().started == ["a-high", "b-low", "a-low"]


def test_equal_priorities_go_by_submission_and_then_by_id():
    world = one_team(node(gpus=2)).job("late", "a", at=9).job("first", "a", at=5).job("second", "a", at=5)
    assert world.decide().started == ["first", "second"]


def test_cluster_wide_goes_ahead_of_every_team():
    world = World().pool("train", node(gpus=2)).team("a", guaranteed=2).team("b")
    world.jobs_of("a", 2).job("urgent", "b", priority=2000, cluster_wide=True)
    outcome = world.decide()
    assert outcome.started == ["urgent", "a-1"]
    assert outcome.start("urgent").rule == "cluster_wide"


def test_cluster_wide_is_no_way_past_a_limit():
    world = one_team(limit=0).job("urgent", "a", cluster_wide=True)
    assert world.decide().waiting == {"urgent": ["over_limit"]}


def test_the_walk_goes_down_the_tree():
    world = World().pool("train", node(gpus=4)).team("p").team("p/a").team("p/b").team("q")
    world.jobs_of("a", 4).jobs_of("b", 4).jobs_of("q", 4)
    assert world.decide().started == ["a-1", "q-1", "b-1", "q-2"]


def test_a_parents_own_jobs_take_their_turn_beside_its_children():
    world = World().pool("train", node(gpus=4)).team("p").team("p/a")
    assert world.jobs_of("p", 4).jobs_of("a", 4).decide().started == ["p-1", "a-1", "p-2", "a-2"]


# ---- several pools ---------------------------------------------------------------------------------------------------


def test_a_full_pool_does_not_block_another():
    world = World().pool("x", node(gpus=4)).pool("y", node(gpus=4)).team("a").runs("a", 4, pool="x")
    outcome = world.job("jx", "a", 2, pool="x").job("jy", "a", 2, pool="y").job("late", "a", 2, pool="x").decide()
    assert outcome.where == {"jy": "y"}
    assert outcome.text("jx") == "x is full: no GPU is free"


def test_order_is_kept_inside_each_pool():
    world = World().pool("x", node(gpus=2)).pool("y").team("a")
    outcome = world.job("jx", "a", 2, pool="x").job("jy", "a", 2, pool="y").job("late", "a", 2, pool="x").decide()
    assert outcome.where == {"jx": "x", "jy": "y"}


def test_the_first_choice_is_tried_first_and_then_the_next():
    world = World().pool("a100").pool("h100", node(gpus=2)).team("a")
    outcome = world.jobs_of("a", 3, pools=["h100", "a100"]).decide()
    assert outcome.where == {"a-1": "h100", "a-2": "h100", "a-3": "a100"}


def test_a_job_that_starts_nowhere_hears_from_each_pool_by_name():
    world = World().pool("x", node(gpus=1)).pool("y", node(gpus=1)).team("a", limit=0).quota("a", "y", limit=None)
    outcome = world.runs("a", pool="y").job("j", "a", pools=["x", "y"]).decide()
    assert [(r.code, r.pool_id, r.numbers["pool"]) for r in outcome.reasons("j")] == [
        ("over_limit", 1, "x"),
        ("no_fit", 2, "y"),
    ]


def test_the_second_choice_is_shared_in_its_own_order():
    """Who falls back on a pool comes to it in the order of its teams, not behind everyone who named it first."""
    world = World().pool("x", node(gpus=1)).pool("y", node(gpus=2)).team("a").team("b").runs("a", pool="x")
    world.jobs_of("a", 4, pool="y").jobs_of("b", 2, pools=["x", "y"])
    assert world.decide().where == {"a-1": "y", "b-1": "y"}


def test_what_starts_in_one_pool_is_no_demand_in_another():
    world = World().pool("x", node(gpus=4)).pool("y", node(gpus=4)).team("a").team("b")
    outcome = world.jobs_of("a", 4, pools=["x", "y"]).jobs_of("b", 4, pool="y").decide()
    assert set(outcome.where.values()) == {"x", "y"}
    assert outcome.share("a", "y").demand == 0
    assert outcome.share("b", "y").deserved == 4000


def test_the_order_in_a_pool_does_not_count_what_has_started_elsewhere():
    world = World().pool("x", node(gpus=4)).pool("y", node(gpus=6)).team("a").team("b").runs("a", pool="y")
    world.jobs_of("a", 4, pools=["x", "y"]).job("a-y", "a", pool="y").jobs_of("b", 6, pool="y")
    in_y = [name for name in world.decide().started if name in ("a-y", "b-1", "b-2", "b-3")]
    assert in_y == ["b-1", "b-2", "a-y", "b-3"]  # 1 of the 2 that a deserves against 0, 1 and 2 of 4


def test_who_comes_by_way_of_another_pool_does_not_go_ahead_in_the_first():
    world = World().pool("y").pool("x", node(gpus=1)).team("a").team("b").quota("b", "x", guaranteed=1)
    outcome = world.job("either", "a", pools=["x", "y"]).job("entitled", "b", pool="x").decide()
    assert outcome.where == {"entitled": "x", "either": "y"}


def test_an_unavailable_pool_is_passed_over_and_named():
    world = World().pool("off", available=False).pool("on", node(gpus=1)).team("a")
    outcome = world.job("both", "a", pools=["off", "on"]).job("only", "a", pool="off").decide()
    assert outcome.where == {"both": "on"}
    assert outcome.text("only") == "pool off takes no new jobs: its engine is out of reach or the operator paused it"


def test_a_pool_that_is_gone_is_no_end_of_the_world():
    world = one_team().job("j", "a")
    snapshot = world.snapshot()
    plan = decide(Snapshot(0, snapshot.teams, (), snapshot.pending))
    assert [reason.code for reason in plan.reasons[1]] == ["pool_unavailable"]
