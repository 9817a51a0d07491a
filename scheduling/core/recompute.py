"""A recorded cycle decided again, and what became different; and a plan as data that can be read and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from scheduling.core.codec import Recorded
from scheduling.core.decide import decide
from scheduling.core.model import Plan

MOST_TOLD = 20  # differences of one kind


def decided_again(recorded: Recorded) -> Plan:
    """What this program decides over the recorded snapshot."""
    return decide(recorded.snapshot, recorded.policy)


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """All of the plan as JSON can hold it: ids that are keys as texts, rows as objects, in the plan's order."""
    return {each.name: _as_json(getattr(plan, each.name)) for each in fields(Plan)}


def differences(before: Plan, after: Plan) -> list[str]:
    """What the second plan has that the first has not, and the other way round, in words; empty where they are equal.

    At most MOST_TOLD of each part of the plan, then how many more.
    """
    found: list[str] = []
    for part in fields(Plan):
        one, other = _keyed(getattr(before, part.name)), _keyed(getattr(after, part.name))
        told = [_difference(part.name, key, one, other) for key in {**one, **other} if one.get(key) != other.get(key)]
        if not told and list(one) != list(other):
            told = [f"{part.name}: the same in another order"]
        if len(told) > MOST_TOLD:
            told = [*told[:MOST_TOLD], f"{part.name}: {len(told) - MOST_TOLD} more"]
        found += told
    return found


def _keyed(part: Any) -> dict[Any, Any]:
    """Decisions by their job (and whom they are for), mappings as they are."""
    if isinstance(part, Mapping):
        return dict(part)
    found: dict[Any, Any] = {}
    met = Counter[Any]()
    for each in part:
        key = (each.job_id, getattr(each, "for_job", None))
        found[(*key, met[key])] = each
        met[key] += 1
    return found


def _difference(part: str, key: Any, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> str:
    which = f"job {key[0]}" if isinstance(key, tuple) else f"pool {key}" if part == "shares" else f"job {key}"
    return f"{part}: {which}: was {_short(before.get(key))}, is now {_short(after.get(key))}"


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(_as_json(value))
    return text if len(text) <= 400 else f"{text[:400]}…"


def _as_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _as_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_as_json(item) for item in value]
    return value
