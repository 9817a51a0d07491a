"""One elected scheduler. Who holds the lease commits; who lost it finds out inside its own transaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count

from django.db import transaction
from django.db.models import Q

from scheduling.models import SchedulerLease

NAME = "scheduler"
LEASE_TIME = timedelta(seconds=15)


class LostLease(Exception):
    """Another scheduler leads now: nothing of this one's transaction is kept."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A leadership: good while its term is the current one."""

    holder: str
    term: int
    first_cycle: int = 0
    cycles: Iterator[int] = field(default_factory=lambda: count(1), compare=False)


def acquire(holder: str, now: datetime, *, name: str = NAME) -> Lease | None:
    """The lease, if it was free, had run out, or is this holder's own already; else None."""
    with transaction.atomic():
        SchedulerLease.objects.get_or_create(name=name)
        row = SchedulerLease.objects.select_for_update(no_key=True).get(name=name)
        if row.holder not in ("", holder) and row.expires_at is not None and row.expires_at > now:
            return None
        row.term += 1
        SchedulerLease.objects.filter(name=name).update(holder=holder, term=row.term, expires_at=now + LEASE_TIME)
        return Lease(holder, row.term, row.cycle)


def renew(lease: Lease, now: datetime, *, cycle_ms: int = 0, name: str = NAME) -> int:
    """The lease runs on from ``now``; returns the number of the cycle that may commit, rising. Raises LostLease."""
    cycle = lease.first_cycle + next(lease.cycles)
    rows = SchedulerLease.objects.filter(name=name, holder=lease.holder, term=lease.term)
    if not rows.update(expires_at=now + LEASE_TIME, cycle=cycle, cycle_at=now, cycle_ms=cycle_ms):
        raise LostLease(f"term {lease.term} of {lease.holder} is over")
    return cycle


def give_up(lease: Lease, *, name: str = NAME) -> None:
    """Another may lead at once. Nothing happens if the lease is no longer this one's."""
    SchedulerLease.objects.filter(name=name, holder=lease.holder, term=lease.term).update(holder="", expires_at=None)


def leader_seen(now: datetime, *, name: str = NAME) -> bool:
    """Whether a scheduler leads at ``now``: its lease has not run out."""
    return SchedulerLease.objects.filter(Q(name=name), expires_at__gt=now).exclude(holder="").exists()
