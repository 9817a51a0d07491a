"""Where the tasks of a job may be with respect to each other, as people write it: ``topology`` and ``apart``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from scheduling.core.domains import LEVELS
from scheduling.core.model import Topology

if TYPE_CHECKING:
    from scheduling.services.requests import Reading

WIDEST_FIRST = LEVELS[::-1]
FIELDS = ("level", "required")


class PlaceRules(TypedDict):
    topology: Topology | None
    apart: str | None


def place_rules(reading: Reading, min_tasks: int) -> PlaceRules:
    """What ``topology: {level, required}`` and ``apart: level`` say. Faults for unknown fields and levels, and for two
    rules that no placement of ``min_tasks`` tasks can meet."""
    topology = _topology(reading)
    apart = reading.choice("apart", WIDEST_FIRST, "") or None
    if topology is not None and topology.required and apart is not None and min_tasks > 1:
        inner = LEVELS[: LEVELS.index(topology.level)]
        if apart not in inner:
            within = "one node" if topology.level == "host" else f"one {topology.level}"
            message = f"leaves no place for {min_tasks} tasks that must all be in {within}"
            reading.fault("apart", message, inner[::-1] or None)
    return {"topology": topology, "apart": apart}


def _topology(reading: Reading) -> Topology | None:
    given = reading.payload.get("topology")
    if given is None:
        return None
    if not isinstance(given, Mapping):
        reading.fault("topology", "must say level, and required: true or false", FIELDS)
        return None
    faults = len(reading.faults)
    inner = type(reading)(given, f"{reading.where}topology.")
    for name in given:
        if name not in FIELDS:
            inner.fault(str(name)[:80], "is not a field of topology", FIELDS)
    if not inner.has("level"):
        inner.fault("level", "is required", WIDEST_FIRST)
    level = inner.choice("level", WIDEST_FIRST, "")
    required = inner.take("required", _flag, True)
    reading.faults += inner.faults
    return Topology(level, required) if len(reading.faults) == faults else None


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def stored_topology(topology: Topology | None) -> dict[str, Any] | None:
    """As a job's row holds it."""
    return None if topology is None else {"level": topology.level, "required": topology.required}


def topology_of(stored: Mapping[str, Any] | None) -> Topology | None:
    """What ``stored_topology`` stored."""
    return None if stored is None else Topology(stored["level"], stored["required"])
