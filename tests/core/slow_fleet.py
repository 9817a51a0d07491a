"""A fleet that looks at every node, every time, in plain Python: slow, obvious, and what ``Fleet`` must agree with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from scheduling.core.fragmentation import TypicalShape
from scheduling.core.model import NodeState, Request
from scheduling.core.units import compute_for_memory

WHOLE = 1000


@dataclass
class SlowDevice:
    id: int
    index: int
    model: str
    vendor: str
    memory: int
    healthy: bool
    compute_free: int
    memory_free: int
    teams: list[int] = field(default_factory=list)  # of each slice on it

    @property
    def untouched(self) -> bool:
        return self.compute_free == WHOLE and self.memory_free == self.memory


@dataclass
class SlowNode:
    id: int
    rank: int
    cpu: int
    cpu_free: int
    host: int
    host_free: int
    labels: frozenset
    schedulable: bool
    taints: tuple
    devices: list[SlowDevice]


class SlowFleet:
    def __init__(
        self,
        nodes: Sequence[NodeState],
        score: str,
        *,
        step: int = 50,
        exclusive: bool = False,
        typical: Sequence[TypicalShape] = (),
    ):
        self.step, self.exclusive, self.typical = step, exclusive, typical
        self.score = "binpack" if score == "fragmentation" and not typical else score
        self.nodes = [
            SlowNode(
                node.id,
                node.rank,
                node.cpu_milli,
                node.cpu_milli - node.cpu_used,
                node.host_memory_mib,
                node.host_memory_mib - node.host_memory_used,
                frozenset(node.labels),
                node.schedulable,
                node.taints,
                [
                    SlowDevice(
                        device.id,
                        device.index,
                        device.model,
                        device.vendor,
                        device.memory_mib,
                        device.healthy,
                        WHOLE - device.compute_used,
                        device.memory_mib - device.memory_used,
                        [device.team_id] if device.compute_used else [],
                    )
                    for device in sorted(node.devices, key=lambda device: device.index)
                ],
            )
            for node in sorted(nodes, key=lambda node: node.rank)
        ]

    # ---- what fits ---------------------------------------------------------------------------------------------------

    def slice_of(self, request: Request | TypicalShape, device: SlowDevice) -> tuple[int, int] | None:
        """(compute, memory) that the device would give; None where it is not allowed or too small for ever."""
        if request.models and device.model not in request.models:
            return None
        if request.vendors and device.vendor not in request.vendors:
            return None
        if device.memory < request.min_device_memory_mib or device.memory < (request.memory_mib or 0):
            return None
        compute, memory = request.compute_milli, request.memory_mib
        if compute is None:
            assert memory is not None
            compute = compute_for_memory(memory, device.memory, self.step)
        if compute == WHOLE:
            memory = device.memory
        elif memory is None:
            memory = device.memory * compute // WHOLE
        return compute, memory

    def open_compute(self, device: SlowDevice) -> int:
        if not device.healthy or (self.exclusive and not device.untouched):
            return 0
        return device.compute_free

    def gives(self, request: Request, device: SlowDevice) -> bool:
        piece = self.slice_of(request, device)
        if piece is None or self.open_compute(device) < piece[0] or device.memory_free < piece[1]:
            return False
        return not request.team_id or device.untouched or set(device.teams) == {request.team_id}

    def choices(self, request: Request, node: SlowNode) -> list[tuple[SlowDevice, ...]]:
        """Every way to choose the devices of one task in the node, whatever the score."""
        if not node.schedulable or node.cpu_free < request.cpu_milli or node.host_free < request.host_memory_mib:
            return []
        if not set(request.node_selector) <= node.labels or not self.tolerated(request, node):
            return []
        giving = [device for device in node.devices if request.devices and self.gives(request, device)]
        return [
            chosen
            for chosen in combinations(giving, request.devices)
            if len({self.slice_of(request, device)[0] for device in chosen}) <= 1
        ]

    def tolerated(self, request: Request, node: SlowNode) -> bool:
        borne = dict(request.tolerations)
        return all(borne.get(key) in ("*", value) for key, value in node.taints)

    # ---- which is best -----------------------------------------------------------------------------------------------

    def place(
        self, request: Request, among: set[int] | None = None
    ) -> tuple[int, tuple[int, ...], int, tuple[int, ...]] | None:
        """(node id, device ids, compute, memories) of the best choice, or None; ``among``: positions, None is all."""
        best = None
        for position, node in enumerate(self.nodes):
            choices = self.choices(request, node)
            if not choices or (among is not None and position not in among):
                continue
            chosen = self.best_choice(request, node, choices)
            score = self.node_score(request, node, chosen)
            if best is None or score > best[0]:
                best = (score, node, chosen)
        if best is None:
            return None
        _, node, chosen = best
        slices = [self.slice_of(request, device) for device in chosen]
        compute = slices[0][0] if slices else 0
        return node.id, tuple(d.id for d in chosen), compute, tuple(memory for _, memory in slices)

    def best_choice(self, request, node, choices):
        if self.score == "fragmentation" and request.devices == 1:
            return max(choices, key=lambda chosen: (self.gradient(request, node, chosen), -chosen[0].index))
        sign = -1 if self.score == "spread" else 1

        def fullness(chosen):
            compute = self.slice_of(request, chosen[0])[0] if chosen else 0
            order = sorted((sign * d.compute_free, sign * d.memory_free, d.index) for d in chosen)
            return compute, order

        return min(choices, key=fullness)

    def node_score(self, request, node, chosen):
        if self.score == "fragmentation":
            return self.gradient(request, node, chosen)
        used, whole = node.cpu - node.cpu_free, node.cpu
        if request.devices:
            healthy = [device for device in node.devices if device.healthy]
            used, whole = sum(WHOLE - device.compute_free for device in healthy), WHOLE * len(healthy)
        share = used * 10**9 // whole if whole else 0
        return -share if self.score == "spread" else share

    def gradient(self, request, node, chosen) -> int:
        before = self.fragment(node, node.cpu_free, {})
        taken = {device.id: self.slice_of(request, device)[0] for device in chosen}
        after = self.fragment(node, node.cpu_free - request.cpu_milli, taken)
        return int(1.0 / (1.0 + math.exp(-(before - after) / 1000.0)) * 100.0)

    def fragment(self, node: SlowNode, cpu: int, taken: dict[int, int]) -> float:
        """The published F: causes summed apart, each in the order of the typical shapes."""
        free = {device.id: self.open_compute(device) - taken.get(device.id, 0) for device in node.devices}
        if self.exclusive:
            free = {key: 0 if key in taken else value for key, value in free.items()}
        idle = sum(free.values())
        causes = dict.fromkeys(("both", "devices", "cpu", "cpu_only", "cpu_only_lack", "no_access"), 0.0)
        for shape in self.typical:
            enough_cpu = cpu >= shape.cpu_milli
            if shape.devices == 0:
                causes["cpu_only" if enough_cpu else "cpu_only_lack"] += shape.share * idle
                continue
            allowed = [d for d in node.devices if self._allowed(shape, d)]
            slices = {d.id: self.slice_of(shape, d) for d in allowed}
            fitting = [d.id for d in allowed if slices[d.id] and free[d.id] >= slices[d.id][0]]
            if not allowed:
                causes["no_access"] += shape.share * idle
            elif len(fitting) < shape.devices:
                causes["devices" if enough_cpu else "both"] += shape.share * idle
            elif not enough_cpu:
                causes["cpu"] += shape.share * idle
            else:
                causes["devices"] += shape.share * (idle - sum(free[key] for key in fitting))
        total = 0.0
        for amount in causes.values():
            total += amount
        return total

    def _allowed(self, shape: Request | TypicalShape, device: SlowDevice) -> bool:
        return (
            (not shape.models or device.model in shape.models)
            and (not shape.vendors or device.vendor in shape.vendors)
            and device.memory >= shape.min_device_memory_mib
        )

    def fragmentation(self) -> float:
        return sum(self.fragment(node, node.cpu_free, {}) for node in self.nodes if node.schedulable)

    # ---- how many ----------------------------------------------------------------------------------------------------

    def most_tasks(self, request: Request, limit: int) -> int:
        """By trying every way: only for a handful of tasks."""
        if limit == 0:
            return 0
        most = 0
        for node in self.nodes:
            most += self._most_in(request, node, limit - most)
        return most

    def _most_in(self, request: Request, node: SlowNode, limit: int) -> int:
        best = 0
        for chosen in self.choices(request, node) if limit else ():
            self.bind(request, node, chosen, 1)
            best = max(best, 1 + self._most_in(request, node, limit - 1))
            self.bind(request, node, chosen, -1)
            if best == limit:
                break
        return best

    def bind(self, request: Request, node: SlowNode, chosen: Sequence[SlowDevice], sign: int) -> None:
        for device in chosen:
            compute, memory = self.slice_of(request, device)
            self._bind_slice(device, compute, memory, request.team_id, sign)
        node.cpu_free -= sign * request.cpu_milli
        node.host_free -= sign * request.host_memory_mib

    def change(self, placement, team_id: int, sign: int) -> None:
        """Take (1) or give back (-1) a Placement of the real fleet."""
        node = next(node for node in self.nodes if node.id == placement.node_id)
        by_id = {device.id: device for device in node.devices}
        for device_id, memory in zip(placement.device_ids, placement.memory_mib, strict=True):
            self._bind_slice(by_id[device_id], placement.compute_milli, memory, team_id, sign)
        node.cpu_free -= sign * placement.cpu_milli
        node.host_free -= sign * placement.host_memory_mib

    def _bind_slice(self, device: SlowDevice, compute: int, memory: int, team_id: int, sign: int) -> None:
        device.compute_free -= sign * compute
        device.memory_free -= sign * memory
        if sign > 0:
            device.teams.append(team_id)
        else:
            device.teams.remove(team_id)
        assert 0 <= device.compute_free <= WHOLE
        assert 0 <= device.memory_free <= device.memory
