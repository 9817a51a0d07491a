"""The loops of the placement engine, compiled by numba. Only ``scheduling.core.fleet`` calls them.

They work on plain tables (``Tables``): one row per node, in the order of ``NodeState.rank``, and one column per device,
the devices of a node side by side. For each request shape in use, a *slot*, a winner tree holds the score of every
node, so the best node is found from its root down; ``log`` says which nodes have changed since the slot was last used,
and only those are scored again. All kernels are in one file because numba's cache on disk does not notice a change in
another.

Scores are integers, higher is better; the leftmost of equal scores, which is the lowest rank, wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit

# No kernel allocates, so none needs numba's reference counts; leaving them out (_nrt) makes placing 3 times as fast.
# A part is only called by kernels: without an entry from Python, and without a place in the cache, it compiles faster.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
part = njit(**_OPTIONS | {"no_cpython_wrapper": True})


def kernel(function: Callable[..., Any]) -> Any:
    """``function``, compiled when it is first called and kept on disk where there is a place for it."""
    try:
        return njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # neither beside this file nor under the user's home may anything be written
        return njit(**_OPTIONS)(function)


WHOLE = 1000  # milli of one device
NO_FIT, NEVER = -1, -2  # leaves: does not fit now; can never fit (wrong model or labels, too small even when empty)
BINPACK, SPREAD, FRAGMENTATION = 0, 1, 2
SHARE_SCALE = 1_000_000_000  # binpack and spread compare used shares in parts of this
TOO_SMALL = -1  # in needs and typical: the class is allowed, but no device of it can ever give the slice
NEW = -1  # S_SYNCED of a slot that has not scored its nodes yet
HELD_BY_SEVERAL = -1  # D_TEAM of a device with slices of more than one team
MEMORY_BITS = 40

# Tables.facts
SCORE, EXCLUSIVE, NODES, BASE, CHANGES = range(5)
# Tables.nodes: N_CPU and N_HOST are free; N_KEY sums the marks of the node's devices
N_CPU, N_HOST, N_OPEN, N_FIRST, N_COUNT, N_CPU_ALL, N_HOST_ALL, N_CHANGED, N_KEY, NODE_COLUMNS = range(10)
# Tables.devices: D_COMPUTE and D_MEMORY are free; D_OPEN is the compute a new slice may take (0 on failed devices)
D_COMPUTE, D_MEMORY, D_OPEN, D_CLASS, D_HEALTHY, D_TEAM, D_MEMORY_ALL, D_NODE, DEVICE_COLUMNS = range(9)
# Tables.shapes; S_ALIKE: compute differs between classes, yet all devices of one task must give the same
S_DEVICES, S_CPU, S_HOST, S_TEAM, S_ALIKE, S_SYNCED, SHAPE_COLUMNS = range(7)
# Tables.typical: the columns from T_NEED on are the compute that each device class must give (0: not allowed)
T_CPU, T_DEVICES, T_NEED = range(3)

# What `change` answers. All but CHANGED leave the tables as they were.
CHANGED, MALFORMED, SHORT_COMPUTE, SHORT_MEMORY, SHORT_CPU, SHORT_HOST, SHORT_SHARING, NOT_HELD = range(8)


class Tables(NamedTuple):
    """All that the kernels read and write: N nodes, D devices, C device classes, S slots, T typical shapes."""

    facts: np.ndarray  # int64[5]
    nodes: np.ndarray  # int64[N, NODE_COLUMNS]
    devices: np.ndarray  # int64[DEVICE_COLUMNS, D]
    fragments: np.ndarray  # float64[N]: F of each node now, milli
    log: np.ndarray  # int64[BASE]: ring of changed nodes; change number i is at i % BASE
    shapes: np.ndarray  # int64[S, SHAPE_COLUMNS]
    needs: np.ndarray  # int64[S, C, 2]: compute (0: class not allowed) and memory that one device must give
    trees: np.ndarray  # int32[S, 2 * BASE]: root at 1, leaves from BASE on
    typical: np.ndarray  # int64[T, T_NEED + C]
    share: np.ndarray  # float64[T]
    steps: np.ndarray  # int64[U]: the CPU sizes of the typical shapes, ascending, distinct
    marks: np.ndarray  # int64[C * 1001 + U + 1]: random marks of each (class, open milli), then of each CPU step
    memo_keys: np.ndarray  # int64[M], M a power of two
    memo: np.ndarray  # float64[M]
    scratch: np.ndarray  # int64: rows of the chosen devices, then what is said about them


# ---- fragmentation ---------------------------------------------------------------------------------------------------


@part
def _expected_fragment(devices, typical, share, first, count, cpu):
    """F of one node in milli-GPU: the expected part of its idle compute that the next typical request cannot use.

    Weng et al., USENIX ATC 2023. The causes are summed apart, each in the order of the typical shapes, and then added:
    that makes the value, and so the truncated score, the same to the last bit as in the authors' simulator.
    """
    idle = 0
    for row in range(first, first + count):
        idle += devices[D_OPEN, row]
    lack_both = lack_devices = lack_cpu = cpu_only = cpu_only_lack = no_access = 0.0
    for t in range(share.shape[0]):
        enough_cpu = cpu >= typical[t, T_CPU]
        if typical[t, T_DEVICES] == 0:
            if enough_cpu:
                cpu_only += share[t] * idle
            else:
                cpu_only_lack += share[t] * idle
            continue
        fitting = useless = 0
        allowed = False
        for row in range(first, first + count):
            need = typical[t, T_NEED + devices[D_CLASS, row]]
            allowed |= need != 0
            if need > 0 and devices[D_OPEN, row] >= need:
                fitting += 1
            else:
                useless += devices[D_OPEN, row]
        if not allowed:
            no_access += share[t] * idle
        elif fitting >= typical[t, T_DEVICES]:
            if enough_cpu:
                lack_devices += share[t] * useless
            else:
                lack_cpu += share[t] * idle
        elif enough_cpu:
            lack_devices += share[t] * idle
        else:
            lack_both += share[t] * idle
    return lack_both + lack_devices + lack_cpu + cpu_only + cpu_only_lack + no_access


@part
def _cpu_step(steps, cpu):
    """How many of the typical CPU sizes are at most ``cpu``: all that F sees of a node's CPU."""
    low, high = 0, steps.shape[0]
    while low < high:
        middle = (low + high) // 2
        if steps[middle] <= cpu:
            low = middle + 1
        else:
            high = middle
    return low


