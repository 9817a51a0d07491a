"""Memory of the past: what teams used of a pool, fading with its half-life, and how much less that makes them count.

The weight of a team among its siblings is multiplied by 2^(-U/S): U is its part of what they all used, S its part of
their weights. So a team that used twice its share counts for a quarter, and one that used none counts in full (the
fair-share factor of Slurm's multifactor priority, there for the order of jobs, here for the shares).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scheduling.core.halving import EXPONENT_BITS, VALUE_BITS, power_of_half

WEIGHT_BITS = 40  # a weight that is multiplied is a whole number of 2^-40
HORIZON = 32  # half-lives: what is older has faded to less than 2^-32 of itself and is forgotten
LEAST_STEP = 30_000_000  # microseconds: time alone makes nobody decide anew more often than this
STEPS = 32  # of a half-life: in one of them no share moves by more than 3 % for what is used meanwhile

# 1/ln 2 to 18 places: one unit held for a whole past, fading, comes to half-life/ln 2.
_PER_LN_2 = (1_442_695_040_888_963_407, 10**18)


def step(half_life: int) -> int:
    """How long shares may go on as they are while only time passes; microseconds."""
    return max(half_life // STEPS, LEAST_STEP)


def remembered(weights: Sequence[int], used: Sequence[int], rises: Sequence[bool]) -> list[int]:
    """The weights of siblings multiplied by 2^(-U/S), as whole numbers of one small unit; only their ratios count.

    Weight 0 stays 0, and so do those that do not rise; any other is at least 1. The exponents are worked out as
    fractions and rounded down once, to 2^-40; the smallest of those that rise is taken off all of them, so that no
    ratio that matters is lost, however much everybody used. Where nobody used anything the weights are as they were.
    """
    all_used, all_weights = sum(used), sum(weights)
    rising = [i for i, rise in enumerate(rises) if rise and weights[i] > 0]
    if not all_used or not rising:
        return list(weights)
    exponents = {i: (used[i] * all_weights << EXPONENT_BITS) // (all_used * weights[i]) for i in rising}
    least = min(exponents.values())
    result = [0] * len(weights)
    for i in rising:
        result[i] = max(1, weights[i] * power_of_half(exponents[i] - least) >> (VALUE_BITS - WEIGHT_BITS))
    return result


class Memory:
    """What each team held from when to when, as sums that fade together. Times in microseconds, amounts in milli.

    Held from a to b and seen at time t, an amount comes to the integral of 2^(-age/half-life): in proportion to
    2^(b/h) - 2^(a/h), over 2^(t/h). So each beginning and each end is one term, and the terms of a team may be added
    up, in whole numbers and in any order: a sum that was kept is the same as one that is made from all rows anew.
    """

    __slots__ = ("_sums", "half_life")

    def __init__(self, half_life: int):
        self.half_life = half_life
        self._sums: dict[int, dict[int, int]] = {}  # team → period, counted in half-lives → the sum of its terms

    def begin(self, team_id: int, amount: int, at: int) -> None:
        """From ``at`` on the team holds ``amount`` more."""
        self.end(team_id, -amount, at)

    def end(self, team_id: int, amount: int, at: int) -> None:
        """From ``at`` on the team holds ``amount`` less."""
        period, term = self._term(at)
        sums = self._sums.setdefault(team_id, {})
        sums[period] = sums.get(period, 0) + amount * term

    def used(self, now: int, held: Mapping[int, int], *others: Memory) -> dict[int, int]:
        """Team → milli-seconds used up to ``now``, faded; ``held``: what it holds now. ``others`` are added to it.

        Teams that used none are left out.
        """
        first, term = self._term(now)
        first -= HORIZON
        memories = (self, *others)
        found = {}
        for team_id in sorted({*held, *(team_id for memory in memories for team_id in memory._sums)}):
            total = held.get(team_id, 0) * term << HORIZON
            for memory in memories:
                for period, amount in memory._sums.get(team_id, {}).items():
                    if period > first:
                        total += amount << (period - first)
            seconds = total * self.half_life * _PER_LN_2[0] // ((term << HORIZON) * _PER_LN_2[1] * 1_000_000)
            if seconds > 0:
                found[team_id] = seconds
        return found

    def forget(self, now: int) -> None:
        """Lets go of the terms that no longer count at ``now``: ``used`` is the same before and after, from then on."""
        first = self._term(now)[0] - HORIZON
        for team_id, sums in list(self._sums.items()):
            kept = {period: amount for period, amount in sums.items() if period > first and amount}
            if kept:
                self._sums[team_id] = kept
            else:
                del self._sums[team_id]

    def since(self, now: int) -> int:
        """The moment before which nothing counts at ``now``."""
        return (self._term(now)[0] - HORIZON) * self.half_life

    def rows(self) -> list[tuple[int, int, int]]:
        """(team, period, sum), in order, to be kept."""
        return sorted(
            (team_id, period, amount)
            for team_id, sums in self._sums.items()
            for period, amount in sums.items()
            if amount
        )

    def restore(self, rows: Iterable[tuple[int, int, int]]) -> None:
        """Adds what ``rows`` gave out."""
        for team_id, period, amount in rows:
            sums = self._sums.setdefault(team_id, {})
            sums[period] = sums.get(period, 0) + amount

    def _term(self, at: int) -> tuple[int, int]:
        """2^(at/half-life) as 2^period times a whole number of 2^-60 that is above a half and at most one."""
        period = -(-at // self.half_life)
        return period, power_of_half((period * self.half_life - at << EXPONENT_BITS) // self.half_life)
