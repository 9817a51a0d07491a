"""The loops of the score ``lookahead`` (see ``scheduling.core.lookahead``), compiled by numba where a pool uses it.

``place``, ``change`` and ``place_each`` do what those of ``placement_kernels`` do, on tables that hold theirs and
more. A scarce shape is *reserved* while the nodes that can host it are few against the arrivals still expected; nodes
where a placement would end their ability to host a reserved shape rank behind all others. As that changes with every
placement, each slot keeps the score alone and the shapes that end beside its tree, and the reservations its tree is by.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from scheduling.core import placement_kernels as base
from scheduling.core.lookahead import FRAGMENT_WEIGHT, LOAD_WEIGHT, QUANTUM_MILLI, STREAM_LENGTH, STREAMS
from scheduling.core.placement_kernels import (
    BASE,
    CHANGED,
    CHANGES,
    D_CLASS,
    D_OPEN,
    EXCLUSIVE,
    N_CHANGED,
    N_COUNT,
    N_CPU,
    N_FIRST,
    N_HOST,
    N_KEY,
    N_OPEN,
    NEVER,
    NEW,
    NO_FIT,
    NODES,
    S_CPU,
    S_DEVICES,
    S_HOST,
    S_SYNCED,
    S_TEAM,
    WHOLE,
    kernel,
    part,
)

# numba's cache on disk sees a change of this file, not one of the file whose parts are compiled into these kernels:
# the first digits of the SHA-256 of placement_kernels.py, so that this file changes with it.
PARTS_FROM = "8aeffd6c0d1b7192"

LIFT = 1 << 24  # leaves hold the score raised by this, so that negative ones are not taken for NO_FIT
BEHIND = 1 << 23  # what a node loses that would end its ability to host a reserved shape
MOST_POINTS = 1 << 22  # scores are held within this, either way
HOST_STEP_BITS = 12  # L sees free host memory in steps of 4 GiB
MEMO_ENTRIES = 1 << 18

# Tables.facts_ahead: shapes reserved now (a mask), free milli on schedulable nodes, shapes that the last score ended
RESERVED, FREE, ENDED = range(3)
# Tables.ahead and Tables.scarce: the columns from A_NEED on are the compute that each device class must give
A_CPU, A_HOST, A_DEVICES, A_NEED = range(4)
# Tables.stream: A_CPU to A_DEVICES of each request, then its row of ``ahead``, the least compute that it takes of a
# device of any class, and the least CPU and least compute that it or any later one of the stream asks for
A_SHAPE, A_LEAST_NEED, A_REST_CPU, A_REST_NEED = range(3, 7)
# Tables.work: free compute and class of a node's devices, sorted, as they are and as a stream leaves them
FREE_NOW, CLASS_NOW, FREE_THEN, CLASS_THEN, WORK_ROWS = range(5)


class Tables(NamedTuple):
    """``placement_kernels.Tables`` and more: R streams of length J, U shapes in them, T scarce shapes."""

    facts: np.ndarray
    nodes: np.ndarray
    devices: np.ndarray
    fragments: np.ndarray
    log: np.ndarray
    shapes: np.ndarray
    needs: np.ndarray
    trees: np.ndarray
    typical: np.ndarray
    share: np.ndarray
    steps: np.ndarray
    marks: np.ndarray
    memo_keys: np.ndarray
    memo: np.ndarray
    scratch: np.ndarray
    facts_ahead: np.ndarray  # int64[3]
    values: np.ndarray  # float64[N]: V of each node now
    hosts: np.ndarray  # int64[N]: mask of the scarce shapes that it can host now
    counted: np.ndarray  # int64[N, 2]: its part in FREE and, as a mask, in hosting
    hosting: np.ndarray  # int64[T]: how many schedulable nodes can host the shape
    scores: np.ndarray  # int32[S, BASE]: of each leaf, the score without regard to reservations
    ends: np.ndarray  # int64[S, BASE]: the shapes that placing there would end
    by: np.ndarray  # int64[S]: the reservations that the slot's tree is by
    exempt: np.ndarray  # int64[S]: the shapes that the slot's own is at least as demanding as
    ahead: np.ndarray  # int64[U, A_NEED + C]
    stream: np.ndarray  # int32[R, J, 7]
    scarce: np.ndarray  # int64[T, A_NEED + C]
    weights: np.ndarray  # float64[T]
    rates: np.ndarray  # float64[T]
    loads: np.ndarray  # float64[C]
    ahead_keys: np.ndarray  # int64[M], M a power of two
    ahead_memo: np.ndarray  # float64[M]
    work: np.ndarray  # int64[WORK_ROWS, most devices of a node]


# ---- what would be left idle -----------------------------------------------------------------------------------------


@part
def _lay_out(t, node):
    """Put the devices of the node that have anything free into ``work``, fullest first; how many there are."""
    rooms, kinds, devices = t.work[FREE_NOW], t.work[CLASS_NOW], t.devices
    found = 0
    first = t.nodes[node, N_FIRST]
    for row in range(first, first + t.nodes[node, N_COUNT]):
        room, kind = devices[D_OPEN, row], devices[D_CLASS, row]
        if room == 0:
            continue
        i = found
        while i > 0 and (rooms[i - 1] > room or (rooms[i - 1] == room and kinds[i - 1] > kind)):
            rooms[i], kinds[i] = rooms[i - 1], kinds[i - 1]
            i -= 1
        rooms[i], kinds[i] = room, kind
        found += 1
    return found


@part
def _take(t, rooms, kinds, shape, i, begin):
    """Take what the shape asks of the device at ``i``, and move that to where it belongs now among the fuller ones
    from ``begin`` on; what is taken, 0 if it does not give it."""
    kind, room = kinds[i], rooms[i]
    need = t.ahead[shape, A_NEED + kind]
    if need <= 0 or room < need:
        return 0
    gone = room if t.facts[EXCLUSIVE] else need
    room -= gone
    while i > begin and (rooms[i - 1] > room or (rooms[i - 1] == room and kinds[i - 1] > kind)):
        rooms[i], kinds[i] = rooms[i - 1], kinds[i - 1]
        i -= 1
    rooms[i], kinds[i] = room, kind
    return gone


@part
def _serve(t, rooms, kinds, shape, wanted, begin, found):
    """Take what the shape asks from the fullest devices that give it; what is taken, 0 if too few do."""
    if wanted > 1:
        giving = 0
        for i in range(begin, found):
            need = t.ahead[shape, A_NEED + kinds[i]]
            giving += need > 0 and rooms[i] >= need
        if giving < wanted:
            return 0
    taken = 0
    for i in range(begin, found):
        gone = _take(t, rooms, kinds, shape, i, begin)  # what that moves up to i has been looked at
        if gone:
            taken += gone
            wanted -= 1
            if wanted == 0:
                break
    return taken


@part
def _left_idle(t, node, cpu, host):
    """L of the node with ``cpu`` and ``host`` free: the mean idle milli-GPU after each stream was offered to it."""
    stream, rooms, kinds = t.stream, t.work[FREE_THEN], t.work[CLASS_THEN]
    found = _lay_out(t, node)
    idle = 0
    for i in range(found):
        idle += t.work[FREE_NOW, i]
    total = 0
    for r in range(STREAMS):
        for i in range(found):
            rooms[i], kinds[i] = t.work[FREE_NOW, i], t.work[CLASS_NOW, i]
        left, cpu_left, host_left, begin = idle, cpu, host, 0
        for j in range(STREAM_LENGTH):
            if begin == found or stream[r, j, A_REST_CPU] > cpu_left or stream[r, j, A_REST_NEED] > rooms[found - 1]:
                break
            if stream[r, j, A_LEAST_NEED] > rooms[found - 1] or stream[r, j, A_CPU] > cpu_left:
                continue
            if stream[r, j, A_HOST] > host_left or stream[r, j, A_DEVICES] > found - begin:
                continue
            taken = _serve(t, rooms, kinds, stream[r, j, A_SHAPE], stream[r, j, A_DEVICES], begin, found)
            if taken:
                left -= taken
                cpu_left -= stream[r, j, A_CPU]
                host_left -= stream[r, j, A_HOST]
                while begin < found and rooms[begin] == 0:
                    begin += 1
        total += left
    return total / STREAMS


@part
def _mixed(key):
    """64 bits without pattern of ``key`` (the finish of MurmurHash3, by Appleby)."""
    key = (key ^ ((key >> 33) & 0x7FFFFFFF)) * -49064778989728563
    key = (key ^ ((key >> 33) & 0x7FFFFFFF)) * -4265267296055464877
    return key ^ ((key >> 33) & 0x7FFFFFFF)


@part
def _known_idle(t, node, key, cpu, host):
    """L, kept by a 64-bit key of classes, open compute, CPU and host memory; ``key``: that of the devices."""
    steps = host >> HOST_STEP_BITS
    key = _mixed(_mixed(key + cpu) + steps)
    place = key & (t.ahead_memo.shape[0] - 1)
    if t.ahead_keys[place] != key:
        t.ahead_memo[place] = _left_idle(t, node, cpu, steps << HOST_STEP_BITS)
        t.ahead_keys[place] = key
    return t.ahead_memo[place]


# ---- the value of a node ---------------------------------------------------------------------------------------------


@part
def _hosted(t, node, cpu, host, among):
    """Mask of the scarce shapes of ``among`` that the node's devices can host with ``cpu`` and ``host`` free."""
    devices, scarce = t.devices, t.scarce
    first = t.nodes[node, N_FIRST]
    mask = 0
    for s in range(scarce.shape[0]):
        if not (among >> s) & 1 or scarce[s, A_CPU] > cpu or scarce[s, A_HOST] > host:
            continue
        giving = 0
        for row in range(first, first + t.nodes[node, N_COUNT]):
            need = scarce[s, A_NEED + devices[D_CLASS, row]]
            if need > 0 and devices[D_OPEN, row] >= need:
                giving += 1
        if giving >= scarce[s, A_DEVICES]:
            mask |= 1 << s
    return mask


