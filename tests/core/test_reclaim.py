"""Who gives way to whom: worked out by hand, in whole GPUs."""

import pytest

from scheduling.core.reasons import message
from tests.core.little_world import BOB, World, node, one_team


def two_teams(gpus=8, a=4, b=4, nodes=None, **more):
    """One node of ``gpus``, teams a and b with these guarantees."""
    world = World().pool("train", *(nodes or [node("n", gpus)]), **more)
    return world.team("a", guaranteed=a).team("b", guaranteed=b)


def test_what_was_borrowed_comes_back_and_no_more_than_is_needed():
    outcome = two_teams().works_of("a", 8).job("b1", "b", 2).decide()
    assert outcome.evicted == {"a-r8": "all", "a-r7": "all"}
    (reason,) = outcome.reasons("b1")
    assert (reason.code, reason.numbers["jobs"]) == ("waiting_for_preemption", [1006, 1007])
    first = outcome.plan.evictions[0]
    assert (first.rule, first.whole, first.for_job) == ("reclaim", True, 1)
    assert first.numbers == {
        "team": "a", "allocated": 8000, "guaranteed": 4000, "deserved": 6000, "freed": 1000, "requested": 2000,
    }  # fmt: skip


def test_the_latest_started_goes_first():
    world = two_teams().works_of("a", 4, prefix="old", at=9).works_of("a", 2, prefix="new", at=10)
    outcome = world.jobs_of("b", 4).decide()
    assert outcome.started == ["b-1", "b-2"]
    assert set(outcome.evicted) == {"new-r1", "new-r2"}


def test_the_lowest_priority_goes_before_the_latest_started():
    world = two_teams().works("low", "a", 4, priority=100, at=1).works("late", "a", 4, at=9)
    assert world.job("b1", "b", 4).decide().evicted == {"low": "all"}


def test_the_team_furthest_above_goes_first():
    world = World().pool("train", node("n", 8)).team("a", guaranteed=1).team("b", guaranteed=1).team("c", guaranteed=3)
    world.works_of("a", 3).works_of("b", 5)
    outcome = world.jobs_of("c", 1).decide()
    assert list(outcome.evicted) == ["b-r5"]


def test_nobody_who_is_within_what_it_deserves_gives_way():
    assert two_teams().works_of("a", 4).works_of("b", 4).job("b1", "b", 1).decide().evicted == {}


def test_more_than_is_deserved_makes_nobody_give_way():
    world = two_teams().works_of("a", 4, 2).job("gang", "b", 1, tasks=5)
    outcome = world.decide()
    assert outcome.evicted == {}
    assert "freeable_milli" not in outcome.reason("gang").numbers  # it is not entitled to so much


def test_an_indivisible_job_does_not_shield_what_it_borrowed_from_a_guarantee():
    world = two_teams(8, 3, 5).works("j1", "a", 4).works("j2", "b", 1).job("j3", "b", 4)
    assert world.decide().evicted == {"j1": "all"}


def test_beyond_the_guarantee_no_team_is_taken_below_what_it_deserves():
    world = World().pool("train", node("n", 4)).team("a").team("b")
    outcome = world.works("big", "a", 3).works("small", "a", 1).job("b1", "b", 2).decide()
    assert outcome.evicted == {}
    assert outcome.text("b1").endswith("; 2 GPUs needed, at most 1 can be freed")


def test_a_huge_weight_shields_nothing():
    world = World().pool("train", node("n", 4)).team("a", guaranteed=4).team("b", guaranteed=0, weight=1_000_000)
    outcome = world.works_of("b", 4).jobs_of("a", 4).decide()
    assert len(outcome.evicted) == 4
    assert all(outcome.waiting[f"a-{i}"] == ["waiting_for_preemption"] for i in range(1, 5))


def test_what_cannot_be_preempted_never_gives_way():
    world = two_teams().works_of("a", 4, preemptible=False).works("loose", "a", 4, at=0)
    assert world.job("b1", "b", 4).decide().evicted == {"loose": "all"}
    assert two_teams().works_of("a", 8, preemptible=False).job("b1", "b", 4).decide().evicted == {}


