"""Whose turn it is, one unit at a time."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.model import Group, PendingJob, Quota, Request, Team
from scheduling.core.order import NEVER, Walk, job_key
from scheduling.core.shares import standing
from scheduling.core.tree import ROOT, Tree


def turns(capacity, teams, quotas=None, running=None, pending=None, oldest=None):
    """Names in the order in which ``pending`` units are handed out, one by one, until all have theirs."""
    tree = Tree(teams)
    seen = standing(tree, quotas or {}, capacity, running or {}, pending)
    allocated, left = list(seen.allocated), {tree.leaf(team_id): units for team_id, units in pending.items() if units}
    since = {tree.leaf(team_id): time for team_id, time in (oldest or {}).items()}
    walk = Walk(seen, allocated, left, lambda leaf: since.get(leaf, 0))
    order = []
    while (leaf := walk.next_leaf()) is not None:
        order.append(tree.teams[leaf].name)
        for position in tree.path(leaf):
            allocated[position] += 1
        left[leaf] -= 1
        walk.settle(leaf)
        if not left[leaf]:
            walk.drop(leaf)
    return "".join(order)


A, B, C = Team(1, "a"), Team(2, "b"), Team(3, "c")


def test_equal_teams_alternate_the_older_first():
    assert turns(6, [A, B], pending={1: 3, 2: 3}) == "ababab"


def test_weights_set_the_rhythm():
    assert turns(9, [A, B], {1: Quota(weight=1), 2: Quota(weight=2)}, pending={1: 9, 2: 9})[:9] == "abbabbabb"


def test_guarantees_first_however_much_is_deserved_beyond():
    quotas = {1: Quota(weight=100), 2: Quota(guaranteed=2, weight=0)}
    assert turns(10, [A, B], quotas, pending={1: 4, 2: 4}) == "bbaaaabb"


def test_who_holds_much_already_waits():
    assert turns(6, [A, B], running={1: 2}, pending={1: 2, 2: 4}) == "bbabab"


def test_equal_ratios_go_to_who_waits_longest():
    assert turns(4, [A, B, C], pending={1: 1, 2: 1, 3: 1}, oldest={1: 9, 2: 7, 3: 8}) == "bca"


def test_who_deserves_nothing_comes_last_the_longest_waiting_first():
    quotas = {1: Quota(weight=0), 2: Quota(weight=0)}
    assert turns(9, [A, B, C], quotas, pending={1: 2, 2: 2, 3: 2}, oldest={1: 9, 2: 8}) == "ccbbaa"


def test_a_department_takes_its_turn_as_one():
    teams = [A, Team(2, "b"), Team(3, "x", 1), Team(4, "y", 1)]
    assert turns(8, teams, pending={2: 4, 3: 2, 4: 2}) == "xbybxbyb"


def test_shares_that_floats_cannot_tell_apart():
    big = 10**17
    running, pending = {1: big - 1, 2: big - 1}, {1: 1, 2: 2}
    # (big-1)/(big+1) before (big-1)/big before big/(big+1)
    assert turns(3 * big, [A, B], running=running, pending=pending) == "bab"


def test_jobs_in_a_team():
    def job(number, at, priority=500):
        return PendingJob(number, 1, 1, (1,), (Group("main", 1, 1, Request()),), at, priority=priority)

    wanted = [
        job_key(job(9, 9, priority=900), growing=False),
        job_key(job(1, 1, priority=900), growing=True),
        job_key(job(8, 3), growing=False),
        job_key(job(3, 4), growing=False),
        job_key(job(4, 4), growing=False),
        job_key(job(2, 0), growing=True),
    ]
    assert sorted(wanted) == wanted


class LiteralWalk:
    """The same order from the policy's text: everything is looked at anew at every step."""

    def __init__(self, seen, allocated, left, since):
        self.seen, self.allocated, self.left, self.since = seen, allocated, left, since
        self.tree = seen.tree

    def leaves_below(self, position):
        children = self.tree.children_of(position)
        return [position] if not children else [leaf for child in children for leaf in self.leaves_below(child)]

    def rank(self, position):
        allocated, deserved = self.allocated[position], self.seen.deserved[position]
        ratio = Fraction(allocated, deserved) if deserved else None
        waits = min(self.since.get(leaf, NEVER) for leaf in self.leaves_below(position))
        below = allocated < self.seen.guaranteed[position]
        return (not below, ratio is None, ratio or Fraction(0), waits, self.tree.ages[position])

    def next_leaf(self):
        position = ROOT
        while position == ROOT or self.tree.children_of(position):
            at_work = [
                child
                for child in self.tree.children_of(position)
                if any(self.left.get(leaf) for leaf in self.leaves_below(child))
            ]
            if not at_work:
                return None
            position = min(at_work, key=self.rank)
        return position


rows = st.tuples(
    st.integers(0, 4),  # how far back the parent is; 0: below the root
    st.integers(0, 5),  # guaranteed
    st.integers(0, 3),  # weight
    st.integers(0, 4),  # running
    st.integers(0, 5),  # pending
    st.integers(0, 3),  # waits since
)


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 30), st.lists(rows, min_size=1, max_size=9), st.integers(0, 3))
def test_agrees_with_the_text(capacity, rows, every):
    teams = [Team(i, f"t{i}", i - row[0] if 0 < row[0] < i else None) for i, row in enumerate(rows, start=1)]
    quotas = {i: Quota(guaranteed=row[1], weight=row[2]) for i, row in enumerate(rows, start=1)}
    tree = Tree(teams)
    running = {i: row[3] for i, row in enumerate(rows, start=1)}
    pending = {i: row[4] for i, row in enumerate(rows, start=1)}
    seen = standing(tree, quotas, capacity, running, pending)
    allocated = list(seen.allocated)
    left = {tree.leaf(i): units for i, units in pending.items() if units}
    since = {tree.leaf(i): row[5] for i, row in enumerate(rows, start=1) if row[4]}
    literal = LiteralWalk(seen, allocated, left, since)
    walk = Walk(seen, allocated, list(left), lambda leaf: since.get(leaf, NEVER))
    step = 0
    while (leaf := walk.next_leaf()) is not None:
        assert leaf == literal.next_leaf()
        step += 1
        if every and step % every == 0:
            left[leaf] = 0  # nothing of it can start: it is passed over, and goes on waiting
            walk.drop(leaf)
            continue
        for position in tree.path(leaf):
            allocated[position] += 1
        left[leaf] -= 1
        since[leaf] += 1
        walk.settle(leaf)
        if not left[leaf]:
            walk.drop(leaf)
    assert literal.next_leaf() is None
