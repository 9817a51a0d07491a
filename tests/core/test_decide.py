"""What a plan holds beside its starts, and that deciding leaves everything as it was."""

import pytest

from scheduling.core.decide import decide
from scheduling.core.model import Group, PendingJob, Snapshot
from tests.core.little_world import ALICE, World, node, one_team, request

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
    outcome = one_team(node(gpus=1)).jobs_of("a", 3, 2).decide()
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
