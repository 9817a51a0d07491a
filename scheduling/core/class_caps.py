"""What the jobs of one priority class may be and hold at a time: so many jobs, so many GPUs, in each team.

Both are counted for the team whose jobs they are, without its sub-teams, over all pools; GPUs only where the pool
counts GPUs. The cap on jobs bears on what starts, the cap on GPUs on what grows as well. A cap of 0 is 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from scheduling.core.admission import Refusal
from scheduling.core.model import PendingJob, PoolState


class ClassCaps:
    """What counts against the caps while a cycle goes on."""

    def __init__(self, pools: Iterable[PoolState]):
        self._jobs: Counter[tuple[int, str]] = Counter()
        self._milli: Counter[tuple[int, str]] = Counter()
        for pool in pools:
            self._jobs.update(pool.class_usage)
            if pool.unit == "gpu":
                self._milli.update(pool.class_milli)

    def refusal(self, job: PendingJob, team: str, pool: PoolState, charge: int, *, starts: bool) -> Refusal | None:
        """The cap that forbids the job ``charge`` more in the pool. ``starts``: it does not run yet."""
        key = (job.team_id, job.priority_class)
        numbers = {"team": team, "priority_class": job.priority_class}
        most = job.max_running_of_class
        if most is not None and starts and self._jobs[key] >= most:
            return Refusal("class_cap", numbers | {"running": self._jobs[key], "limit": most})
        most = job.max_milli_of_class
        if most is not None and pool.unit == "gpu" and charge > 0 and self._milli[key] + charge > most:
            in_use = {"limit_milli": most, "in_use_milli": self._milli[key], "requested_milli": int(charge)}
            return Refusal("class_cap", numbers | in_use)
        return None

    def take(self, job: PendingJob, pool: PoolState, charge: int, *, starts: bool) -> None:
        """The job holds ``charge`` more, or has it coming once others have given way to it."""
        key = (job.team_id, job.priority_class)
        self._jobs[key] += starts
        if pool.unit == "gpu":
            self._milli[key] += int(charge)
