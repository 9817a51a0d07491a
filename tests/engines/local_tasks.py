"""Real tasks for the local engine's tests, and waits that end when something is true, or fail the test."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from scheduling.engines.base import Order, Report, Slice
from scheduling.engines.local import LocalEngine
from scheduling.engines.local.supervisor.records import claim_holder

PATIENCE_S = 20.0
BOUND_AT = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def now() -> datetime:
    return datetime.now(UTC)


def until(is_true: Callable[[], Any], what: str = "") -> Any:
    """The first answer that is true; the test fails where none is within the patience."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := is_true()):
        assert time.monotonic() < deadline, f"waited in vain{': ' if what else ''}{what}"
        time.sleep(0.004)
    return answer


def order(allocation_id: int, *command: str, **changes: Any) -> Order:
    plain = Order(
        allocation_id=allocation_id,
        job_id=70 + allocation_id,
        job_name="job",
        team="nlp",
        user="bob",
        task_index=0,
        tasks=1,
        command=command,
        environment={},
        image="",
        node="here",
        slices=(),
        cpu_milli=0,
        host_memory_mib=0,
        bound_at=BOUND_AT,
    )
    return replace(plain, **changes)


def shell(allocation_id: int, script: str, **changes: Any) -> Order:
    return order(allocation_id, "/bin/sh", "-c", script, **changes)


def pretend_slice(index: int = 0, compute_milli: int = 1000, memory_mib: int = 16384) -> Slice:
    return Slice(index, f"pretend-here-{index}", "pretend-gpu", compute_milli, memory_mib)


def nvidia_slice(index: int = 0, compute_milli: int = 1000, memory_mib: int = 81920) -> Slice:
    return Slice(index, f"GPU-{index}", "A100", compute_milli, memory_mib)


class Told:
    """Collects what an engine reports."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self.reports: list[Report] = []

    def look(self) -> Told:
        self.reports += self.engine.observe(now())
        return self

    def of(self, allocation_id: int, kind: str) -> list[Report]:
        return [report for report in self.reports if (report.allocation_id, report.kind) == (allocation_id, kind)]

    def start(self, allocation_id: int) -> Report:
        return until(lambda: self.look().of(allocation_id, "started"), f"start of {allocation_id}")[0]

    def end(self, allocation_id: int) -> Report:
        return until(lambda: self.look().of(allocation_id, "ended"), f"end of {allocation_id}")[0]


def folder(root: Path, allocation_id: int) -> Path:
    return root / "tasks" / str(allocation_id)


def supervisor(root: Path, allocation_id: int) -> int:
    """The pid of the supervisor that is there now."""
    return until(lambda: claim_holder(folder(root, allocation_id) / "claim"), f"supervisor of {allocation_id}")


def processes_of(root: Path) -> Iterator[int]:
    """Everything that runs for an engine with this root: supervisors, and what has one of its folders about it."""
    mark = os.fspath(root.resolve() / "tasks")
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            about = [*process.cmdline(), *process.environ().values()]
            if process.status() != psutil.STATUS_ZOMBIE and any(mark in text for text in about):
                yield process.pid


def runs(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def number_in(path: Path) -> int:
    """The number that a task wrote there, once it is there as a line."""
    return int(until(lambda: path.exists() and path.read_text().endswith("\n") and path.read_text(), str(path)))
