"""Decisions in little worlds: what starts, and what is said about the rest."""

import pytest

from scheduling.core.decide import decide
from scheduling.core.model import Group, PendingJob, Snapshot
from tests.core.little_world import ALICE, BOB, World, node, request


def one_team(*nodes, **quota):
    return World().pool("train", *nodes).team("a", **quota)


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_one_freed_slot_lets_one_job_in():
    world = one_team(node(gpus=10), limit=2).runs("a", 1).jobs_of("a", 2)
    outcome = world.decide()
    assert outcome.started == ["a-1"]
    assert outcome.text("a-2") == "a is at its limit in train: 2 of 2 GPUs in use, this job needs 1"
    assert outcome.reason("a-2").helps == {"quota": {"team": "a", "limit": 3000, "by_milli": 1000}}


def test_siblings_together_stay_below_their_parents_limit():
    world = World().pool("train", node(gpus=10)).team("p", limit=2).team("p/c0", limit=2).team("p/c1", limit=2)
    outcome = world.job("j1", "c0", 2).job("j2", "c1", 2).decide()
    assert outcome.started == ["j1"]
    assert outcome.text("j2") == "p is at its limit in train: 2 of 2 GPUs in use, this job needs 2"


@pytest.mark.parametrize(("used", "starts"), [(8, []), (7, []), (6, []), (5, []), (4, ["a-1"])])
def test_a_limit_below_what_runs_lets_nothing_in_until_there_is_room_below_it(used, starts):
    outcome = one_team(node(gpus=10), limit=5).runs("a", times=used).jobs_of("a", 3).decide()
    assert outcome.started == starts


def test_over_the_limit_is_said_as_such():
    outcome = one_team(node(gpus=10), limit=5).runs("a", times=8).job("j", "a").decide()
    assert outcome.text("j") == "a is over its limit in train: 8 of 5 GPUs in use, over by 3; this job needs 1"
    assert outcome.reason("j").helps == {"quota": {"team": "a", "limit": 9000, "by_milli": 4000}}


def test_an_explicit_limit_of_0_says_so_and_no_limit_is_none():
    outcome = one_team(limit=0).job("j", "a").decide()
    assert outcome.text("j") == "a has limit 0 in train: this job needs 1"
    assert one_team(limit=None).job("j", "a").decide().started == ["j"]


def test_three_times_0_3_is_exactly_0_9():
    outcome = one_team(node(gpus=1), limit=0.9).job("j", "a", 0.3, tasks=3).decide()
    assert outcome.tasks == {"j": 3}
    assert outcome.share("a").allocated == 900


def test_a_child_limit_above_its_parents_hurts_nobody_else():
    world = World().pool("train", node(gpus=30)).team("p", limit=10).team("p/o", limit=20).team("z")
    outcome = world.job("big", "o", 16).job("small", "z").decide()
    assert outcome.started == ["small"]
    assert outcome.text("big") == "p would pass its limit in train: 0 of 10 GPUs in use, this job needs 16"


def test_a_job_that_asks_for_no_gpu_is_never_refused_for_gpu_quota():
    world = one_team(node(gpus=4), limit=4).runs("a", 4).job("cpu", "a", 0, cpu=2)
    outcome = world.job("sure", "a", 0, cpu=2, preemptible=False).decide()
    assert outcome.started == ["cpu", "sure"]
    assert outcome.share("a").allocated == 4000


def test_whole_devices_of_different_memory_count_as_whole():
    outcome = one_team(node(memory_mib=[24_576] * 7 + [24_000])).job("j", "a", 8).decide()
    (task,) = outcome.start("j").tasks
    assert (task.placement.milli, sum(task.placement.memory_mib)) == (8000, 196_032)


def test_a_cpu_pool_counts_cores():
    world = World().pool("cores", node(gpus=0, cpu=8), unit="cpu").team("a", limit=3)
    outcome = world.job("fits", "a", 0, cpu=2.5).job("over", "a", 0, cpu=1).decide()
    assert outcome.started == ["fits"]
    assert outcome.share("a").allocated == 2500
    assert outcome.text("over") == "a would pass its limit in cores: 2.5 of 3 cores in use, this job needs 1"