@part
def _fragment_after(t, node, cpu, rows, taken, compute):
    """F of ``node`` with ``cpu`` free and ``compute`` gone from the first ``taken`` of ``rows``.

    Kept by a 64-bit key of the node's state (class and open milli of its devices in any order, CPU step). Two states
    share a key with a chance of 2^-64; whether something fits never depends on it.
    """
    if t.share.shape[0] == 0:
        return 0.0
    devices, marks = t.devices, t.marks
    gone = WHOLE if t.facts[EXCLUSIVE] else compute
    key = t.nodes[node, N_KEY] + marks[marks.shape[0] - 1 - _cpu_step(t.steps, cpu)]
    for i in range(taken):
        mark = devices[D_CLASS, rows[i]] * (WHOLE + 1) + devices[D_OPEN, rows[i]]
        key += marks[mark - gone] - marks[mark]
    place = key & (t.memo.shape[0] - 1)
    if t.memo_keys[place] == key:
        return t.memo[place]
    for i in range(taken):
        devices[D_OPEN, rows[i]] -= gone
    value = _expected_fragment(devices, t.typical, t.share, t.nodes[node, N_FIRST], t.nodes[node, N_COUNT], cpu)
    for i in range(taken):
        devices[D_OPEN, rows[i]] += gone
    t.memo_keys[place] = key
    t.memo[place] = value
    return value


@part
def _gradient(before, after):
    """The published score: 100 x sigmoid of the fragment that goes away, in GPUs, truncated."""
    return int(100.0 * (1.0 / (1.0 + math.exp(-(before - after) / 1000.0))))


# ---- one node and one shape ------------------------------------------------------------------------------------------


@part
def _gives(devices, needs, row, slot, team):
    """Whether this device could give the slice now."""
    compute = needs[slot, devices[D_CLASS, row], 0]
    if compute <= 0 or devices[D_OPEN, row] < compute:
        return False
    if devices[D_MEMORY, row] < needs[slot, devices[D_CLASS, row], 1]:
        return False
    return team == 0 or devices[D_TEAM, row] == team or _untouched(devices, row)


@part
def _untouched(devices, row):
    return devices[D_COMPUTE, row] == WHOLE and devices[D_MEMORY, row] == devices[D_MEMORY_ALL, row]


@part
def _fullness(devices, row):
    """Orders devices by free compute, then by free memory: the smaller, the fuller."""
    return (devices[D_OPEN, row] << MEMORY_BITS) + devices[D_MEMORY, row]


