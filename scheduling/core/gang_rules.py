"""Where the tasks of one job may be with respect to each other: together in one domain, or each in one of its own.

A required topology narrows a gang to one domain of its level. Among those in which all of it fits the tightest is
taken, the one with the least room, and the lowest rank of a first node on ties; an elastic job goes where all that it
could grow to has room, else where most of it has. A preferred one takes the closest level at which the gang fits
whole. Inside a domain each task lands where the pool's score says.

``apart`` keeps any two tasks out of the same domain of its level. Then a domain takes one task at most, and which task
goes where is a matching of tasks and domains: what one after the other does not find, augmenting paths do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from scheduling.core.domains import LEVELS, NOWHERE, Level, distinct
from scheduling.core.fleet import Fleet
from scheduling.core.model import Placement, Request, Topology


@dataclass(frozen=True, slots=True)
class GangRule:
    """What holds for all tasks of one job. ``held`` and ``within`` are of the fleet that it is asked about."""

    topology: Topology | None = None
    apart: str | None = None  # a level
    held: tuple[int, ...] = ()  # positions of the nodes where its tasks are already, ascending
    whole: tuple[tuple[Request, int], ...] = ()  # of an elastic job: all tasks that it still wants, not its least only
    within: int = NOWHERE  # the number of the one domain of the required level that may be used; NOWHERE: any

    @property
    def level(self) -> str | None:
        """The level that the topology requires."""
        return self.topology.level if self.topology is not None and self.topology.required else None

    def having(self, nodes: Sequence[int]) -> GangRule:
        """The same for the tasks that are still to come once others are on these nodes too."""
        return replace(self, held=tuple(sorted({*self.held, *nodes})), whole=()) if nodes else self


class Wanted(Protocol):
    """Some tasks of a gang: a ``room.Want``."""

    @property
    def request(self) -> Request: ...

    @property
    def tasks(self) -> int: ...


def narrows_nothing(rule: GangRule, wants: Sequence[Wanted]) -> bool:
    """Whether one task that is alone would lie as the rule wishes wherever it lands."""
    alone = not rule.held and not rule.whole and sum(want.tasks for want in wants) == 1
    return alone and rule.apart is None and rule.level is None


def placers(fleet: Fleet, wants: Sequence[Wanted], rule: GangRule) -> Iterator[Placer]:
    """Ways to place all of ``wants`` under the rule, the best first; each has to be tried, until one does it."""
    if rule.level is not None and (rule.held or rule.within != NOWHERE) and len({want.request for want in wants}) == 1:
        # Nothing is to be weighed: one domain, or none.
        level = fleet.level(rule.level)
        for number in allowed_domains(level, rule).tolist():
            yield Placer(fleet, rule, level.nodes(number))
        return
    seen = _Sight(fleet, wants, rule)
    for area in _areas(seen):
        yield Placer(fleet, rule, area)
        if rule.apart is not None and len(seen.needed) > 1:
            matched = seen.matched(area)
            if matched is not None:
                yield Placer(fleet, rule, area, matched)


def most_in_empty_domain(fleet: Fleet, wants: Sequence[Wanted], rule: GangRule) -> np.ndarray:
    """int64[domains of the required level]: how many of the wants each could hold at the most if nothing were bound on
    it, every request on its own."""
    seen = _Sight(fleet, wants, rule, empty=True)
    return seen.fitting(fleet.level(rule.level or ""), seen.needed)


def domains_with_room(fleet: Fleet, wants: Sequence[Wanted], rule: GangRule) -> tuple[Level, np.ndarray]:
    """The required level, and the numbers of its domains that the rule leaves, the one with room for most first."""
    level = fleet.level(rule.level or "")
    numbers = allowed_domains(level, rule)
    seen = _Sight(fleet, wants, rule)
    fitting, room = seen.fitting(level, seen.needed)[numbers], seen.room(level)[numbers]
    return level, numbers[np.lexsort((numbers, -room, -fitting))]


class Placer:
    """Places one task after the other inside ``area`` (positions, ascending; None: the fleet), each taken before the
    next. ``matched``: the domains of the rule's ``apart`` that are meant for each request."""

    def __init__(
        self,
        fleet: Fleet,
        rule: GangRule,
        area: np.ndarray | None,
        matched: Mapping[Request, np.ndarray] | None = None,
    ):
        self._fleet = fleet
        self._area = area
        self._matched = matched
        self._level = None if rule.apart is None else fleet.level(rule.apart)
        if self._level is not None:
            self._open = _open_domains(self._level, rule.held)
            self._area = np.arange(len(self._level.of_node)) if area is None else area

    def __call__(self, request: Request) -> Placement | None:
        """Where the next task lands; None where it does not fit under the rule."""
        if self._area is None:
            return self._fleet.place(request)
        if self._level is None:
            return self._fleet.place_among(request, self._area)
        domains = self._level.of_node[self._area]
        may = self._open if self._matched is None else self._open & self._matched[request]
        placement = self._fleet.place_among(request, self._area[(domains != NOWHERE) & may[domains]])
        if placement is not None:
            self._open[self._level.of_node[placement.node]] = False
        return placement


