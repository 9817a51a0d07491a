"""The one door for writes to packages: bought, confirmed once, drawn under their row locks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import Q

from billing.exact import exactly
from billing.models import Package, PackageDraw, UsageRecord
from billing.tills import DUST, Till
from events.errors import Invalid
from events.rows import insert_rows
from events.services import require_aware, unit_of_work
from inventory.models import AcceleratorModel, Pool
from tenants.models import Team
from tenants.policy import Tree, team_tree

WORK_PER_HOUR = 3_600_000_000_000  # milli-GPU × microseconds in a GPU-hour
MOST_HOURS = 1_000_000


def add_package(
    team: Team,
    gpu_hours: Decimal,
    now: datetime,
    *,
    pool: Pool | None = None,
    model: AcceleratorModel | None = None,
    price: Decimal = Decimal(0),
    starts_at: datetime | None = None,
    expires_at: datetime | None = None,
    confirmed: bool = False,
    actor_id: int | None = None,
) -> Package:
    """GPU-hours for the team and all below it from ``starts_at`` (default ``now``) on; to be drawn once confirmed."""
    start = require_aware(starts_at or now)
    work = exactly(lambda: gpu_hours * WORK_PER_HOUR) if gpu_hours.is_finite() else gpu_hours
    if not gpu_hours.is_finite() or not 0 < gpu_hours <= MOST_HOURS or work != int(work) or work < DUST:
        message = f"must be more than 0, at most {MOST_HOURS}, with at most 6 places"
        raise Invalid.at("gpu_hours", message, value=str(gpu_hours))
    if not price.is_finite() or price < 0:
        raise Invalid.at("price", "a price is 0 or more", value=str(price))
    if start < now:
        raise Invalid.at("starts_at", "a package cannot begin in the past", value=start.isoformat())
    if expires_at is not None and require_aware(expires_at) <= start:
        raise Invalid.at("expires_at", "must be after the package begins", value=expires_at.isoformat())
    if pool is not None and pool.unit != Pool.Unit.GPU:
        raise Invalid.at("pool", "counts cores; a package is of GPU-hours", value=pool.name)
    if team.deleted_at is not None:
        raise Invalid.at("team", f"the team '{team.slug}' is deleted", value=team.slug)
    with unit_of_work() as journal:
        package = Package(
            team=team,
            pool=pool,
            model=model,
            work=int(work),
            left=int(work),
            price=price,
            starts_at=start,
            expires_at=expires_at,
            created_at=now,
        )
        package.save()
        journal.record("package.added", now, team_id=team.pk, actor_id=actor_id, gpu_hours=str(gpu_hours))
        if confirmed:
            confirm_package(package, now, actor_id=actor_id)
    return package


def confirm_package(package: Package, now: datetime, *, actor_id: int | None = None) -> bool:
    """The package is paid and can be drawn from, for what is used from now on. False: it was before, nothing changes.

    However many confirm it at the same moment, one does, and one event tells of it.
    """
    with unit_of_work() as journal:
        changed = Package.objects.filter(pk=package.pk, state=Package.State.PENDING).update(
            state=Package.State.CONFIRMED, confirmed_at=require_aware(now)
        )
        if changed:
            hours = str(package.work / Decimal(WORK_PER_HOUR))
            journal.record("package.confirmed", now, team_id=package.team_id, actor_id=actor_id, gpu_hours=hours)
    package.refresh_from_db()
    return bool(changed)


class OpenPurse:
    """The packages that some records may draw from, as tills, their rows locked until the transaction ends."""

    def __init__(self, tills: Sequence[Till]) -> None:
        self.tills = tills
        self._before = {till.id: till.left for till in tills}

    def serving(self, record: Any) -> list[Till]:
        return [till for till in self.tills if till.serves(record.team_id, record.pool_id, record.model_id)]

    def charge(self, draws: Sequence[tuple[UsageRecord, int, int]], at: datetime) -> None:
        """Each (record, package id, work) is on the ledger, and the packages have as much less."""
        insert_rows(
            PackageDraw(package_id=package_id, record_id=record.pk, work=work, amount=record.amount or 0, at=at)
            for record, package_id, work in draws
        )
        for till in self.tills:
            if till.left != self._before[till.id]:
                Package.objects.filter(pk=till.id).update(left=till.left)


def open_purse(records: Sequence[Any], until: datetime) -> OpenPurse | None:
    """The packages that may pay these records, locked in order of id; None where there are none."""
    if not records:
        return None
    began = min(record.started_at for record in records)
    rows = list(_drawable(began, until).order_by("pk").values_list("pk", "team_id"))
    if not rows:
        return None
    tree = team_tree()
    line = {above for team_id in {record.team_id for record in records} for above in tree.line(team_id)}
    ids = [pk for pk, team_id in rows if team_id in line]
    if not ids:
        return None
    # Read after the lock: whoever charged at the same moment has written what is left.
    locked = Package.objects.select_for_update(no_key=True).filter(pk__in=ids).order_by("pk")
    return OpenPurse([till_of(package, tree) for package in locked])


def _drawable(began: datetime, until: datetime) -> Any:
    return Package.objects.filter(
        Q(expires_at__isnull=True) | Q(expires_at__gt=began),
        state=Package.State.CONFIRMED,
        left__gte=DUST,
        starts_at__lt=until,
        confirmed_at__lt=until,
    )


def till_of(package: Package, tree: Tree) -> Till:
    """The package as it can be drawn from: since it begins and was confirmed, by the team and all below it."""
    return Till(
        package.pk,
        package.left,
        max(package.starts_at, package.confirmed_at or package.starts_at),
        package.expires_at,
        frozenset(tree.below(package.team_id)),
        package.pool_id,
        package.model_id,
    )


def open_tills(now: datetime) -> list[Till]:
    """Every package that can be drawn from for what is used up to ``now`` and not settled yet, or later."""
    oldest = (
        UsageRecord.objects.filter(ended_at__isnull=True).order_by("started_at").values_list("started_at", flat=True)
    )
    since = oldest.first() or now
    rows = Package.objects.filter(
        Q(expires_at__isnull=True) | Q(expires_at__gt=since), state=Package.State.CONFIRMED, left__gte=DUST
    )
    packages = list(rows.order_by("pk"))
    tree = team_tree() if packages else None
    return [till_of(package, tree) for package in packages] if tree else []
