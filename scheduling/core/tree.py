"""The tree of teams laid out in positions, once for a cycle and for all its pools.

Parents come before their children, so a pass forwards goes down the tree and a pass backwards goes up. A team that has
children gets one position more, its *own* one, for the jobs that it holds itself: they compete with its children as one
more child (guaranteed nothing, weight 1, no limit of its own). So jobs are only ever at a leaf.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from scheduling.core.model import Team

ROOT = -1


class Tree:
    """Positions of the teams and how they hang together. Nothing in it changes after it is made.

    Raises ValueError where an id comes twice, a parent is unknown, or teams are their own ancestors.
    """

    __slots__ = ("_paths", "ages", "children", "leaf_of", "own", "parents", "position_of", "teams", "top")

    def __init__(self, teams: Iterable[Team]):
        self.teams: list[Team] = []  # by position; an own position repeats its team
        self.parents: list[int] = []  # position of the parent, ROOT directly under the root
        self.ages: list[int] = []  # older is smaller; an own position is as old as its team
        self.own: list[bool] = []  # True: the position of a team's own jobs beside its children
        self.children: list[tuple[int, ...]] = []
        self.position_of: dict[int, int] = {}  # team id → the position of its whole subtree
        self.leaf_of: dict[int, int] = {}  # team id → the position of its own jobs
        self._paths: dict[int, tuple[int, ...]] = {}
        self._lay_out(_by_parent(teams))
        self.top = tuple(i for i, parent in enumerate(self.parents) if parent == ROOT)

    def __len__(self) -> int:
        return len(self.teams)

    def leaf(self, team_id: int) -> int:
        """The position of the team's own jobs. Raises ValueError where the team is not in the tree."""
        try:
            return self.leaf_of[team_id]
        except KeyError:
            raise ValueError(f"team {team_id} is not among the teams") from None

    def path(self, position: int) -> tuple[int, ...]:
        """The position itself, then its ancestors up to just below the root."""
        known = self._paths.get(position)
        if known is None:
            steps = []
            step = position
            while step != ROOT:
                steps.append(step)
                step = self.parents[step]
            known = self._paths[position] = tuple(steps)
        return known

    def children_of(self, position: int) -> tuple[int, ...]:
        """The positions directly below ``position``, or below the root."""
        return self.top if position == ROOT else self.children[position]

    def _lay_out(self, by_parent: dict[int | None, list[Team]]) -> None:
        below: list[list[int]] = []
        waiting = [(team, ROOT) for team in by_parent.get(None, ())]
        for team, parent in waiting:  # grows while it is walked: breadth first
            position = self._add(team, parent, below)
            self.position_of[team.id] = self.leaf_of[team.id] = position
            offspring = by_parent.get(team.id, ())
            if offspring:
                self.leaf_of[team.id] = self._add(team, position, below, own=True)
                waiting.extend((child, position) for child in offspring)
        self.children = [tuple(positions) for positions in below]
        expected = sum(len(group) for group in by_parent.values())
        if len(self.position_of) != expected:
            lost = sorted({t.id for group in by_parent.values() for t in group} - set(self.position_of))
            raise ValueError(f"teams {lost} do not hang on the root: one of them is its own ancestor")

    def _add(self, team: Team, parent: int, below: list[list[int]], *, own: bool = False) -> int:
        position = len(self.teams)
        self.teams.append(team)
        self.parents.append(parent)
        self.ages.append(team.id)
        self.own.append(own)
        below.append([])
        if parent != ROOT:
            below[parent].append(position)
        return position


def _by_parent(teams: Iterable[Team]) -> dict[int | None, list[Team]]:
    ordered = sorted(teams, key=lambda team: team.id)
    ids = {team.id for team in ordered}
    if len(ids) != len(ordered):
        raise ValueError("two teams have the same id")
    by_parent: dict[int | None, list[Team]] = defaultdict(list)
    for team in ordered:
        if team.parent_id is not None and team.parent_id not in ids:
            raise ValueError(f"team {team.id} hangs below team {team.parent_id}, which is not there")
        by_parent[team.parent_id].append(team)
    return dict(by_parent)
