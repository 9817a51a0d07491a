"""Plain data as columns: many values of one declared type, field by field, as lists that JSON can hold; and back.

What a type consists of is read from its annotations, so a field that is added later is packed too, and columns that
were made by another version (a field too many, or one missing) are refused by name. Order, identity of keys and the
difference between lists and tuples survive; ``Sequence`` and ``Iterable`` come back as tuples.
"""

from __future__ import annotations

import collections.abc
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Literal, Protocol

SCALARS = (int, str, float, bool, types.NoneType)
MANY: Mapping[Any, Callable[[Sequence[Any]], Any]] = {
    collections.abc.Sequence: tuple,
    collections.abc.Iterable: tuple,
    collections.abc.Collection: tuple,
    list: list,
    frozenset: frozenset,
    set: set,
}
ITEMS: Mapping[Any, Callable[[Any], Any]] = {
    dict: dict.items,
    set: sorted,
    frozenset: sorted,
}  # in an order of their own
TUPLE, PAIRS = "()", "{}"  # how a tuple, and a mapping that JSON cannot hold, stand where anything is allowed


class OtherVersion(ValueError):
    """The columns were made of a type that has other fields than it has here."""


class Foreign(Protocol):
    """Things that are no plain data and are kept elsewhere: each stands for itself by a number."""

    @property
    def kind(self) -> type: ...

    def put(self, value: Any) -> int: ...

    def get(self, number: int) -> Any: ...


def pack(kind: Any, values: Sequence[Any], foreign: Foreign | None = None) -> Any:
    """The values, all of type ``kind`` (an annotation), as one column. Raises TypeError for types it does not know."""
    return _way(kind, _strange(foreign)).pack(list(values), foreign)


def unpack(kind: Any, column: Any, count: int, foreign: Foreign | None = None) -> list[Any]:
    """The ``count`` values that the column was made of. Raises OtherVersion, or another ValueError or LookupError
    where it is no column of that type."""
    return _way(kind, _strange(foreign)).unpack(column, count, foreign)


def _strange(foreign: Foreign | None) -> type | None:
    return None if foreign is None else foreign.kind


class _Scalars:
    """Numbers and texts, as they are; where all are the same, once."""

    def pack(self, values: list[Any], foreign: Foreign | None) -> Any:
        if len(values) > 1 and values.count(values[0]) == len(values):
            return {"all": values[0]}
        return values

    def unpack(self, column: Any, count: int, foreign: Foreign | None) -> list[Any]:
        values = [column["all"]] * count if isinstance(column, dict) else column
        _check(values, count)
        return values


class _Anything:
    """What JSON can hold, tuples and mappings with other keys than texts besides."""

    def pack(self, values: list[Any], foreign: Foreign | None) -> Any:
        return [_plain(value) for value in values]

    def unpack(self, column: Any, count: int, foreign: Foreign | None) -> list[Any]:
        _check(column, count)
        return [_restored(value) for value in column]


class _Foreign:
    def pack(self, values: list[Any], foreign: Foreign | None) -> Any:
        assert foreign is not None
        return [foreign.put(value) for value in values]

    def unpack(self, column: Any, count: int, foreign: Foreign | None) -> list[Any]:
        assert foreign is not None
        _check(column, count)
        return [foreign.get(number) for number in column]


class _Whole:
    """What consists of parts. The same object again and again is packed once."""

    def pack(self, values: list[Any], foreign: Foreign | None) -> Any:
        first = dict(zip(map(id, values), values, strict=True))
        if len(values) > 1 and 2 * len(first) <= len(values):
            number = {key: position for position, key in enumerate(first)}
            return {"of": [number[id(value)] for value in values], "at": self.parts(list(first.values()), foreign)}
        return {"each": self.parts(values, foreign)}

    def unpack(self, column: Any, count: int, foreign: Foreign | None) -> list[Any]:
        if "each" in column:
            return self.made(column["each"], count, foreign)
        of = column["of"]
        _check(of, count)
        made = self.made(column["at"], 1 + max(of), foreign)
        return [made[position] for position in of]

    def parts(self, values: list[Any], foreign: Foreign | None) -> Any:
        raise NotImplementedError

    def made(self, column: Any, count: int, foreign: Foreign | None) -> list[Any]:
        raise NotImplementedError


