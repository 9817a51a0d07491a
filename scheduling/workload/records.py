"""What a trace holds once read: nodes, teams and jobs as plain frozen records, and the lines that could not be read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from scheduling.core.units import MILLI_PER_DEVICE

Exit = Literal["succeeded", "failed"]
Seconds = int | Decimal

SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Malformed:
    """One place in a file that is not what the format says. ``field`` is None where the whole line is meant."""

    file: str
    line: int  # counted from 1; the header is line 1
    field: str | None
    value: str
    message: str

    def __str__(self) -> str:
        field = f", {self.field}" if self.field else ""
        shown = f": {shorten(self.value)!r}" if self.value else ""
        return f"{self.file}, line {self.line}{field}: {self.message}{shown}"


class TraceError(ValueError):
    """A trace that cannot be read: what is wrong and, where it is one line's fault, which (``malformed``)."""

    def __init__(self, message: str, malformed: Malformed | None = None):
        super().__init__(message)
        self.message = message
        self.malformed = malformed


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One machine. ``devices`` 0 is a CPU node: no model, no vendor, no device memory."""

    name: str
    cpu_milli: int
    host_memory_mib: int
    devices: int
    model: str = ""
    vendor: str = ""
    device_memory_mib: int = 0
    labels: tuple[tuple[str, str], ...] = ()  # sorted


@dataclass(frozen=True, slots=True)
class TraceTeam:
    """Who submits. ``label`` is the trace's own word; ``share_milli`` what the team was given then, None if unknown."""

    name: str
    label: str
    share_milli: int | None = None


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job: ``tasks`` equal tasks, each asking ``gpu_milli`` (1..1000) of ``devices`` devices of one node.

    ``devices`` 0 is CPU-only. ``cpu_milli`` and ``memory_mib`` are per task; 0 where the trace does not say.
    Times are seconds from the start of the trace; ``duration_s`` is None where the end is not known.
    """

    name: str
    team: str
    submit_s: Seconds
    duration_s: Seconds | None
    tasks: int
    devices: int
    gpu_milli: int
    cpu_milli: int
    memory_mib: int
    models: tuple[str, ...] = ()  # allowed models, sorted; () = any
    priority_class: str = "normal"
    exit: Exit = "succeeded"

    @property
    def total_milli(self) -> int:
        """Milli-GPU over all its tasks."""
        return self.tasks * self.devices * self.gpu_milli


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded workload. Nodes and teams are sorted by name, jobs by (submit_s, name); names are unique.

    ``malformed`` holds the first faults (see ``faults.KEPT``), ``malformed_count`` counts all of them.
    ``notes`` says in words what the reader had to assume.
    """

    name: str
    source: str
    nodes: tuple[TraceNode, ...]
    teams: tuple[TraceTeam, ...]
    jobs: tuple[TraceJob, ...]
    malformed: tuple[Malformed, ...] = ()
    malformed_count: int = 0
    notes: tuple[str, ...] = ()

    @property
    def capacity_milli(self) -> int:
        """Milli-GPU of the whole fleet."""
        return sum(node.devices for node in self.nodes) * MILLI_PER_DEVICE

    def devices_by_model(self) -> dict[str, int]:
        """Devices of each accelerator model, by model name."""
        counts: Counter[str] = Counter()
        for node in self.nodes:
            if node.devices:
                counts[node.model] += node.devices
        return dict(sorted(counts.items()))


def shorten(value: str) -> str:
    """``value`` itself, or its beginning and its length: a message stays readable whatever stands in the file."""
    if len(value) <= SHOWN_CHARACTERS:
        return value
    return f"{value[:SHOWN_CHARACTERS]}… ({len(value)} characters)"


def equal_tasks(gpus: int, width: int = 8) -> tuple[int, int]:
    """``(tasks, devices)``: the fewest equal tasks of at most ``width`` devices with tasks × devices == gpus exactly.

    16 → 2 × 8, 12 → 2 × 6, 20 → 4 × 5: one gang of equal tasks, no device invented and none lost.
    ``gpus`` and ``width`` are at least 1.
    """
    devices = next(size for size in range(min(width, gpus), 0, -1) if gpus % size == 0)
    return gpus // devices, devices
