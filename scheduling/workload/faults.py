"""Reading a file of rows that may be damaged anywhere: every fault names its file, line and field; none is a traceback.

A file is read one line at a time (plain or gzip, told apart by its first bytes), so a large one needs little memory.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from scheduling.workload.records import Malformed, Seconds, TraceError, shorten

KEPT = 1000  # faults kept word for word; more are only counted
LONGEST_LINE = 64 * 1024  # bytes; no known format comes near
LARGEST = 10**12  # no quantity of a trace (milli-cores, MiB, seconds) comes near

LONGEST_WORD = 63

_WORD = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,9})?", re.ASCII)
_GZIP_MAGIC = b"\x1f\x8b"

Record = TypeVar("Record")


class Faults:
    """Collects what is malformed. With ``strict`` the first one raises TraceError instead."""

    def __init__(self, *, strict: bool):
        self.strict = strict
        self.kept: list[Malformed] = []
        self.count = 0

    def add(self, fault: Malformed) -> None:
        """Count ``fault``, keeping the first KEPT of them. Raises TraceError if strict."""
        if self.strict:
            raise TraceError(str(fault), fault)
        self.count += 1
        if len(self.kept) < KEPT:
            self.kept.append(fault)


class FieldError(Exception):
    """A field of the current row that cannot be meant."""

    def __init__(self, field: str | None, value: str, message: str):
        super().__init__(message)
        self.field = field
        self.value = value
        self.message = message


@dataclass(frozen=True, slots=True)
class Columns:
    """What a format's header may hold: the columns that it needs, and those that it knows beside them."""

    needed: tuple[str, ...]
    known: tuple[str, ...] = ()

    def missing(self, header: list[str]) -> tuple[str, ...]:
        """The needed columns that ``header`` lacks, in the format's order."""
        return tuple(name for name in self.needed if name not in header)

    def matched(self, header: list[str]) -> int:
        """How many of the needed columns ``header`` has."""
        return len(self.needed) - len(self.missing(header))


@dataclass(frozen=True, slots=True)
class Row:
    """One line, split: text by column name. A known column that the file lacks reads as empty."""

    file: str
    line: int
    values: dict[str, str]

    def word(self, field: str) -> str:
        """The field as a name: letters, digits and ``._-``, at most LONGEST_WORD. Raises FieldError."""
        value = self.values.get(field, "").strip()
        if not value:
            raise FieldError(field, "", "empty")
        if not is_word(value):
            raise FieldError(field, value, f"not a name of at most {LONGEST_WORD} letters, digits, dots and dashes")
        return value

    def one_of(self, field: str, allowed: tuple[str, ...]) -> str:
        """The field, which is one of ``allowed``; else FieldError."""
        value = self.values.get(field, "").strip()
        if value not in allowed:
            raise FieldError(field, value, f"not one of {', '.join(allowed)}")
        return value

    def integer(self, field: str, least: int = 0, most: int = LARGEST) -> int:
        """The field as a whole number in least..most. Raises FieldError."""
        number = self.number(field)
        if number != number.to_integral_value():
            raise FieldError(field, self.values[field], "not a whole number")
        if not least <= number <= most:
            message = "negative" if number < 0 else f"not in {least} to {most}"
            raise FieldError(field, self.values[field], message)
        return int(number)

    def seconds(self, field: str) -> Seconds:
        """The field as seconds, 0 or more: an int where it is whole, else the exact decimal. Raises FieldError."""
        number = self.number(field)
        if number < 0:
            raise FieldError(field, self.values[field], "negative")
        if number > LARGEST:
            raise FieldError(field, self.values[field], f"not in 0 to {LARGEST}")
        return int(number) if number == number.to_integral_value() else number

    def seconds_or_none(self, field: str) -> Seconds | None:
        """Like ``seconds``; None where the field is empty or the file has no such column."""
        return self.seconds(field) if self.values.get(field, "").strip() else None

    def number(self, field: str) -> Decimal:
        """The field as a plain decimal number (digits, no exponent). Raises FieldError."""
        value = self.values.get(field, "").strip()
        if not value:
            raise FieldError(field, "", "empty")
        if not _NUMBER.fullmatch(value):
            raise FieldError(field, value, "not a number")
        return Decimal(value)


def is_word(value: str) -> bool:
    """Whether ``value`` can name a job, a node or a model everywhere in the product."""
    return _WORD.fullmatch(value) is not None


