"""The port between the scheduler and what runs the work.

Every order is idempotent: the allocation's id names the thing out there, so that the same order twice does it once.
An engine may be asked from one thread only; ``now`` is the caller's clock, aware, UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of one device: ``index`` in its node, ``compute_milli`` of 1000, ``memory_mib`` of its memory."""

    index: int
    uuid: str
    model: str
    compute_milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Order:
    """Run one task. Everything that an engine needs to know; nothing of it changes while the allocation lives."""

    allocation_id: int
    job_id: int
    job_name: str
    team: str
    user: str
    task_index: int
    tasks: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    image: str
    node: str
    slices: tuple[Slice, ...]
    cpu_milli: int
    host_memory_mib: int
    bound_at: datetime
    running_at: datetime | None = None
    time_limit_s: int | None = None
    simulated_duration_ms: int | None = None
    simulated_exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What is true out there of one allocation.

    ``started``: its process runs. ``ended``: it is gone for good and holds nothing; ``exit_code`` None with a
    ``reason`` where there is no code (``time_limit``, ``stopped``, ``lost``, ``failed_to_start``, ``node_lost``).
    """

    allocation_id: int
    kind: Literal["started", "ended"]
    at: datetime
    exit_code: int | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class DeviceFound:
    index: int
    uuid: str
    model: str
    vendor: str
    memory_mib: int
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class NodeFound:
    """A node as the engine sees it now."""

    name: str
    cpu_milli: int
    host_memory_mib: int
    devices: tuple[DeviceFound, ...]
    ready: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Busy time (0..1000 milli) and memory of one device; None is unknown."""

    node: str
    index: int
    compute_milli: int | None
    memory_mib: int | None


@dataclass(frozen=True, slots=True)
class TaskUse:
    """What one allocation uses, over all its devices; None is unknown."""

    allocation_id: int
    compute_milli: int | None
    memory_mib: int | None
    cpu_milli: int | None = None
    host_memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Utilization:
    devices: tuple[DeviceUse, ...] = ()
    tasks: tuple[TaskUse, ...] = ()


class EngineError(Exception):
    """The engine could not be reached or refused; the order stands and is tried again."""


class Engine(Protocol):
    def resume(self, orders: Sequence[Order], now: datetime) -> None:
        """Told once at start, before anything else: all allocations that should live. Finds them again out there;
        what was bound and is not there is launched again when its order comes, what ran and is gone is reported."""

    def launch(self, order: Order, now: datetime) -> None:
        """The task runs or will run; launching what already runs does nothing. Raises EngineError to be asked again."""

    def stop(self, allocation_id: int, grace_s: float, now: datetime) -> None:
        """The task is told to end, and made to after ``grace_s``; its end is reported. Unknown: reported ended."""

    def observe(self, now: datetime) -> list[Report]:
        """All that became true since the last call, each once, in order of time."""

    def next_change(self) -> datetime | None:
        """When ``observe`` will have something to say at the earliest, if the engine can know it."""

    def inventory(self, now: datetime) -> list[NodeFound] | None:
        """The nodes out there; None where the engine has none of its own (they are entered by operators)."""

    def logs(self, allocation_id: int, offset: int = 0, limit: int = 1_000_000) -> bytes:
        """The output of a task from byte ``offset``, at most ``limit`` bytes; empty where there is none."""

    def utilization(self, now: datetime) -> Utilization:
        """What is used now, as far as it is known."""

    def close(self) -> None:
        """Lets go of handles; what runs goes on."""
