"""Deserved shares against a slow reference that is written from the policy's text with fractions, on random trees."""

from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction

from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduling.core.model import Quota, Team
from scheduling.core.shares import deserved_shares, water_fill

OWN = "own"


def rise(amount, caps, weights):
    """Lets everyone rise together, from one saturation to the next: exact amounts, not rounded."""
    level = {key: Fraction(0) for key in caps}
    left = Fraction(amount)
    while True:
        rising = [key for key in caps if weights[key] and level[key] < caps[key]]
        if not rising or not left:
            return level
        speed = sum(weights[key] for key in rising)
        to_next_cap = min((caps[key] - level[key]) / Fraction(weights[key]) for key in rising)
        step = min(to_next_cap, left / speed)
        for key in rising:
            level[key] += step * weights[key]
        left -= step * speed


def whole(amounts, ages):
    """Rounded down, then one unit each to the largest remainders, the older first, until the sum is right."""
    floors = {key: int(value) for key, value in amounts.items()}
    missing = sum(amounts.values()) - sum(floors.values())
    assert missing == int(missing)
    by_remainder = sorted(amounts, key=lambda key: (floors[key] - amounts[key], ages[key]))
    for key in by_remainder[: int(missing)]:
        floors[key] += 1
    return floors


class Reference:
    def __init__(self, teams, quotas, running, pending, past=None):
        self.quotas = quotas
        self.past = past or {}
        self.own = {team.id: running.get(team.id, 0) + pending.get(team.id, 0) for team in teams}
        self.below = {team.id: sorted(t.id for t in teams if t.parent_id == team.id) for team in teams}
        self.below[None] = sorted(t.id for t in teams if t.parent_id is None)
        self.deserved = {}

    def quota(self, key):
        return Quota() if isinstance(key, tuple) else self.quotas.get(key, Quota())

    def children(self, key):
        if isinstance(key, tuple):
            return []
        own = [(OWN, key)] if key is not None and self.below[key] else []
        return own + self.below[key]

    def wants(self, key, floor):
        """Demand of a subtree; with ``floor``, at least what is reserved in it."""
        if isinstance(key, tuple):
            wanted = self.own[key[1]]
        elif self.below[key]:
            wanted = sum(self.wants(child, floor) for child in self.children(key))
        else:
            wanted = self.own[key]
        if floor:
            wanted = max(wanted, self.quota(key).reserved)
        limit = self.quota(key).limit
        return wanted if limit is None else min(wanted, limit)

    def guaranteed(self, key):
        return max(self.quota(key).guaranteed, sum(self.guaranteed(child) for child in self.children(key)))

    def used(self, key):
        """What a subtree used in the past."""
        if isinstance(key, tuple):
            return self.past.get(key[1], 0)
        if not self.below[key]:
            return self.past.get(key, 0)
        return sum(self.used(child) for child in self.children(key))

    def weights(self, children, unmet, demand):
        """Each weight times 2^(-U/S), to 60 digits."""
        weight = {child: self.quota(child).weight for child in children}
        used = {child: self.used(child) for child in children}
        everything = sum(used.values())
        if not everything:
            return weight
        for child in children:
            if isinstance(child, tuple) and not used[child] and not demand[child]:
                weight[child] = 0  # a parent without jobs of its own is nobody's sibling
        sum_of_weights = sum(weight.values())
        powers = {}
        for child in children:
            if weight[child] and unmet[child]:
                part_of_use = Fraction(used[child], everything)
                powers[child] = part_of_use / Fraction(weight[child], sum_of_weights)
        least = min(powers.values(), default=0)
        with localcontext() as context:
            context.prec = 60
            for child in children:
                if child in powers:
                    power = powers[child] - least
                    factor = Decimal(2) ** (-Decimal(power.numerator) / Decimal(power.denominator))
                    weight[child] *= max(Fraction(factor), Fraction(1, weight[child] << 40))
        return weight

    def share_out(self, key, entitlement):
        children = self.children(key)
        ages = {child: child[1] if isinstance(child, tuple) else child for child in children}
        demand = {child: self.wants(child, floor=False) for child in children}
        claim = {child: self.wants(child, floor=True) for child in children}
        guarantee = {child: self.guaranteed(child) for child in children}

        base_cap = {child: min(guarantee[child], demand[child]) for child in children}
        base = rise(entitlement, base_cap, guarantee)
        left = entitlement - sum(base.values())
        idle = {c: max(0, min(claim[c] - demand[c], guarantee[c] - base_cap[c])) for c in children}
        kept = rise(left, idle, guarantee)
        left -= sum(kept.values())
        unmet = {c: max(Fraction(0), claim[c] - base[c] - kept[c]) for c in children}
        more = rise(left, unmet, self.weights(children, unmet, demand))
        entitled = whole({c: base[c] + kept[c] + more[c] for c in children}, ages)
        for child in children:
            self.deserved[child] = min(entitled[child], demand[child])
            self.share_out(child, entitled[child])


