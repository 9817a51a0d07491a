"""Quotas as they are in force at a moment."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q

from quotas.models import Quota
from scheduling.core import model as core


def quotas_in_force(now: datetime, pool_id: int | None = None) -> dict[tuple[int, int], Quota]:
    """By (pool, team): the row that counts at ``now``, a temporary one before the standing one, the newest first."""
    rows = Quota.objects.filter(
        Q(valid_from__isnull=True) | Q(valid_from__lte=now), Q(valid_until__isnull=True) | Q(valid_until__gt=now)
    )
    if pool_id is not None:
        rows = rows.filter(pool_id=pool_id)
    found: dict[tuple[int, int], Quota] = {}
    for row in rows.order_by("id"):
        key = (row.pool_id, row.team_id)
        standing = row.valid_from is None and row.valid_until is None
        if key not in found or not standing:
            found[key] = row
    return found


def as_core(row: Quota) -> core.Quota:
    """The row as the scheduler's core takes it; there a parent is guaranteed at least what its children are."""
    return core.Quota(
        guaranteed=row.guaranteed or 0,
        limit=row.limit,
        weight=row.weight,
        reserved=row.reserved,
        per_user_limit=row.per_user_limit,
        memory_limit_mib=row.memory_limit_mib,
    )


def next_change(now: datetime) -> datetime | None:
    """The next moment after ``now`` at which a temporary quota begins or ends."""
    starts = Quota.objects.filter(valid_from__gt=now).order_by("valid_from").values_list("valid_from", flat=True)[:1]
    ends = Quota.objects.filter(valid_until__gt=now).order_by("valid_until").values_list("valid_until", flat=True)[:1]
    moments = [moment for moment in (*starts, *ends) if moment is not None]
    return min(moments, default=None)


def changes_between(pool_id: int, start: datetime, end: datetime | None) -> list[datetime]:
    """The moments after ``start``, and before ``end`` where there is one, at which a temporary quota of the pool begins
    or ends; in order."""
    rows = Quota.objects.filter(Q(valid_from__isnull=False) | Q(valid_until__isnull=False), pool_id=pool_id)
    moments = {each for row in rows.values_list("valid_from", "valid_until") for each in row if each is not None}
    return sorted(each for each in moments if each > start and (end is None or each < end))
