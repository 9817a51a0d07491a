"""The allocation experiment of Weng et al. (USENIX ATC 2023) on the Alibaba GPU trace of 2023, as pure functions.

Pods arrive one by one and never leave; one that fits nowhere is dropped. Measured is what part of all GPUs is allocated
when the pods that have arrived ask for x % of them. Source of the protocol: the authors' simulator,
github.com/hkust-adsl/kubernetes-scheduler-simulator, commit 8f3d641. Nothing here reads a file: texts come in.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.core.fleet import Fleet
from scheduling.core.fragmentation import TypicalShape, typical_shapes
from scheduling.core.lookahead import Demand
from scheduling.core.model import DeviceState, NodeState, Request, Score
from scheduling.core.units import MILLI_PER_DEVICE

RATIO = 1.3  # of the capacity, is asked for at the end
LAST_COLUMN = 130
DEVICE_MEMORY_MIB = 16384  # the trace does not tell; in a request that only names compute it never binds


class TraceError(ValueError):
    """A line of a trace that cannot be meant: its number (the header is line 1), the field, and why."""

    def __init__(self, line: int, field: str, why: str):
        super().__init__(f"line {line}, {field}: {why}")
        self.line, self.field, self.why = line, field, why


@dataclass(frozen=True, slots=True)
class TraceNode:
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The pods in order of arrival, as rows of the trace, and the rank of each node (nodes sorted by name)."""

    order: np.ndarray
    node_ranks: np.ndarray


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. ``allocated`` and ``fragments``: percentage of all GPUs by percentage asked, where that was met."""

    allocated: dict[int, float]
    fragments: dict[int, float]
    decisions: int
    failed: int


def read_nodes(text: str) -> tuple[TraceNode, ...]:
    """The nodes of a node list, sorted by name. Raises TraceError."""
    nodes = [
        TraceNode(
            _text(row, "sn", line),
            _count(row, "cpu_milli", line),
            _count(row, "memory_mib", line),
            _count(row, "gpu", line),
            row.get("model") or "",
        )
        for line, row in _rows(text)
    ]
    return tuple(sorted(nodes, key=lambda node: node.name))


def read_pods(text: str) -> tuple[Request, ...]:
    """The pods of a pod list as requests, in the order of its lines; equal ones are one object. Raises TraceError."""
    shapes: dict[Request, Request] = {}
    pods = []
    for line, row in _rows(text):
        devices = _count(row, "num_gpu", line)
        compute = _count(row, "gpu_milli", line)
        if devices and not 0 < compute <= MILLI_PER_DEVICE:
            raise TraceError(line, "gpu_milli", f"{compute} is not within 1..{MILLI_PER_DEVICE}")
        request = Request(
            devices=devices,
            compute_milli=compute if devices else None,
            cpu_milli=_count(row, "cpu_milli", line),
            host_memory_mib=_count(row, "memory_mib", line),
            models=_models(row.get("gpu_spec") or ""),
        )
        pods.append(shapes.setdefault(request, request))
    return tuple(pods)


def typical_of(pods: Sequence[Request]) -> tuple[TypicalShape, ...]:
    """The typical shapes of the trace itself, each pod counted once."""
    return typical_shapes((pod, 1) for pod in pods)


def demand_of(pods: Sequence[Request]) -> Demand:
    """The trace itself as the demand that look-ahead expects, each pod counted once."""
    return tuple(Counter(pods).items())


def capacity_milli(nodes: Sequence[TraceNode]) -> int:
    return MILLI_PER_DEVICE * sum(node.gpus for node in nodes)


def draw_arrivals(pods: Sequence[Request], nodes: Sequence[TraceNode], seed: int, ratio: float = RATIO) -> Arrivals:
    """Arrivals by the protocol from numpy's generator: the pods shuffled, then more of them drawn with replacement (or
    random ones left out) until they ask for ``ratio`` of the capacity, and a random order of the nodes.

    The authors' own sequences come from another generator; the averages do not depend on which.
    """
    generator = np.random.default_rng(seed)
    asked = _asked_milli(pods)
    target = int(ratio * capacity_milli(nodes))
    order = generator.permutation(len(pods)).tolist()
    total = int(asked.sum())
    too_much = total > target
    while total > target:
        total -= int(asked[order.pop(int(generator.integers(len(order))))])
    while not too_much and total < target and asked.any():
        row = int(generator.integers(len(pods)))
        if total + (pods[row].compute_milli or 0) > target:  # of one GPU, as in the authors' simulator
            break
        order.append(row)
        total += int(asked[row])
    return Arrivals(np.array(order, dtype=np.int64), generator.permutation(len(nodes)))


def build_fleet(
    nodes: Sequence[TraceNode],
    node_ranks: np.ndarray,
    *,
    score: Score,
    typical: Sequence[TypicalShape],
    demand: Demand = (),
    copies: int = 1,
) -> Fleet:
    """The empty fleet, ``copies`` times; the copies of a node follow it in rank."""
    states = []
    device_id = 0
    for position, node in enumerate(nodes):
        for copy in range(copies):
            devices = tuple(
                DeviceState(device_id + index, index, node.model, "", DEVICE_MEMORY_MIB) for index in range(node.gpus)
            )
            device_id += node.gpus
            rank = int(node_ranks[position]) * copies + copy
            states.append(NodeState(rank, node.name, rank, node.cpu_milli, node.memory_mib, devices))
    return Fleet(states, score=score, typical=typical, demand=demand)


def arriving(pods: Sequence[Request], order: np.ndarray, copies: int = 1) -> list[Request]:
    """The requests in order of arrival; with ``copies``, that many times one after the other."""
    return [pods[row] for row in order.tolist()] * copies


def outcome(
    requests: Sequence[Request], nodes: np.ndarray, milli: np.ndarray, fragments: np.ndarray, capacity: int
) -> Outcome:
    """What the run amounts to: of each request its node (-1: dropped), what it took, and F of the fleet after it."""
    arrived = np.cumsum(_asked_milli(requests))
    return Outcome(
        allocated=by_percent_asked(arrived, np.round(100.0 * np.cumsum(milli) / capacity, 2), capacity),
        fragments=by_percent_asked(arrived, 100.0 * fragments / capacity, capacity),
        decisions=len(requests),
        failed=int((nodes < 0).sum()),
    )


def by_percent_asked(arrived: np.ndarray, values: np.ndarray, capacity: int) -> dict[int, float]:
    """For each x of 0..130 the mean of ``values`` over the events at which the pods that had arrived asked for x % of
    the capacity, both rounded as published."""
    percent = np.rint(100.0 * arrived / capacity).astype(np.int64)
    found = {}
    for column in range(LAST_COLUMN + 1):
        at = percent == column
        if at.any():
            found[column] = round(float(values[at].mean()), 2)
    return found


def read_published(text: str, workload: str, policy: str) -> dict[int, dict[int, float]]:
    """Rows of a published table (``analysis_*_discrete.csv``) for one workload and policy: seed → column → value."""
    rows = csv.DictReader(io.StringIO(text))
    return {
        int(row["seed"]): {x: float(row[str(x)]) for x in range(LAST_COLUMN + 1) if row[str(x)]}
        for row in rows
        if row["workload"] == f"openb_pod_list_{workload}" and row["sc_policy"].endswith(f"-{policy}")
    }


def _asked_milli(requests: Sequence[Request]) -> np.ndarray:
    return np.array([request.devices * (request.compute_milli or 0) for request in requests], dtype=np.int64)


def _rows(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(text))
    for row in reader:
        yield reader.line_num, row


def _text(row: dict[str, str], field: str, line: int) -> str:
    value = row.get(field)
    if not value:
        raise TraceError(line, field, "is missing")
    return value


def _models(spec: str) -> tuple[str, ...]:
    """The models of ``A|B|B``, sorted. Repeated ones stay: for the experiment those are shapes of their own."""
    return tuple(sorted(filter(None, spec.split("|"))))


def _count(row: dict[str, str], field: str, line: int) -> int:
    value = _text(row, field, line)
    if not value.isascii() or not value.isdigit() or len(value) > 15:
        raise TraceError(line, field, f"{value[:40]!r} is not a whole number, 0 or more")
    return int(value)
