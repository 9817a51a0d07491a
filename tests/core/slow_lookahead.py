"""Look-ahead in plain Python over a ``SlowFleet``: every node valued anew, every time, and what Fleet must agree with.

The numbers of the tables that are checked by hand elsewhere (weights, rates, loads) are taken from there, so that a
rounding of theirs is the same on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scheduling.core.fragmentation import TypicalShape
from scheduling.core.lookahead import Demand, lookahead_tables
from scheduling.core.model import NodeState, Request
from scheduling.core.placement_shapes import DeviceClass
from tests.core.slow_fleet import SlowFleet

MASK = 2**64 - 1


def drawn_streams(shapes: Sequence[tuple[Request, int]]) -> list[list[Request]]:
    """32 streams of 45, by Steele, Lea and Flood's generator one number after the other."""
    total = sum(count for _, count in shapes)
    found = []
    for i in range(32 * 45):
        state = ((i + 1) * 0x9E3779B97F4A7C15 + (1 << 32)) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        left = int(((state ^ (state >> 31)) >> 11) / 2**53 * total)
        for request, count in shapes:
            left -= count
            if left < 0:
                found.append(request)
                break
    return [found[45 * r : 45 * r + 45] for r in range(32)]


class SlowLookahead(SlowFleet):
    def __init__(
        self, nodes: Sequence[NodeState], demand: Demand, typical: Sequence[TypicalShape], *, exclusive: bool = False
    ):
        super().__init__(nodes, "lookahead", exclusive=exclusive, typical=typical)
        self.classes = sorted({(d.model, d.vendor, d.memory) for node in self.nodes for d in node.devices})
        counts: dict[Request, int] = {}
        for request, count in demand:
            if request.devices:
                shape = (request.devices, request.compute_milli, request.memory_mib, request.cpu_milli)
                more = (request.host_memory_mib, request.models, request.vendors, request.min_device_memory_mib)
                counts[Request(*shape, *more)] = counts.get(Request(*shape, *more), 0) + count
        shapes = sorted(counts.items(), key=lambda entry: (-entry[1], self.total_key(entry[0])))
        self.streams = drawn_streams(shapes) if shapes else []
        self.scarce = [request for request, _ in shapes if request.devices > 1]
        kinds = [DeviceClass(*kind) for kind in self.classes]
        holding = [[sum(self.kind(d) == c for d in node.devices) for c in range(len(kinds))] for node in self.nodes]
        hosts = np.array(holding, dtype=np.int64).reshape(len(self.nodes), len(kinds))
        rooms = np.array([[node.cpu, node.host] for node in self.nodes], dtype=np.int64)
        self.tables = lookahead_tables(demand, kinds, self.step, hosts, rooms)
        self.known: dict[tuple, float] = {}

    @staticmethod
    def total_key(r: Request) -> tuple:
        sizes = (r.devices, r.compute_milli or 0, r.memory_mib or 0, r.cpu_milli, r.host_memory_mib)
        return (*sizes, r.models, r.vendors, r.min_device_memory_mib)

    def kind(self, device) -> int:
        return self.classes.index((device.model, device.vendor, device.memory))

    # ---- the value of a node -----------------------------------------------------------------------------------------

    def open_after(self, node, taken: dict[int, int]) -> list[tuple[int, object]]:
        found = []
        for device in node.devices:
            room = self.open_compute(device)
            if device.id in taken:
                room = 0 if self.exclusive else room - taken[device.id]
            found.append((room, device))
        return found

    def idle_after_streams(self, rooms, cpu: int, host: int) -> float:
        key = (tuple(sorted((room, self.kind(device)) for room, device in rooms)), cpu, host)
        if key not in self.known:
            left = [self.idle_after(stream, list(rooms), cpu, host) for stream in self.streams]
            self.known[key] = sum(left) / 32
        return self.known[key]

    def idle_after(self, stream, rooms, cpu: int, host: int) -> int:
        for request in stream:
            if request.cpu_milli > cpu or request.host_memory_mib > host:
                continue
            giving = []
            for i, (room, device) in enumerate(rooms):
                piece = self.slice_of(request, device)
                if piece is not None and room >= piece[0]:
                    giving.append((room, self.kind(device), i, piece[0]))
            if len(giving) < request.devices:
                continue
            for room, _, i, compute in sorted(giving)[: request.devices]:
                rooms[i] = (0 if self.exclusive else room - compute, rooms[i][1])
            cpu -= request.cpu_milli
            host -= request.host_memory_mib
        return sum(room for room, _ in rooms)

    def hosted(self, rooms, cpu: int, host: int) -> set[int]:
        found = set()
        for s, shape in enumerate(self.scarce):
            pieces = [(room, self.slice_of(shape, device)) for room, device in rooms]
            giving = sum(piece is not None and room >= piece[0] for room, piece in pieces)
            if giving >= shape.devices and cpu >= shape.cpu_milli and host >= shape.host_memory_mib:
                found.add(s)
        return found

    def value(self, node, cpu: int, host: int, taken: dict[int, int]) -> tuple[float, set[int]]:
        rooms = self.open_after(node, taken)
        hosted = self.hosted(rooms, cpu, host)
        value = self.idle_after_streams(rooms, cpu, host // 4096 * 4096) + 0.05 * self.fragment(node, cpu, taken)
        for room, device in rooms:
            value -= 0.3 * self.tables.loads[self.kind(device)] * room
        for s in range(len(self.scarce)):
            if s not in hosted:
                value += self.tables.weights[s]
        return value, hosted

    # ---- which is best -----------------------------------------------------------------------------------------------

    def outlook(self, request: Request, node, chosen) -> tuple[int, set[int]]:
        """The score of the choice, and the shapes that the node could host no more."""
        before, hosted = self.value(node, node.cpu_free, node.host_free, {})
        taken = {device.id: self.slice_of(request, device)[0] for device in chosen}
        cpu, host = node.cpu_free - request.cpu_milli, node.host_free - request.host_memory_mib
        after, still = self.value(node, cpu, host, taken)
        return math.floor((before - after) / 20), hosted - still

    def best_choice(self, request, node, choices):
        if self.typical and request.devices == 1:
            return max(choices, key=lambda chosen: (self.outlook(request, node, chosen)[0], -chosen[0].index))
        return super().best_choice(request, node, choices)

    def node_score(self, request, node, chosen):
        if not self.typical:
            return super().node_score(request, node, chosen)
        score, ended = self.outlook(request, node, chosen)
        behind = ended & self.reserved() - self.exempt(request)
        return (not behind, score)

    def reserved(self) -> set[int]:
        serving = [node for node in self.nodes if node.schedulable]
        free = sum(self.open_compute(device) for node in serving for device in node.devices)
        found = set()
        for s in range(len(self.scarce)):
            able = sum(s in self.hosted(self.open_after(n, {}), n.cpu_free, n.host_free) for n in serving)
            expected = self.tables.rates[s] * free
            if able <= expected + 2 * math.sqrt(expected):
                found.add(s)
        return found

    def exempt(self, request: Request) -> set[int]:
        def allowed(shape: Request) -> set:
            if shape.devices == 0:
                return set()
            return {
                kind
                for kind in self.classes
                if (not shape.models or kind[0] in shape.models)
                and (not shape.vendors or kind[1] in shape.vendors)
                and kind[2] >= shape.min_device_memory_mib
            }

        def sizes(shape: Request) -> tuple[int, ...]:
            known = (shape.devices, shape.cpu_milli, shape.host_memory_mib)
            return (*known, shape.compute_milli or 0, shape.memory_mib or 0)

        def demands(shape: Request) -> bool:
            larger = all(a >= b for a, b in zip(sizes(request), sizes(shape), strict=True))
            return larger and allowed(request) <= allowed(shape)

        return {s for s, shape in enumerate(self.scarce) if demands(shape)}
