"""Refusals to evict in the ledger: one for a job when it is first refused, and another when that changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Max

from events.rows import insert_rows
from scheduling.core import model as core
from scheduling.models import Decision

FIGURES_EVERY = timedelta(minutes=1)  # how often one is written anew where the rule is the same and only figures differ
MOST_AT_ONCE = 100  # of one cycle; the next goes on with the rest


@dataclass
class RefusalsTold:
    """What the ledger says last of each waiting job, as far as it is a refusal."""

    _last: dict[int, tuple[datetime, core.EvictionRefusal]] = field(default_factory=dict)

    def due(
        self, refusals: Sequence[core.EvictionRefusal], waiting: Mapping[int, object], now: datetime
    ) -> list[core.EvictionRefusal]:
        """Those of the plan that the ledger does not say yet, at most MOST_AT_ONCE."""
        for job_id in [job_id for job_id in self._last if job_id not in waiting]:
            del self._last[job_id]
        changed = [each for each in refusals if self._differs(each, now)][:MOST_AT_ONCE]
        unknown = {each.job_id: each for each in changed if each.job_id not in self._last}
        self._last.update(_in_the_ledger(unknown))
        return [each for each in changed if self._differs(each, now)]

    def told(self, refusals: Iterable[core.EvictionRefusal], now: datetime) -> None:
        """These are in the ledger now."""
        self._last.update({each.job_id: (now, each) for each in refusals})

    def forget(self, job_ids: Iterable[int] | None = None) -> None:
        """What the ledger says of these jobs (of all) is something else by now, or not known."""
        if job_ids is None:
            self._last.clear()
        for job_id in job_ids or ():
            self._last.pop(job_id, None)

    def _differs(self, refusal: core.EvictionRefusal, now: datetime) -> bool:
        known = self._last.get(refusal.job_id)
        if known is None:
            return True
        when, before = known
        if _kind(before) != _kind(refusal):
            return True
        return dict(before.numbers) != dict(refusal.numbers) and now - when >= FIGURES_EVERY


def _kind(refusal: core.EvictionRefusal) -> tuple[object, ...]:
    """What makes it another refusal, not the same with other figures."""
    return (refusal.pool_id, refusal.rule, refusal.numbers.get("requested"), refusal.numbers.get("blocked_by"))


def _in_the_ledger(refusals: Mapping[int, core.EvictionRefusal]) -> dict[int, tuple[datetime, core.EvictionRefusal]]:
    """Those of the jobs of which the last thing that the ledger says is a refusal."""
    if not refusals:
        return {}
    last = Decision.objects.filter(job_id__in=sorted(refusals)).order_by().values("job_id").annotate(last=Max("id"))
    rows = Decision.objects.filter(pk__in=[row["last"] for row in last], kind=Decision.Kind.REFUSE)
    return {row.job_id: (row.at, core.EvictionRefusal(row.job_id, row.pool_id, row.rule, row.numbers)) for row in rows}


def record_refusals(
    refusals: Sequence[core.EvictionRefusal], teams: Mapping[int, int], cycle: int, now: datetime
) -> None:
    """The ledger says so; ``teams``: job → team."""
    insert_rows(
        Decision(
            at=now,
            cycle=cycle,
            kind=Decision.Kind.REFUSE,
            job_id=each.job_id,
            team_id=teams[each.job_id],
            pool_id=each.pool_id,
            rule=each.rule,
            numbers=dict(each.numbers),
        )
        for each in refusals
    )