class _Record(_Whole):
    def __init__(self, kind: Any, strange: Any):
        self.kind = kind
        names = kind._fields if issubclass(kind, tuple) else [each.name for each in fields(kind) if each.init]
        hints = typing.get_type_hints(kind, localns={strange.__name__: strange} if strange else None)
        self.ways = {name: _way(hints[name], strange) for name in names}

    def parts(self, values: list[Any], foreign: Foreign | None) -> Any:
        return {
            name: way.pack(list(map(operator.attrgetter(name), values)), foreign) for name, way in self.ways.items()
        }

    def made(self, column: Any, count: int, foreign: Foreign | None) -> list[Any]:
        more, missing = sorted(column.keys() - self.ways.keys()), sorted(self.ways.keys() - column.keys())
        if more or missing:
            told = [f"{what} {', '.join(names)}" for what, names in (("has", more), ("lacks", missing)) if names]
            raise OtherVersion(f"{self.kind.__name__} {' and '.join(told)}: it was made by another version")
        columns = [way.unpack(column[name], count, foreign) for name, way in self.ways.items()]
        if not columns:
            return [self.kind() for _ in range(count)]
        return [self.kind(*row) for row in zip(*columns, strict=True)]


class _Many(_Whole):
    """Any number of one kind."""

    def __init__(self, make: Callable[[Sequence[Any]], Any], way: Any):
        self.make, self.way = make, way
        self.items = ITEMS.get(make)

    def parts(self, values: list[Any], foreign: Foreign | None) -> Any:
        flat = list(chain.from_iterable(values if self.items is None else map(self.items, values)))
        return {"n": _SCALARS.pack(list(map(len, values)), None), "in": self.way.pack(flat, foreign)}

    def made(self, column: Any, count: int, foreign: Foreign | None) -> list[Any]:
        sizes = _SCALARS.unpack(column["n"], count, None)
        flat = self.way.unpack(column["in"], sum(sizes), foreign)
        found, begin = [], 0
        for size in sizes:
            found.append(self.make(flat[begin : begin + size]))
            begin += size
        return found


class _Row(_Whole):
    """So many, each of a kind of its own."""

    def __init__(self, ways: Sequence[Any]):
        self.ways = ways

    def parts(self, values: list[Any], foreign: Foreign | None) -> Any:
        return [way.pack([value[i] for value in values], foreign) for i, way in enumerate(self.ways)]

    def made(self, column: Any, count: int, foreign: Foreign | None) -> list[Any]:
        _check(column, len(self.ways))
        columns = [way.unpack(part, count, foreign) for way, part in zip(self.ways, column, strict=True)]
        return list(zip(*columns, strict=True)) if columns else [()] * count


class _Maybe:
    """Something that consists of parts, or None."""

    def __init__(self, way: Any):
        self.way = way

    def pack(self, values: list[Any], foreign: Foreign | None) -> Any:
        there = [value for value in values if value is not None]
        return [_SCALARS.pack([value is not None for value in values], None), self.way.pack(there, foreign)]

    def unpack(self, column: Any, count: int, foreign: Foreign | None) -> list[Any]:
        mask = _SCALARS.unpack(column[0], count, None)
        there = iter(self.way.unpack(column[1], sum(mask), foreign))
        return [next(there) if one else None for one in mask]


_SCALARS = _Scalars()


@lru_cache(maxsize=512)
def _way(kind: Any, strange: type | None) -> Any:
    """How values of that annotation are packed. ``strange``: the type that is kept elsewhere."""
    if strange is not None and kind is strange:
        return _Foreign()
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind in SCALARS or origin is Literal:
        return _SCALARS
    if kind in (object, Any):
        return _Anything()
    if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields")):
        return _Record(kind, strange)
    if origin in (typing.Union, types.UnionType):
        there = [part for part in parts if part is not types.NoneType]
        ways = [_way(part, strange) for part in there]
        if all(way is _SCALARS for way in ways):
            return _SCALARS
        if len(ways) == 1:
            return _Maybe(ways[0])
    if origin is tuple and len(parts) == 2 and parts[1] is Ellipsis:
        return _Many(tuple, _way(parts[0], strange))
    if origin is tuple:
        return _Row([_way(part, strange) for part in parts])
    if origin in (dict, collections.abc.Mapping):
        return _Many(dict, _Row([_way(part, strange) for part in parts]))
    if origin in MANY:
        return _Many(MANY[origin], _way(parts[0], strange))
    raise TypeError(f"{kind} cannot be packed")


def _check(column: Any, count: int) -> None:
    if not isinstance(column, list) or len(column) != count:
        raise ValueError("a column has another length than its neighbours")


def _plain(value: Any) -> Any:
    if isinstance(value, SCALARS):
        return value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and TUPLE not in value and PAIRS not in value:
            return {key: _plain(item) for key, item in value.items()}
        return {PAIRS: [[_plain(key), _plain(item)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {TUPLE: [_plain(item) for item in value]}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} cannot be packed")


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TUPLE in value:
        return tuple(_restored(item) for item in value[TUPLE])
    if PAIRS in value:
        return {_restored(key): _restored(item) for key, item in value[PAIRS]}
    return {key: _restored(item) for key, item in value.items()}