def test_an_elastic_job_shrinks_before_anyone_is_stopped():
    world = two_teams().works("a1", "a", 1, tasks=7, least=4).works("new", "a", 1, at=9_999)
    outcome = world.job("b1", "b", 3).decide()
    assert outcome.evicted == {"a1": 3}
    (eviction,) = outcome.plan.evictions
    assert eviction.allocation_ids == (100004, 100005, 100006)


def test_an_elastic_job_is_stopped_where_shrinking_is_not_enough():
    world = two_teams(8, 1, 7).works("a1", "a", 1, tasks=8, least=4)
    outcome = world.job("b1", "b", 7).decide()
    assert outcome.evicted == {"a1": "all"}
    assert len(outcome.plan.evictions[0].allocation_ids) == 8


def test_an_elastic_job_with_no_minimum_is_not_left_with_nothing():
    outcome = two_teams(4, 0, 4).works("a1", "a", 1, tasks=4, least=0).job("b1", "b", 4).decide()
    assert outcome.evicted == {"a1": "all"}


def test_priority_preempts_inside_the_team():
    world = one_team(node("n", 4)).works("low", "a", 4, priority=100).job("high", "a", 4, priority=900)
    outcome = world.decide()
    assert outcome.evicted == {"low": "all"}
    (eviction,) = outcome.plan.evictions
    assert eviction.rule == "preempt"
    assert (eviction.numbers["priority"], eviction.numbers["over_priority"]) == (100, 900)


def test_equal_priorities_never_preempt_one_another():
    assert one_team(node("n", 1)).works("r", "a").job("j", "a").decide().evicted == {}


def test_priority_says_nothing_to_other_teams():
    world = two_teams().works_of("a", 4, priority=100).works_of("b", 4, priority=100)
    assert world.job("high", "a", 5, priority=900).decide().evicted == {}
    assert list(world.job("higher", "b", 1, priority=900).decide().evicted) == ["b-r4"]


def test_a_gang_that_would_still_not_fit_makes_nobody_give_way():
    world = one_team(*(node(f"n{i}", 1) for i in range(4)))
    world.works_of("a", 2, prefix="low", priority=100).works_of("a", 2, prefix="high", priority=900)
    outcome = world.job("gang", "a", 1, tasks=4, priority=900).decide()
    assert outcome.evicted == {}
    numbers = outcome.reason("gang").numbers
    assert (numbers["needed_milli"], numbers["freeable_milli"]) == (4000, 2000)
    assert outcome.text("gang").endswith("; 4 GPUs needed, at most 2 can be freed")


def test_what_the_team_itself_gives_back_counts_against_its_limit():
    world = World().pool("train", node("n", 8)).team("a", limit=2)
    world.works("low", "a", 2, priority=100).job("high", "a", 2, priority=900)
    assert world.decide().evicted == {"low": "all"}


def test_a_sibling_gives_back_what_it_uses_up_of_the_parents_limit():
    world = World().pool("train", node("n", 8)).team("r", limit=4).team("r/x", guaranteed=2).team("r/y", guaranteed=2)
    outcome = world.works_of("x", 4).job("y1", "y", 2).decide()
    assert outcome.evicted == {"x-r4": "all", "x-r3": "all"}


def test_a_cousin_gives_way_where_its_whole_branch_is_above():
    world = World().pool("train", node("n", 8)).team("p", guaranteed=4).team("q", guaranteed=4)
    world.team("p/p1", guaranteed=4).team("q/q1", guaranteed=2).team("q/q2", guaranteed=2)
    outcome = world.works_of("q1", 4, at=1).works_of("q2", 4, at=2).job("j", "p1", 4).decide()
    assert sorted(outcome.evicted) == ["q1-r3", "q1-r4", "q2-r3", "q2-r4"]
    below = World().pool("train", node("n", 8)).team("p", guaranteed=4).team("q", guaranteed=4)
    below.team("p/p1", guaranteed=4).team("q/q1", guaranteed=1).team("q/q2", guaranteed=3)
    below.works_of("q1", 4).works_of("p1", 4)  # q1 borrows, but inside q's share
    assert below.job("j", "p1", 1).decide().evicted == {}


def test_nobody_is_told_to_go_before_its_least_time():
    world = two_teams(4, 0, 4).works("a1", "a", 4, protected_until=100).job("b1", "b", 4)
    world.now = 99
    assert world.decide().evicted == {}
    world.now = 100
    assert world.decide().evicted == {"a1": "all"}