class _Sight:
    """What each node, and each domain, could take of one gang now."""

    def __init__(self, fleet: Fleet, wants: Sequence[Wanted], rule: GangRule, *, empty: bool = False):
        self.fleet, self.rule = fleet, rule
        self.needed: Counter[Request] = Counter()
        for want in wants:
            self.needed[want.request] += want.tasks
        self.whole = dict(rule.whole)
        most = {request: max(tasks, self.whole.get(request, 0)) for request, tasks in self.needed.items()}
        most |= {request: tasks for request, tasks in self.whole.items() if request not in most}
        count = fleet.tasks_by_empty_node if empty else fleet.tasks_by_node
        self.by_node = {request: count(request, tasks) for request, tasks in most.items()}
        self.room_by_node = fleet.room_by_node()
        self.apart: np.ndarray | None = None  # int64[N]: the domain of ``apart`` that a task there would take
        if rule.apart is not None:
            level = fleet.level(rule.apart)
            closed = ~_open_domains(level, rule.held)
            self.apart = np.where(closed[level.of_node] | (level.of_node == NOWHERE), NOWHERE, level.of_node)

    def fitting(self, level: Level, needed: Mapping[Request, int]) -> np.ndarray:
        """int64[domains]: how many of the needed tasks fit in each, every request on its own."""
        total = np.zeros(len(level.names), dtype=np.int64)
        for request, tasks in needed.items():
            total += np.minimum(self._of(level, request), tasks)
        return total

    def holding(self, level: Level, needed: Mapping[Request, int]) -> np.ndarray:
        """bool[domains]: where all of the needed tasks may fit: none that could hold them is left out."""
        able = np.ones(len(level.names), dtype=np.bool_)
        for request, tasks in needed.items():
            able &= self._of(level, request) >= tasks
        if len(needed) > 1:
            milli, cpu, host = (level.sums(room) for room in self.room_by_node)
            able &= milli >= sum(self.fleet.least_milli(request) * tasks for request, tasks in needed.items())
            able &= cpu >= sum(request.cpu_milli * tasks for request, tasks in needed.items())
            able &= host >= sum(request.host_memory_mib * tasks for request, tasks in needed.items())
        return able

    def room(self, level: Level) -> np.ndarray:
        """int64[domains]: what is free in each, in what the gang asks for: milli of devices, else milli-cores."""
        return level.sums(self.room_by_node[0 if any(request.devices for request in self.needed) else 1])

    def _of(self, level: Level, request: Request) -> np.ndarray:
        if self.apart is None:
            return level.sums(self.by_node[request])
        there = np.where(self.by_node[request] > 0, self.apart, NOWHERE)
        return distinct(there, level.of_node, len(level.names))

    def matched(self, area: np.ndarray | None) -> dict[Request, np.ndarray] | None:
        """bool[domains of ``apart``] for each request: one domain for every task, none twice; None: there is no way."""
        assert self.apart is not None
        assert self.rule.apart is not None
        count = len(self.fleet.level(self.rule.apart).names)
        inside = slice(None) if area is None else area
        fits = {}
        for request in self.needed:
            domains = self.apart[inside][self.by_node[request][inside] > 0]
            fits[request] = np.zeros(count, dtype=np.bool_)
            fits[request][domains[domains != NOWHERE]] = True
        return matching(self.needed, fits)


