"""Deserved shares worked out by hand, in whole GPUs where nothing else is said."""

import pytest

from scheduling.core.model import Quota, Team
from scheduling.core.shares import deserved_shares, water_fill
from scheduling.core.tree import Tree

GPU = 1000


class World:
    """A pool of ``capacity`` GPUs and its teams, oldest first. A team is below the one before its slash."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.teams, self.quotas, self.running, self.pending = [], {}, {}, {}
        self.ids = {}

    def team(self, path, *, running=0, pending=0, **quota):
        *above, name = path.split("/")
        team = Team(len(self.teams) + 1, name, self.ids[above[-1]] if above else None)
        self.ids[name] = team.id
        self.teams.append(team)
        if quota:
            gpus = {k: v if k == "weight" or v is None else round(v * GPU) for k, v in quota.items()}
            self.quotas[team.id] = Quota(**gpus)
        self.running[team.id], self.pending[team.id] = round(running * GPU), round(pending * GPU)
        return self

    def shares(self):
        return deserved_shares(self.teams, self.quotas, round(self.capacity * GPU), self.running, self.pending)

    def deserved(self):
        shares = self.shares()
        return {name: shares[team_id].deserved / GPU for name, team_id in self.ids.items()}


def three(b_asks):
    return (
        World(10)
        .team("a", guaranteed=4, weight=1, pending=10)
        .team("b", guaranteed=2, weight=1, pending=b_asks)
        .team("c", guaranteed=0, weight=2, pending=10)
    )


WORLDS = {
    "everyone asks for everything: bases 4, 2, 0 and the rest 1:1:2": (three(10), {"a": 5, "b": 3, "c": 2}),
    "one is content with its guarantee: the rest goes 1:2, to whole milli": (
        three(2),
        {"a": 5.333, "b": 2, "c": 2.667},
    ),
    "nobody asks": (World(10).team("a", guaranteed=4).team("b"), {"a": 0, "b": 0}),
    "nothing to hand out": (World(0).team("a", guaranteed=4, pending=4).team("b", pending=1), {"a": 0, "b": 0}),
    "alone with everything": (World(10).team("a", pending=25), {"a": 10}),
    "what runs is demand too": (World(10).team("a", running=7, pending=1).team("b", pending=9), {"a": 5, "b": 5}),
    "all are content": (World(10).team("a", pending=3).team("b", running=2, pending=2), {"a": 3, "b": 4}),
    "a limit stops the rise": (World(10).team("a", limit=3, pending=10).team("b", pending=10), {"a": 3, "b": 7}),
    "a limit of 0 is 0": (World(10).team("a", limit=0, pending=10).team("b", pending=10), {"a": 0, "b": 10}),
    "no limit is none": (World(10).team("a", limit=None, pending=10).team("b", pending=2), {"a": 8, "b": 2}),
    "a limit below the guarantee wins": (
        World(10).team("a", guaranteed=8, limit=5, pending=10).team("b", pending=10),
        {"a": 5, "b": 5},
    ),
    "weight 0 gets its guarantee and never rises": (
        World(10).team("a", guaranteed=2, weight=0, pending=10).team("b", pending=5),
        {"a": 2, "b": 5},
    ),
    "everyone has weight 0": (
        World(10).team("a", guaranteed=2, weight=0, pending=10).team("b", weight=0, pending=5),
        {"a": 2, "b": 0},
    ),
    "guarantees above the capacity shrink in proportion": (
        World(6).team("a", guaranteed=8, pending=8).team("b", guaranteed=4, pending=4),
        {"a": 4, "b": 2},
    ),
    "shrinking is max-min too: who asks for little keeps it": (
        World(6)
        .team("a", guaranteed=8, pending=1)
        .team("b", guaranteed=4, pending=4)
        .team("c", guaranteed=4, pending=4),
        {"a": 1, "b": 2.5, "c": 2.5},
    ),
    "who meets its demand leaves the rest to the others by weight": (
        World(12).team("a", weight=1, pending=1).team("b", weight=2, pending=10).team("c", weight=3, pending=10),
        {"a": 1, "b": 4.4, "c": 6.6},
    ),
    "what is reserved is not lent while idle": (
        World(10).team("a", guaranteed=4, reserved=4).team("b", pending=10),
        {"a": 0, "b": 6},
    ),
    "what is reserved and half used": (
        World(10).team("a", guaranteed=4, reserved=4, running=1).team("b", pending=10),
        {"a": 1, "b": 6},
    ),
    "what is guaranteed but not reserved is lent": (
        World(10).team("a", guaranteed=6, reserved=2).team("b", pending=10),
        {"a": 0, "b": 8},
    ),
    "what is reserved and used up changes nothing": (
        World(10).team("a", guaranteed=4, reserved=4, pending=9).team("b", pending=10),
        {"a": 7, "b": 3},
    ),
    "guarantees that are asked for go before reserves that are idle": (
        World(8).team("a", guaranteed=6, reserved=6).team("b", guaranteed=4, pending=8),
        {"a": 0, "b": 4},
    ),
    "a department's guarantee serves the child that asks": (
        World(10)
        .team("p", guaranteed=6)
        .team("p/a", guaranteed=4, pending=10)
        .team("p/b", guaranteed=2)
        .team("q", guaranteed=4, pending=10),
        {"p": 6, "a": 6, "b": 0, "q": 4},
    ),
    "what a department has above its children's guarantees is divided by weight": (
        World(10)
        .team("p", guaranteed=6)
        .team("p/a", guaranteed=2, weight=1, pending=10)
        .team("p/b", guaranteed=2, weight=3, pending=10)
        .team("q", guaranteed=4, pending=4),
        {"p": 6, "a": 2.5, "b": 3.5, "q": 4},
    ),
    "a parent's limit binds the sum": (
        World(10).team("p", limit=3).team("p/c0", limit=2, pending=2).team("p/c1", limit=2, pending=2),
        {"p": 3, "c0": 1.5, "c1": 1.5},
    ),
    "children's limits cap what the parent asks for": (
        World(10).team("p").team("p/a", limit=1, pending=5).team("p/b", limit=1, pending=5).team("q", pending=10),
        {"p": 2, "a": 1, "b": 1, "q": 8},
    ),
    "a child's limit above its parent's is the parent's": (
        World(20).team("p", limit=10).team("p/o", limit=20, pending=20).team("z", pending=20),
        {"p": 10, "o": 10, "z": 10},
    ),
    "a parent's own jobs are one more child": (
        World(10).team("p", pending=10).team("p/a", guaranteed=2, pending=10),
        {"p": 10, "a": 6},
    ),
    "a parent's own jobs have weight 1 whatever the parent's": (
        World(12).team("p", weight=5, pending=12).team("p/a", weight=3, pending=12),
        {"p": 12, "a": 9},
    ),
    "guarantees below a parent without a row hold against its siblings": (
        World(10)
        .team("research")
        .team("research/nlp", guaranteed=4, pending=8)
        .team("research/vision", guaranteed=4, pending=8)
        .team("ops", pending=8),
        {"research": 9, "nlp": 4.5, "vision": 4.5, "ops": 1},
    ),
    "what a grandchild has reserved is lent neither beside it nor beside its parent": (
        World(10).team("p").team("p/a", guaranteed=4, reserved=4).team("p/b", pending=10).team("q", pending=10),
        {"p": 7, "a": 0, "b": 3, "q": 3},
    ),
    "four levels": (
        World(16)
        .team("org", guaranteed=8)
        .team("org/dep", guaranteed=4)
        .team("org/dep/lab", guaranteed=2)
        .team("org/dep/lab/x", pending=16)
        .team("org/dep/y", pending=16)
        .team("org/z", pending=16)
        .team("other", pending=16),
        # 8 + 4 : 4; of the 12 dep has 4 + 4, z 4; of the 8 lab has 2 + 3, y 3
        {"org": 12, "dep": 8, "lab": 5, "x": 5, "y": 3, "z": 4, "other": 4},
    ),
    "a huge weight does not touch a guarantee": (
        World(4).team("a", guaranteed=4, pending=4).team("b", weight=1_000_000, running=4),
        {"a": 4, "b": 0},
    ),
    "two equal teams, one of which already holds its half": (
        World(4).team("a", running=2, pending=1).team("b", pending=2),
        {"a": 2, "b": 2},
    ),
    "a borrower and the owner of what it borrowed": (
        World(8).team("p1", guaranteed=4, running=8).team("p2", guaranteed=4, pending=4),
        {"p1": 4, "p2": 4},
    ),
    "a guarantee of 3 against an indivisible job of 4": (
        World(8).team("t1", guaranteed=3, running=4).team("t2", guaranteed=5, running=1, pending=4),
        {"t1": 3, "t2": 5},
    ),
    "rounding: thirds go to the older": (
        World(0.010).team("a", pending=1).team("b", pending=1).team("c", pending=1),
        {"a": 0.004, "b": 0.003, "c": 0.003},
    ),
    "rounding: the largest remainder before the older": (
        World(0.008).team("a", weight=2, pending=1).team("b", weight=2, pending=1).team("c", weight=3, pending=1),
        {"a": 0.002, "b": 0.002, "c": 0.004},
    ),
    "rounding: two milli are lost, the two largest remainders get them": (
        World(0.009).team("a", weight=2, pending=1).team("b", weight=2, pending=1).team("c", weight=3, pending=1),
        {"a": 0.003, "b": 0.002, "c": 0.004},
    ),
    "rounding: level by level, so children add up to their parent": (
        World(0.005).team("p", pending=0).team("p/a", pending=1).team("p/b", pending=1).team("q", pending=1),
        {"p": 0.003, "a": 0.002, "b": 0.001, "q": 0.002},
    ),
    "rounding: a parent's own jobs are as old as the parent": (
        World(0.003).team("p", pending=1).team("p/a", pending=1),
        {"p": 0.003, "a": 0.001},
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_by_hand(name):
    world, want = WORLDS[name]
    assert world.deserved() == want


def test_a_share_tells_everything_of_the_subtree():
    world = World(10).team("p", limit=5, running=1).team("p/a", guaranteed=2, running=1, pending=6)
    share = world.shares()[world.ids["p"]]
    assert (share.allocated, share.pending, share.demand) == (2000, 6000, 5000)
    assert (share.guaranteed, share.deserved, share.limit) == (2000, 5000, 5000)


def test_a_team_over_its_limit_deserves_its_limit():
    world = World(10).team("a", limit=5, running=8, pending=3)
    assert world.deserved() == {"a": 5}


def test_a_deep_tree_needs_no_deep_stack():
    teams = [Team(i, f"t{i}", i - 1 or None) for i in range(1, 5001)]
    shares = deserved_shares(teams, {}, 7, {}, {5000: 9})
    assert {shares[1].deserved, shares[2500].deserved, shares[5000].deserved} == {7}


def test_the_order_in_which_teams_come_changes_nothing():
    world = three(2).team("a/x", pending=3)
    want = world.shares()
    world.teams.reverse()
    assert world.shares() == want


@pytest.mark.parametrize(
    ("teams", "says"),
    [
        ([Team(1, "a", 2), Team(2, "b", 1)], "own ancestor"),
        ([Team(1, "a"), Team(3, "b", 3)], "own ancestor"),
        ([Team(1, "a", 9)], "not there"),
        ([Team(1, "a"), Team(1, "b")], "same id"),
    ],
)
def test_what_is_no_tree_is_refused(teams, says):
    with pytest.raises(ValueError, match=says):
        Tree(teams)


def test_the_path_goes_up_to_below_the_root():
    tree = Tree([Team(1, "org"), Team(2, "dep", 1), Team(3, "lab", 2)])
    assert [tree.teams[i].name for i in tree.path(tree.leaf_of[3])] == ["lab", "dep", "org"]
    assert [tree.teams[i].name for i in tree.path(tree.leaf_of[2])] == ["dep", "dep", "org"]


@pytest.mark.parametrize(
    ("amount", "caps", "weights", "want"),
    [
        (0, [5, 5], [1, 1], [0, 0]),
        (10, [], [], []),
        (10, [3, 3], [1, 1], [3, 3]),
        (10, [3, 30], [1, 1], [3, 7]),
        (10, [3, 30, 30], [5, 1, 1], [3, 4, 3]),
        (10, [30, 30], [0, 0], [0, 0]),
        (10, [30, 2], [0, 1], [0, 2]),
        (10**12 + 1, [10**15, 10**15], [10**9, 10**9 + 1], [499999999751, 500000000250]),
    ],
)
def test_water_fill(amount, caps, weights, want):
    assert water_fill(amount, caps, weights, range(len(caps))) == want
