"""A scenario as data: what there is at its start, what happens, what must be seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduling.simulation.scenario_models import ModelSpec
from scheduling.simulation.scenario_values import Wanted


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """``accelerators`` devices of one model, each with ``memory_mib``; 0: a node with CPU only."""

    line: int
    name: str
    accelerators: int
    model: str
    vendor: str
    memory_mib: int
    cpu_milli: int
    host_memory_mib: int
    labels: Mapping[str, str]
    taints: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PoolSpec:
    line: int
    name: str
    options: Mapping[str, Any]  # as inventory.services.create_pool takes them
    nodes: tuple[NodeSpec, ...]

    @property
    def unit(self) -> str:
        """What its quotas count: cores where no node has an accelerator."""
        return "gpu" if any(node.accelerators for node in self.nodes) or not self.nodes else "cpu"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of ``rates``, ``priority_classes``, ``teams`` or ``quotas``, its values converted."""

    line: int
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """One expectation: of what (``jobs``, ``teams`` …), of which, which fact of it, and what is wanted."""

    line: int
    subject: str
    name: str  # "" for counts
    fact: str
    wanted: Wanted
    pool: str = ""  # of a team: in this pool alone

    @property
    def field(self) -> str:
        return ".".join(part for part in (self.subject, self.name, self.pool, self.fact) if part)


@dataclass(frozen=True, slots=True)
class Step:
    """One action at a moment. ``refused``: it must be rejected, with this in the message (None: it must not be)."""

    line: int
    at: datetime
    at_written: str
    kind: str
    values: Mapping[str, Any]
    checks: tuple[Check, ...] = ()
    refused: str | None = None
    lines: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    file: str
    title: str
    start: datetime
    pools: tuple[PoolSpec, ...]
    models: Mapping[str, ModelSpec]  # every model that a node has, by name
    rates: tuple[Entry, ...]
    priority_classes: tuple[Entry, ...]
    teams: tuple[Entry, ...]
    quotas: tuple[Entry, ...]
    steps: tuple[Step, ...]
    billing: Mapping[str, Any] | None = None  # terms, where the file has any


@dataclass(frozen=True, slots=True)
class Failure:
    """An expectation that was not met, or an action that went otherwise than the file says."""

    line: int
    at: str
    field: str
    wanted: str
    seen: str

    def __str__(self) -> str:
        return f"{self.line}: at {self.at}: {self.field}: wanted {self.wanted}, seen {self.seen}"
