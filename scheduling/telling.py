"""Reasons and numbers as they are told: in the units that people use, and without what the reader may not see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduling.core import model as core
from scheduling.core import reasons as core_reasons
from scheduling.core.units import gpus_from_milli

# Numbers in a pool's unit; ``limit`` too, but for a cap on jobs.
QUANTITIES = frozenset(
    {"allocated", "requested", "limit", "guaranteed", "deserved", "reserved", "free", "compute", "largest_piece"}
    | {"per_user_limit"}
)
OTHERS = "other teams"


def in_units(numbers: Mapping[str, Any], code: str = "") -> dict[str, Any]:
    """Milli as GPUs or cores, names that end in ``_milli`` without it; everything else as it is."""
    told: dict[str, Any] = {}
    for name, value in numbers.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        if isinstance(value, Mapping):
            told[name] = in_units(value, code)
        elif whole and name.endswith("_milli"):
            told[name.removesuffix("_milli")] = gpus_from_milli(value)
        elif whole and name in QUANTITIES and not (code == "class_cap" and name == "limit"):
            told[name] = gpus_from_milli(value)
        else:
            told[name] = value
    return told


def reason_told(reason: Mapping[str, Any], unit: str, seen: frozenset[str] | None) -> dict[str, Any]:
    """A stored reason for a reader who may see the teams ``seen`` (None: all); others are not named to it."""
    numbers, message = dict(reason.get("numbers") or {}), reason.get("message", "")
    kept_for = numbers.get("reserved_for")
    if kept_for and seen is not None and not seen.issuperset(kept_for):
        numbers["reserved_for"] = [*(name for name in kept_for if name in seen), OTHERS]
        # Nobody is named twice and the order is kept: the sentence is the same but for the names.
        message = core_reasons.message(core.Reason(reason["code"], numbers), "cpu" if unit == "cpu" else "gpu")
    helps = reason.get("helps")
    return {
        "code": reason["code"],
        "message": message,
        "numbers": in_units(numbers, reason["code"]),
        "helps": in_units(helps) if helps else None,
    }