@part
def _least_common_compute(devices, needs, slot, first, last, wanted, team):
    """The smallest compute that at least ``wanted`` devices would give alike; 0 where there is none."""
    least = 0
    for row in range(first, last):
        compute = needs[slot, devices[D_CLASS, row], 0]
        if not _gives(devices, needs, row, slot, team) or (least and compute >= least):
            continue
        alike = 0
        for other in range(first, last):
            if needs[slot, devices[D_CLASS, other], 0] == compute and _gives(devices, needs, other, slot, team):
                alike += 1
        if alike >= wanted:
            least = compute
    return least


@part
def _choose(t, slot, node, emptiest):
    """Put the devices for one task at the front of ``scratch``, rows ascending; the compute of each, 0 if too few fit.

    The fullest devices that give the slice (``emptiest``: the emptiest), lowest index on ties; where the compute
    differs between devices, of those that give least.
    """
    devices, needs, rows = t.devices, t.needs, t.scratch
    wanted, team = t.shapes[slot, S_DEVICES], t.shapes[slot, S_TEAM]
    first = t.nodes[node, N_FIRST]
    last = first + t.nodes[node, N_COUNT]
    alike = 0
    if t.shapes[slot, S_ALIKE]:
        alike = _least_common_compute(devices, needs, slot, first, last, wanted, team)
        if alike == 0:
            return 0
    found = 0
    for row in range(first, last):
        if _gives(devices, needs, row, slot, team) and alike in (0, needs[slot, devices[D_CLASS, row], 0]):
            rows[found] = row
            found += 1
    if found < wanted:
        return 0
    sign = -1 if emptiest else 1
    for i in range(wanted if found > wanted else 0):
        best = i
        for j in range(i + 1, found):
            gain = sign * (_fullness(devices, rows[best]) - _fullness(devices, rows[j]))
            if gain > 0 or (gain == 0 and rows[j] < rows[best]):
                best = j
        rows[i], rows[best] = rows[best], rows[i]
    for i in range(1, wanted):
        j = i
        while j > 0 and rows[j - 1] > rows[j]:
            rows[j - 1], rows[j] = rows[j], rows[j - 1]
            j -= 1
    return needs[slot, devices[D_CLASS, rows[0]], 0]


@part
def _used_share(t, node, of_devices):
    """What is used of a node, in parts of SHARE_SCALE: of its healthy devices' compute, or of its CPU."""
    used, whole = t.nodes[node, N_CPU_ALL] - t.nodes[node, N_CPU], t.nodes[node, N_CPU_ALL]
    if of_devices:
        used = whole = 0
        first = t.nodes[node, N_FIRST]
        for row in range(first, first + t.nodes[node, N_COUNT]):
            if t.devices[D_HEALTHY, row]:
                used += WHOLE - t.devices[D_COMPUTE, row]
                whole += WHOLE
    return used * SHARE_SCALE // whole if whole else 0


@part
def _best_device(t, slot, node, cpu):
    """Put the one device with the best gradient, lowest index on ties, at the front of ``scratch``; its score."""
    devices, needs, rows = t.devices, t.needs, t.scratch
    first = t.nodes[node, N_FIRST]
    best, chosen, seen = NO_FIT, -1, -1
    for row in range(first, first + t.nodes[node, N_COUNT]):
        look = devices[D_CLASS, row] * (WHOLE + 1) + devices[D_OPEN, row]
        if look == seen or not _gives(devices, needs, row, slot, t.shapes[slot, S_TEAM]):
            continue
        seen = look
        rows[0] = row
        after = _fragment_after(t, node, cpu, rows, t.shapes[slot, S_DEVICES], needs[slot, devices[D_CLASS, row], 0])
        score = _gradient(t.fragments[node], after)
        if score > best:
            best, chosen = score, row
    rows[0] = chosen
    return best


@part
def _score(t, slot, node):
    """The node's score for the shape, or NO_FIT. Where it fits, the devices are at the front of ``scratch``."""
    cpu = t.nodes[node, N_CPU] - t.shapes[slot, S_CPU]
    if not t.nodes[node, N_OPEN] or cpu < 0 or t.nodes[node, N_HOST] < t.shapes[slot, S_HOST]:
        return NO_FIT
    wanted = t.shapes[slot, S_DEVICES]
    rule = t.facts[SCORE]
    if rule == FRAGMENTATION and wanted == 1:
        return _best_device(t, slot, node, cpu)
    compute = 0
    if wanted:
        compute = _choose(t, slot, node, rule == SPREAD)
        if compute == 0:
            return NO_FIT
    if rule == FRAGMENTATION:
        return _gradient(t.fragments[node], _fragment_after(t, node, cpu, t.scratch, wanted, compute))
    used = _used_share(t, node, wanted > 0)
    return used if rule == BINPACK else SHARE_SCALE - used


