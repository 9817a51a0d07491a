"""What fits, gangs whole or not at all, and what is said when there is no room."""

import pytest

from scheduling.core.model import Group
from tests.core.little_world import World, node, one_team, request

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
