"""Sentences of reasons that have to do with where: topology, tasks kept apart, and taints of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Numbers = Mapping[str, Any]


def place_sentence(n: Numbers) -> str:
    """Why a gang waits though its tasks, each on its own, would have room: see ``explain_rules.rule_numbers``."""
    level, apart, pool = n["level"], n["apart"], n["pool"]
    if level is None:
        found = _none_without_label(n, apart) or f"there is room for {n['fitting']}"
        return f"{_tasks(n, True)} in {pool}, each {_own(apart)}: {found}"
    if n["held"]:
        return (
            f"{_tasks(n)} where its others are, {_held_place(n)}{_and_apart(apart)}: there is room for {n['fitting']}"
        )
    found = _none_without_label(n, level) or f"{_one_of(n)} has room for {n['fitting']}"
    return f"{_tasks(n)} {_in_one(level)} of {pool}{_and_apart(apart)}: {found}{_even_empty(n)}"


def _even_empty(n: Numbers) -> str:
    """Where no domain could ever hold it."""
    if not n["domains"] or n["possible"] >= n["needed"]:
        return ""
    return f", and none holds more than {n['possible']} even when empty"


def kept_away_sentence(n: Numbers) -> str:
    """Where every node that matches has a taint that is not tolerated."""
    nodes = n["tainted_nodes"]
    which = "the one node that matches has" if nodes == 1 else f"the {nodes} nodes that match have"
    return f"no node of {n['pool']} takes it: {which} taints that it does not tolerate ({_taints(n)})"


def also_kept_away(n: Numbers) -> str:
    """Behind another reason: how many more nodes would match but for their taints."""
    if "taints" not in n or n["matching_nodes"] == 0:
        return ""
    nodes = n["tainted_nodes"]
    return (
        f"; {nodes} more {'node has' if nodes == 1 else 'nodes have'} taints that it does not tolerate ({_taints(n)})"
    )


def _taints(n: Numbers) -> str:
    return ", ".join(f"{key}={value}" for key, value in n["taints"])


def _tasks(n: Numbers, plain: bool = False) -> str:
    together = "" if plain or n["needed"] == 1 else " together"
    return f"{_more(n)} must start{together}"


def _more(n: Numbers) -> str:
    if n["held"]:
        return "one more task" if n["needed"] == 1 else f"{n['needed']} more tasks"
    return "its task" if n["needed"] == 1 else f"{n['needed']} tasks"


def _in_one(level: str) -> str:
    return "on one node" if level == "host" else f"in one {level}"


def _own(level: str) -> str:
    return "on a node of its own" if level == "host" else f"in a {level} of its own"


def _and_apart(apart: str | None) -> str:
    return "" if apart is None else f", each {_own(apart)}"


def _one_of(n: Numbers) -> str:
    name = n["domain"] if n["level"] == "host" else f"{n['level']} {n['domain']}"
    return f"{name}, the best of {n['domains']}," if n["domains"] > 1 else name


def _held_place(n: Numbers) -> str:
    if n["domain"] is None:
        return f"and these are in no one {'node' if n['level'] == 'host' else n['level']}"
    return f"on {n['domain']}" if n["level"] == "host" else f"in {n['level']} {n['domain']}"


def _none_without_label(n: Numbers, level: str) -> str:
    """Where all the room is on nodes that are in no domain of the level."""
    if n["fitting"] or not n["unlabelled"]:
        return ""
    nodes = "the one node" if n["unlabelled"] == 1 else f"the {n['unlabelled']} nodes"
    verb = "carries" if n["unlabelled"] == 1 else "carry"
    return f"{nodes} with room {verb} no label {level}"
