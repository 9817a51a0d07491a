"""How good the estimated starts of a replay were: the first that each waiting job was given, against what came true."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from django.db.models import F, Min

from config.replay.figures import quantile
from inventory.models import Pool
from scheduling.models import Allocation, Job

Limits = Literal["exact", "double", "none"]
LIMITS: tuple[Limits, ...] = ("exact", "double", "none")


def time_limit_s(duration_s: float | None, limits: Limits) -> int | None:
    """The time limit that a job of this duration is given, in whole seconds of at least one: its duration (rounded up),
    twice that, or none."""
    if duration_s is None or limits == "none":
        return None
    return max(1, -int(-duration_s * (2 if limits == "double" else 1) // 1))


@dataclass
class FirstEstimates:
    """The first estimate of each job, noted while the replay goes on."""

    first: dict[int, datetime] = field(default_factory=dict)

    def note(self, pool: Pool) -> None:
        """Takes note of what the pool's waiting jobs say now."""
        waiting = Job.objects.filter(pool=pool, state=Job.State.PENDING, estimated_start__isnull=False)
        for job_id, moment in waiting.values_list("pk", "estimated_start"):
            if moment is not None:
                self.first.setdefault(job_id, moment)

    def figures(self, pool: Pool, limits: Limits) -> dict[str, Any]:
        """Of the jobs that waited and started: how many had an estimate, and actual − estimated in seconds.

        ``kept``: the part that started no later than first estimated; None where none had an estimate.
        """
        late: list[float] = []
        without = 0
        for job_id, first in _first_starts(pool):
            if job_id in self.first:
                late.append((first - self.first[job_id]).total_seconds())
            else:
                without += 1
        late.sort()
        return {
            "limits": limits,
            "estimated": len(late),
            "without": without,
            "median_s": quantile(late, 0.5),
            "p95_s": quantile(late, 0.95),
            "kept": round(sum(each <= 0 for each in late) / len(late), 4) if late else None,
        }


def _first_starts(pool: Pool) -> Iterable[tuple[int, datetime]]:
    """The jobs that did not start at the moment of their submission, and when each was first bound."""
    rows = Allocation.objects.filter(pool=pool).order_by().values_list("job_id").annotate(first=Min("bound_at"))
    return rows.filter(first__gt=F("job__submitted_at")).values_list("job_id", "first").iterator(chunk_size=5000)


def as_line(found: dict[str, Any]) -> str:
    """The figures for a terminal."""
    made = {"exact": "their durations", "double": "twice their durations", "none": "none"}[found["limits"]]
    if not found["estimated"]:
        told = "no start was estimated"
    else:
        told = (
            f"{found['estimated']} waits had an estimate: actual − estimated {found['median_s']:.0f} s in the median, "
            f"{found['p95_s']:.0f} s at 95 %; {100 * found['kept']:.1f} % started no later than first estimated"
        )
    return f"Time limits: {made}. Estimated starts: {told}; {found['without']} waits had none."
