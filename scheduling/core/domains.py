"""Domains: which nodes of a fleet lie together at a level of its topology.

A domain of a level is all nodes whose label of that name has the same value; a ``host`` is one node, whatever its
labels. A node without the label is in no domain of the level: nothing that must lie in one is placed there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEVELS = ("host", "rack", "block", "zone")  # from the closest to the widest
NOWHERE = -1  # in no domain


class Level(NamedTuple):
    """The domains of one level, numbered by the rank of their first node."""

    names: tuple[str, ...]
    of_node: np.ndarray  # int64[N]: the number of each node's domain, or NOWHERE
    order: np.ndarray  # int64: the positions of all nodes that are in a domain, domain by domain, ascending in each
    starts: np.ndarray  # int64[domains + 1]: where each domain begins in ``order``

    def nodes(self, number: int) -> np.ndarray:
        """Positions of the domain's nodes, ascending."""
        return self.order[self.starts[number] : self.starts[number + 1]]

    def sums(self, of_each_node: np.ndarray) -> np.ndarray:
        """int64[domains]: the sums over the nodes of each."""
        running = np.zeros(len(self.order) + 1, dtype=np.int64)
        np.cumsum(of_each_node[self.order], out=running[1:])
        return running[self.starts[1:]] - running[self.starts[:-1]]


def level_of(level: str, names: Sequence[str], labels: Sequence[frozenset[tuple[str, str]]]) -> Level:
    """The domains of ``level`` among nodes with these names and labels, in order of rank. ValueError: no such level."""
    if level not in LEVELS:
        raise ValueError(f"{level!r} is not one of {', '.join(LEVELS)}")
    if level == "host":
        count = len(names)
        return Level(tuple(names), np.arange(count), np.arange(count), np.arange(count + 1))
    number: dict[str, int] = {}
    of_node = np.full(len(names), NOWHERE, dtype=np.int64)
    for position, own in enumerate(labels):
        value = min((value for key, value in own if key == level), default=None)
        if value is not None:
            of_node[position] = number.setdefault(value, len(number))
    order = np.argsort(of_node, kind="stable")
    order = order[of_node[order] != NOWHERE]
    starts = np.searchsorted(of_node[order], np.arange(len(number) + 1))
    return Level(tuple(number), of_node, order, starts)


def distinct(domains: np.ndarray, inside: np.ndarray, count: int) -> np.ndarray:
    """int64[count]: of each number in ``inside``, how many different ``domains`` come with it; NOWHERE counts nowhere.

    The two arrays belong together, element by element.
    """
    there = (domains != NOWHERE) & (inside != NOWHERE)
    pairs = np.unique(np.stack([inside[there], domains[there]]), axis=1)
    return np.bincount(pairs[0], minlength=count)
