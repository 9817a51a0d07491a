"""The ledger in words: each kind of decision and each rule, with the numbers that it saw as people write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scheduling.core.reasons import Unit
from scheduling.core.units import MILLI_PER_DEVICE, format_gpus

Numbers = Mapping[str, Any]

# Numbers of decisions that are amounts of the pool's unit, in milli.
AMOUNTS = frozenset(
    {"requested", "allocated", "guaranteed", "deserved", "limit", "freed", "freeable", "lent"}
    | {"not_preemptible", "protected", "leaving"}
)


def sentence(kind: str, rule: str, numbers: Numbers, unit: Unit = "gpu") -> str:
    """What was decided and by which rule, in plain English. A rule that is not known here is named as it is."""
    tell = _SENTENCES.get((kind, rule))
    if tell is None:
        return f"{kind}: {rule}"
    return tell(_Told(numbers, unit))


class _Told:
    """The numbers, each as a text with its unit; a dash where there is none."""

    def __init__(self, numbers: Numbers, unit: Unit):
        self.numbers, self.unit = numbers, unit

    def __getitem__(self, name: str) -> str:
        value = self.numbers.get(name)
        if value is None:
            return "–"
        if name not in AMOUNTS or not isinstance(value, int):
            return str(value)
        one, many = ("core", "cores") if self.unit == "cpu" else ("GPU", "GPUs")
        return f"{format_gpus(value)} {one if 0 < value <= MILLI_PER_DEVICE else many}"

    def there(self, name: str) -> bool:
        return bool(self.numbers.get(name))


def _within(n: _Told) -> str:
    limit = f", limit {n['limit']}" if n.numbers.get("limit") is not None else ""
    held = f"held {n['allocated']} of {n['guaranteed']} guaranteed, {n['deserved']} deserved{limit}"
    return f"{n['team']} {held}; this took {n['requested']}"


def _by_guarantee(n: _Told) -> str:
    return f"started inside the guarantee: {_within(n)}"


def _by_share(n: _Told) -> str:
    return f"started on capacity above the guarantee, in its turn: {_within(n)}"


def _ahead(n: _Told) -> str:
    return f"started ahead of other teams' jobs, as its class may: {_within(n)}"


def _grew(n: _Told) -> str:
    return f"given more tasks, in its turn: {_within(n)}"


def _to_whom(n: _Told) -> str:
    return f"job {n['for_job']}" if n.there("for_job") else "a job of another team"


def _reclaimed(n: _Told) -> str:
    return (
        f"told to give back {n['freed']} to {_to_whom(n)}, which needs {n['requested']}: "
        f"{n['team']} held {n['allocated']}, deserved {n['deserved']}, guaranteed {n['guaranteed']}"
    )


def _preempted(n: _Told) -> str:
    return (
        f"told to give back {n['freed']} to {_to_whom(n)} of its own team, which needs {n['requested']} "
        f"and has priority {n['over_priority']} over {n['priority']}"
    )


def _entitled(n: _Told) -> str:
    return f"{n['team']} holds {n['allocated']} of {n['deserved']} deserved and this job needs {n['requested']}"


def _spared(n: _Told) -> str:
    causes = {
        "not_preemptible": "cannot be preempted",
        "protected": "started too short a time ago",
        "leaving": "is being stopped already",
    }
    parts = [f"{n[name]} {words}" for name, words in causes.items() if n.there(name)]
    return f" ({', '.join(parts)})" if parts else ""


def _own_quota(n: _Told) -> str:
    quota = f"a quota of its own team is in the way ({n['blocked_by']}, limit {n['limit']})"
    return f"nobody gives way: {quota}; {_entitled(n)}"


def _nothing_lent(n: _Told) -> str:
    return f"nobody gives way: no other team holds more than its share; {_entitled(n)}"


def _out_of_reach(n: _Told) -> str:
    return (
        f"nobody gives way: other teams hold {n['lent']} above their shares, "
        f"but none of it may be taken now{_spared(n)}; {_entitled(n)}"
    )


def _not_enough(n: _Told) -> str:
    return f"nobody gives way: at most {n['freeable']} could be freed{_spared(n)}; {_entitled(n)}"


def _no_place(n: _Told) -> str:
    return f"nobody gives way: {n['freeable']} could be freed, but nowhere together where the job fits; {_entitled(n)}"


_SENTENCES: Mapping[tuple[str, str], Callable[[_Told], str]] = {
    ("start", "guarantee"): _by_guarantee,
    ("start", "share"): _by_share,
    ("start", "cluster_wide"): _ahead,
    ("grow", "growth"): _grew,
    ("evict", "reclaim"): _reclaimed,
    ("evict", "preempt"): _preempted,
    ("refuse", "own_quota"): _own_quota,
    ("refuse", "nothing_lent"): _nothing_lent,
    ("refuse", "out_of_reach"): _out_of_reach,
    ("refuse", "not_enough"): _not_enough,
    ("refuse", "no_place"): _no_place,
}
