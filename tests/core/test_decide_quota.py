"""Who may hold what: limits, guarantees of what cannot be preempted, and what others have reserved."""

import pytest

from tests.core.little_world import ALICE, BOB, World, node, one_team

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
