"""The other placement policies of the published comparison (Weng et al., USENIX ATC 2023), to compare with only.

Scores are integers, truncated, the highest wins, the lowest rank on ties. They look at every node, every time, on the
tables of a ``Fleet``. Source of the formulas: the authors' simulator, hkust-adsl/kubernetes-scheduler-simulator at
8f3d641. Importing this imports numba.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from scheduling.core import placement_kernels as base
from scheduling.core.fleet import Fleet, PlacedEach
from scheduling.core.model import Request
from scheduling.core.placement_kernels import (
    D_COMPUTE,
    N_COUNT,
    N_CPU,
    N_FIRST,
    N_HOST,
    N_OPEN,
    NODES,
    S_CPU,
    S_DEVICES,
    S_HOST,
    S_TEAM,
    WHOLE,
    kernel,
    part,
)

# As in lookahead_kernels: this file changes with placement_kernels.py, whose parts are compiled into its kernels.
PARTS_FROM = "8aeffd6c0d1b7192"

Baseline = Literal["random", "dotprod", "clustering", "packing", "bestfit"]
BASELINES: tuple[Baseline, ...] = get_args(Baseline)
RANDOM, DOTPROD, CLUSTERING, PACKING, BESTFIT = range(5)
LARGEST_CPU, LARGEST_GPU = 128_000, 8_000  # milli, of one node of the published cluster
KINDS = 1 + 16  # of pods, for clustering: a share, then by number of whole devices


def place_each_by(fleet: Fleet, policy: Baseline, requests: Sequence[Request], seed: int = 0) -> PlacedEach:
    """Place and take one task of each request by the policy, in order; one that fits nowhere is passed over."""
    count = len(requests)
    result = PlacedEach(np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count))
    tables, slots = fleet.tables_for(requests)
    holds = np.zeros((int(tables.facts[NODES]), KINDS), dtype=np.int64)
    dice = np.array([seed], dtype=np.int64)
    _place_each_by(
        tables, slots, BASELINES.index(policy), holds, dice, result.nodes, result.milli, result.fragmentation_milli
    )
    fleet.version += 1
    return result


@part
def _roll(dice, below):
    """A number in 0..below-1 by Marsaglia's xorshift64, which never leaves state 0: the seed is mixed in."""
    state = dice[0] ^ 0x2545F4914F6CDD1D
    state ^= state << 13
    state ^= (state >> 7) & 0x01FFFFFFFFFFFFFF
    state ^= state << 17
    dice[0] = state ^ 0x2545F4914F6CDD1D
    return ((state >> 11) & 0x7FFFFFFF) % below


@part
def _fits(t, slot, node):
    """Whether the node takes the task now; if so, its devices by best fit are at the front of ``scratch``."""
    if not t.nodes[node, N_OPEN] or t.nodes[node, N_CPU] < t.shapes[slot, S_CPU]:
        return False
    if t.nodes[node, N_HOST] < t.shapes[slot, S_HOST]:
        return False
    return t.shapes[slot, S_DEVICES] == 0 or base._choose(t, slot, node, False) > 0


@part
def _kind(t, slot):
    """A share is 0, whole devices are their number."""
    wanted = t.shapes[slot, S_DEVICES]
    if wanted == 0:
        return 0
    compute = 0
    for c in range(t.needs.shape[1]):
        compute = max(compute, t.needs[slot, c, 0])
    return 0 if wanted == 1 and compute < WHOLE else min(wanted, KINDS - 1)


@part
def _cluster(holds, node, kind, free):
    own, others = holds[node, kind], 0
    for other in range(KINDS):
        others += holds[node, other] if other != kind else 0
    if own == 0 and others > 0:
        points = 0
    elif own == 0:
        points = 25
    else:
        points = 50 if others > 0 else 75
    return points + 25 * (LARGEST_GPU - free) // LARGEST_GPU


