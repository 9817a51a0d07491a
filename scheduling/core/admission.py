"""Who may hold what: the predicates of quota, each a "no" with the numbers that it saw.

All of them are monotone within a cycle: allocations only grow and room only shrinks, so what is refused once stays
refused until the cycle ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scheduling.core.charges import memory_of
from scheduling.core.model import PoolState
from scheduling.core.shares import NO_QUOTA, Standing
from scheduling.core.tree import ROOT


@dataclass(frozen=True, slots=True)
class Refusal:
    """One predicate that says no: its reason code, and the numbers behind it."""

    code: str
    numbers: Mapping[str, Any]


class Account:
    """What the teams of one pool hold while a cycle goes on, and what they may take on top.

    ``allocated`` is by position of the tree, subtrees included. ``standing`` is as the cycle found it, or as it was
    last worked out anew; guarantees, limits and entitlements are read from there. ``memory`` is the device memory, by
    position too, kept where some team's is limited: charges then carry theirs.
    """

    def __init__(self, pool: PoolState, standing: Standing, free: Callable[[], int]):
        self.pool = pool
        self.tree = standing.tree
        self.standing = standing
        self.allocated = list(standing.allocated)
        self._free = free
        self._memory_limits = self._limits_of("memory_limit_mib")
        self.memory = self._memory_held()
        self._per_user = self._limits_of("per_user_limit")
        self._by_user = self._held_by_users()
        self._keeps_reserves = any(standing.reserved)
        self._kept: list[int] = []
        self._kept_below: list[int] = []
        if self._keeps_reserves:
            self._count_reserves()

    def refusal(self, leaf: int, user_id: int, charge: int, *, preemptible: bool) -> Refusal | None:
        """The first reason why a job at ``leaf`` may not hold ``charge`` more, or None. 0 more is never refused."""
        return next(self.refusals(leaf, user_id, charge, preemptible=preemptible), None)

    def refusals(self, leaf: int, user_id: int, charge: int, *, preemptible: bool) -> Iterator[Refusal]:
        """Every reason, the team's own limits before its ancestors'."""
        if charge == 0:
            return
        path = self.tree.path(leaf)
        yield from self._over_limits(path, charge)
        if self._memory_limits:
            yield from self._over_memory_limits(path, memory_of(charge))
        if self._per_user:
            yield from self._over_user_limits(path, user_id, charge)
        if not preemptible:
            yield from self._outside_guarantee(leaf, charge)
        if self._keeps_reserves:
            yield from self._reserved_by_others(path, charge)

    def take(self, leaf: int, user_id: int, charge: int) -> None:
        """Books ``charge`` on the job's team and all above it."""
        if charge == 0:
            return
        path = self.tree.path(leaf)
        if self._memory_limits:
            for position in path:
                self.memory[position] += memory_of(charge)
            charge = int(charge)
        for position in path:
            self.allocated[position] += charge
            if position in self._per_user:
                self._by_user[position, user_id] = self._by_user.get((position, user_id), 0) + charge
        if self._keeps_reserves:
            for position in path:
                self._keep(position)

    def give_up(self, leaf: int, user_id: int, charge: int) -> None:
        """What ``take`` booked is not booked any more."""
        self.take(leaf, user_id, -charge)

    def set_aside(self, amounts: Mapping[int, int]) -> None:
        """Books these amounts, by position, as if they were held there; negative ones take that back."""
        for position, amount in amounts.items():
            self.allocated[position] += int(amount)
            if self._memory_limits:
                self.memory[position] += memory_of(amount)
        if self._keeps_reserves:
            self._count_reserves()

    def use_standing(self, standing: Standing) -> None:
        """Goes on with other entitlements; what is allocated stays as booked."""
        self.standing = standing
        if self._keeps_reserves:
            self._count_reserves()

    @property
    def tells_users_apart(self) -> bool:
        """Whether what a job may hold depends on whose it is."""
        return bool(self._per_user)

    def name(self, position: int) -> str:
        return self.tree.teams[position].name

    # ---- the predicates ----------------------------------------------------------------------------------------------

    def _over_limits(self, path: tuple[int, ...], charge: int) -> Iterator[Refusal]:
        for position in path:
            limit = self.standing.limit[position]
            if limit is not None and self.allocated[position] + charge > limit:
                yield Refusal("over_limit", self._numbers(position, charge, limit=limit))

    def _over_memory_limits(self, path: tuple[int, ...], memory_mib: int) -> Iterator[Refusal]:
        for position in path:
            limit = self._memory_limits.get(position)
            if limit is not None and memory_mib and self.memory[position] + memory_mib > limit:
                numbers = {"team": self.name(position), "pool": self.pool.name, "limit_mib": limit}
                yield Refusal(
                    "over_memory_limit",
                    numbers | {"allocated_mib": self.memory[position], "requested_mib": memory_mib},
                )

    def _over_user_limits(self, path: tuple[int, ...], user_id: int, charge: int) -> Iterator[Refusal]:
        for position in path:
            limit = self._per_user.get(position)
            if limit is None:
                continue
            held = self._by_user.get((position, user_id), 0)
            if held + charge > limit:
                numbers = self._numbers(position, charge, limit=limit, user=user_id)
                yield Refusal("over_user_limit", numbers | {"allocated": held})

    def _outside_guarantee(self, leaf: int, charge: int) -> Iterator[Refusal]:
        """What cannot be preempted is never lent to: it has room only inside the guarantee of the job's own team."""
        team_id = self.tree.teams[leaf].id
        position = self.tree.position_of[team_id]
        guaranteed = self.pool.quotas.get(team_id, NO_QUOTA).guaranteed
        if self.allocated[position] + charge > guaranteed:
            yield Refusal("over_share", self._numbers(position, charge, guaranteed=guaranteed))

    def _reserved_by_others(self, path: tuple[int, ...], charge: int) -> Iterator[Refusal]:
        """What others have reserved and do not use must stay free, in the pool and inside every limit on the way up."""
        others = 0
        for position in path:
            parent = self.tree.parents[position]
            others += self._kept_below[parent] - self._kept[position]
            room = self._room(parent)
            if room is not None and room - others < charge <= room:
                numbers = self._numbers(path[0], charge, guaranteed=self.standing.guaranteed[path[0]])
                kept = {"free": room, "reserved": min(others, room), "reserved_for": self._reserving(path)}
                yield Refusal("over_share", numbers | kept)

    def _room(self, position: int) -> int | None:
        """What is left inside the limit of a team, or of the whole pool at the root; None without a limit."""
        if position == ROOT:
            return self._free()
        limit = self.standing.limit[position]
        return None if limit is None else limit - self.allocated[position]

    def _numbers(self, position: int, charge: int, **more: object) -> dict[str, object]:
        return {
            "team": self.name(position),
            "pool": self.pool.name,
            "allocated": self.allocated[position],
            "requested": int(charge),
            **more,
        }

    # ---- members and memory ------------------------------------------------------------------------------------------

    def _limits_of(self, name: Literal["per_user_limit", "memory_limit_mib"]) -> dict[int, int]:
        """By position: this field of the quotas, where it is set."""
        limits = {}
        for team_id, quota in sorted(self.pool.quotas.items()):
            limit = getattr(quota, name)
            if limit is not None and team_id in self.tree.position_of:
                limits[self.tree.position_of[team_id]] = limit
        return limits

    def _memory_held(self) -> list[int]:
        held = [0] * len(self.tree)
        if self._memory_limits:
            for team_id, memory_mib in self.pool.memory_usage.items():
                for position in self.tree.path(self.tree.leaf_of[team_id]):
                    held[position] += memory_mib
        return held

    def _held_by_users(self) -> dict[tuple[int, int], int]:
        held: dict[tuple[int, int], int] = {}
        if self._per_user:
            for (team_id, user_id), amount in self.pool.usage.items():
                for position in self.tree.path(self.tree.leaf_of[team_id]):
                    if position in self._per_user:
                        held[position, user_id] = held.get((position, user_id), 0) + amount
        return held

    # ---- reserves ----------------------------------------------------------------------------------------------------

    def _count_reserves(self) -> None:
        """``_kept``: what must stay free for each subtree; ``_kept_below``: for all children together, ROOT last."""
        self._kept = [0] * len(self.tree)
        self._kept_below = [0] * (len(self.tree) + 1)
        for position in range(len(self.tree) - 1, -1, -1):
            self._keep(position)

    def _keep(self, position: int) -> None:
        """Keeps what is reserved, as far as the capacity reaches for it, less what is in use."""
        reserved = min(self.standing.reserved[position], self.standing.entitled[position])
        kept = max(reserved - self.allocated[position], self._kept_below[position], 0)
        self._kept_below[self.tree.parents[position]] += kept - self._kept[position]
        self._kept[position] = kept

    def _reserving(self, path: tuple[int, ...]) -> list[str]:
        """The names of the teams outside ``path`` that something is kept for, the lowest that say so, oldest first."""
        names = {
            self.tree.teams[i] for i, kept in enumerate(self._kept) if kept > self._kept_below[i] and i not in path
        }
        return [team.name for team in sorted(names, key=lambda team: team.id)]
