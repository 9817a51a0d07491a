"""Why a gang has no room though its tasks have: what its rule of place leaves of the fleet, in numbers, and the change
that would help."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from scheduling.core.domains import NOWHERE
from scheduling.core.gang_rules import GangRule, Placer, domains_with_room, most_in_empty_domain, placers
from scheduling.core.room import Room, Want

MOST_TRIED = 8  # of the domains with most room


def rule_numbers(room: Room, wants: tuple[Want, ...]) -> dict[str, object] | None:
    """What the rule leaves to these wants, which it refuses; None where no rule does.

    ``level``: in one domain of which they must lie (None: of none); ``domains``: how many there are that could be it;
    ``domain``: the one with room for most of the gang, or in which its other tasks are; ``fitting``: how many of the
    ``needed`` have room there, as far as the rule goes; ``apart``: of which level each needs a domain of its own;
    ``possible``: how many an empty domain could hold at the most;
    ``unlabelled``: the nodes with room for a task that are in no domain of a level that the rule names.
    """
    rule = wants[0].rule
    if rule is None or (rule.level is None and rule.apart is None):
        return None
    fleet = room.fleet
    numbers: dict[str, object] = {"level": rule.level, "apart": rule.apart, "domain": None, "domains": 0}
    numbers |= {"held": bool(rule.held), "needed": sum(want.tasks for want in wants)}
    fitting = 0
    if rule.level is None:
        fitting = _most_placed(room, wants, rule)
    else:
        level, by_room = domains_with_room(fleet, wants, rule)
        numbers["domains"] = len(by_room)
        numbers["possible"] = max(most_in_empty_domain(fleet, wants, rule)[by_room].tolist(), default=0)
        for number in by_room[:MOST_TRIED].tolist():
            placed = room.count_placed(wants, Placer(fleet, rule, level.nodes(number)))
            if numbers["domain"] is None or placed > fitting:
                numbers["domain"], fitting = level.names[number], placed
    return {**numbers, "fitting": fitting, "unlabelled": _unlabelled(room, wants, rule)}


def without_rule(room: Room, wants: tuple[Want, ...]) -> Mapping[str, object] | None:
    """The part of the rule without which the wants could start now, where one is enough."""
    rule = wants[0].rule
    if rule is None or rule.held:
        return None
    if rule.level is not None and room.fits(_under(wants, GangRule(None, rule.apart))):
        return {"request": {"topology": {"level": rule.level, "required": False}}}
    if rule.apart is not None and room.fits(_under(wants, GangRule(rule.topology, None))):
        return {"request": {"apart": None}}
    return None


def without_any_rule(wants: tuple[Want, ...]) -> tuple[Want, ...]:
    """The same tasks, each of which may lie anywhere."""
    return wants if wants[0].rule is None else tuple(want._replace(rule=None) for want in wants)


def _under(wants: tuple[Want, ...], rule: GangRule) -> tuple[Want, ...]:
    return tuple(want._replace(rule=rule) for want in wants)


def _most_placed(room: Room, wants: tuple[Want, ...], rule: GangRule) -> int:
    return max(room.count_placed(wants, place) for place in placers(room.fleet, wants, rule))


def _unlabelled(room: Room, wants: tuple[Want, ...], rule: GangRule) -> int:
    fleet = room.fleet
    able = np.max([fleet.tasks_by_node(want.request, 1) for want in wants], axis=0) > 0
    outside = np.zeros_like(able)
    for name in (rule.level, rule.apart):
        if name is not None:
            outside |= fleet.level(name).of_node == NOWHERE
    return int((able & outside).sum())
