"""Stores what pools remember, so that nobody has to read all their allocations anew."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db import transaction

from inventory.models import Pool
from scheduling.models import PastUse
from scheduling.past_use import EPOCH, MICROSECOND, PoolMemory


def store(memories: Iterable[PoolMemory], now: datetime) -> int:
    """What is worth storing of these memories is stored; returns how many were.

    Whoever stores writes the same sums for the same event, so the one that went further wins and nobody has to lead.
    """
    due = [memory for memory in memories if memory.is_worth_storing]
    return sum(_store(memory, now) for memory in due)


def _store(memory: PoolMemory, now: datetime) -> bool:
    memory.released.forget((now - EPOCH) // MICROSECOND)
    memory.new, memory.stored_seq = 0, memory.seq
    values = {"half_life_s": memory.half_life_s, "seq": memory.seq, "sums": memory.released.rows()}
    with transaction.atomic():
        # The pool's row is locked for the half-life that it has: sums of another one are no use to anybody.
        pool = Pool.objects.select_for_update(no_key=True).filter(pk=memory.pool_id).first()
        if pool is None or pool.half_life_s != memory.half_life_s:
            return False
        row = PastUse.objects.filter(pool=pool).first()
        if row is not None and row.half_life_s == memory.half_life_s and row.seq >= memory.seq:
            return False
        PastUse.objects.update_or_create(pool=pool, defaults=values)
    return True
