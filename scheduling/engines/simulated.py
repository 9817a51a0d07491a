"""The simulated engine: jobs last as long as they say, on whatever clock the caller reads from.

With ``speed`` 60 an hour of work takes a minute. State is a heap of ends, rebuilt from the orders after a restart:
how long a task has run is known from its order, so a restart neither lengthens nor repeats it.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from datetime import datetime, timedelta

from scheduling.engines.base import DeviceUse, NodeFound, Order, Report, TaskUse, Utilization

FULL = 1000


class SimulatedEngine:
    """Plays launches, ends, stops, failures and utilization. ``speed``: simulated seconds per second of the clock.

    ``swings``: whether jobs of which ``play`` was not told use something all the same; else what they use is unknown.
    """

    def __init__(self, speed: float = 1.0, *, swings: bool = True):
        if speed <= 0:
            raise ValueError("speed must be more than 0")
        self.speed = speed
        self.swings = swings
        self._running: dict[int, Order] = {}
        self._ends: list[tuple[datetime, int, str]] = []
        self._reports: list[Report] = []
        self._stopping: dict[int, datetime] = {}
        self._use: dict[int, tuple[float, float]] = {}

    def resume(self, orders: Sequence[Order], now: datetime) -> None:
        for order in sorted(orders, key=lambda order: order.allocation_id):
            if order.running_at is not None:
                self._run(order, order.running_at)

    def launch(self, order: Order, now: datetime) -> None:
        if order.allocation_id in self._running:
            return
        self._run(order, now)
        self._reports.append(Report(order.allocation_id, "started", now))

    def _run(self, order: Order, start: datetime) -> None:
        self._running[order.allocation_id] = order
        seconds = None if order.simulated_duration_ms is None else order.simulated_duration_ms / 1000 / self.speed
        limit = None if order.time_limit_s is None else order.time_limit_s / self.speed
        if seconds is not None and (limit is None or seconds <= limit):
            self._plan(start + timedelta(seconds=seconds), order.allocation_id, "exited")
        elif limit is not None:
            self._plan(start + timedelta(seconds=limit), order.allocation_id, "time_limit")

    def _plan(self, moment: datetime, allocation_id: int, how: str) -> None:
        heapq.heappush(self._ends, (moment, allocation_id, how))

    def stop(self, allocation_id: int, grace_s: float, now: datetime) -> None:
        if allocation_id in self._stopping:
            return
        self._stopping[allocation_id] = now
        # A simulated task needs its whole grace period to stop, so that what waits for it can be seen waiting.
        self._plan(now + timedelta(seconds=grace_s / self.speed), allocation_id, "stopped")

    def lose(self, allocation_id: int, now: datetime, reason: str = "lost") -> None:
        """The task is gone without a word, as when its node died or somebody deleted it behind our back."""
        if self._running.pop(allocation_id, None) is not None:
            self._stopping.pop(allocation_id, None)
            self._reports.append(Report(allocation_id, "ended", now, None, reason))

    def observe(self, now: datetime) -> list[Report]:
        while self._ends and self._ends[0][0] <= now:
            moment, allocation_id, how = heapq.heappop(self._ends)
            order = self._running.get(allocation_id)
            if order is None and how != "stopped":
                continue
            if how == "exited" and allocation_id in self._stopping and moment > self._stopping[allocation_id]:
                continue  # it was told to stop before it would have ended by itself
            self._running.pop(allocation_id, None)
            if self._stopping.pop(allocation_id, None) is None and how == "stopped":
                continue
            code = order.simulated_exit_code if how == "exited" and order is not None else None
            self._reports.append(Report(allocation_id, "ended", moment, code, "" if how == "exited" else how))
        reports, self._reports = self._reports, []
        return reports

    def next_change(self) -> datetime | None:
        return self._ends[0][0] if self._ends else None

    def inventory(self, now: datetime) -> list[NodeFound] | None:
        return None

    def logs(self, allocation_id: int, offset: int = 0, limit: int = 1_000_000) -> bytes:
        order = self._running.get(allocation_id)
        if order is None:
            return b""
        text = f"[simulated] task {order.task_index} of {order.tasks} on {order.node}: {' '.join(order.command)}\n"
        return text.encode()[offset : offset + limit]

    def play(self, job_id: int, compute: float, memory: float) -> None:
        """From now on the job's tasks use this part (0 to 1) of what they hold."""
        self._use[job_id] = (compute, memory)

    def utilization(self, now: datetime) -> Utilization:
        tasks = []
        devices: dict[tuple[str, int], list[int]] = {}
        # A copy at once: the sampler asks from a thread of its own while launches and ends go on.
        for order in list(self._running.values()):
            if not self.swings and order.job_id not in self._use:
                tasks.append(TaskUse(order.allocation_id, None, None))
                continue
            compute, memory = self._use.get(order.job_id) or self._played(order, now)
            busy = used = 0
            for each in order.slices:
                slot = devices.setdefault((order.node, each.index), [0, 0])
                own = round(each.compute_milli * compute)
                slot[0] += own
                slot[1] += round(each.memory_mib * memory)
                busy += own
                used += round(each.memory_mib * memory)
            tasks.append(TaskUse(order.allocation_id, busy, used, round(order.cpu_milli * compute)))
        return Utilization(
            tuple(
                DeviceUse(node, index, min(busy, FULL), used) for (node, index), (busy, used) in sorted(devices.items())
            ),
            tuple(tasks),
        )

    def _played(self, order: Order, now: datetime) -> tuple[float, float]:
        """A task's own level with a slow swing: the same for the same task and moment, without a random generator."""
        digest = hashlib.blake2b(str(order.job_id).encode(), digest_size=8).digest()
        level = 0.35 + 0.6 * digest[0] / 255 if digest[2] > 20 else 0.0
        step = int(now.timestamp()) // 10
        swing = hashlib.blake2b(f"{order.allocation_id}/{step}".encode(), digest_size=2).digest()[0] / 255 - 0.5
        compute = min(1.0, max(0.0, level + 0.15 * swing)) if level else 0.0
        return compute, min(1.0, 0.3 + 0.65 * digest[1] / 255)

    def close(self) -> None:
        self._running.clear()
