"""Nodes as a CSV file, one a row: read into data, with every fault told by its row and column. Nothing is looked up.

Columns, by the names in the first line, in any order: ``name`` and ``pool``; ``model`` and ``accelerators`` (devices of
this model, 0 where left out); ``memory_mib`` of each device (the model's where left out); ``cpu`` in cores,
``host_memory_gib``; ``labels`` as ``rack=r1;zone=a``; ``taints`` likewise (without this column, what is there stays).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from events.errors import Fault, Invalid
from scheduling.core.units import QuantityError, exact

COLUMNS = ("name", "pool", "model", "accelerators", "memory_mib", "cpu", "host_memory_gib", "labels", "taints")
REQUIRED = ("name", "pool")
MOST_ROWS = 20_000
MOST_DEVICES = 256
MOST_FAULTS = 100


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One row. ``number`` counts data rows from 1. ``memory_mib`` None: the model's."""

    number: int
    name: str
    pool: str
    model: str
    accelerators: int
    memory_mib: int | None
    cpu_milli: int
    host_memory_mib: int
    labels: dict[str, str] = field(default_factory=dict)
    taints: dict[str, str] | None = None  # None: the file has no such column

    def fault(self, column: str, message: str, value: Any = None, allowed: Any = None) -> Fault:
        return fault_at(self.number, column, message, value, allowed)


def fault_at(number: int, column: str, message: str, value: Any = None, allowed: Any = None) -> Fault:
    return Fault(f"row {number}: {column}", message, value=value, allowed=allowed)


def read_nodes(text: str) -> list[NodeRow]:
    """The rows of the file. Raises Invalid with every fault in it (the first hundred)."""
    reader = csv.reader(io.StringIO(text.lstrip("\ufeff")), strict=True)
    faults: list[Fault] = []
    rows: list[NodeRow] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header)
        number = 0
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            number += 1
            if number > MOST_ROWS:
                raise Invalid.at("file", f"has more than {MOST_ROWS} rows")
            if len(cells) != len(header):
                faults.append(fault_at(number, "row", f"has {len(cells)} cells, the first line {len(header)}"))
                continue
            row = _Row(number, dict(zip(header, (cell.strip() for cell in cells), strict=True)), faults).read()
            if row is not None:
                rows.append(row)
    except csv.Error as error:
        raise Invalid.at("file", f"is not CSV: line {reader.line_num}: {error}") from None
    if faults:
        raise Invalid(faults[:MOST_FAULTS])
    if not rows:
        raise Invalid.at("file", "has no rows")
    return rows


def _check_header(header: list[str]) -> None:
    unknown = [name for name in header if name not in COLUMNS]
    missing = [name for name in REQUIRED if name not in header]
    if unknown or len(set(header)) != len(header):
        raise Invalid.at("row 0: columns", "are unknown or there twice", value=unknown or header, allowed=COLUMNS)
    if missing:
        raise Invalid.at("row 0: columns", f"lack {' and '.join(missing)}", allowed=COLUMNS)


class _Row:
    """One row being read; what is wrong with it goes to ``faults``."""

    def __init__(self, number: int, cells: dict[str, str], faults: list[Fault]):
        self.number = number
        self.cells = cells
        self.faults = faults
        self.before = len(faults)

    def read(self) -> NodeRow | None:
        name, pool, model = self.cells["name"], self.cells["pool"], self.cells.get("model", "")
        for column in REQUIRED:
            if not self.cells[column]:
                self._fault(column, "is required")
        accelerators = self._take("accelerators", _whole(MOST_DEVICES)) or 0
        if accelerators and not model:
            self._fault("model", "is required where there are accelerators")
        memory = self._take("memory_mib", _whole(2**31 - 1))
        if memory == 0:
            self._fault("memory_mib", "must be 1 or more")
        row = NodeRow(
            number=self.number,
            name=name,
            pool=pool,
            model=model,
            accelerators=accelerators,
            memory_mib=memory,
            cpu_milli=self._take("cpu", _scaled(1000)) or 0,
            host_memory_mib=self._take("host_memory_gib", _scaled(1024)) or 0,
            labels=self._take("labels", _labels) or {},
            taints=(self._take("taints", _labels) or {}) if "taints" in self.cells else None,
        )
        return row if len(self.faults) == self.before else None

    def _take(self, column: str, convert: Callable[[str], Any]) -> Any:
        given = self.cells.get(column, "")
        if not given:
            return None
        try:
            return convert(given)
        except (QuantityError, ValueError) as error:
            self._fault(column, str(error))
            return None

    def _fault(self, column: str, message: str) -> None:
        self.faults.append(fault_at(self.number, column, message, self.cells.get(column) or None))


def _whole(high: int) -> Callable[[str], int]:
    def read(given: str) -> int:
        if not given.isascii() or not given.isdigit() or int(given) > high:
            raise ValueError(f"must be a whole number from 0 to {high}")
        return int(given)

    return read


def _scaled(factor: int) -> Callable[[str], int]:
    def read(given: str) -> int:
        number = exact(given) * factor
        if number < 0 or number != number.to_integral_value():
            raise ValueError(f"must be 0 or more and a multiple of 1/{factor}")
        return int(number)

    return read


def _labels(given: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in given.split(";") if part.strip()]
    if any(not key.strip() or not equals for key, equals, _ in pairs):
        raise ValueError("must be of the form rack=r1;zone=a")
    return {key.strip(): value.strip() for key, _, value in pairs}