def test_what_one_member_may_hold():
    world = one_team(per_user_limit=2).runs("a", 1, user=ALICE).job("alice", "a", 2, user=ALICE)
    outcome = world.job("bob", "a", 2, user=BOB).decide()
    assert outcome.started == ["bob"]
    assert outcome.text("alice") == ("one member of a may hold 2 GPUs in train: 1 in use by this one, this job needs 2")
    assert outcome.reason("alice").helps == {"quota": {"team": "a", "per_user_limit": 3000, "by_milli": 1000}}


def test_each_member_is_told_what_they_hold():
    world = one_team(per_user_limit=2).runs("a", 1, user=ALICE).job("alice", "a", 3, user=ALICE)
    outcome = world.job("bob", "a", 3, user=BOB).decide()
    assert [outcome.reason(name).numbers["allocated"] for name in ("alice", "bob")] == [1000, 0]


def test_no_single_change_helps_where_two_limits_stand_in_the_way():
    world = World().pool("train").team("p", limit=2).team("p/a", limit=1).job("j", "a", 3)
    outcome = world.decide()
    assert outcome.reason("j").numbers["team"] == "a"
    assert outcome.reason("j").helps is None


def test_a_quota_is_no_help_where_there_is_no_room():
    outcome = one_team(node(gpus=2), limit=0).job("j", "a", 3).decide()
    assert outcome.waiting == {"j": ["over_limit"]}
    assert outcome.reason("j").helps is None


def test_a_members_limit_at_a_parent_counts_all_its_teams():
    world = World().pool("train").team("p", per_user_limit=2).team("p/a").team("p/b").runs("a", 1)
    assert world.job("j", "b", 2).decide().waiting == {"j": ["over_user_limit"]}


def test_a_class_is_capped_per_team_over_all_pools():
    capped = {"priority_class": "urgent", "max_running_of_class": 2}
    world = World().pool("x").pool("y").team("a").team("b").runs("a", pool="y", priority_class="urgent")
    world.jobs_of("a", 2, pool="x", **capped).job("normal", "a", pool="x").job("b-1", "b", pool="x", **capped)
    outcome = world.decide()
    assert sorted(outcome.started) == ["a-1", "b-1", "normal"]
    assert outcome.text("a-2") == "a may run 2 jobs of class urgent at a time: 2 running"


def test_what_cannot_be_preempted_stays_inside_the_guarantee():
    world = one_team(guaranteed=4).runs("a", 2).job("sure", "a", 3, preemptible=False).job("loose", "a", 3)
    outcome = world.decide()
    assert outcome.started == ["loose"]
    assert outcome.text("sure") == (
        "a job that cannot be preempted must stay inside the guarantee of a in train: "
        "5 of 4 GPUs in use, this job needs 3"
    )
    assert outcome.reason("sure").helps == {"request": {"preemptible": True}}


def test_exactly_the_guarantee_is_inside_it():
    assert one_team(guaranteed=4).runs("a", 1).job("sure", "a", 3, preemptible=False).decide().started == ["sure"]


# ---- reserves --------------------------------------------------------------------------------------------------------


def test_what_others_have_reserved_is_not_lent_while_idle():
    world = World().pool("train").team("a", guaranteed=3, reserved=3).team("b").jobs_of("b", 8)
    outcome = world.decide()
    assert len(outcome.started) == 5
    assert outcome.text("b-6") == "3 of 3 free GPUs in train stay reserved for a: this job needs 1"
    assert sorted(world.job("own", "a", 3).decide().started) == ["b-1", "b-2", "b-3", "b-4", "b-5", "own"]


def test_only_the_unused_part_of_a_reserve_is_kept():
    world = World().pool("train").team("a", guaranteed=3, reserved=3).team("b").runs("a", 2).jobs_of("b", 8)
    assert len(world.decide().started) == 5


