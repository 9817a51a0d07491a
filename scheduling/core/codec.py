"""What a cycle decided over and what it decided, as bytes; and from the bytes the same, to be decided again.

A record is a mark, a version, a checksum and compressed blocks: one JSON text of the columns (see ``columns``), and for
each fleet two more, one with its nodes and options, which does not change while the fleet lives, and one with what is
taken of it (see ``fleet_state``).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from scheduling.core.columns import OtherVersion, pack, unpack
from scheduling.core.fleet import Fleet
from scheduling.core.fleet_state import (
    DEVICE_ROWS,
    NODE_ROWS,
    FleetState,
    fleet_of,
    option_kinds,
    options_of,
    state_of,
)
from scheduling.core.model import NodeState, Plan, Policy, Snapshot

MARK = b"ALLOTMENT CYCLE\n"
VERSION = 1
HEAD = struct.Struct("<HQI")  # version, number of the cycle, CRC-32 of all that follows
SIZE = struct.Struct("<I")  # of each block
LEVEL = 1  # of compression: twice as fast as 6, and about a fifth larger
MOST_BYTES = 1 << 30  # of one block when it is unpacked
CELL = np.dtype("<i8")


class BadRecord(ValueError):
    """The bytes are no record of a cycle, are damaged, or come from another version; the message says which."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One cycle: its number, all that it decided over, and what it decided."""

    cycle: int
    snapshot: Snapshot
    policy: Policy
    plan: Plan


class Encoder:
    """Makes records. What does not change of a fleet is packed once for as long as that fleet lives."""

    def __init__(self) -> None:
        self._made_of: MutableMapping[Fleet, bytes] = WeakKeyDictionary()

    def encode(self, recorded: Recorded) -> bytes:
        """The record. The fleets must be as the cycle found them, which is how ``decide`` leaves them.

        Raises TypeError or ValueError where something in it is no plain data.
        """
        fleets = _Fleets()
        columns = {
            "snapshot": pack(Snapshot, [recorded.snapshot], fleets),
            "policy": pack(Policy, [recorded.policy]),
            "plan": pack(Plan, [recorded.plan]),
        }
        blocks = [_packed(_json(columns))]
        for fleet in fleets.met:
            blocks += [self._nodes(fleet), _packed(_cells(state_of(fleet)))]
        body = b"".join(part for block in blocks for part in (SIZE.pack(len(block)), block))
        return MARK + HEAD.pack(VERSION, recorded.cycle, zlib.crc32(body)) + body

    def _nodes(self, fleet: Fleet) -> bytes:
        known = self._made_of.get(fleet)
        if known is None:
            known = self._made_of[fleet] = _packed(_json(_made_of(fleet)))
        return known


def decode(record: bytes) -> Recorded:
    """The cycle of which ``record`` was made, with fleets of its own. Raises BadRecord."""
    blocks = list(_blocks(record))
    try:
        columns = json.loads(blocks[0])
        fleets = _Fleets([_fleet(*blocks[i : i + 2]) for i in range(1, len(blocks), 2)])
        (snapshot,) = unpack(Snapshot, columns["snapshot"], 1, fleets)
        (policy,) = unpack(Policy, columns["policy"], 1)
        (plan,) = unpack(Plan, columns["plan"], 1)
        return Recorded(cycle_of(record), snapshot, policy, plan)
    except OtherVersion as error:
        raise BadRecord(str(error)) from None
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise BadRecord(f"it is not what this version writes: {error!r}") from None


def cycle_of(record: bytes) -> int:
    """The number of the cycle that it says it is of. Raises BadRecord where it is too short to say."""
    if len(record) < len(MARK) + HEAD.size:
        raise BadRecord("it is damaged: it ends too early")
    return int(HEAD.unpack_from(record, len(MARK))[1])


def numbered(record: bytes, cycle: int) -> bytes:
    """The same record, of that cycle: its number may be known only after it was made."""
    version, _, checksum = HEAD.unpack_from(record, len(MARK))
    return MARK + HEAD.pack(version, cycle, checksum) + record[len(MARK) + HEAD.size :]


class _Fleets:
    """The fleets of a snapshot, each standing there by its number."""

    kind: type = Fleet

    def __init__(self, fleets: list[Fleet] | None = None) -> None:
        self.met: list[Fleet] = fleets or []

    def put(self, value: Any) -> int:
        self.met.append(value)
        return len(self.met) - 1

    def get(self, number: int) -> Fleet:
        return self.met[number]


def _made_of(fleet: Fleet) -> dict[str, Any]:
    options = options_of(fleet)
    return {
        "count": len(fleet.states),
        "nodes": pack(NodeState, fleet.states),
        "options": {name: pack(kind, [options[name]]) for name, kind in option_kinds().items()},
    }


def _fleet(made_of: bytes, cells: bytes) -> Fleet:
    known = json.loads(made_of)
    kinds = option_kinds()
    strange = sorted(known["options"].keys() ^ kinds.keys())
    if strange:
        raise OtherVersion(f"a fleet has or lacks the options {', '.join(strange)}: it was made by another version")
    nodes = unpack(NodeState, known["nodes"], known["count"])
    options = {name: unpack(kind, known["options"][name], 1)[0] for name, kind in kinds.items()}
    rows = np.frombuffer(cells, dtype=CELL).astype(np.int64)
    split = len(NODE_ROWS) * len(nodes)
    state = FleetState(rows[:split].reshape(len(NODE_ROWS), -1), rows[split:].reshape(len(DEVICE_ROWS), -1))
    return fleet_of(nodes, state, options)


def _cells(state: FleetState) -> bytes:
    return b"".join(np.ascontiguousarray(rows, dtype=CELL).tobytes() for rows in (state.nodes, state.devices))


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _packed(data: bytes) -> bytes:
    return zlib.compress(data, LEVEL)


def _unpacked(data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        found = unpacker.decompress(data, MOST_BYTES)
    except zlib.error as error:
        raise BadRecord(f"it is damaged: {error}") from None
    if not unpacker.eof:
        raise BadRecord("it is damaged, or larger than any cycle")
    return found


def _blocks(record: bytes) -> Iterator[bytes]:
    """The blocks, unpacked, once mark, version and checksum are found right."""
    if not record.startswith(MARK):
        raise BadRecord("it is not the record of a cycle")
    cycle_of(record)
    body = record[len(MARK) + HEAD.size :]
    version, _, checksum = HEAD.unpack_from(record, len(MARK))
    if version != VERSION:
        raise BadRecord(f"it is of version {version}; this program reads version {VERSION}")
    if zlib.crc32(body) != checksum:
        raise BadRecord("it is damaged: its checksum is another")
    at = 0
    while at < len(body):
        (size,) = SIZE.unpack_from(body, at)
        at += SIZE.size
        yield _unpacked(body[at : at + size])
        at += size