def _open_domains(level: Level, held: Sequence[int]) -> np.ndarray:
    """bool[domains]: where none of these nodes is. (At least one long, so that NOWHERE can index it.)"""
    free = np.ones(max(1, len(level.names)), dtype=np.bool_)
    taken = level.of_node[list(held)]
    free[taken[taken != NOWHERE]] = False
    return free


def _areas(seen: _Sight) -> Iterator[np.ndarray | None]:
    """The sets of nodes in which the gang may lie, the best first; None: anywhere."""
    rule = seen.rule
    if rule.topology is None:
        yield None
    elif rule.topology.required:
        level = seen.fleet.level(rule.topology.level)
        for number in _ranked(seen, level, allowed_domains(level, rule)):
            yield level.nodes(number)
    else:
        yield from _closest(seen)
        yield None


def _closest(seen: _Sight) -> Iterator[np.ndarray]:
    """Domain by domain, from the closest level to the widest; where all that it could grow to fits before others."""
    levels = [seen.fleet.level(name) for name in LEVELS]
    if seen.rule.held:
        for level in levels:
            number = _domain_of(level, seen.rule.held)
            if number != NOWHERE:
                yield level.nodes(number)
        return
    for needed in (seen.whole, seen.needed):
        for level in levels if needed else ():
            able = np.flatnonzero(seen.holding(level, needed))
            room = seen.room(level)[able]
            for number in able[np.lexsort((able, room))].tolist():
                yield level.nodes(number)


def _ranked(seen: _Sight, level: Level, allowed: np.ndarray) -> list[int]:
    """Those of the allowed domains in which all that is needed may fit, the best first."""
    able = allowed[seen.holding(level, seen.needed)[allowed]]
    room = seen.room(level)[able]
    if not seen.whole:
        return able[np.lexsort((able, room))].tolist()
    not_whole = ~seen.holding(level, seen.whole)[able]
    fitting = seen.fitting(level, seen.whole)[able]
    return able[np.lexsort((able, room, -fitting, not_whole))].tolist()


def allowed_domains(level: Level, rule: GangRule) -> np.ndarray:
    """Numbers of the domains that the required topology leaves: the one where its tasks are, or all."""
    if rule.held:
        number = _domain_of(level, rule.held)
        return np.array([] if number == NOWHERE else [number], dtype=np.int64)
    if rule.within != NOWHERE:
        return np.array([rule.within], dtype=np.int64)
    return np.arange(len(level.names))


def _domain_of(level: Level, nodes: Sequence[int]) -> int:
    """The domain in which all these nodes are, NOWHERE where there is none."""
    (first, *others) = dict.fromkeys(level.of_node[list(nodes)].tolist())
    return NOWHERE if others else first


def matching(needed: Mapping[Request, int], fits: Mapping[Request, np.ndarray]) -> dict[Request, np.ndarray] | None:
    """For each request as many of the domains that fit it as tasks are needed, no domain twice; None: there is no way.

    Augmenting paths between requests (Berge): each step gives one request one domain more, if need be by passing
    domains on from one request to another. ``fits``: bool[domains] of each.
    """
    own = {request: np.zeros_like(mask) for request, mask in fits.items()}
    free = ~np.zeros_like(next(iter(fits.values())))
    for request, tasks in needed.items():
        for _ in range(tasks):
            path = _path_to_a_free_domain(request, fits, own, free)
            if path is None:
                return None
            for taker, domain in path:
                for other in own.values():
                    other[domain] = False
                own[taker][domain] = True
                free[domain] = False
    return own


def _path_to_a_free_domain(
    start: Request, fits: Mapping[Request, np.ndarray], own: Mapping[Request, np.ndarray], free: np.ndarray
) -> list[tuple[Request, int]] | None:
    """(request, domain that it takes), the one who takes a free domain first, ``start`` last; None: there is none."""
    came_from: dict[Request, tuple[Request, int] | None] = {start: None}
    for request in (reached := [start]):
        spare = np.flatnonzero(fits[request] & free)
        if len(spare):
            path = [(request, int(spare[0]))]
            step = came_from[request]
            while step is not None:
                path.append(step)
                step = came_from[step[0]]
            return path
        for other, held in own.items():
            passed_on = np.flatnonzero(fits[request] & held)
            if other not in came_from and len(passed_on):
                came_from[other] = (request, int(passed_on[0]))
                reached.append(other)
    return None
