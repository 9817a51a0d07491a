"""What nobody writes an event for: how busy things are. Looked up now and then, told where it differs visibly."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import Q

from live import selectors
from live.mailbox import Item
from live.subjects import Topic, topics_of
from telemetry.models import DeviceReading
from telemetry.readings import STALE_AFTER
from tenants.policy import Tree

# A smaller change is not seen on a bar: 2 % of a device, and 1/4 GiB.
VISIBLE_MILLI = 20
VISIBLE_MIB = 256

Known = tuple[int | None, int | None]  # busy milli, MiB
UNKNOWN: Known = (None, None)
Shown = tuple[int, Known, str | None, int]  # allocated milli, use, cost, team


def differs(before: Known, after: Known) -> bool:
    """Whether somebody who was shown ``before`` should be shown ``after``."""
    return _differs(before[0], after[0], VISIBLE_MILLI) or _differs(before[1], after[1], VISIBLE_MIB)


def _differs(before: int | None, after: int | None, visible: int) -> bool:
    if before is None or after is None:
        return before is not after
    return before != after and (abs(before - after) >= visible or 0 in (before, after))


class Measurements:
    """Remembers what the listeners of this process were shown last."""

    def __init__(self) -> None:
        self._devices: dict[int, dict[int, Known]] = {}  # by pool
        self._jobs: dict[int, Shown] = {}
        self._changed_pools: set[int] = set()

    def changed(self, pool_id: int) -> None:
        """The pool's totals are told at the next look."""
        self._changed_pools.add(pool_id)

    def forget(self, topic: Topic) -> None:
        """Nobody listens to it any more."""
        kind, key = topic
        if kind == "pool":
            self._devices.pop(key, None)
            self._changed_pools.discard(key)

    def totals(self, pools: dict[int, str], now: datetime) -> dict[Topic, list[Item]]:
        """Of the pools that changed since the last look."""
        due = sorted(pool_id for pool_id in self._changed_pools if pool_id in pools)
        self._changed_pools.clear()
        if not due:
            return {}
        return {("pool", pool_id): [item] for pool_id, item in selectors.pool_items(due, pools, now).items()}

    def readings(self, topics: Mapping[Topic, Any], tree: Tree, now: datetime) -> dict[Topic, list[Item]]:
        """What somebody listens to and what differs from what was shown; what went stale is unknown again."""
        found: dict[Topic, list[Item]] = {}
        for pool_id in sorted(key for kind, key in topics if kind == "pool"):
            changed = self._changed_devices(pool_id, now)
            if changed:
                self._changed_pools.add(pool_id)
                found[("pool", pool_id)] = selectors.device_items(changed, now).get(pool_id, [])
        self._jobs_of(topics, tree, now, found)
        return found

    def _changed_devices(self, pool_id: int, now: datetime) -> list[int]:
        rows = DeviceReading.objects.filter(device__node__pool_id=pool_id, at__gte=now - STALE_AFTER)
        fresh: dict[int, Known] = {
            key: (compute, memory) for key, compute, memory in rows.values_list("pk", "compute_milli", "memory_mib")
        }
        shown = self._devices.setdefault(pool_id, {})
        changed = [key for key, known in fresh.items() if differs(shown.get(key, UNKNOWN), known)]
        changed += [key for key, known in shown.items() if key not in fresh and differs(known, UNKNOWN)]
        for key in changed:
            shown[key] = fresh.get(key, UNKNOWN)
        return sorted(changed)

    def _jobs_of(self, topics: Mapping[Topic, Any], tree: Tree, now: datetime, found: dict[Topic, list[Item]]) -> None:
        teams = {below for kind, key in topics if kind == "team" for below in tree.below(key)}
        jobs = {key for kind, key in topics if kind == "job"}
        if not teams and not jobs:
            self._jobs.clear()
            return
        readings = selectors.job_readings(Q(team_id__in=teams) | Q(job_id__in=jobs), now)
        costs = selectors.costs_of(jobs, now) if jobs else {}
        shown: dict[int, Shown] = {}
        for reading in readings:
            cost = costs.get(reading.job_id)
            state = (reading.allocated_milli, (reading.used_milli, reading.memory_mib), cost, reading.team_id)
            before = self._jobs.get(reading.job_id)
            if before is not None and (before[0], before[2]) == (state[0], cost) and not differs(before[1], state[1]):
                shown[reading.job_id] = before
                continue
            shown[reading.job_id] = state
            item = reading.item(cost)
            for topic in topics_of(reading.team_id, reading.job_id, topics, tree):
                found.setdefault(topic, []).append(item)
        for job_id in sorted(jobs & self._jobs.keys() - shown.keys()):
            # It ended since: what it came to in the end.
            last = selectors.JobReading(job_id, self._jobs[job_id][3], 0, None, None)
            found.setdefault(("job", job_id), []).append(last.item(costs.get(job_id)))
        self._jobs = shown