def test_a_reserve_below_a_department_holds_beside_it_and_inside_its_limit():
    world = World().pool("train").team("p", limit=5).team("p/a", guaranteed=2, reserved=2).team("p/b").team("q")
    assert len(world.jobs_of("b", 8).decide().started) == 3
    assert len(world.jobs_of("q", 8).decide().started) == 6


def test_guarantees_go_before_reserves_when_capacity_is_lost():
    world = World().pool("train").team("a", guaranteed=6, reserved=6).team("b", guaranteed=4).jobs_of("b", 8)
    assert len(world.decide().started) == 4


# ---- room ------------------------------------------------------------------------------------------------------------


def test_sixteen_slices_of_0_6_run_and_the_next_is_told_why_it_does_not():
    world = one_team(node("n0"), node("n1"), limit=None).jobs_of("a", 17, 0.6)
    outcome = world.decide()
    assert len(outcome.started) == 16
    assert len({start.tasks[0].placement.device_ids for start in outcome.plan.starts}) == 16
    assert outcome.share("a").allocated == 9600
    assert outcome.text("a-17") == (
        "no single GPU has 0.6 free: 6.4 GPUs are free in all, the largest free piece is 0.4"
    )
    assert outcome.reason("a-17").helps == {"free_milli": 200, "request": {"gpus": 0.4}}


def test_memory_fills_up_before_compute():
    world = one_team(node(gpus=4, memory_mib=23_000)).jobs_of("a", 9, 0.05, memory_mib=10_000)
    outcome = world.decide()
    assert len(outcome.started) == 8
    assert outcome.text("a-9") == "no GPU has 10000 MiB free: the largest free memory of one GPU is 3000 MiB"


def test_two_of_three_halves_of_the_last_free_card():
    world = one_team(node(gpus=8, memory_mib=24_000)).runs("a", 7).jobs_of("a", 3, 0.3, memory_mib=12_000)
    outcome = world.decide()
    assert outcome.started == ["a-1", "a-2"]
    assert "no GPU has 12000 MiB free" in outcome.text("a-3")


def test_memory_is_counted_to_the_mib():
    outcome = one_team(node(gpus=1, memory_mib=46_068)).jobs_of("a", 12, 0.05, memory_mib=4000).decide()
    assert len(outcome.started) == 11
    assert outcome.waiting == {"a-12": ["no_fit"]}


def test_the_charge_of_a_memory_size_is_known_where_it_lands():
    world = one_team(node(gpus=1, memory_mib=80_000), limit=0.5).jobs_of("a", 3, None, memory_mib=20_000)
    outcome = world.decide()
    assert outcome.started == ["a-1", "a-2"]
    assert outcome.share("a").allocated == 500
    assert outcome.waiting == {"a-3": ["over_limit"]}


def test_a_memory_size_that_lands_on_a_small_card_counts_more_than_the_least():
    world = one_team(node("small", gpus=1, memory_mib=20_000), node("large", gpus=1, memory_mib=80_000), limit=0.25)
    outcome = world.job("j", "a", None, memory_mib=10_000).decide()
    assert outcome.waiting == {"j": ["over_limit"]}
    assert outcome.reason("j").numbers["requested"] == 500


def test_a_memory_size_is_tried_again_when_something_else_has_taken_the_small_card():
    world = World().pool("train", node("small", gpus=1, memory_mib=20_000), node("large", gpus=1, memory_mib=80_000))
    world.team("a", limit=0.25).team("b").job("j", "a", None, memory_mib=10_000).job("k", "b")
    outcome = world.decide()
    assert outcome.started == ["k", "j"]
    assert outcome.share("a").allocated == 150


def test_the_healthy_device_beside_a_broken_one_is_used():
    outcome = one_team(node(gpus=2, failed=(0,))).jobs_of("a", 2).decide()
    assert outcome.started == ["a-1"]
    assert outcome.start("a-1").tasks[0].placement.device_indexes == (1,)
    assert outcome.text("a-2") == "train is full: no GPU is free"