quantities = st.one_of(st.integers(0, 12), st.integers(0, 20_000))
rows = st.tuples(
    st.integers(0, 6),  # how far back the parent is; 0: below the root
    st.one_of(st.just(0), quantities),  # guaranteed
    st.one_of(st.none(), st.just(0), quantities),  # limit
    st.one_of(st.integers(0, 4), st.just(1_000_000)),  # weight
    st.integers(0, 4),  # quarters of the guarantee that are reserved
    st.one_of(st.just(0), quantities),  # running
    st.one_of(st.just(0), quantities),  # pending
    st.booleans(),  # has a quota at all
)


def world(rows):
    teams, quotas, running, pending = [], {}, {}, {}
    for team_id, (back, guaranteed, limit, weight, quarters, runs, waits, has_quota) in enumerate(rows, start=1):
        parent = team_id - back if 0 < back < team_id else None
        teams.append(Team(team_id, f"t{team_id}", parent))
        if has_quota:
            quotas[team_id] = Quota(guaranteed, limit, weight, guaranteed * quarters // 4)
        running[team_id], pending[team_id] = runs, waits
    return teams, quotas, running, pending


@settings(max_examples=2000, deadline=None)
@given(st.one_of(st.integers(0, 40), st.integers(0, 100_000)), st.lists(rows, max_size=9))
@example(10, [(0, 4, None, 1, 4, 0, 0, True), (0, 4, None, 1, 0, 0, 20, True)])
def test_agrees_with_the_reference(capacity, rows):
    teams, quotas, running, pending = world(rows)
    reference = Reference(teams, quotas, running, pending)
    reference.share_out(None, capacity)
    got = deserved_shares(teams, quotas, capacity, running, pending)
    assert {team_id: share.deserved for team_id, share in got.items()} == {
        key: value for key, value in reference.deserved.items() if not isinstance(key, tuple)
    }


past_uses = st.lists(
    st.one_of(st.just(0), st.integers(0, 100), st.integers(0, 10**15), st.just(10**18)), min_size=9, max_size=9
)


@settings(max_examples=1000, deadline=None)
@given(st.one_of(st.integers(0, 40), st.integers(0, 100_000)), st.lists(rows, max_size=9), past_uses)
@example(10, [(0, 0, None, 1, 0, 0, 20, True), (0, 0, None, 1, 0, 0, 20, True)], [7, 0, 0, 0, 0, 0, 0, 0, 0])
def test_agrees_with_the_reference_where_the_past_counts(capacity, rows, used):
    """To one unit at each level: a weight is rounded to 2^-40, which may turn two remainders that all but tie."""
    teams, quotas, running, pending = world(rows)
    past = {team.id: amount for team, amount in zip(teams, used, strict=False)}
    reference = Reference(teams, quotas, running, pending, past)
    reference.share_out(None, capacity)
    got = deserved_shares(teams, quotas, capacity, running, pending, past)
    parents = {team.id: team.parent_id for team in teams}
    for team_id, share in got.items():
        depth, above = 1, parents[team_id]
        while above is not None:
            depth, above = depth + 1, parents[above]
        assert abs(share.deserved - reference.deserved[team_id]) <= depth
    tops = [got[team.id].deserved for team in teams if team.parent_id is None]
    assert sum(tops) <= capacity


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 100_000), st.lists(rows, max_size=9), past_uses)
def test_the_past_touches_no_guarantee_and_nobody_alone(capacity, rows, used):
    """Who is alone at its level, or asks for no more than its guarantee, deserves the same with any past."""
    teams, quotas, running, pending = world(rows)
    past = {team.id: amount for team, amount in zip(teams, used, strict=False)}
    plain = deserved_shares(teams, quotas, capacity, running, pending)
    got = deserved_shares(teams, quotas, capacity, running, pending, past)
    siblings = Counter(team.parent_id for team in teams)
    for team in teams:
        if team.parent_id is None:
            share = got[team.id]
            if share.demand <= share.guaranteed or siblings[None] == 1:
                assert share.deserved == plain[team.id].deserved
    # A past in which nobody used anything is none.
    assert deserved_shares(teams, quotas, capacity, running, pending, dict.fromkeys(past, 0)) == plain


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 100_000), st.lists(rows, max_size=12))
def test_what_always_holds(capacity, rows):
    teams, quotas, running, pending = world(rows)
    shares = deserved_shares(teams, quotas, capacity, running, pending)
    tops = [team for team in teams if team.parent_id is None]
    assert sum(shares[team.id].deserved for team in tops) <= capacity
    for team in teams:
        share = shares[team.id]
        assert 0 <= share.deserved <= share.demand
        assert share.limit is None or share.demand <= share.limit
        below = [shares[child.id].deserved for child in teams if child.parent_id == team.id]
        assert sum(below) <= share.deserved


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 10**7),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=30),
)
def test_water_fill_gives_out_all_that_can_be_taken(amount, claims):
    caps, weights = [cap for cap, _ in claims], [weight for _, weight in claims]
    given_out = water_fill(amount, caps, weights, range(len(caps)))
    takers = sum(cap for cap, weight in claims if weight)
    assert sum(given_out) == min(amount, takers)
    assert all(0 <= got <= cap for got, cap in zip(given_out, caps, strict=True))