@part
def _pack(t, slot, node, whole_free):
    wanted = t.shapes[slot, S_DEVICES]
    if whole_free == t.nodes[node, N_COUNT]:
        return max(33 - whole_free, whole_free)
    tightest = t.devices[D_COMPUTE, t.scratch[0]]
    if wanted > 1 or tightest == WHOLE:
        return max(50 - wanted, 33)
    return max(100 - (tightest * 100 // WHOLE) // 10, 50)


@part
def _points(t, slot, node, policy, holds, kind, milli):
    """The score of a node that takes the task, whose devices are at the front of ``scratch``."""
    free = whole_free = 0
    first = t.nodes[node, N_FIRST]
    for row in range(first, first + t.nodes[node, N_COUNT]):
        free += t.devices[D_COMPUTE, row]
        whole_free += t.devices[D_COMPUTE, row] == WHOLE
    cpu, cpu_free = t.shapes[slot, S_CPU], t.nodes[node, N_CPU]
    if policy == DOTPROD:
        product = cpu_free / LARGEST_CPU * cpu / LARGEST_CPU + free / LARGEST_GPU * milli / LARGEST_GPU
        return int(100.0 * (1.0 - product / 2.0))
    if policy == BESTFIT:
        return int(100.0 * (1.0 - 0.5 * (cpu_free - cpu) / LARGEST_CPU - 0.5 * (free - milli) / LARGEST_GPU))
    if milli == 0:
        return 0
    return _cluster(holds, node, kind, free) if policy == CLUSTERING else _pack(t, slot, node, whole_free)


@part
def _best(t, slot, policy, holds, kind):
    best, chosen = -(1 << 30), -1
    wanted = t.shapes[slot, S_DEVICES]
    for node in range(t.facts[NODES]):
        if not _fits(t, slot, node):
            continue
        compute = t.needs[slot, t.devices[base.D_CLASS, t.scratch[0]], 0] if wanted else 0
        points = _points(t, slot, node, policy, holds, kind, wanted * compute)
        if points > best:
            best, chosen = points, node
    return chosen


@part
def _any(t, slot, dice):
    """One of the nodes that take the task, each with the same chance, or -1."""
    chosen, seen = -1, 0
    for node in range(t.facts[NODES]):
        if _fits(t, slot, node):
            seen += 1
            if _roll(dice, seen) == 0:
                chosen = node
    return chosen


@part
def _any_device(t, slot, node, dice):
    """Put one device that gives the slice at the front of ``scratch``, each with the same chance."""
    first, seen = t.nodes[node, N_FIRST], 0
    for row in range(first, first + t.nodes[node, N_COUNT]):
        if base._gives(t.devices, t.needs, row, slot, t.shapes[slot, S_TEAM]):
            seen += 1
            if _roll(dice, seen) == 0:
                t.scratch[0] = row


@kernel
def _place_each_by(t, slots, policy, holds, dice, at, milli, fragments):
    total, take = 0.0, np.int64(1)
    for node in range(t.facts[NODES]):
        total += t.fragments[node] if t.nodes[node, N_OPEN] else 0.0
    for i in range(slots.shape[0]):
        slot = slots[i]
        kind = _kind(t, slot)
        node = _any(t, slot, dice) if policy == RANDOM else _best(t, slot, policy, holds, kind)
        at[i] = node
        milli[i] = 0
        if node >= 0:
            shape = t.shapes[slot]
            wanted = shape[S_DEVICES]
            _fits(t, slot, node)
            if policy == RANDOM and wanted == 1:
                _any_device(t, slot, node, dice)
            base._describe(t, slot)
            compute = t.scratch[2 * wanted]
            before = t.fragments[node]
            base.change(t, node, wanted, compute, shape[S_CPU], shape[S_HOST], shape[S_TEAM], take)
            milli[i] = wanted * compute
            total += t.fragments[node] - before
            holds[node, kind] += wanted > 0
        fragments[i] = total
