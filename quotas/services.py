"""The one door for writes to quotas. Sums are checked under the pool's row lock, so two at once cannot both fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from django.db.models import Count

from events.errors import Fault, Invalid
from events.services import require_aware, unit_of_work
from inventory.models import Device, Node, Pool
from quotas.models import Quota
from quotas.selectors import changes_between, quotas_in_force
from scheduling.core.units import format_gpus
from tenants import services as tenants
from tenants.models import Team

FIELDS = ("guaranteed", "limit", "weight", "reserved", "per_user_limit", "memory_limit_mib")
MAY_BE_UNSET = ("guaranteed", "limit", "per_user_limit", "memory_limit_mib")
LARGEST = 10**12  # milli: a billion devices; more is a slip of the finger


@dataclass(frozen=True)
class QuotaChange:
    """The row as it is now, and what the one who set it should know."""

    quota: Quota
    warnings: list[str] = field(default_factory=list)


def set_quota(
    team: Team,
    pool: Pool,
    now: datetime,
    *,
    valid_from: datetime | None = None,
    valid_until: datetime | None = None,
    override_capacity: bool = False,
    actor_id: int | None = None,
    **values: Any,
) -> QuotaChange:
    """The team's quota in the pool has these values; fields that are not named keep theirs. Units: the pool's milli;
    MiB of device memory.

    Invalid, with the sum, when the children's guarantees would exceed their parent's, or the top-level ones the
    pool's capacity (unless ``override_capacity``), at any moment at which it is in force. Where temporary rows of one
    team overlap, the one that was entered last counts. A limit above an ancestor's is kept with a warning: the lower
    one binds.
    """
    _check_values(values, valid_from, valid_until, now)
    with unit_of_work() as journal:
        # The tree before the pool, as everywhere: sums are over teams that stay where and what they are.
        tenants.hold_team_tree()
        _check_lives(team)
        Pool.objects.select_for_update(no_key=True).get(pk=pool.pk)
        row = Quota.objects.filter(team=team, pool=pool, valid_from=valid_from, valid_until=valid_until).first()
        row = row or Quota(team=team, pool=pool, valid_from=valid_from, valid_until=valid_until)
        before = {name: getattr(row, name) for name in FIELDS}
        for name, value in values.items():
            setattr(row, name, value)
        _check_row(row)
        row.updated_at = require_aware(now)
        row.save()
        moment = max(now, valid_from) if valid_from else now
        _check_sums(team, pool, moment, override_capacity=override_capacity)
        _check_later_sums(team, pool, moment, valid_until, override_capacity=override_capacity)
        warnings = _limit_warnings(team, pool, row, moment)
        changed = {name: [before[name], getattr(row, name)] for name in FIELDS if before[name] != getattr(row, name)}
        journal.record(
            "quota.set", now, team_id=team.pk, pool_id=pool.pk, actor_id=actor_id, changed=changed, warnings=warnings
        )
    return QuotaChange(row, warnings)


def remove_quota(team: Team, pool: Pool, now: datetime, *, actor_id: int | None = None) -> None:
    """The team has no standing quota in the pool; what it holds stays counted. Nothing happens if it had none."""
    with unit_of_work() as journal:
        Pool.objects.select_for_update(no_key=True).get(pk=pool.pk)
        gone, _ = Quota.objects.filter(team=team, pool=pool, valid_from=None, valid_until=None).delete()
        if gone:
            journal.record("quota.removed", now, team_id=team.pk, pool_id=pool.pk, actor_id=actor_id)


def remove_quotas_of(team: Team, now: datetime, *, actor_id: int | None = None) -> int:
    """The team has no quota in any pool, standing or temporary; returns how many rows went."""
    with unit_of_work() as journal:
        pools = Quota.objects.filter(team=team).order_by("pool_id").values_list("pool_id", flat=True).distinct()
        list(Pool.objects.select_for_update(no_key=True).filter(pk__in=list(pools)).order_by("pk"))
        rows = list(Quota.objects.filter(team=team).order_by("id"))
        for row in rows:
            journal.record("quota.removed", now, team_id=team.pk, pool_id=row.pool_id, actor_id=actor_id)
        Quota.objects.filter(pk__in=[row.pk for row in rows]).delete()
    return len(rows)


def move_team(team: Team, parent: Team | None, now: datetime, *, actor_id: int | None = None) -> None:
    """The team and all below it hang under ``parent``. Invalid, with the sum, where its guarantees do not fit there."""
    with unit_of_work():
        tenants.lock_team_tree()
        pools = list(Pool.objects.select_for_update(no_key=True).order_by("pk"))
        tenants.move_team(team, parent, now, actor_id=actor_id)
        for pool in pools:
            # What the pool has was checked when its guarantees were set; a move changes only who they count for.
            _check_sums(team, pool, now, override_capacity=True)
            _check_later_sums(team, pool, now, None, override_capacity=True)


def expire_quotas(now: datetime) -> int:
    """Temporary quotas that are over are gone, with an event each; returns how many. They stopped counting by time."""
    with unit_of_work() as journal:
        over = list(Quota.objects.select_for_update(no_key=True).filter(valid_until__lte=now).order_by("id"))
        for row in over:
            journal.record("quota.expired", now, team_id=row.team_id, pool_id=row.pool_id, until=str(row.valid_until))
        Quota.objects.filter(pk__in=[row.pk for row in over]).delete()
    return len(over)


def _check_lives(team: Team) -> None:
    if Team.objects.values_list("state", flat=True).get(pk=team.pk) == Team.State.DELETED:
        raise Invalid.at("team", f"the team '{team.slug}' is deleted", value=team.slug)


def _check_values(
    values: dict[str, Any], valid_from: datetime | None, valid_until: datetime | None, now: datetime
) -> None:
    faults = [Fault(name, "is not a field of a quota", allowed=FIELDS) for name in values if name not in FIELDS]
    for name in FIELDS:
        if name not in values or (values[name] is None and name in MAY_BE_UNSET):
            continue
        value, unit = values[name], "MiB" if name == "memory_limit_mib" else "milli"
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
            faults.append(Fault(name, f"must be a whole number of {unit} from 0 to {LARGEST}", value=value))
    if valid_from is not None and valid_until is not None and valid_from >= valid_until:
        faults.append(Fault("valid_until", "must be after valid_from", value=valid_until.isoformat()))
    if valid_until is not None and valid_until <= now:
        faults.append(Fault("valid_until", "must lie in the future", value=valid_until.isoformat()))
    if faults:
        raise Invalid(faults)


def _check_row(row: Quota) -> None:
    if row.guaranteed is not None and row.limit is not None and row.guaranteed > row.limit:
        raise Invalid.at(
            "guaranteed",
            f"{format_gpus(row.guaranteed)} is more than the limit {format_gpus(row.limit)}",
            value=format_gpus(row.guaranteed),
        )
    if row.memory_limit_mib is not None and row.pool.unit == Pool.Unit.CPU:
        message = f"the pool {row.pool.name} counts cores: it has no device memory to limit"
        raise Invalid.at("memory_limit_mib", message, value=row.memory_limit_mib)
    if row.reserved and (row.guaranteed is None or row.reserved > row.guaranteed):
        raise Invalid.at("reserved", "cannot be more than what is guaranteed", value=format_gpus(row.reserved))


def _guarantees(pool: Pool, now: datetime) -> tuple[dict[int, int | None], dict[int | None, list[Team]]]:
    set_ones = {team_id: row.guaranteed for (_, team_id), row in quotas_in_force(now, pool.pk).items()}
    children: dict[int | None, list[Team]] = {}
    for team in Team.objects.exclude(state=Team.State.DELETED).order_by("id"):
        children.setdefault(team.parent_id, []).append(team)
    return set_ones, children


def _check_sums(team: Team, pool: Pool, now: datetime, *, override_capacity: bool) -> None:
    set_ones, children = _guarantees(pool, now)

    def effective(team_id: int) -> int:
        given = set_ones.get(team_id)
        if given is not None:
            return given
        return sum(effective(child.pk) for child in children.get(team_id, ()))

    def listed(teams: Iterable[Team]) -> str:
        return " + ".join(f"{child.slug} {format_gpus(effective(child.pk))}" for child in teams if effective(child.pk))

    above: Team | None = team
    while above is not None:
        below = children.get(above.pk, [])
        given = set_ones.get(above.pk)
        handed = sum(effective(child.pk) for child in below)
        if given is not None and handed > given:
            raise Invalid.at(
                "guaranteed",
                f"the guarantees inside {above.slug} would add up to {format_gpus(handed)} ({listed(below)}), "
                f"which is more than its own {format_gpus(given)}",
            )
        above = above.parent
    total = sum(effective(child.pk) for child in children.get(None, ()))
    capacity = pool_capacity(pool)
    own = set_ones.get(team.pk)
    if own and total > capacity and not override_capacity:
        raise Invalid.at(
            "guaranteed",
            f"the top-level guarantees would add up to {format_gpus(total)} ({listed(children.get(None, []))}), "
            f"which is more than the pool's capacity {format_gpus(capacity)}",
        )


def _check_later_sums(
    team: Team, pool: Pool, start: datetime, end: datetime | None, *, override_capacity: bool
) -> None:
    """As ``_check_sums``, whenever between these two moments a temporary quota begins or ends."""
    for moment in changes_between(pool.pk, start, end):
        try:
            _check_sums(team, pool, moment, override_capacity=override_capacity)
        except Invalid as error:
            told = f", from {moment.isoformat()} on"
            raise Invalid([replace(fault, message=fault.message + told) for fault in error.faults]) from None


def pool_capacity(pool: Pool) -> int:
    """All that the pool has, in its unit, whatever its state: 1000 a device, or the CPUs of a CPU pool in milli."""
    if pool.unit == Pool.Unit.CPU:
        return sum(Node.objects.filter(pool=pool).values_list("cpu_milli", flat=True))
    return 1000 * (Device.objects.filter(node__pool=pool).aggregate(count=Count("id"))["count"] or 0)


def _limit_warnings(team: Team, pool: Pool, row: Quota, now: datetime) -> list[str]:
    in_force = quotas_in_force(now, pool.pk)
    above = []
    step = team.parent
    while step is not None:
        if (pool.pk, step.pk) in in_force:
            above.append((step.slug, in_force[pool.pk, step.pk]))
        step = step.parent
    warnings = _limit_above(row.limit, [(slug, upper.limit) for slug, upper in above], "limit", format_gpus)
    memory = [(slug, upper.memory_limit_mib) for slug, upper in above]
    return warnings + _limit_above(row.memory_limit_mib, memory, "limit of GPU memory", "{} MiB".format)


def _limit_above(
    own: int | None, above: Iterable[tuple[str, int | None]], what: str, shown: Callable[[int], str]
) -> list[str]:
    """A warning where an ancestor's limit, the nearest first, is lower than the team's own."""
    if own is None:
        return []
    for slug, theirs in above:
        if theirs is not None and theirs < own:
            return [f"The {what} {shown(own)} is above the {what} {shown(theirs)} of {slug}: the lower one binds."]
    return []
