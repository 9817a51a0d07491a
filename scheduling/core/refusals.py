"""Why nobody gives way to a job for which others might: the rule in the way, and the numbers that say so.

All are of the pool's unit, of the moment of the search: ``requested`` by the job, ``freeable`` the most that could be
had at once; ``lent``: what other teams hold above what they deserve and are guaranteed; ``not_preemptible``,
``protected`` (within its least runtime) and ``leaving`` (told to stop already): of all that those teams hold, what is
out of reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from scheduling.core.admission import Refusal
from scheduling.core.cycle import Candidate, PoolCycle
from scheduling.core.model import RunningJob, TaskStart

RULES = (
    "own_quota",  # a quota of its own team is in the way, which nobody else's going changes
    "nothing_lent",  # no other team holds more than its share, and no job of its own team comes after it
    "out_of_reach",  # what others hold above their share may not be taken now
    "not_enough",  # all that may be taken together is less than what it needs
    "no_place",  # enough may be taken in sum, but it is nowhere together where the job could be placed
)


class WhyNot(NamedTuple):
    rule: str
    numbers: Mapping[str, object]


class Others:
    """What the other teams of one pool hold above their shares, and why it is not to be had. Counted when asked for."""

    def __init__(self, at: PoolCycle, running: Iterable[RunningJob], now: int, floor: Sequence[int]):
        self._at = at
        self._running = running
        self._now = now
        self._floor = floor
        self._spared: dict[int, Counter[str]] | None = None  # leaf → cause → what its jobs hold

    def why_not(self, candidate: Candidate, charge: int, freeable: int | None, own: Refusal | None) -> WhyNot:
        """Why nobody gives way to the candidate. ``freeable``: the most that a search could free, None where there was
        nobody to begin with; ``own``: the quota of its own team that is in the way."""
        at, leaf = self._at, candidate.leaf
        position = at.tree.position_of[candidate.job.team_id]
        lending = [each for each in self._leaves() if each != leaf and at.account.allocated[each] > self._floor[each]]
        lent = sum(at.account.allocated[each] - self._floor[each] for each in lending)
        numbers: dict[str, object] = {
            "team": at.account.name(position),
            "requested": charge,
            "freeable": freeable or 0,
            "allocated": at.account.allocated[position],
            "guaranteed": at.account.standing.guaranteed[position],
            "deserved": at.account.standing.deserved[position],
            "lent": lent,
            **self._spared_of(lending),
        }
        if own is not None and freeable is None:
            return WhyNot("own_quota", numbers | {"blocked_by": own.code, "limit": own.numbers.get("limit")})
        if freeable is not None:
            return WhyNot("not_enough" if freeable < charge else "no_place", numbers)
        return WhyNot("out_of_reach" if lent else "nothing_lent", numbers)

    def _leaves(self) -> list[int]:
        return sorted(self._by_leaf())

    def _spared_of(self, leaves: Iterable[int]) -> dict[str, int]:
        total = Counter[str]()
        for leaf in leaves:
            total.update(self._by_leaf()[leaf])
        return {cause: total[cause] for cause in ("not_preemptible", "protected", "leaving")}

    def _by_leaf(self) -> dict[int, Counter[str]]:
        if self._spared is None:
            self._spared = {}
            for job in self._running:
                counts = self._spared.setdefault(self._at.tree.leaf(job.team_id), Counter())
                for cause, amount in self._causes(job):
                    counts[cause] += amount
        return self._spared

    def _causes(self, job: RunningJob) -> Iterable[tuple[str, int]]:
        leaving = self._charge(job, leaving=True)
        if leaving:
            yield "leaving", leaving
        staying = self._charge(job, leaving=False)
        if not job.preemptible:
            yield "not_preemptible", staying
        elif job.protected_until > self._now:
            yield "protected", staying

    def _charge(self, job: RunningJob, *, leaving: bool) -> int:
        tasks = (TaskStart(task.group, task.placement) for task in job.tasks if task.releasing == leaving)
        return self._at.charge_of_tasks(tasks)