@part
def _value_after(t, node, cpu, host, rows, taken, compute, among):
    """V of ``node`` with ``cpu`` and ``host`` free and ``compute`` gone from the first ``taken`` of ``rows``; the mask
    of the shapes that it can host then, all of which are in ``among``."""
    devices, marks = t.devices, t.marks
    gone = WHOLE if t.facts[EXCLUSIVE] else compute
    fragment = base._fragment_after(t, node, cpu, rows, taken, compute)
    key = t.nodes[node, N_KEY]
    for i in range(taken):
        mark = devices[D_CLASS, rows[i]] * (WHOLE + 1) + devices[D_OPEN, rows[i]]
        key += marks[mark - gone] - marks[mark]
        devices[D_OPEN, rows[i]] -= gone
    value = _known_idle(t, node, key, cpu, host) + FRAGMENT_WEIGHT * fragment
    mask = _hosted(t, node, cpu, host, among)
    first = t.nodes[node, N_FIRST]
    for row in range(first, first + t.nodes[node, N_COUNT]):
        value -= LOAD_WEIGHT * t.loads[devices[D_CLASS, row]] * devices[D_OPEN, row]
    for i in range(taken):
        devices[D_OPEN, rows[i]] += gone
    for s in range(t.weights.shape[0]):
        if not (mask >> s) & 1:
            value += t.weights[s]
    return value, mask