@part
def _possible(t, slot, node):
    """Whether the node could host one task if it were empty, healthy and schedulable."""
    if t.nodes[node, N_CPU_ALL] < t.shapes[slot, S_CPU] or t.nodes[node, N_HOST_ALL] < t.shapes[slot, S_HOST]:
        return False
    wanted = t.shapes[slot, S_DEVICES]
    first = t.nodes[node, N_FIRST]
    last = first + t.nodes[node, N_COUNT]
    most = 0
    for row in range(first, last):
        compute = t.needs[slot, t.devices[D_CLASS, row], 0]
        alike = 0
        for other in range(row, last):
            need = t.needs[slot, t.devices[D_CLASS, other], 0]
            alike += need > 0 and compute > 0 and (need == compute or not t.shapes[slot, S_ALIKE])
        most = max(most, alike)
    return most >= wanted


# ---- the winner tree of a slot ---------------------------------------------------------------------------------------


@part
def _score_all(t, slot):
    """Fill the tree of a new slot, whose leaves say NEVER for the nodes without the asked labels."""
    base, tree = t.facts[BASE], t.trees[slot]
    for node in range(t.facts[NODES]):
        if tree[base + node] != NEVER:
            tree[base + node] = _score(t, slot, node) if _possible(t, slot, node) else NEVER
    for i in range(base - 1, 0, -1):
        tree[i] = max(tree[2 * i], tree[2 * i + 1])


@part
def _rescore(t, slot, node):
    """Score one node again and carry the winners up, as far as they change."""
    tree = t.trees[slot]
    i = t.facts[BASE] + node
    if tree[i] == NEVER:
        return
    tree[i] = _score(t, slot, node)
    while i > 1:
        i >>= 1
        winner = max(tree[2 * i], tree[2 * i + 1])
        if tree[i] == winner:
            return
        tree[i] = winner


@part
def _refresh(t, slot):
    """Bring the tree up to date with the nodes that changed since the slot was last used."""
    synced, changes, base = t.shapes[slot, S_SYNCED], t.facts[CHANGES], t.facts[BASE]
    if synced == NEW:
        _score_all(t, slot)
    elif changes - synced < t.facts[NODES]:
        for change in range(synced + 1, changes + 1):
            node = t.log[change & (base - 1)]
            if t.nodes[node, N_CHANGED] == change:
                _rescore(t, slot, node)
    else:
        for node in range(t.facts[NODES]):
            if t.nodes[node, N_CHANGED] > synced:
                _rescore(t, slot, node)
    t.shapes[slot, S_SYNCED] = changes


@part
def _describe(t, slot):
    """Put what the chosen devices give behind their rows: the memory of each, then the compute of each alike."""
    wanted = t.shapes[slot, S_DEVICES]
    for i in range(wanted):
        t.scratch[wanted + i] = t.needs[slot, t.devices[D_CLASS, t.scratch[i]], 1]
    t.scratch[2 * wanted] = t.needs[slot, t.devices[D_CLASS, t.scratch[0]], 0] if wanted else 0


