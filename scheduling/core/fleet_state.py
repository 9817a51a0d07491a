"""A fleet as plain data: what it was made of, and what is taken of it now; and a fleet made anew from both.

A fleet that is made of nodes with what they hold answers as one that was made empty and had it taken: everything else
in it (scores, sums, caches) follows.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from scheduling.core.fleet import Fleet
from scheduling.core.model import NodeState
from scheduling.core.placement_shapes import devices_by_index

NODE_ROWS = ("cpu_used", "host_memory_used", "schedulable")
DEVICE_ROWS = ("compute_used", "memory_used", "healthy", "team_id")
FLAGS = frozenset({"schedulable", "healthy"})


@dataclass(frozen=True, slots=True)
class FleetState:
    """What changes of a fleet. Nodes by rank, their devices by index, in the order of its tables."""

    nodes: np.ndarray  # int64[len(NODE_ROWS), N]
    devices: np.ndarray  # int64[len(DEVICE_ROWS), D]


def state_of(fleet: Fleet) -> FleetState:
    """What is taken, and what is in service, at this moment: copies."""
    k, nodes, devices = fleet._k, fleet._tables.nodes, fleet._tables.devices
    return FleetState(
        np.stack(
            [
                nodes[:, k.N_CPU_ALL] - nodes[:, k.N_CPU],
                nodes[:, k.N_HOST_ALL] - nodes[:, k.N_HOST],
                nodes[:, k.N_OPEN] != 0,
            ]
        ),
        np.stack(
            [
                k.WHOLE - devices[k.D_COMPUTE],
                devices[k.D_MEMORY_ALL] - devices[k.D_MEMORY],
                devices[k.D_HEALTHY] != 0,
                devices[k.D_TEAM],
            ]
        ),
    )


@cache
def option_kinds() -> Mapping[str, Any]:
    """The options a fleet is made with, by name, each with its annotation. The fleet keeps each under its name."""
    options = [
        each.name
        for each in inspect.signature(Fleet.__init__).parameters.values()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    hints = typing.get_type_hints(Fleet.__init__)
    return {name: hints[name] for name in options}


def options_of(fleet: Fleet) -> dict[str, Any]:
    """What it was made with, apart from its nodes. Raises TypeError where it does not keep one of its options."""
    try:
        return {name: getattr(fleet, name) for name in option_kinds()}
    except AttributeError as error:
        raise TypeError(f"a fleet keeps each option under its name: {error}") from None


def states_now(fleet: Fleet) -> list[NodeState]:
    """Its nodes as they are at this moment, what is taken of them included."""
    return nodes_with(fleet.states, state_of(fleet))


def nodes_with(states: Sequence[NodeState], state: FleetState) -> list[NodeState]:
    """The nodes, ordered by rank, with what ``state`` says of them. Raises ValueError where it is of others."""
    count = sum(len(node.devices) for node in states)
    if state.nodes.shape != (len(NODE_ROWS), len(states)) or state.devices.shape != (len(DEVICE_ROWS), count):
        raise ValueError("what is taken is told of another number of nodes or devices")
    node_rows = zip(*_columns(NODE_ROWS, state.nodes), strict=True)
    device_rows = zip(*_columns(DEVICE_ROWS, state.devices), strict=True)
    return [
        replace(
            node,
            devices=tuple(
                replace(device, **dict(zip(DEVICE_ROWS, next(device_rows), strict=True)))
                for device in devices_by_index(node)
            ),
            **dict(zip(NODE_ROWS, row, strict=True)),
        )
        for node, row in zip(states, node_rows, strict=True)
    ]


def fleet_of(states: Sequence[NodeState], state: FleetState, options: Mapping[str, Any]) -> Fleet:
    """The fleet of these nodes, ordered by rank, with what ``state`` says of them."""
    return Fleet(nodes_with(states, state), **options)


def _columns(names: Sequence[str], rows: np.ndarray) -> list[list[Any]]:
    return [
        [bool(value) for value in row] if name in FLAGS else row.tolist() for name, row in zip(names, rows, strict=True)
    ]