def test_a_cordoned_node_is_no_room_and_is_mentioned():
    world = one_team(node("n1", gpus=4, schedulable=False), node("n2", gpus=4)).jobs_of("a", 2, 4)
    outcome = world.decide()
    assert outcome.started == ["a-1"]
    assert outcome.start("a-1").tasks[0].placement.node_id == 2
    assert outcome.text("a-2") == "train is full: no GPU is free; 1 node that matches is cordoned or not ready"


def test_only_cordoned_nodes_left():
    outcome = one_team(node(schedulable=False)).job("j", "a").decide()
    assert outcome.text("j") == (
        "no node of train that matches takes new tasks; 1 node that matches is cordoned or not ready"
    )


def test_no_such_accelerator():
    outcome = one_team().job("j", "a", models=("H100",), min_device_memory_mib=90_000).decide()
    assert outcome.waiting == {"j": ["no_matching_accelerator"]}
    assert outcome.text("j") == "no accelerator in train matches: model H100, at least 90000 MiB"


def test_too_large_even_for_an_empty_node():
    outcome = one_team(node(gpus=8)).job("j", "a", 16, cpu=4).decide()
    assert outcome.text("j") == "no node of train is large enough for 16 GPUs and 4 cores, even when empty"


def test_short_of_cpu():
    outcome = one_team(node(cpu=4), node(cpu=2)).runs("a", 0, cpu=3).job("j", "a", 0.5, cpu=3).decide()
    assert outcome.text("j") == (
        "no node with room on its GPUs has 3 cores free: 3 cores are free in all, the most on one node is 2"
    )


def test_a_job_that_does_not_fit_blocks_nobody_behind_it():
    assert one_team(node(gpus=2)).job("big", "a", 8).job("small", "a").decide().started == ["small"]


# ---- gangs -----------------------------------------------------------------------------------------------------------


def test_of_two_gangs_that_need_everything_exactly_one_starts():
    world = one_team(*(node(gpus=1) for _ in range(10)))
    outcome = world.job("g1", "a", tasks=10, at=5).job("g2", "a", tasks=10, at=5).decide()
    assert outcome.tasks == {"g1": 10}
    assert outcome.waiting == {"g2": ["no_fit"]}


@pytest.mark.parametrize("tasks", [5, 50])
def test_a_gang_that_does_not_fit_whole_holds_nothing(tasks):
    world = one_team(*(node(gpus=1) for _ in range(4))).job("gang", "a", tasks=tasks).job("small", "a")
    outcome = world.decide()
    assert outcome.tasks == {"small": 1}
    assert outcome.text("gang") == f"{tasks} tasks must start together and there is room for 3: 3 GPUs are free in all"


def test_a_gang_starts_with_its_least_and_takes_what_there_is():
    outcome = one_team(node(gpus=6)).job("elastic", "a", tasks=8, min_tasks=4).decide()
    assert outcome.tasks == {"elastic": 6}
    assert outcome.text("elastic") == "train is full: no GPU is free"


def test_the_least_of_another_team_goes_before_the_extras():
    world = World().pool("train").team("a", guaranteed=4).team("b", guaranteed=4)
    outcome = world.job("elastic", "a", tasks=8, min_tasks=4).job("other", "b", 4).decide()
    assert outcome.tasks == {"elastic": 4, "other": 1}
    assert outcome.started == ["elastic", "other"]


def test_the_least_of_a_later_job_of_the_team_goes_before_the_extras():
    outcome = one_team().job("elastic", "a", tasks=8, min_tasks=1).jobs_of("a", 3).decide()
    assert outcome.tasks == {"elastic": 5, "a-1": 1, "a-2": 1, "a-3": 1}


def test_extras_stop_at_the_limit():
    outcome = one_team(limit=3).job("elastic", "a", tasks=8, min_tasks=2).decide()
    assert outcome.tasks == {"elastic": 3}
    assert outcome.waiting == {"elastic": ["over_limit"]}