@part
def _points(before, after):
    points = math.floor((before - after) / QUANTUM_MILLI)
    return LIFT + max(-MOST_POINTS, min(MOST_POINTS, points))


@part
def _best_device(t, slot, node, cpu, host):
    """Put the one device with the best score, lowest index on ties, at the front of ``scratch``; its score, and what
    ends goes to ENDED."""
    devices, needs, rows = t.devices, t.needs, t.scratch
    first = t.nodes[node, N_FIRST]
    wanted = t.shapes[slot, S_DEVICES]
    best, chosen, seen = NO_FIT, -1, -1
    for row in range(first, first + t.nodes[node, N_COUNT]):
        look = devices[D_CLASS, row] * (WHOLE + 1) + devices[D_OPEN, row]
        if look == seen or not base._gives(devices, needs, row, slot, t.shapes[slot, S_TEAM]):
            continue
        seen = look
        rows[0] = row
        compute = needs[slot, devices[D_CLASS, row], 0]
        after, mask = _value_after(t, node, cpu, host, rows, wanted, compute, t.hosts[node])
        score = _points(t.values[node], after)
        if score > best:
            best, chosen = score, row
            t.facts_ahead[ENDED] = t.hosts[node] & ~mask
    rows[0] = chosen
    return best


@part
def _score(t, slot, node):
    """The node's score for the shape, or NO_FIT. Where it fits, the devices are at the front of ``scratch``."""
    t.facts_ahead[ENDED] = 0
    cpu, host = t.nodes[node, N_CPU] - t.shapes[slot, S_CPU], t.nodes[node, N_HOST] - t.shapes[slot, S_HOST]
    if not t.nodes[node, N_OPEN] or cpu < 0 or host < 0:
        return NO_FIT
    wanted = t.shapes[slot, S_DEVICES]
    if wanted == 1:
        return _best_device(t, slot, node, cpu, host)
    compute = 0
    if wanted:
        compute = base._choose(t, slot, node, False)
        if compute == 0:
            return NO_FIT
    after, mask = _value_after(t, node, cpu, host, t.scratch, wanted, compute, t.hosts[node])
    t.facts_ahead[ENDED] = t.hosts[node] & ~mask
    return _points(t.values[node], after)


# ---- reservations ----------------------------------------------------------------------------------------------------


@part
def _reserve(t):
    """Note which scarce shapes are reserved: those that no more than E + 2 sqrt(E) nodes can host, E being expected."""
    mask = 0
    for s in range(t.rates.shape[0]):
        expected = t.rates[s] * t.facts_ahead[FREE]
        if t.hosting[s] <= expected + 2.0 * math.sqrt(expected):
            mask |= 1 << s
    t.facts_ahead[RESERVED] = mask


@part
def _leaf(t, slot, node, by):
    score = t.scores[slot, node]
    return score - BEHIND if score >= 0 and t.ends[slot, node] & by else score


