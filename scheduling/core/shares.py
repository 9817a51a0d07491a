"""Deserved shares: what each team of a pool is entitled to now, exactly, in the pool's unit.

From the root down, what a parent is entitled to goes to its children in three rounds of the same water-filling:

1. **bases**: up to min(guaranteed, demand), by the guarantees as weights;
2. **reserves**: up to what is reserved and not used, by the guarantees as weights. It is kept, not handed out;
3. **the rest**: up to the demand, by the weights.

A round that cannot give everyone its fill leaves nothing to the next one. Weighted max-min: everyone rises in
proportion to its weight until it meets its cap (Bertsekas and Gallager, Data Networks, 6.5.2). In a pool that
remembers the past the weights of the third round are those that ``memory`` makes of it; the first two know no past.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduling.core.memory import remembered
from scheduling.core.model import Quota, Share, Team
from scheduling.core.tree import ROOT, Tree

NO_QUOTA = Quota()


@dataclass(slots=True)
class Standing:
    """Every number of a pool's teams, by position in ``tree``, in the pool's unit; subtrees included.

    ``guaranteed`` and ``reserved`` of a parent are at least the sums of its children's: what a child always gets, its
    parent must always get too. ``entitled`` is what is kept for a subtree; ``deserved`` the part of it that has demand.
    ``used`` is what it used in the past, faded; 0 everywhere where that is not remembered.
    """

    tree: Tree
    guaranteed: list[int]
    reserved: list[int]
    limit: list[int | None]
    weight: list[int]
    allocated: list[int]
    pending: list[int]
    demand: list[int]
    entitled: list[int]
    deserved: list[int]
    used: list[int]

    def share(self, position: int) -> Share:
        return Share(
            demand=self.demand[position],
            guaranteed=self.guaranteed[position],
            deserved=self.deserved[position],
            allocated=self.allocated[position],
            limit=self.limit[position],
            pending=self.pending[position],
        )

    def by_team(self) -> dict[int, Share]:
        """Team id → share, the own positions of parents left out (they are in their team's)."""
        return {team_id: self.share(position) for team_id, position in self.tree.position_of.items()}


def standing(
    tree: Tree,
    quotas: Mapping[int, Quota],
    capacity: int,
    running: Mapping[int, int],
    pending: Mapping[int, int],
    past_use: Mapping[int, int] | None = None,
) -> Standing:
    """What everyone holds, wants and deserves of ``capacity``.

    ``running`` and ``pending`` are what the jobs of each team itself, without its subtree, hold and wait for;
    ``past_use`` what they used in the past, faded. The past of a team that is not in the tree any more counts nowhere.
    """
    rows = [NO_QUOTA if own else quotas.get(team.id, NO_QUOTA) for team, own in zip(tree.teams, tree.own, strict=True)]
    allocated = _with_subtrees(tree, _at_leaves(tree, running))
    waiting = _with_subtrees(tree, _at_leaves(tree, pending))
    result = Standing(
        tree=tree,
        guaranteed=_at_least_the_children(tree, [row.guaranteed for row in rows]),
        reserved=_at_least_the_children(tree, [row.reserved for row in rows]),
        limit=[row.limit for row in rows],
        weight=[row.weight for row in rows],
        allocated=allocated,
        pending=waiting,
        demand=[],
        entitled=[0] * len(tree),
        deserved=[],
        used=_with_subtrees(tree, _at_leaves(tree, _of_teams_in(tree, past_use or {}))),
    )
    wanted = [0] * len(tree)
    for leaf in tree.leaf_of.values():
        wanted[leaf] = allocated[leaf] + waiting[leaf]
    result.demand = _demands(tree, wanted, result.limit)
    claims = _claims(tree, wanted, result.limit, [row.reserved for row in rows])
    _hand_down(result, claims, ROOT, capacity)
    for position in range(len(tree)):
        _hand_down(result, claims, position, result.entitled[position])
    result.deserved = [min(e, d) for e, d in zip(result.entitled, result.demand, strict=True)]
    return result


def deserved_shares(
    teams: Sequence[Team],
    quotas: Mapping[int, Quota],
    capacity: int,
    running: Mapping[int, int],
    pending: Mapping[int, int],
    past_use: Mapping[int, int] | None = None,
) -> dict[int, Share]:
    """Team id → its share of a pool of ``capacity``. For callers that have no tree at hand; see ``standing``."""
    return standing(Tree(teams), quotas, capacity, running, pending, past_use).by_team()


def water_fill(amount: int, caps: Sequence[int], weights: Sequence[int], ages: Sequence[int]) -> list[int]:
    """Weighted max-min of ``amount``: everyone rises in proportion to its weight until it meets its cap.

    Whole units: the parts that are lost in rounding down go to the largest remainders, the smaller ``ages`` first on
    ties. The result adds up to ``amount``, or to all caps with a weight above 0 where these are less. Weight 0 gets 0.
    """
    given = [0] * len(caps)
    rising = [i for i, cap in enumerate(caps) if cap > 0 and weights[i] > 0]
    if sum(caps[i] for i in rising) <= amount:
        for i in rising:
            given[i] = caps[i]
        return given
    left, weight_left, short = _meet_caps(amount, caps, weights, rising, given)
    remainders = []
    for i in short:
        given[i], remainder = divmod(left * weights[i], weight_left)
        remainders.append((-remainder, ages[i], i))
    lost = left - sum(given[i] for i in short)
    remainders.sort()
    for _, _, i in remainders[:lost]:
        given[i] += 1
    return given


def _meet_caps(
    amount: int, caps: Sequence[int], weights: Sequence[int], rising: list[int], given: list[int]
) -> tuple[int, int, list[int]]:
    """Fills in everyone whom the water lifts to its cap; what is left, for what weight, and for whom."""
    left, weight_left = amount, sum(weights[i] for i in rising)
    # Two different fractions cap/weight are at least 1/widest² apart: scaled by more, their whole parts differ too.
    scale = max((weights[i] for i in rising), default=1) ** 2 + 1
    order = sorted(rising, key=lambda i: caps[i] * scale // weights[i])
    for met, i in enumerate(order):
        if caps[i] * weight_left > left * weights[i]:
            return left, weight_left, order[met:]
        given[i] = caps[i]
        left -= caps[i]
        weight_left -= weights[i]
    return left, weight_left, []


def _hand_down(result: Standing, claims: list[int], parent: int, amount: int) -> None:
    """Sets what the children of ``parent`` are entitled to out of ``amount``."""
    children = result.tree.children_of(parent)
    if not children or amount <= 0:
        return
    ages = [result.tree.ages[i] for i in children]
    guaranteed = [result.guaranteed[i] for i in children]
    demand = [result.demand[i] for i in children]
    claim = [claims[i] for i in children]

    base_caps = [min(g, d) for g, d in zip(guaranteed, demand, strict=True)]
    bases = water_fill(amount, base_caps, guaranteed, ages)
    left = amount - sum(bases)
    reserves = rises = [0] * len(children)
    if claim != demand:
        idle = [max(0, min(c - d, g - b)) for c, d, g, b in zip(claim, demand, guaranteed, base_caps, strict=True)]
        reserves = water_fill(left, idle, guaranteed, ages)
        left -= sum(reserves)
    if left > 0:
        unmet = [max(0, c - b - r) for c, b, r in zip(claim, base_caps, reserves, strict=True)]
        rises = water_fill(left, unmet, _weights(result, children, unmet), ages)
    for i, base, reserve, rise in zip(children, bases, reserves, rises, strict=True):
        result.entitled[i] = base + reserve + rise


def _weights(result: Standing, children: Sequence[int], unmet: Sequence[int]) -> list[int]:
    """By what weights these siblings rise, each with what it used so far in mind.

    A parent's own jobs are a sibling of its children's only where it has any or had: it is none by what it is.
    """
    weights, used = [result.weight[i] for i in children], [result.used[i] for i in children]
    if not any(used):
        return weights
    for at, i in enumerate(children):
        if result.tree.own[i] and not result.used[i] and not result.demand[i]:
            weights[at] = 0
    return remembered(weights, used, [gap > 0 for gap in unmet])


def _demands(tree: Tree, wanted: list[int], limits: list[int | None]) -> list[int]:
    """Running and pending of each subtree, capped by the limits on the way up."""
    return _claims(tree, wanted, limits, [0] * len(tree))


def _claims(tree: Tree, wanted: list[int], limits: list[int | None], reserved: list[int]) -> list[int]:
    """Demand, or what is reserved where that is more: what must be kept for each subtree if there is enough."""
    claims = list(wanted)
    for i in range(len(tree) - 1, -1, -1):
        claim, limit = max(claims[i], reserved[i]), limits[i]
        claims[i] = claim if limit is None else min(claim, limit)
        if tree.parents[i] != ROOT:
            claims[tree.parents[i]] += claims[i]
    return claims


def _of_teams_in(tree: Tree, amounts: Mapping[int, int]) -> dict[int, int]:
    return {team_id: amount for team_id, amount in amounts.items() if team_id in tree.leaf_of}


def _at_leaves(tree: Tree, amounts: Mapping[int, int]) -> list[int]:
    leaves = [0] * len(tree)
    for team_id, amount in amounts.items():
        leaves[tree.leaf(team_id)] += amount
    return leaves


def _with_subtrees(tree: Tree, amounts: list[int]) -> list[int]:
    sums = list(amounts)
    for i in range(len(tree) - 1, -1, -1):
        if tree.parents[i] != ROOT:
            sums[tree.parents[i]] += sums[i]
    return sums


def _at_least_the_children(tree: Tree, amounts: list[int]) -> list[int]:
    """Each amount, raised to the sum of the children's: a guarantee that has no row of its own above it still holds."""
    raised = list(amounts)
    sums = [0] * len(tree)
    for i in range(len(tree) - 1, -1, -1):
        raised[i] = max(raised[i], sums[i])
        if tree.parents[i] != ROOT:
            sums[tree.parents[i]] += raised[i]
    return raised