def read_header(path: Path) -> list[str]:
    """The column names in the first line of ``path``. Raises TraceError where there is no readable first line."""
    try:
        with _opened(path) as stream:
            line = stream.readline(LONGEST_LINE)
    except (EOFError, zlib.error, OSError) as error:
        raise TraceError(f"{path}: cannot be read: {_reason(error)}") from None
    try:
        return [name.strip() for name in _split(line.decode("utf-8-sig"))]
    except (UnicodeDecodeError, csv.Error):
        raise TraceError(f"{path}, line 1: not a line of comma-separated names in UTF-8") from None


def records(path: Path, columns: Columns, faults: Faults, parse: Callable[[Row], Record]) -> Iterator[Record]:
    """What ``parse`` makes of each row of ``path``, in file order; rows that it refuses (FieldError) go to ``faults``.

    Raises TraceError where a needed column is missing: then no row could be read.
    """
    for row in rows(path, columns, faults):
        try:
            yield parse(row)
        except FieldError as fault:
            faults.add(Malformed(row.file, row.line, fault.field, fault.value, fault.message))


def rows(path: Path, columns: Columns, faults: Faults) -> Iterator[Row]:
    """The readable rows of ``path``, in file order; blank lines are passed over, the others go to ``faults``."""
    header = read_header(path)
    missing = columns.missing(header)
    if missing:
        fault = Malformed(str(path), 1, missing[0], ",".join(header), "column missing from the header")
        raise TraceError(str(fault), fault)
    _check_names(path, header, columns, faults)
    for number, line in _numbered_lines(path, faults):
        if number == 1 or not line.strip():
            continue
        values = _values(path, number, line, header, faults)
        if values is not None:
            yield Row(str(path), number, values)


def _check_names(path: Path, header: list[str], columns: Columns, faults: Faults) -> None:
    for position, name in enumerate(header):
        if name in header[:position]:
            faults.add(Malformed(str(path), 1, name, name, "column named twice; the first one counts"))
        elif name not in columns.needed and name not in columns.known:
            faults.add(Malformed(str(path), 1, name, name, "unknown column, ignored"))


def _values(path: Path, number: int, line: bytes, header: list[str], faults: Faults) -> dict[str, str] | None:
    """The line as text by column, or None after reporting what is wrong with it as a whole."""
    try:
        fields = _split(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        faults.add(Malformed(str(path), number, None, repr(line[:40]), f"not UTF-8 at byte {error.start}"))
        return None
    except csv.Error as error:
        faults.add(Malformed(str(path), number, None, shorten(repr(line)), f"not comma-separated values ({error})"))
        return None
    if len(fields) != len(header):
        message = f"{len(fields)} columns where the header has {len(header)}"
        faults.add(Malformed(str(path), number, None, ",".join(fields), message))
        return None
    values: dict[str, str] = {}
    for name, value in zip(header, fields, strict=True):
        values.setdefault(name, value)
    return values


def _split(line: str) -> list[str]:
    """One line as fields. Lines are split one by one, so an open quote spoils its own line and no other."""
    return next(csv.reader([line.rstrip("\r\n")], strict=True), [])


def _numbered_lines(path: Path, faults: Faults) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, bytes) of each line; one that is too long is reported and left out.

    A file that ends in the middle of its compressed data gives what comes before, then a fault.
    """
    number = 0
    try:
        with _opened(path) as stream:
            while line := stream.readline(LONGEST_LINE):
                number += 1
                if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                    _skip_line(stream)
                    message = f"longer than {LONGEST_LINE} bytes"
                    faults.add(Malformed(str(path), number, None, repr(line[:40]), message))
                    continue
                yield number, line
    except (EOFError, zlib.error, OSError) as error:
        faults.add(Malformed(str(path), number + 1, None, "", f"the file breaks off: {_reason(error)}"))


def _skip_line(stream: BinaryIO) -> None:
    while (rest := stream.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
        pass


def _opened(path: Path) -> BinaryIO:
    with path.open("rb") as probe:
        compressed = probe.read(2) == _GZIP_MAGIC
    return cast(BinaryIO, gzip.open(path, "rb")) if compressed else path.open("rb")


def _reason(error: Exception) -> str:
    if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
        return "its compressed data is damaged or cut off"
    return getattr(error, "strerror", None) or str(error)