@kernel
def place(t, slot):
    """The best node, or -1; then ``scratch`` holds k device rows, their k memories, and the compute of each."""
    _refresh(t, slot)
    base, tree = t.facts[BASE], t.trees[slot]
    if tree[1] < 0:
        return -1
    i = 1
    while i < base:
        i *= 2
        if tree[i] < tree[i // 2]:
            i += 1
    node = i - base
    _score(t, slot, node)
    _describe(t, slot)
    return node


@part
def _best_leaf(t, slot, among):
    """The best of the nodes ``among`` (positions, ascending) by the slot's leaves, lowest rank on ties, or -1."""
    first, best, chosen = t.facts[BASE], NO_FIT, -1
    for i in range(among.shape[0]):
        leaf = t.trees[slot, first + among[i]]
        if leaf > best:
            best, chosen = leaf, among[i]
    return chosen


@kernel
def place_among(t, slot, among):
    """As ``place``, but only the nodes ``among`` are asked: int64, their positions, ascending."""
    _refresh(t, slot)
    node = _best_leaf(t, slot, among)
    if node >= 0:
        _score(t, slot, node)
        _describe(t, slot)
    return node


# ---- change ----------------------------------------------------------------------------------------------------------


@part
def _touch(t, node):
    """Bring what follows from the rows of ``node`` and its devices up to date, and note that it changed."""
    nodes, devices = t.nodes, t.devices
    key = 0
    for row in range(nodes[node, N_FIRST], nodes[node, N_FIRST] + nodes[node, N_COUNT]):
        room = devices[D_COMPUTE, row] if devices[D_HEALTHY, row] else 0
        if t.facts[EXCLUSIVE] and not _untouched(devices, row):
            room = 0
        devices[D_OPEN, row] = room
        key += t.marks[devices[D_CLASS, row] * (WHOLE + 1) + room]
    nodes[node, N_KEY] = key
    nothing = np.int64(0)  # typed, so that no version for literal arguments is compiled
    t.fragments[node] = _fragment_after(t, node, nodes[node, N_CPU], t.scratch, nothing, nothing)
    t.facts[CHANGES] += 1
    t.log[t.facts[CHANGES] & (t.facts[BASE] - 1)] = node
    nodes[node, N_CHANGED] = t.facts[CHANGES]


@part
def _refusal(t, node, wanted, compute, cpu, host, team, sign):
    """Why the slices in ``scratch`` cannot be taken (sign 1) or given back (sign -1); CHANGED where they can."""
    devices, rows = t.devices, t.scratch
    if cpu < 0 or host < 0 or (wanted and not 0 < compute <= WHOLE):
        return MALFORMED
    for i in range(wanted):
        row, memory = rows[i], rows[wanted + i]
        if devices[D_NODE, row] != node or memory < 0 or (i and rows[i - 1] >= row):
            return MALFORMED
        if sign < 0:
            too_much_memory = devices[D_MEMORY, row] + memory > devices[D_MEMORY_ALL, row]
            if too_much_memory or devices[D_COMPUTE, row] + compute > WHOLE:
                return NOT_HELD
        elif devices[D_COMPUTE, row] < compute:
            return SHORT_COMPUTE
        elif devices[D_MEMORY, row] < memory:
            return SHORT_MEMORY
        elif (t.facts[EXCLUSIVE] or (team and devices[D_TEAM, row] != team)) and not _untouched(devices, row):
            return SHORT_SHARING
    if sign < 0:
        over = t.nodes[node, N_CPU] + cpu > t.nodes[node, N_CPU_ALL]
        return NOT_HELD if over or t.nodes[node, N_HOST] + host > t.nodes[node, N_HOST_ALL] else CHANGED
    if t.nodes[node, N_CPU] < cpu:
        return SHORT_CPU
    return SHORT_HOST if t.nodes[node, N_HOST] < host else CHANGED


@kernel
def change(t, node, wanted, compute, cpu, host, team, sign):
    """Take (sign 1) or give back (sign -1) a task, all or nothing; ``scratch``: its device rows, then their memories.

    With sign 0 only what follows from the tables is brought up to date, after a change of health or of N_OPEN.
    """
    refusal = _refusal(t, node, wanted, compute, cpu, host, team, sign) if sign else CHANGED
    if refusal != CHANGED:
        return refusal
    devices = t.devices
    for i in range(wanted):
        row = t.scratch[i]
        if sign > 0:
            fresh = _untouched(devices, row)
            devices[D_TEAM, row] = team if fresh or devices[D_TEAM, row] == team else HELD_BY_SEVERAL
        devices[D_COMPUTE, row] -= sign * compute
        devices[D_MEMORY, row] -= sign * t.scratch[wanted + i]
        if _untouched(devices, row):
            devices[D_TEAM, row] = 0
    t.nodes[node, N_CPU] -= sign * cpu
    t.nodes[node, N_HOST] -= sign * host
    _touch(t, node)
    return CHANGED


@kernel
def place_each(t, slots, at, milli, fragments):
    """Place and take one task of ``slots[i]`` after the other. ``at``: its node or -1; ``milli``: what it took;
    ``fragments``: the F of all schedulable nodes after it."""
    total, take = 0.0, np.int64(1)
    for node in range(t.facts[NODES]):
        total += t.fragments[node] if t.nodes[node, N_OPEN] else 0.0
    for i in range(slots.shape[0]):
        slot = slots[i]
        node = place(t, slot)
        at[i] = node
        milli[i] = 0
        if node >= 0:
            shape = t.shapes[slot]
            wanted = shape[S_DEVICES]
            compute = t.scratch[2 * wanted]
            before = t.fragments[node]
            change(t, node, wanted, compute, shape[S_CPU], shape[S_HOST], shape[S_TEAM], take)
            milli[i] = wanted * compute
            total += t.fragments[node] - before
        fragments[i] = total
