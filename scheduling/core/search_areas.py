"""Where room could be made for a gang: all nodes that could host it, or domain by domain where it must lie in one.

Who gives way in one rack does nothing for a gang that would have to lie in another: victims are sought inside one
domain at a time, and the domain where least has to go is taken.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from scheduling.core.fleet import Fleet
from scheduling.core.gang_rules import allowed_domains, most_in_empty_domain
from scheduling.core.room import Want


class Area(NamedTuple):
    """Positions of nodes where room would help (None: room is not what is short), and the wants, held to lie there."""

    nodes: frozenset[int] | None
    wants: tuple[Want, ...]


def search_areas(fleet: Fleet, wants: tuple[Want, ...]) -> list[Area]:
    """One where the gang may lie anywhere, else one for each domain that could hold it if it were free, in their order;
    at least one, which may be empty."""
    possible = frozenset[int]().union(*(fleet.possible_nodes(want.request) for want in wants))
    rule = wants[0].rule
    if rule is None or rule.level is None:
        return [Area(possible, wants)]
    level = fleet.level(rule.level)
    large_enough = most_in_empty_domain(fleet, wants, rule) >= sum(want.tasks for want in wants)
    able = np.isin(np.arange(len(level.of_node)), sorted(possible))
    areas = []
    for number in allowed_domains(level, rule).tolist():
        if not large_enough[number]:
            continue
        nodes = level.nodes(number)
        pinned = tuple(want._replace(rule=replace(rule, within=number)) for want in wants)
        areas.append(Area(frozenset(nodes[able[nodes]].tolist()), pinned))
    return [area for area in areas if area.nodes] or [Area(frozenset(), wants)]