def test_a_running_job_grows_as_room_allows_and_says_why_it_does_not_grow_more():
    world = one_team(node(gpus=4)).runs("a", 2).job("grows", "a", tasks=6, min_tasks=2, placed=2, growing=True)
    outcome = world.decide()
    assert outcome.tasks == {"grows": 2}
    assert outcome.start("grows").rule == "growth"
    assert outcome.text("grows") == "train is full: no GPU is free"
    assert outcome.share("a").pending == 2000


def test_a_running_gang_below_its_least_gets_all_that_is_missing_or_nothing():
    asks = {"tasks": 4, "min_tasks": 4, "placed": 1, "growing": True}
    short = one_team(node(gpus=3)).runs("a", 1).job("hurt", "a", **asks).decide()
    assert short.waiting == {"hurt": ["gang_incomplete"]}
    assert short.tasks == {}
    assert one_team(node(gpus=4)).runs("a", 1).job("hurt", "a", **asks).decide().tasks == {"hurt": 3}


def test_groups_start_together():
    groups = (Group("workers", 4, 4, request(1)), Group("servers", 2, 2, request(0, cpu=60)))
    whole = one_team(node(cpu=64), node(cpu=64)).job("j", "a", groups=groups).decide()
    assert whole.tasks == {"j": 6}
    assert [task.group for task in whole.start("j").tasks] == [0, 0, 0, 0, 1, 1]
    short = one_team(node(cpu=64)).job("j", "a", groups=groups).job("small", "a", 8).decide()
    assert short.tasks == {"small": 1}
    assert short.waiting == {"j": ["no_fit"]}


def test_a_mixed_gang_that_lacks_one_kind():
    groups = (Group("workers", 4, 4, request(1)), Group("servers", 2, 2, request(0, cpu=60)))
    outcome = one_team(node(cpu=64)).job("j", "a", groups=groups).decide()
    assert outcome.text("j") == "6 tasks must start together and there is room for 5: 8 GPUs are free in all"


def test_a_mixed_gang_with_a_group_that_can_never_run_names_that_group():
    groups = (Group("workers", 1, 1, request(4)), Group("eyes", 1, 1, request(1, models=("H100",))))
    outcome = one_team().job("j", "a", groups=groups).decide()
    assert outcome.text("j") == "no accelerator in train matches: model H100"
    groups = (Group("workers", 1, 1, request(4)), Group("heads", 1, 1, request(1, cpu=999)))
    outcome = one_team().job("j", "a", groups=groups).decide()
    assert outcome.text("j") == "no node of train is large enough for 1 GPU and 999 cores, even when empty"


def test_each_group_grows_on_its_own():
    groups = (Group("workers", 6, 2, request(2)), Group("helpers", 3, 1, request(0.5)))
    outcome = one_team(node(gpus=8)).job("j", "a", groups=groups).decide()
    by_group = [task.group for task in outcome.start("j").tasks]
    assert (by_group.count(0), by_group.count(1)) == (3, 3)


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


# ---- held, bounded, told ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "numbers", "code", "text"),
    [
        ("held", {"by": "its owner"}, "held", "held: its owner"),
        ("held", {"after": [7, 8]}, "held", "waits for 2 jobs to succeed: 7 and 8"),
        (
            "budget_spent",
            {"team": "a", "budget": "10.00", "spent": "10.02"},
            "budget_spent",
            "the budget of a is spent: 10.02 of 10.00",
        ),
        ("budget_spent", {}, "held", "held: budget_spent"),
        ("something new", {}, "held", "held: something new"),
    ],
)
def test_a_held_job_is_passed_over_and_says_so(held, numbers, code, text):
    outcome = one_team(node(gpus=1)).job("j", "a", held=held, held_numbers=numbers).job("next", "a").decide()
    assert outcome.started == ["next"]
    assert outcome.waiting == {"j": [code]}
    assert outcome.text("j") == text
    assert outcome.share("a").pending == 0


def test_a_cycle_can_be_bounded():
    outcome = one_team().jobs_of("a", 4).job("no", "a", 9).decide(max_starts=2)
    assert outcome.started == ["a-1", "a-2"]
    assert outcome.text("a-3") == "next in line: one cycle starts at most 2 jobs"
    assert outcome.waiting == {"a-3": ["next_cycle"], "a-4": ["next_cycle"], "no": ["no_fit"]}