@part
def _build(t, slot, by):
    """Fill the slot's tree from its scores under the reservations ``by``."""
    first, tree = t.facts[BASE], t.trees[slot]
    for node in range(t.facts[NODES]):
        tree[first + node] = _leaf(t, slot, node, by)
    for i in range(first - 1, 0, -1):
        tree[i] = max(tree[2 * i], tree[2 * i + 1])
    t.by[slot] = by


# ---- the winner tree of a slot ---------------------------------------------------------------------------------------


@part
def _note_score(t, slot, node):
    t.scores[slot, node] = _score(t, slot, node)
    t.ends[slot, node] = t.facts_ahead[ENDED]


@part
def _score_all(t, slot, by):
    """Fill the tree of a new slot, whose leaves say NEVER for the nodes without the asked labels."""
    first, tree = t.facts[BASE], t.trees[slot]
    for node in range(t.facts[NODES]):
        if tree[first + node] != NEVER and base._possible(t, slot, node):
            _note_score(t, slot, node)
        else:
            t.scores[slot, node] = NEVER
    _build(t, slot, by)


@part
def _rescore(t, slot, node, by):
    """Score one node again and carry the winners up, as far as they change."""
    tree = t.trees[slot]
    i = t.facts[BASE] + node
    if t.scores[slot, node] == NEVER:
        return
    _note_score(t, slot, node)
    tree[i] = _leaf(t, slot, node, by)
    while i > 1:
        i >>= 1
        winner = max(tree[2 * i], tree[2 * i + 1])
        if tree[i] == winner:
            return
        tree[i] = winner


@part
def _refresh(t, slot):
    """Bring the tree up to date with the nodes that changed since the slot was last used, and the reservations."""
    _reserve(t)
    by = t.facts_ahead[RESERVED] & ~t.exempt[slot]
    synced, changes, ring = t.shapes[slot, S_SYNCED], t.facts[CHANGES], t.facts[BASE]
    if synced == NEW:
        _score_all(t, slot, by)
    else:
        if t.by[slot] != by:
            _build(t, slot, by)
        if changes - synced < t.facts[NODES]:
            for change_number in range(synced + 1, changes + 1):
                node = t.log[change_number & (ring - 1)]
                if t.nodes[node, N_CHANGED] == change_number:
                    _rescore(t, slot, node, by)
        else:
            for node in range(t.facts[NODES]):
                if t.nodes[node, N_CHANGED] > synced:
                    _rescore(t, slot, node, by)
    t.shapes[slot, S_SYNCED] = changes


@kernel
def place(t, slot):
    """The best node, or -1; then ``scratch`` holds k device rows, their k memories, and the compute of each."""
    _refresh(t, slot)
    first, tree = t.facts[BASE], t.trees[slot]
    if tree[1] < 0:
        return -1
    i = 1
    while i < first:
        i *= 2
        if tree[i] < tree[i // 2]:
            i += 1
    node = i - first
    _score(t, slot, node)
    base._describe(t, slot)
    return node


@kernel
def place_among(t, slot, among):
    """As ``placement_kernels.place_among``."""
    _refresh(t, slot)
    node = base._best_leaf(t, slot, among)
    if node >= 0:
        _score(t, slot, node)
        base._describe(t, slot)
    return node


# ---- change ----------------------------------------------------------------------------------------------------------


@part
def _recount(t, node):
    """Bring V of the node, what it can host and its part in the sums over schedulable nodes up to date."""
    nothing, every = np.int64(0), np.int64(-1)  # typed, so that no version for literal arguments is compiled
    cpu, host = t.nodes[node, N_CPU], t.nodes[node, N_HOST]
    value, mask = _value_after(t, node, cpu, host, t.scratch, nothing, nothing, every)
    t.values[node], t.hosts[node] = value, mask
    room = 0
    if t.nodes[node, N_OPEN]:
        first = t.nodes[node, N_FIRST]
        for row in range(first, first + t.nodes[node, N_COUNT]):
            room += t.devices[D_OPEN, row]
    else:
        mask = 0
    t.facts_ahead[FREE] += room - t.counted[node, 0]
    differing = mask ^ t.counted[node, 1]
    for s in range(t.hosting.shape[0]):
        if (differing >> s) & 1:
            t.hosting[s] += 1 if (mask >> s) & 1 else -1
    t.counted[node, 0], t.counted[node, 1] = room, mask


@kernel
def change(t, node, wanted, compute, cpu, host, team, sign):
    """As ``placement_kernels.change``."""
    refusal = base.change(t, node, wanted, compute, cpu, host, team, sign)
    if refusal == CHANGED:
        _recount(t, node)
    return refusal


@kernel
def place_each(t, slots, at, milli, fragments):
    """As ``placement_kernels.place_each``."""
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