def test_while_victims_stop_no_more_are_chosen_and_nobody_takes_what_they_free():
    world = two_teams().works_of("a", 6).works("v", "a", 1, releasing=1, for_job=1).runs("b", 0, cpu=1)
    outcome = world.job("b1", "b", 2, room_made_at=1).job("a9", "a", 1).decide()
    assert outcome.started == []
    assert outcome.evicted == {}
    assert outcome.waiting == {"b1": ["waiting_for_preemption"], "a9": ["reserved_for"]}
    assert outcome.text("b1") == "waits until 1 job that gives way has stopped: 1006"


def test_room_that_was_made_is_taken_before_anyone_else_starts():
    world = two_teams(8, 3, 5).works("j2", "b", 1).job("j1", "a", 4, at=1).job("j3", "b", 4, at=2, room_made_at=5)
    outcome = world.decide()
    assert outcome.started == ["j3"]
    assert outcome.evicted == {}


def test_two_who_wait_share_nobody():
    world = two_teams().works_of("a", 8).job("b1", "b", 2).job("b2", "b", 2)
    outcome = world.decide()
    assert len(outcome.evicted) == 4
    assert {e.for_job for e in outcome.plan.evictions} == {1, 2}


def test_a_gang_in_one_node_takes_it_from_the_node_where_least_goes():
    world = two_teams(nodes=[node("n", 4), node("m", 4)], score="spread")
    world.works_of("a", 8, at=1)
    outcome = world.job("b1", "b", 4).decide()
    assert len(outcome.evicted) == 4
    (first, *others) = [world.running[name].tasks[0].placement.node for name in outcome.evicted]
    assert others == [first] * 3


def test_only_nodes_that_match_are_freed():
    world = two_teams(nodes=[node("n", 4), node("m", 4, model="H100")])
    world.works_of("a", 4, prefix="x", at=1).works_of("a", 4, prefix="y", at=2)
    outcome = world.job("b1", "b", 4, models=("A100",)).decide()
    assert sorted(outcome.evicted) == ["x-r1", "x-r2", "x-r3", "x-r4"]


def test_cpu_only_jobs_free_no_gpus():
    world = two_teams(1, 0, 1, nodes=[node("n", 1, cpu=4)]).works("c", "a", 0, cpu=4)
    assert world.job("b1", "b", 1, cpu=1).decide().evicted == {}


def test_preemption_and_reclaim_together():
    world = two_teams(6, 2, 4).works_of("a", 4).works("low", "b", 2, priority=100)
    outcome = world.job("high", "b", 4, priority=900).decide()
    assert {e.rule for e in outcome.plan.evictions} == {"reclaim", "preempt"}
    assert outcome.evicted == {"low": "all", "a-r4": "all", "a-r3": "all"}


def test_a_job_that_cannot_be_preempted_reclaims_its_guarantee():
    assert len(two_teams().works_of("a", 8).job("b1", "b", 4, preemptible=False).decide().evicted) == 4


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_cycle_makes_room_for_no_more_than_its_bound(most):
    outcome = two_teams().works_of("a", 8).jobs_of("b", 4).decide(max_rescues=most)
    assert len(outcome.evicted) == most


def test_memory_shares_are_freed_too():
    world = two_teams(1, 0, 1).works("v", "a", None, memory_mib=60_000, user=BOB)
    assert world.job("b1", "b", None, memory_mib=40_000).decide().evicted == {"v": "all"}


def test_the_message_of_a_waiting_job_names_who_gives_way():
    outcome = two_teams().works_of("a", 8).job("b1", "b", 1).decide()
    (reason,) = outcome.reasons("b1")
    assert message(reason) == "waits until 1 job that gives way has stopped: 1007"


@pytest.mark.parametrize("nodes", [[node("n", 2)], [node("n", 1), node("m", 1)]])
def test_a_job_that_holds_no_gpu_is_nobodys_victim_and_in_nobodys_way(nodes):
    world = World().pool("train", *nodes).team("a", guaranteed=2).team("b").team("c")
    world.works("cores", "c", 0, cpu=4).works_of("b", 2).job("own", "a", 1)
    assert world.decide().evicted == {"b-r2": "all"}
