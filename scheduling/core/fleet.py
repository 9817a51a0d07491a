"""The devices of one pool as the scheduler sees them: what is free, what a request would get, and why it would not.

A Fleet is built once from ``NodeState`` and then changed task by task. The best node for a request is found without
looking at every node, see ``placement_kernels``. Four scores:

- ``binpack``: the node with the largest used share of its healthy devices (CPU-only requests: of its CPU) that fits,
  in it the devices with the least free compute, then the least free memory, that fit;
- ``spread``: the opposite of both;
- ``fragmentation``: the node, and for one device the device, whose expected fragment shrinks most or grows least, as
  published by Weng et al., USENIX ATC 2023, truncated to 0..100 points; several devices are chosen as in ``binpack``.
  Without typical shapes there is nothing to expect, and ``binpack`` is used;
- ``lookahead``: the node, and for one device the device, by what would be left idle if the node were filled to the end
  with requests drawn from ``demand`` (without one, from the typical shapes); see ``lookahead``. Several devices are
  chosen, and without typical shapes all is done, as in ``binpack``.

Ties go to the lowest ``NodeState.rank``, then to the lowest device index. All devices of one task give the same
compute; where a request for memory would take different parts of a node's devices, ``binpack`` and ``spread`` choose
among those of which it takes least.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scheduling.core import placement_headroom
from scheduling.core.domains import Level, level_of
from scheduling.core.fragmentation import TypicalShape
from scheduling.core.lookahead import Demand, Scarce, demand_of_typical, exempt_mask, lookahead_tables, scarce_shapes
from scheduling.core.model import SCORES, DeviceState, NodeState, Placement, Request, Score
from scheduling.core.placement_headroom import Headroom, Short
from scheduling.core.placement_shapes import (
    NOT_ALLOWED,
    check_request,
    class_of,
    computes_differ,
    device_columns,
    devices_by_index,
    needs_of,
    node_rows,
    typical_tables,
)
from scheduling.core.slicing import ANY
from scheduling.core.units import DEFAULT_STEP_MILLI, MILLI_PER_DEVICE

__all__ = ["Fleet", "Headroom", "PlacedEach", "PlacementRefused", "Short", "TypicalShape", "compile_kernels"]

TREE_BYTES = 64 << 20  # for the scores of all shapes kept at once; the shape not placed for longest makes room
MOST_SHAPES = 4096
MEMO_ENTRIES = 1 << 16


def tolerates(request: Request, taints: Iterable[tuple[str, str]]) -> bool:
    """Whether a task of the request may come to a node with all these taints."""
    borne = request.tolerations
    return all((key, value) in borne or (key, "*") in borne for key, value in taints)


class PlacementRefused(ValueError):
    """A placement that cannot be taken or given back. ``reason`` is one of ``REFUSALS``; nothing has changed."""

    def __init__(self, reason: str, placement: Placement):
        super().__init__(f"{REFUSALS[reason]}: {placement}")
        self.reason = reason
        self.placement = placement


REFUSALS = {
    "malformed": "not a placement on this fleet",
    "compute": "a device has less compute free",
    "device_memory": "a device has less memory free",
    "cpu": "the node has less CPU free",
    "host_memory": "the node has less memory free",
    "sharing": "a device is held alone or by another team",
    "not_held": "more would be given back than is held",
}
_REFUSAL_OF_CODE = ("", "malformed", "compute", "device_memory", "cpu", "host_memory", "sharing", "not_held")


@dataclass(frozen=True, slots=True)
class PlacedEach:
    """What became of each request of ``Fleet.place_each``, in order."""

    nodes: np.ndarray  # int64: position of the node, -1 where it did not fit
    milli: np.ndarray  # int64: what it took
    fragmentation_milli: np.ndarray  # float64: of the whole fleet after it


@dataclass(frozen=True, slots=True)
class _Headrooms:
    """What was worked out for one version of the fleet. ``of_devices``: by request without its CPU and host memory."""

    version: int
    of_request: dict[Request, Headroom] = field(default_factory=dict)
    of_devices: dict[Request, placement_headroom.Devices] = field(default_factory=dict)


def compile_kernels(score: Score = "binpack") -> None:
    """What ``place``, ``take`` and ``give_back`` need is compiled and, where possible, kept on disk for the next time.

    Takes 6 to 9 s of one core when it is not there yet, about one when it is; otherwise the first Fleet does it.
    ``lookahead`` has kernels of its own, which take about twice as long.
    """
    device = DeviceState(id=1, index=0, model="", vendor="", memory_mib=1)
    node = NodeState(id=1, name="", rank=0, cpu_milli=0, host_memory_mib=0, devices=(device,))
    typical = (TypicalShape(0, 1, MILLI_PER_DEVICE, (), 1.0),)
    fleet = Fleet([node], score=score, typical=typical if score == "lookahead" else ())
    placement = fleet.place(Request(devices=1, compute_milli=MILLI_PER_DEVICE))
    assert placement is not None
    fleet.take(placement)


class Fleet:
    """Nodes with their devices and what is bound on them. Positions count the nodes by ascending rank.

    ``exclusive``: a device is never shared by two tasks, and what a fraction leaves of it is not free. A request with
    a ``team_id`` only lands on devices that are entirely free or hold slices of that team alone.
    """

    def __init__(
        self,
        nodes: Iterable[NodeState],
        *,
        score: Score = "binpack",
        step_milli: int = DEFAULT_STEP_MILLI,
        exclusive: bool = False,
        typical: Sequence[TypicalShape] = (),
        demand: Demand = (),
    ):
        if score not in SCORES:
            raise ValueError(f"{score!r} is not one of {', '.join(SCORES)}")
        # Imported here, not at the top: numba takes about a second to import, and most commands never place anything.
        from scheduling.core import placement_kernels

        self._k = placement_kernels
        self.version = 0
        self.exclusive = exclusive
        self.step_milli = step_milli
        ordered = sorted(nodes, key=lambda node: node.rank)
        self.states = tuple(ordered)  # as they were given: what has been taken since is not in them
        self._index(ordered)
        rows = node_rows(ordered, self._k.NODE_COLUMNS)
        self._judge(score, typical, demand, rows, device_columns(ordered, self._classes, self._k.DEVICE_COLUMNS))

    def judged_anew(self, score: Score, typical: Sequence[TypicalShape] = (), demand: Demand = ()) -> Fleet:
        """The same nodes with the same on them, placed by this score and these typical shapes; this one is as it was.

        Positions and placements of one are good in the other.
        """
        fleet = copy(self)
        fleet.version += 1
        fleet._judge(score, typical, demand, self._tables.nodes.copy(), self._tables.devices.copy())
        return fleet

    def _judge(
        self, score: Score, typical: Sequence[TypicalShape], demand: Demand, rows: np.ndarray, columns: np.ndarray
    ) -> None:
        self.score: Score = score
        self.typical = tuple(typical)
        self._demand: Demand = (demand or demand_of_typical(typical)) if score == "lookahead" and typical else ()
        self._scarce: list[Scarce] = []
        self._kernels: Any = self._k  # whose place, change and place_each are used
        rows[:, [self._k.N_CHANGED, self._k.N_KEY]] = 0
        self._lay_out(rows, columns)
        for position in range(len(rows)):
            self._note_change(position)

    def _index(self, ordered: list[NodeState]) -> None:
        """Note who is where. Raises ValueError where ids or ranks repeat."""
        devices = [device for node in ordered for device in devices_by_index(node)]
        self._node_ids = [node.id for node in ordered]
        self._names = [node.name for node in ordered]
        self._labels = [frozenset(node.labels) for node in ordered]
        self._taints = {position: node.taints for position, node in enumerate(ordered) if node.taints}
        self._levels: dict[str, Level] = {}
        self._device_ids = [device.id for device in devices]
        self._device_indexes = [device.index for device in devices]
        self._position = {node_id: position for position, node_id in enumerate(self._node_ids)}
        self._row = {device_id: row for row, device_id in enumerate(self._device_ids)}
        if len(self._position) < len(ordered) or len({node.rank for node in ordered}) < len(ordered):
            raise ValueError("two nodes of a fleet have the same id or the same rank")
        if len(self._row) < len(devices):
            raise ValueError("two devices of a fleet have the same id")
        self._classes = sorted({class_of(device) for device in devices})
        self.cuts_by_rule = any(kind.rule.kind != "any" for kind in self._classes)

    def _lay_out(self, rows: np.ndarray, columns: np.ndarray) -> None:
        k = self._k
        node_count, class_count = len(rows), len(self._classes)
        base = self._base = 1 << max(node_count - 1, 0).bit_length()
        per_node = 2 * 4 if self.score != "lookahead" else 2 * 4 + 4 + 8
        self._most_slots = max(8, min(MOST_SHAPES, TREE_BYTES // (per_node * base)))
        self._slots: dict[Request, int] = {}  # in order of last use
        self._labelled: dict[int, np.ndarray] = {}  # by slot, where not every node carries the labels asked for
        self._borne: dict[int, np.ndarray] = {}  # by slot, where not every node's taints are tolerated
        self._every_node = np.ones(node_count, dtype=np.bool_)
        self._headrooms = _Headrooms(0)
        self._possible: dict[Request, int] = {}
        rule = self.score if self.typical or self.score not in ("fragmentation", "lookahead") else "binpack"
        typical = typical_tables(self.typical, self._classes, self.step_milli)
        most_devices = int(rows[:, k.N_COUNT].max(initial=0))
        self._tables = k.Tables(
            facts=np.array([SCORES.index(rule), self.exclusive, node_count, base, 0], dtype=np.int64),
            nodes=rows,
            devices=columns,
            fragments=np.zeros(node_count),
            log=np.zeros(base, dtype=np.int64),
            shapes=np.zeros((self._most_slots, k.SHAPE_COLUMNS), dtype=np.int64),
            needs=np.zeros((self._most_slots, class_count, 2), dtype=np.int64),
            trees=np.empty((self._most_slots, 2 * base), dtype=np.int32),  # a page costs memory once it is used
            memo_keys=np.zeros(MEMO_ENTRIES if self.typical else 1, dtype=np.int64),
            memo=np.zeros(MEMO_ENTRIES if self.typical else 1),
            scratch=np.zeros(2 * most_devices + 2, dtype=np.int64),
            **typical._asdict(),
        )
        if rule == "lookahead":
            self._look_ahead(most_devices)
        self._scratch = memoryview(self._tables.scratch)

    def _look_ahead(self, most_devices: int) -> None:
        """Use the kernels of ``lookahead`` and tables that hold what those need besides."""
        from scheduling.core import lookahead_kernels

        k, t = self._k, self._tables
        node_count, class_count = len(self._node_ids), len(self._classes)
        hosts = np.zeros((node_count, class_count), dtype=np.int64)
        np.add.at(hosts, (t.devices[k.D_NODE], t.devices[k.D_CLASS]), 1)
        rooms = t.nodes[:, [k.N_CPU_ALL, k.N_HOST_ALL]]
        tables = lookahead_tables(self._demand, self._classes, self.step_milli, hosts, rooms)
        self._kernels = lookahead_kernels
        self._scarce = scarce_shapes(self._demand, self._classes, self.step_milli)
        slots, base = t.trees.shape[0], self._base
        self._tables = lookahead_kernels.Tables(
            **t._asdict(),
            facts_ahead=np.zeros(3, dtype=np.int64),
            values=np.zeros(node_count),
            hosts=np.zeros(node_count, dtype=np.int64),
            counted=np.zeros((node_count, 2), dtype=np.int64),
            hosting=np.zeros(len(self._scarce), dtype=np.int64),
            scores=np.empty((slots, base), dtype=np.int32),
            ends=np.zeros((slots, base), dtype=np.int64),
            by=np.zeros(slots, dtype=np.int64),
            exempt=np.zeros(slots, dtype=np.int64),
            **tables._asdict(),
            ahead_keys=np.zeros(lookahead_kernels.MEMO_ENTRIES, dtype=np.int64),
            ahead_memo=np.zeros(lookahead_kernels.MEMO_ENTRIES),
            work=np.zeros((lookahead_kernels.WORK_ROWS, max(most_devices, 1)), dtype=np.int64),
        )

    @property
    def demand(self) -> Demand:
        """The requests that look-ahead expects; empty where nothing is placed by it."""
        return self._demand

    # ---- placing -----------------------------------------------------------------------------------------------------

    def place(self, request: Request) -> Placement | None:
        """Where one task of the request would land best now; None where it fits nowhere. Changes nothing."""
        return self._found(request, self._kernels.place(self._tables, self._slot(request)))

    def place_among(self, request: Request, nodes: np.ndarray) -> Placement | None:
        """As ``place``, but on one of these nodes: positions, int64, ascending."""
        return self._found(request, self._kernels.place_among(self._tables, self._slot(request), nodes))

    def _found(self, request: Request, node: int) -> Placement | None:
        """The placement on the node that a kernel chose, as it described it."""
        if node < 0:
            return None
        count = request.devices
        found = self._scratch[: 2 * count + 1].tolist()
        rows = found[:count]
        return Placement(
            node,
            self._node_ids[node],
            tuple([self._device_indexes[row] for row in rows]),
            tuple([self._device_ids[row] for row in rows]),
            found[2 * count],
            tuple(found[count : 2 * count]),
            request.cpu_milli,
            request.host_memory_mib,
            _counted_mib(request),
        )

    def place_each(self, requests: Sequence[Request]) -> PlacedEach:
        """Place and take one task of each request, in order; one that fits nowhere is passed over."""
        result = PlacedEach(
            np.empty(len(requests), np.int64), np.empty(len(requests), np.int64), np.empty(len(requests))
        )
        begin = 0
        while begin < len(requests):
            slots = self._slots_of_run(requests, begin)
            part = slice(begin, begin + len(slots))
            self._kernels.place_each(
                self._tables, slots, result.nodes[part], result.milli[part], result.fragmentation_milli[part]
            )
            self.version += int((result.nodes[part] >= 0).sum())
            begin += len(slots)
        return result

    def tables_for(self, requests: Sequence[Request]) -> tuple[Any, np.ndarray]:
        """The tables that kernels work on, and the slot of each request: for rules that are only compared with.

        Raises ValueError where the requests have more shapes than there are slots at once.
        """
        slots = self._slots_of_run(requests, 0)
        if len(slots) < len(requests):
            raise ValueError(f"more than {self._most_slots} shapes at once")
        return self._tables, slots

    def warm(self, requests: Iterable[Request]) -> None:
        """Score every node for these shapes now, so that the first placement of each does not have to."""
        for request in requests:
            self._kernels.place(self._tables, self._slot(request))

    def take(self, placement: Placement, team_id: int = 0) -> None:
        """The slices, CPU and memory of the placement are bound. ``team_id``: the holder, where teams are kept apart.

        Raises PlacementRefused, with nothing changed, where that would over-allocate anything or share a device that
        must not be shared. Health and cordons are for ``place`` to heed: what already runs can be entered here.
        """
        self._change(placement, team_id, 1)

    def give_back(self, placement: Placement) -> None:
        """What ``take`` bound is free again. Raises PlacementRefused, with nothing changed, where it was not held."""
        self._change(placement, 0, -1)

    def placement_on(
        self,
        node_id: int,
        device_ids: Iterable[int],
        compute_milli: int,
        memory_mib: Iterable[int],
        cpu_milli: int,
        host_memory_mib: int,
    ) -> Placement:
        """The placement that stored rows describe; ``memory_mib`` in the order of ``device_ids``. KeyError: unknown."""
        slices = sorted(zip((self._row[device_id] for device_id in device_ids), memory_mib, strict=True))
        rows = [row for row, _ in slices]
        return Placement(
            node=self._position[node_id],
            node_id=node_id,
            device_indexes=tuple(self._device_indexes[row] for row in rows),
            device_ids=tuple(self._device_ids[row] for row in rows),
            compute_milli=compute_milli,
            memory_mib=tuple(memory for _, memory in slices),
            cpu_milli=cpu_milli,
            host_memory_mib=host_memory_mib,
        )

    def _change(self, placement: Placement, team_id: int, sign: int) -> None:
        ids, memories = placement.device_ids, placement.memory_mib
        count = len(ids)
        try:
            node = self._position[placement.node_id]
            for i in range(count):
                self._scratch[i] = self._row[ids[i]]
                self._scratch[count + i] = memories[i]
        except (KeyError, IndexError):
            raise PlacementRefused("malformed", placement) from None
        code = self._kernels.change(
            self._tables,
            node,
            count,
            placement.compute_milli,
            placement.cpu_milli,
            placement.host_memory_mib,
            team_id,
            sign,
        )
        if code:
            raise PlacementRefused(_REFUSAL_OF_CODE[code], placement)
        self.version += 1

    # ---- shapes ------------------------------------------------------------------------------------------------------

    def _slot(self, request: Request) -> int:
        """The slot whose tree scores the nodes for this shape; it is the last to be given up from now on."""
        slots = self._slots
        slot = slots.pop(request, -1)
        if slot < 0:
            slot = self._fill_slot(request)
        slots[request] = slot
        return slot

    def _fill_slot(self, request: Request) -> int:
        check_request(request)
        if len(self._slots) < self._most_slots:
            slot = len(self._slots)
        else:
            slot = self._slots.pop(next(iter(self._slots)))
            self._labelled.pop(slot, None)
            self._borne.pop(slot, None)
        needs = needs_of(request, self._classes, self.step_milli)
        self._tables.needs[slot] = np.array(needs, dtype=np.int64).reshape(len(needs), 2)
        alike = computes_differ(needs)
        self._tables.shapes[slot] = (
            request.devices,
            request.cpu_milli,
            request.host_memory_mib,
            request.team_id,
            alike,
            self._k.NEW,
        )
        if self._scarce:
            self._tables.exempt[slot] = exempt_mask(request, self._scarce, self._classes, self.step_milli)
        if request.node_selector:
            asked = set(request.node_selector)
            self._labelled[slot] = np.array([asked <= labels for labels in self._labels], dtype=np.bool_)
        if self._taints:
            self._borne[slot] = np.ones(len(self._node_ids), dtype=np.bool_)
            for position, taints in self._taints.items():
                self._borne[slot][position] = tolerates(request, taints)
        leaves = self._tables.trees[slot, -self._base :]
        leaves[:] = self._k.NEVER
        leaves[: len(self._node_ids)][self._allowed(slot)] = self._k.NO_FIT
        return slot

    def _allowed(self, slot: int) -> np.ndarray:
        """bool[N]: the nodes that carry the labels the shape asks for, and no taint that it does not tolerate."""
        labelled = self._labelled.get(slot, self._every_node)
        return labelled & self._borne[slot] if slot in self._borne else labelled

    def _slots_of_run(self, requests: Sequence[Request], begin: int) -> np.ndarray:
        """The slots of as many requests from ``begin`` on as can have theirs at the same time."""
        known: dict[int, int] = {}  # by id(): requests of one shape are mostly one object, and that is cheap to ask
        used: set[int] = set()
        slots = []
        for request in requests[begin:] if begin else requests:
            slot = known.get(id(request), -1)
            if slot < 0:
                if len(used) == self._most_slots and request not in self._slots:
                    break
                slot = known[id(request)] = self._slot(request)
                used.add(slot)
            slots.append(slot)
        return np.array(slots, dtype=np.int64)

    # ---- state of nodes and devices ----------------------------------------------------------------------------------

    def set_schedulable(self, node_id: int, schedulable: bool) -> None:
        """Whether new tasks may land on the node; what is bound on it stays."""
        node = self._position[node_id]
        self._set(self._tables.nodes[:, self._k.N_OPEN], node, schedulable, node)

    def set_healthy(self, device_id: int, healthy: bool) -> None:
        """Whether new slices may land on the device; what is bound on it stays."""
        row = self._row[device_id]
        node = int(self._tables.devices[self._k.D_NODE, row])
        self._set(self._tables.devices[self._k.D_HEALTHY], row, healthy, node)

    def _set(self, column: np.ndarray, row: int, value: bool, node: int) -> None:
        if bool(column[row]) != value:
            column[row] = value
            self._note_change(node)
            self.version += 1

    def _note_change(self, node: int) -> None:
        self._kernels.change(self._tables, node, 0, 0, 0, 0, 0, 0)

    # ---- sums --------------------------------------------------------------------------------------------------------

    def total_milli(self) -> int:
        """Every device, whole."""
        return MILLI_PER_DEVICE * len(self._row)

    def allocated_milli(self) -> int:
        """What tasks hold, wherever it is."""
        return int(self._used().sum())

    def schedulable_milli(self) -> int:
        """The healthy devices of schedulable nodes, whole."""
        return MILLI_PER_DEVICE * int(self._in_service().sum())

    def capacity_milli(self) -> int:
        """What teams can share: ``schedulable_milli`` and what is held on other devices."""
        return self.schedulable_milli() + int(self._used()[~self._in_service()].sum())

    def free_milli(self) -> int:
        """What new slices could take of healthy devices of schedulable nodes."""
        return int(self._tables.devices[self._k.D_OPEN, self._in_service()].sum())

    def fragmentation_milli(self) -> float:
        """F over the schedulable nodes: the expected part of their idle compute that the next typical request cannot
        use. 0.0 when there are no typical shapes."""
        return float(self._tables.fragments[self._schedulable()].sum())

    def total_cpu_milli(self) -> int:
        return int(self._tables.nodes[:, self._k.N_CPU_ALL].sum())

    def allocated_cpu_milli(self) -> int:
        return self.total_cpu_milli() - int(self._tables.nodes[:, self._k.N_CPU].sum())

    def schedulable_cpu_milli(self) -> int:
        return int(self._tables.nodes[self._schedulable(), self._k.N_CPU_ALL].sum())

    def capacity_cpu_milli(self) -> int:
        """What teams can share in a pool that counts CPU: that of schedulable nodes and what is held on others."""
        elsewhere = self._tables.nodes[~self._schedulable()]
        return self.schedulable_cpu_milli() + int((elsewhere[:, self._k.N_CPU_ALL] - elsewhere[:, self._k.N_CPU]).sum())

    def free_cpu_milli(self) -> int:
        return int(self._tables.nodes[self._schedulable(), self._k.N_CPU].sum())

    def _schedulable(self) -> np.ndarray:
        return self._tables.nodes[:, self._k.N_OPEN] != 0

    def _in_service(self) -> np.ndarray:
        devices = self._tables.devices
        return (devices[self._k.D_HEALTHY] != 0) & self._schedulable()[devices[self._k.D_NODE]]

    def _used(self) -> np.ndarray:
        return MILLI_PER_DEVICE - self._tables.devices[self._k.D_COMPUTE]

    def in_service(self, placement: Placement) -> bool:
        """Whether the node is schedulable and the devices are healthy, so that new tasks may land there."""
        healthy = self._tables.devices[self._k.D_HEALTHY]
        open_ = bool(self._tables.nodes[placement.node, self._k.N_OPEN])
        return open_ and all(healthy[self._row[device_id]] for device_id in placement.device_ids)

    def free_by_node(self, *, cpu: bool = False) -> np.ndarray:
        """By position, what new slices could take of each node that is in service; ``cpu``: of its cores."""
        k, tables = self._k, self._tables
        if cpu:
            return np.where(self._schedulable(), tables.nodes[:, k.N_CPU], 0)
        free = np.zeros(len(self._node_ids), dtype=np.int64)
        rows = self._in_service()
        np.add.at(free, tables.devices[k.D_NODE, rows], tables.devices[k.D_OPEN, rows])
        return free

    def free_on(self, node: int) -> list[tuple[Placement, int]]:
        """What nobody holds on the node at this position, as placements that together take all of it, each with the
        team that holds the rest of the device: its CPU and memory first, then each device with compute left."""
        k, row = self._k, self._tables.nodes[node]
        node_id = self._node_ids[node]
        found = [(Placement(node, node_id, (), (), 0, (), int(row[k.N_CPU]), int(row[k.N_HOST])), 0)]
        first = int(row[k.N_FIRST])
        for device in range(first, first + int(row[k.N_COUNT])):
            compute, memory, team = self._tables.devices[[k.D_COMPUTE, k.D_MEMORY, k.D_TEAM], device].tolist()
            if compute:
                ids = (self._device_indexes[device],), (self._device_ids[device],)
                found.append((Placement(node, node_id, *ids, compute, (memory,), 0, 0), team))
        return found

    # ---- why not, and how many ---------------------------------------------------------------------------------------

    def headroom(self, request: Request) -> Headroom:
        """What there is for the request now, and what is short where it does not fit."""
        if self._headrooms.version != self.version:
            self._headrooms = _Headrooms(self.version)
        known, there = self._headrooms.of_request, self._headrooms.of_devices
        if request not in known:
            alike = replace(request, cpu_milli=0, host_memory_mib=0)
            if alike not in there:
                there[alike] = placement_headroom.devices(request, self._supply(request, self._slot(request)))
            found = placement_headroom.headroom(request, there[alike], self._possible_count(request))
            slot = self._slot(request)
            known[request] = replace(found, **self._tainted(request, slot)) if slot in self._borne else found
        return known[request]

    def _possible_count(self, request: Request) -> int:
        """``Headroom.possible_nodes``; what a node could host if it were empty never changes."""
        if request not in self._possible:
            if len(self._possible) >= MOST_SHAPES:
                self._possible.clear()
            slot = self._slot(request)
            self._kernels.place(self._tables, slot)  # so that the leaves are up to date
            self._possible[request] = int((self._tables.trees[slot, -self._base :] != self._k.NEVER).sum())
        return self._possible[request]

    def _tainted(self, request: Request, slot: int) -> dict[str, Any]:
        """How many nodes match but for a taint, and the taints that keep the request away, each once."""
        labelled = self._labelled.get(slot, self._every_node)
        seen = placement_headroom.supply(self._tables, slot, request, labelled & ~self._borne[slot])
        nodes = np.flatnonzero(seen.matching).tolist()
        kept_by = {taint for node in nodes for taint in self._taints[node] if not tolerates(request, (taint,))}
        return {"tainted_nodes": len(nodes), "taints": tuple(sorted(kept_by))}

    def possible_nodes(self, request: Request) -> frozenset[int]:
        """Positions of the nodes in service that could host one task of the request if nothing else ran on them."""
        slot = self._slot(request)
        self._kernels.place(self._tables, slot)  # so that the leaves are up to date
        leaves = self._tables.trees[slot, -self._base :][: len(self._node_ids)]
        return frozenset(np.flatnonzero((leaves != self._k.NEVER) & self._schedulable()).tolist())

    def least_milli(self, request: Request) -> int:
        """The least that one task can count against quotas here: more on other devices where memory alone is asked for,
        or where slices are rounded up. 0 where no device matches or is large enough."""
        return request.devices * min((compute for compute, _ in self.grants(request)), default=0)

    def least_memory(self, request: Request) -> int:
        """The least that one task can count against limits of device memory here, in MiB; 0 as for ``least_milli``."""
        least = request.devices * min((memory for _, memory in self.grants(request)), default=0)
        counted = _counted_mib(request)
        return least if counted is None else min(counted, least)

    def grants(self, request: Request) -> tuple[tuple[int, int], ...]:
        """The different slices of one device, (milli, MiB), that the request could be granted here, ascending."""
        needs = needs_of(request, self._classes, self.step_milli)
        return tuple(sorted({(compute, memory) for compute, memory in needs if compute > 0}))

    def cheapest_models(self, request: Request) -> tuple[str, ...]:
        """Of the models that the request allows and that serve it here, those on which it counts least: the least
        compute, then memory. () where none does, which allows every model."""
        needs = needs_of(request, self._classes, self.step_milli)
        most: dict[str, tuple[int, int]] = {}
        for kind, need in zip(self._classes, needs, strict=True):
            if need[0] > 0:
                most[kind.model] = max(need, most.get(kind.model, need))
        least = min(most.values(), default=None)
        return tuple(sorted(model for model, need in most.items() if need == least))

    def whole_only(self, request: Request) -> tuple[str, ...]:
        """The models that the request allows and that do not serve it only because they are given whole."""
        if not self.cuts_by_rule or not request.devices:
            return ()
        needs = needs_of(request, self._classes, self.step_milli)
        free = needs_of(request, [kind._replace(rule=ANY) for kind in self._classes], self.step_milli)
        kinds = zip(self._classes, needs, free, strict=True)
        return tuple(sorted({kind.model for kind, (need, _), (cut, _) in kinds if need == NOT_ALLOWED and cut > 0}))

    def count_fitting(self, request: Request, limit: int) -> int:
        """The most tasks of the request that fit at once now, counted up to ``limit``."""
        return placement_headroom.most_tasks(request, self._supply(request, self._slot(request)), limit)

    def tasks_by_node(self, request: Request, limit: int) -> np.ndarray:
        """int64[N]: the most tasks of the request that fit on each node at once now, each counted up to ``limit``."""
        return placement_headroom.tasks_by_node(request, self._supply(request, self._slot(request)), limit)

    def tasks_by_empty_node(self, request: Request, limit: int) -> np.ndarray:
        """int64[N]: as ``tasks_by_node`` if nothing were bound on the nodes that are in service."""
        seen = placement_headroom.emptied(self._tables, self._supply(request, self._slot(request)))
        return placement_headroom.tasks_by_node(request, seen, limit)

    def _supply(self, request: Request, slot: int) -> placement_headroom.Supply:
        return placement_headroom.supply(self._tables, slot, request, self._allowed(slot))

    # ---- topology ----------------------------------------------------------------------------------------------------

    def level(self, level: str) -> Level:
        """The domains of a level: see ``domains``. ValueError where there is no such level."""
        if level not in self._levels:
            self._levels[level] = level_of(level, self._names, self._labels)
        return self._levels[level]

    def room_by_node(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """int64[N] each: what new tasks could take of every node in service now: milli of its devices, milli-cores,
        MiB of its memory. 0 on others."""
        nodes, devices, schedulable = self._tables.nodes, self._tables.devices, self._schedulable()
        milli = np.zeros(len(self._node_ids), dtype=np.int64)
        np.add.at(milli, devices[self._k.D_NODE], devices[self._k.D_OPEN])
        return milli * schedulable, nodes[:, self._k.N_CPU] * schedulable, nodes[:, self._k.N_HOST] * schedulable


def _counted_mib(request: Request) -> int | None:
    """What a task counts against limits of device memory where that is not what it holds; see ``Placement``."""
    if request.memory_mib is None or request.compute_milli != MILLI_PER_DEVICE:
        return None
    return request.devices * request.memory_mib