def test_a_start_carries_its_rule_and_what_it_saw():
    world = one_team(guaranteed=2, limit=6).runs("a", 1).jobs_of("a", 2)
    first, second = world.decide().plan.starts
    seen = {"team": "a", "requested": 1000, "guaranteed": 2000, "deserved": 3000, "limit": 6000}
    assert (first.rule, first.numbers) == ("guarantee", seen | {"allocated": 1000})
    assert (second.rule, second.numbers) == ("share", seen | {"allocated": 2000})


def test_every_team_has_its_share_in_every_pool():
    world = World().pool("x").pool("y").team("p", limit=6).team("p/a", guaranteed=2).job("j", "a", 3, pool="x")
    outcome = world.decide()
    assert set(outcome.plan.shares) == {1, 2}
    assert all(set(shares) == {1, 2} for shares in outcome.plan.shares.values())
    share = outcome.share("p", "x")
    assert (share.allocated, share.pending, share.demand, share.limit) == (3000, 0, 3000, 6000)
    assert (share.guaranteed, share.deserved) == (2000, 3000)


def test_reasons_are_shared_by_jobs_alike():
    outcome = one_team(limit=0).jobs_of("a", 3).decide()
    assert outcome.reasons("a-1") is outcome.reasons("a-2") is outcome.reasons("a-3")


# ---- purity ----------------------------------------------------------------------------------------------------------


def test_deciding_twice_gives_the_same_plan_and_leaves_the_fleet_alone():
    world = World().pool("train", node(gpus=4)).team("a").team("b").runs("a", 0.5)
    world.jobs_of("a", 3, 0.5, tasks=2).jobs_of("b", 3, 0.3).job("gang", "b", tasks=9)
    fleet = world.pools["train"].fleet
    free = fleet.free_milli()
    first = world.decide().plan
    assert fleet.free_milli() == free
    assert world.decide().plan == first


def test_the_order_of_the_picture_changes_nothing():
    world = World().pool("x", node(gpus=2)).pool("y", node(gpus=2)).team("a").team("a/c").team("b")
    world.jobs_of("a", 3, at=1, pools=["x", "y"]).jobs_of("b", 3, at=1, pool="y").jobs_of("c", 3, at=1, pool="x")
    snapshot = world.snapshot()
    mirrored = Snapshot(0, snapshot.teams[::-1], snapshot.pools[::-1], snapshot.pending[::-1])
    assert decide(mirrored) == decide(snapshot)


def test_the_fleet_is_left_alone_when_the_picture_is_wrong():
    world = one_team().job("good", "a").job("bad", "a", groups=(Group("main", 1, 1, request(1, cpu=0)),))
    wrong = Group("main", 1, 1, request(1, devices=-1))
    world.job("wrong", "a", groups=(wrong,))
    fleet = world.pools["train"].fleet
    with pytest.raises(ValueError, match="negative"):
        world.decide()
    assert fleet.free_milli() == 8000


def test_a_job_of_a_team_that_is_not_there_is_refused_as_a_whole():
    world = one_team()
    stray = PendingJob(1, 99, ALICE, (1,), (Group("main", 1, 1, request()),), 0)
    snapshot = world.snapshot()
    with pytest.raises(ValueError, match="team 99"):
        decide(Snapshot(0, snapshot.teams, snapshot.pools, (stray,)))


def test_a_queue_that_cannot_start_is_not_tried_job_by_job():
    world = World().pool("train", node(gpus=8))
    for i in range(20):
        world.team(f"t{i}")
    world.runs("t0", 7.0)
    for i in range(1000):
        world.job(f"j{i}", f"t{i % 20}", 2 + i % 4, tasks=1 + i % 2)
    fleet = world.pools["train"].fleet
    before = fleet.version
    outcome = world.decide()
    assert len(outcome.waiting) == 1000
    assert fleet.version - before < 20
