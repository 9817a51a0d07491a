"""Deserved shares worked out by hand, in whole GPUs where nothing else is said."""

from typing import Any

import pytest

from scheduling.core.model import Quota, Team
from scheduling.core.shares import deserved_shares, water_fill
from scheduling.core.tree import Tree

GPU = 1000


class World:
    """A pool of ``capacity`` GPUs and its teams, oldest first. A team is below the one before its slash."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.teams, self.quotas, self.running, self.pending, self.past = [], {}, {}, {}, {}
        self.ids = {}

    def team(self, path, *, running=0, pending=0, used=0, **quota):
        """``used``: what it used in the past, in any unit that is the same for all."""
        *above, name = path.split("/")
        team = Team(len(self.teams) + 1, name, self.ids[above[-1]] if above else None)
        self.ids[name] = team.id
        self.teams.append(team)
        if quota:
            gpus = {k: v if k == "weight" or v is None else round(v * GPU) for k, v in quota.items()}
            self.quotas[team.id] = Quota(**gpus)
        self.running[team.id], self.pending[team.id] = round(running * GPU), round(pending * GPU)
        self.past[team.id] = used
        return self

    def each(self, names, **more):
        for name in names:
            self.team(name, **more)
        return self

    def shares(self):
        capacity = round(self.capacity * GPU)
        return deserved_shares(self.teams, self.quotas, capacity, self.running, self.pending, self.past)

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


def chain(levels, capacity, **lowest):
    """org-1/org-2/…: one team below another; only the lowest has jobs."""
    world, path = World(capacity), ""
    for level in range(1, levels + 1):
        path = f"{path}/l{level}" if path else f"l{level}"
        world.team(path, **(lowest if level == levels else {}))
    return world


def stairs(levels):
    """At each level one team with jobs of its own beside the next level: every level halves what is left."""
    world, path = World(4096), "l0"
    world.team("l0")
    for level in range(1, levels + 1):
        world.team(f"{path}/j{level}", pending=4096)
        path = f"{path}/l{level}"
        world.team(path, **({"pending": 4096} if level == levels else {}))
    return world


# Values at the edges: very large, very deep, very many, none at all. The arithmetic stands beside each.
EDGES = {
    # rest 10^6 GPUs, weights 10^9 : 1; 10^9/(10^9 + 1) of 10^9 milli is 999999999.000000001: the rest, 1 milli, to b
    "a weight of 10^9 beside one of 1": (
        World(10**6).team("a", weight=10**9, pending=10**6).team("b", weight=1, pending=10**6),
        {"a": 999_999.999, "b": 0.001},
    ),
    # guarantees 3 : 1 of a capacity of 10^6 GPUs, asked for in full: bases 750000 and 250000, nothing is left
    "a capacity of 10^9 milli, guaranteed to the last": (
        World(10**6).team("a", guaranteed=750_000, pending=10**6).team("b", guaranteed=250_000, pending=10**6),
        {"a": 750_000, "b": 250_000},
    ),
    # twice over-committed: 10^9 : 10^9 : 2·10^9 milli of 10^9 scale to 1/4, 1/4, 1/2
    "guarantees of four times the capacity": (
        World(10**6).each("ab", guaranteed=10**6, pending=10**6).team("c", guaranteed=2 * 10**6, pending=2 * 10**6),
        {"a": 250_000, "b": 250_000, "c": 500_000},
    ),
    # scaled down by guarantees 6 : 3 : 1 of 5: c wants .1 < .5 and has it; 4.9 by 6 : 3 are 3.267 and 1.633
    "over-committed, where one asks for less than its scaled guarantee": (
        World(5)
        .team("a", guaranteed=6, pending=6)
        .team("b", guaranteed=3, pending=3)
        .team("c", guaranteed=1, pending=0.1),
        {"a": 3.267, "b": 1.633, "c": 0.1},
    ),
    # over-committed: bases take all 4, so nothing is left to keep for b's idle reserve, nor for c above
    "over-committed guarantees leave nothing to reserve": (
        World(4).team("a", guaranteed=8, pending=8).team("b", guaranteed=4, reserved=4).team("c", pending=8),
        {"a": 4, "b": 0, "c": 0},
    ),
    # two of eight nodes fail: 6 left for 4 + 4; both keep what they get even though a runs 4: 3 and 3
    "guarantees above what failing nodes left": (
        World(6).team("a", guaranteed=4, running=4).team("b", guaranteed=4, pending=4),
        {"a": 3, "b": 3},
    ),
    # twelve levels deep with no quota anywhere: the lowest deserves all that it asks for
    "a chain of twelve levels": (
        chain(12, 10, pending=7),
        {f"l{level}": 7 for level in range(1, 13)},
    ),
    # a guarantee at the bottom of twelve levels holds at the top: 3 guaranteed, then 7 by 1 : 1
    "a guarantee twelve levels down": (
        chain(12, 10, guaranteed=3, pending=10).team("other", pending=10),
        {**{f"l{level}": 6.5 for level in range(1, 13)}, "other": 3.5},
    ),
    # a limit in the middle of the chain binds all above and below: 2, and the other 8
    "a limit in the middle of a chain": (
        World(10).team("a").team("a/b", limit=2).team("a/b/c").team("a/b/c/d", pending=9).team("z", pending=9),
        {"a": 2, "b": 2, "c": 2, "d": 2, "z": 8},
    ),
    # 4096 halves at each of twelve levels: j1 2048, j2 1024, … j12 1 and the last level 1
    "twelve levels that halve": (
        stairs(12),
        {
            "l0": 4096,
            **{f"j{level}": 4096 / 2**level for level in range(1, 13)},
            **{f"l{level}": 4096 / 2**level for level in range(1, 13)},
        },
    ),
    # 1000 milli over 200 equal siblings: 5 each
    "two hundred siblings": (
        World(1).each([f"t{i}" for i in range(200)], pending=1),
        {f"t{i}": 0.005 for i in range(200)},
    ),
    # 101 milli over 200 equal siblings: half a milli each; the 101 oldest get one
    "two hundred siblings and half a milli each": (
        World(0.101).each([f"t{i}" for i in range(200)], pending=1),
        {f"t{i}": 0.001 if i < 101 else 0 for i in range(200)},
    ),
    # limit 0 with a guarantee at the parent: nobody below may hold anything, and nothing is kept from the others
    "a limit of 0 above a guarantee": (
        World(10).team("p", limit=0).team("p/a", guaranteed=4, reserved=4, pending=10).team("q", pending=10),
        {"p": 0, "a": 0, "q": 10},
    ),
    # reserve 4 of a, 1 in use: 3 stay idle; the 6 left go 1 : 1 to a's further demand (none) and b: b 6
    "a reserve under a limit that leaves it room": (
        World(10).team("a", guaranteed=4, reserved=4, limit=4, running=1).team("b", pending=10),
        {"a": 1, "b": 6},
    ),
    # reserved 6, but the limit of its parent is 2: no more than 2 can ever be used there, so 8 are lent
    "a reserve that a limit above makes useless": (
        World(10).team("p", limit=2).team("p/a", guaranteed=6, reserved=6).team("q", pending=10),
        {"p": 0, "a": 0, "q": 8},
    ),
    # weight 0 with a guarantee beside one without: 3 guaranteed, the 7 left to the only one that rises
    "weight 0 below its guarantee": (
        World(10).team("a", guaranteed=3, weight=0, pending=10).team("b", weight=7, pending=10),
        {"a": 3, "b": 7},
    ),
    # one milli, three teams: the oldest of equal remainders
    "a single milli": (World(0.001).each("abc", pending=1), {"a": 0.001, "b": 0, "c": 0}),
    # demands of 10^6 GPUs on 3 milli, weights 1 : 2: exactly 1 and 2
    "huge demands on almost nothing": (
        World(0.003).team("a", weight=1, pending=10**6).team("b", weight=2, pending=10**6),
        {"a": 0.001, "b": 0.002},
    ),
}

# Where the past counts: the weights of the rest are multiplied by 2^(-U/S).
PASTS = {
    # U/S = 1/(1/2) = 2 and 0, weights 1/4 : 1 of 10
    "used all of it alone: a quarter": (
        World(10).team("a", used=9, pending=10).team("b", pending=10),
        {"a": 2, "b": 8},
    ),
    # U = 2/3 and 1/3 over S = 1/2: 4/3 and 2/3, so 2^(-2/3) = .629961 : 1 of 10 are 3.865 and 6.135
    "used twice as much as the other": (
        World(10).team("a", used=2, pending=10).team("b", used=1, pending=10),
        {"a": 3.865, "b": 6.135},
    ),
    # each used its part: all halve, nothing changes
    "used what was its share": (
        World(12).team("a", weight=1, used=5, pending=12).team("b", weight=2, used=10, pending=12),
        {"a": 4, "b": 8},
    ),
    # weights 1 : 3, all used by b: U/S = 0 and 1/(3/4) = 4/3; 1 : 3·2^(-4/3) = 1 : 1.190551 of 10
    "used all, with three quarters of the weight": (
        World(10).team("a", weight=1, pending=10).team("b", weight=3, used=1, pending=10),
        {"a": 4.565, "b": 5.435},
    ),
    # bases 4 and 2 as ever; the 4 left by 1/4 : 1 : U/S of a is 1/(1/2)
    "a guarantee knows no past": (
        World(10).team("a", guaranteed=4, used=7, pending=10).team("b", guaranteed=2, pending=10),
        {"a": 4.8, "b": 5.2},
    ),
    # all demand fits: the past takes nothing away from who is alone in asking
    "the past binds only where there is not enough": (
        World(10).team("a", used=10**9, pending=9).team("b", pending=1),
        {"a": 9, "b": 1},
    ),
    # a's rise is slow but b is full at 1: a has the other 9
    "who is slow gets what the others leave": (
        World(10).team("a", used=10**9, pending=10).team("b", pending=1),
        {"a": 9, "b": 1},
    ),
    # weight 0 stays 0; a and b: U = 0 and 1/2 over S = 1/2: 1 : 1/2 of 9
    "weight 0 with a past": (
        World(9).team("z", weight=0, used=5, pending=9).team("a", pending=9).team("b", used=5, pending=9),
        {"z": 0, "a": 6, "b": 3},
    ),
    # U/S = 3, 0, 0 of three equal ones, one of which asks for nothing: 1/8 : 1 of 9
    "an idle sibling has its part of the weights": (
        World(9).team("a", used=1, pending=9).team("b", pending=9).team("c"),
        {"a": 1, "b": 8},
    ),
    # p used 3 of 4 parts in its subtree: 3/2 and 1/2, 1/2 : 1 of 9 are 3 and 6; inside p x used all of it: 1/4 : 1 of 3
    "at each level by what the subtrees used": (
        World(9).team("p").team("p/x", used=3, pending=9).team("p/y", pending=9).team("q", used=1, pending=9),
        {"p": 3, "x": 0.6, "y": 2.4, "q": 6},
    ),
    # p's own jobs used 2, x 0: of two siblings 1/4 : 1 of 10, x has 8
    "a parent's own past is a sibling's": (
        World(10).team("p", used=2, pending=10).team("p/x", pending=10),
        {"p": 10, "x": 8},
    ),
    # one of 200 used all: U/S = 200, 2^-200 is nothing to anyone; 199 share 199 GPUs
    "one of two hundred used everything": (
        World(199).team("t0", used=1, pending=1).each([f"t{i}" for i in range(1, 200)], pending=1),
        {"t0": 0, **{f"t{i}": 1 for i in range(1, 200)}},
    ),
    # amounts of 10^18 and of 1: as good as all by a
    "huge and tiny amounts": (
        World(10).team("a", used=10**18, pending=10).team("b", used=1, pending=10),
        {"a": 2, "b": 8},
    ),
    # reserves before the rest, whatever the past: 2 kept for c, 8 by 1/8 : 1 (three siblings)
    "a reserve knows no past": (
        World(11).team("a", used=4, pending=11).team("b", pending=11).team("c", guaranteed=2, reserved=2),
        {"a": 1, "b": 8},
    ),
}


ALL: dict[str, Any] = {**WORLDS, **EDGES, **PASTS}


@pytest.mark.parametrize("name", ALL)
def test_by_hand(name):
    world, want = ALL[name]
    assert world.deserved() == {**dict.fromkeys(world.ids, 0), **want}


def test_a_past_in_which_nobody_used_anything_is_none():
    plain, zero = three(10), three(10)
    plain.past = {}
    assert plain.shares() == zero.shares()


def test_who_is_not_in_the_tree_any_more_has_no_past():
    world = World(10).team("a", used=9, pending=10).team("b", pending=10)
    world.past[99] = 10**12
    assert world.deserved() == {"a": 2, "b": 8}


def test_the_past_goes_with_a_team_that_moves():
    """Below p it is p's past, 1/4 : 1 against q; at the top it is its own, and p has none: 1/8 : 1 : 1 of 17."""
    teams = [Team(1, "p"), Team(2, "x", 1), Team(3, "q"), Team(4, "y", 1)]
    asks = {2: 20 * GPU, 3: 20 * GPU, 4: 20 * GPU}
    below = deserved_shares(teams, {}, 10 * GPU, {}, asks, {2: 5})
    assert (below[1].deserved, below[3].deserved) == (2000, 8000)
    teams[1] = Team(2, "x")
    apart = deserved_shares(teams, {}, 17 * GPU, {}, asks, {2: 5})
    assert [apart[i].deserved for i in (1, 2, 3)] == [8000, 1000, 8000]


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
