"""Reasons and numbers as they are told: in the units that people use, and without what the reader may not see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scheduling.core import model as core
from scheduling.core import reasons as core_reasons
from scheduling.core.ledger import sentence
from scheduling.core.units import gpus_from_milli

# Numbers in a pool's unit; ``limit`` too, but for a cap on jobs.
QUANTITIES = frozenset(
    {"allocated", "requested", "limit", "guaranteed", "deserved", "reserved", "free", "compute", "largest_piece"}
    | {"per_user_limit", "freed", "freeable", "lent", "not_preemptible", "protected", "leaving"}
)
OTHERS = "other teams"
ANOTHERS, OF_ANOTHER = "one of another team", "of another team"


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


def reason_told(
    reason: Mapping[str, Any], unit: str, seen: frozenset[str] | None, jobs: frozenset[int] | None = None
) -> dict[str, Any]:
    """A stored reason for a reader who may see the teams ``seen`` and, of those that it names, the ``jobs`` (None: all
    of them); others are not named to it."""
    message, numbers = _named(reason, unit, seen, jobs)
    helps = reason.get("helps")
    return {
        "code": reason["code"],
        "message": message,
        "numbers": in_units(numbers, reason["code"]),
        "helps": in_units(helps) if helps else None,
    }


def _named(
    reason: Mapping[str, Any], unit: str, seen: frozenset[str] | None, jobs: frozenset[int] | None
) -> tuple[str, dict[str, Any]]:
    """(sentence, numbers) of a stored reason for that reader."""
    numbers = dict(reason.get("numbers") or {})
    shown = _without(numbers, seen, jobs)
    if shown is None:
        return reason.get("message", ""), numbers
    # The sentence is the same but for the names.
    return core_reasons.message(core.Reason(reason["code"], shown), "cpu" if unit == "cpu" else "gpu"), shown


def reason_shown(
    reason: Mapping[str, Any], unit: str, seen: frozenset[str] | None, jobs: frozenset[int] | None
) -> dict[str, Any]:
    """A stored reason for a page: as it is stored, without the names of others."""
    message, numbers = _named(reason, unit, seen, jobs)
    return {**reason, "message": message, "numbers": numbers}


def _without(
    numbers: dict[str, Any], seen: frozenset[str] | None, jobs: frozenset[int] | None
) -> dict[str, Any] | None:
    """The numbers without the names and jobs of others; None where there are none of these in them."""
    shown = dict(numbers)
    kept_for = numbers.get("reserved_for")
    if kept_for and seen is not None and not seen.issuperset(kept_for):
        shown["reserved_for"] = [*(name for name in kept_for if name in seen), OTHERS]
    if jobs is not None:
        if isinstance(numbers.get("jobs"), list):
            shown["jobs"] = [each if each in jobs else ANOTHERS for each in numbers["jobs"]]
        if numbers.get("job") is not None and numbers["job"] not in jobs:
            shown["job"] = OF_ANOTHER
    return shown if shown != numbers else None


def jobs_named(reasons: Iterable[Mapping[str, Any]]) -> set[int]:
    """Ids of the jobs that these stored reasons name."""
    found: set[int] = set()
    for reason in reasons:
        numbers = reason.get("numbers") or {}
        for each in (*_listed(numbers.get("jobs")), numbers.get("job")):
            if isinstance(each, int):
                found.add(each)
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def decision_told(
    kind: str, rule: str, numbers: Mapping[str, Any], unit: str, jobs: frozenset[int] | None
) -> tuple[str, dict[str, Any]]:
    """(sentence, numbers in people's units) of a decision, for a reader who may see the ``jobs`` of those that it names
    (None: all). Whose job it was done for is not told to others."""
    shown = dict(numbers)
    if jobs is not None and shown.get("for_job") not in jobs and "for_job" in shown:
        shown["for_job"] = None
    return sentence(kind, rule, shown, "cpu" if unit == "cpu" else "gpu"), in_units(shown)
