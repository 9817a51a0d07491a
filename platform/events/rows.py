"""Writing many rows, often: plain statements kept per model instead of built anew each time.

The ORM's own ways take about ten times as long for the one-row batches of a fast replay, and on PostgreSQL COPY takes
many rows faster than any INSERT. Same columns, same conversions, same transaction as the ORM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

from django.db import connection, connections
from django.db.models import Field, Model

M = TypeVar("M", bound=Model)

COPY_FROM = 50  # rows from which on COPY beats INSERT
# Fields whose values are written as they are on the object: Django's own way looks each of them over first.
PLAIN = {
    "AutoField", "BigAutoField", "BigIntegerField", "BooleanField", "CharField", "ForeignKey", "IntegerField",
    "PositiveBigIntegerField", "PositiveIntegerField", "PositiveSmallIntegerField", "SmallIntegerField", "TextField",
}  # fmt: skip
VARIABLES = 30_000  # SQLite takes 32,766 in a statement


@lru_cache(maxsize=64)
def _insertion(model: type[Model], vendor: str) -> tuple[tuple[Field[Any, Any], ...], str, str, str]:
    """Fields to write, the quoted table, the quoted columns, and the placeholders of one row."""
    fields = tuple(field for field in model._meta.concrete_fields if not field.primary_key)
    quote = connection.ops.quote_name
    columns = ", ".join(quote(str(field.column)) for field in fields)
    return fields, quote(model._meta.db_table), columns, f"({', '.join(['%s'] * len(fields))})"


def insert_rows(objects: Iterable[M]) -> list[M]:
    """The new objects are rows, in this order with rising ids, which they carry now; in the transaction that is open.

    Raises IntegrityError as an INSERT does. Models with a ``bigint`` id that the database numbers, no other kind.
    """
    rows = list(objects)
    if not rows:
        return rows
    fields, table, columns, placeholders = _insertion(type(rows[0]), connection.vendor)
    key = str(type(rows[0])._meta.pk.column)
    if connection.vendor == "postgresql" and len(rows) >= COPY_FROM:
        ids = _copy_postgresql(table, key, fields, columns, rows)
        return _numbered(rows, ids)
    if connection.vendor == "postgresql":
        here = connections[connection.alias]
        values = [[field.get_db_prep_save(field.pre_save(row, True), here) for field in fields] for row in rows]
        ids = _insert_postgresql(table, key, columns, placeholders, values)
    else:
        readers = [_reader(field) for field in fields]
        values = [[reader(row) for reader in readers] for row in rows]
        ids = _insert_sqlite(table, columns, placeholders, values)
    return _numbered(rows, ids)


def _numbered(rows: list[M], ids: Iterable[int]) -> list[M]:
    for row, row_id in zip(rows, ids, strict=True):
        row.pk = row_id
        row._state.adding = False
        row._state.db = connection.alias
    return rows


def _insert_sqlite(table: str, columns: str, placeholders: str, values: Sequence[Sequence[Any]]) -> Sequence[int]:
    with connection.cursor() as cursor:
        # Nobody else writes while this transaction does, so the ids of one statement after the other are consecutive.
        statement = f"INSERT INTO {table} ({columns}) VALUES {placeholders}"  # noqa: S608 - names of our own tables
        cursor.executemany(statement, values)
        cursor.execute("SELECT last_insert_rowid()")
        last = cursor.fetchone()[0]
    return range(last - len(values) + 1, last + 1)


def _insert_postgresql(
    table: str, key: str, columns: str, placeholders: str, values: Sequence[Sequence[Any]]
) -> Sequence[int]:
    with connection.cursor() as cursor:
        marks = ", ".join([placeholders] * len(values))
        statement = f"INSERT INTO {table} ({columns}) VALUES {marks} RETURNING {key}"  # noqa: S608 - names of our tables
        cursor.execute(statement, [value for row in values for value in row])
        return [row[0] for row in cursor.fetchall()]


def _copy_postgresql(
    table: str, key: str, fields: Sequence[Field[Any, Any]], columns: str, rows: Sequence[Model]
) -> Sequence[int]:
    readers = [_reader(field) for field in fields]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT nextval(pg_get_serial_sequence(%s, %s)) FROM generate_series(1, %s)", [table, key, len(rows)]
        )
        ids = sorted(row[0] for row in cursor.fetchall())
        with cursor.copy(f"COPY {table} ({key}, {columns}) FROM STDIN") as copy:
            for row_id, row in zip(ids, rows, strict=True):
                copy.write_row((row_id, *[reader(row) for reader in readers]))
        return ids


def _reader(field: Field[Any, Any]) -> Callable[[Model], Any]:
    """What reads the field's value from an object as it is written."""
    here = connections[connection.alias]  # itself: what stands for it looks for it anew each time
    kind = field.get_internal_type()
    if kind in PLAIN or (kind == "DateTimeField" and here.vendor == "postgresql"):
        return attrgetter(str(field.attname))
    return lambda row: field.get_db_prep_save(field.pre_save(row, True), here)


def set_rows(
    model: type[Model],
    names: Sequence[str],
    rows: Mapping[int, Sequence[Any]],
    *,
    only: Mapping[str, Any] | None = None,
    counts_up: bool = True,
) -> int:
    """Each row whose id is in ``rows`` has these values under ``names`` now, one statement for all of them; returns how
    many there were. ``only``: rows with other values there are left as they are. ``version`` counts up by one where
    the model has it, unless it is not to.
    """
    if not rows:
        return 0
    if connection.vendor != "postgresql":
        return sum(
            update_rows(model, ids, only=dict(only or {}), counts_up=counts_up, **dict(zip(names, values, strict=True)))
            for values, ids in _alike(rows)
        )
    quote = connection.ops.quote_name
    fields: list[Any] = [model._meta.get_field(name) for name in names]
    sets = [f"{quote(field.column)} = v.c{i}" for i, field in enumerate(fields)]
    if counts_up and _has_version(model):
        sets.append("version = t.version + 1")
    arrays = ", ".join(["%s::bigint[]", *(f"%s::{_type_of(field)}[]" for field in fields)])
    columns = ", ".join(["id", *(f"c{i}" for i in range(len(fields)))])
    where = "".join(f" AND t.{quote(str(model._meta.get_field(name).column))} = %s" for name in only or ())  # type: ignore[union-attr]
    ids = sorted(rows)
    parameters: list[Any] = [ids]
    for i, field in enumerate(fields):
        plain = field.get_internal_type() in PLAIN - {"ForeignKey"} | {"DateTimeField"}
        values = [rows[row_id][i] for row_id in ids]
        parameters.append(values if plain else [_prepared(field, value) for value in values])
    parameters += [_prepared(model._meta.get_field(name), value) for name, value in (only or {}).items()]
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {quote(model._meta.db_table)} AS t SET {', '.join(sets)} "  # noqa: S608 - names of our own tables
            f"FROM unnest({arrays}) AS v({columns}) WHERE t.id = v.id{where}",
            parameters,
        )
        return int(cursor.rowcount)


def add_to_rows(model: type[Model], names: Sequence[str], amounts: Mapping[int, Sequence[int]]) -> None:
    """Each row whose id is in ``amounts`` has these amounts more under ``names``. Rows are locked in order of id, so
    that two who do this never wait for each other. Raises IntegrityError where the table's checks refuse a sum.
    """
    ids = sorted(row_id for row_id, more in amounts.items() if any(more))
    if not ids:
        return
    quote = connection.ops.quote_name
    table = quote(model._meta.db_table)
    columns = [quote(str(model._meta.get_field(name).column)) for name in names]  # type: ignore[union-attr]
    with connection.cursor() as cursor:
        if connection.vendor != "postgresql":
            sets = ", ".join(f"{column} = {column} + %s" for column in columns)
            statement = f"UPDATE {table} SET {sets} WHERE id = %s"  # noqa: S608 - names of our own tables
            cursor.executemany(statement, [(*amounts[row_id], row_id) for row_id in ids])
            return
        locked = f"SELECT id FROM {table} WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE"  # noqa: S608 - as above
        cursor.execute(locked, [ids])
        sets = ", ".join(f"{column} = t.{column} + v.c{i}" for i, column in enumerate(columns))
        arrays = ", ".join(["%s::bigint[]"] * (1 + len(columns)))
        names_of = ", ".join(["id", *(f"c{i}" for i in range(len(columns)))])
        cursor.execute(
            f"UPDATE {table} AS t SET {sets} FROM unnest({arrays}) AS v({names_of}) WHERE t.id = v.id",  # noqa: S608
            [ids, *([amounts[row_id][i] for row_id in ids] for i in range(len(columns)))],
        )


@lru_cache(maxsize=64)
def _has_version(model: type[Model]) -> bool:
    return any(field.name == "version" for field in model._meta.concrete_fields)


def _type_of(field: Any) -> str:
    """Of its column; text for what has a greatest length, which a cast would cut where an assignment refuses."""
    return "text" if field.get_internal_type() == "CharField" else str(field.rel_db_type(connection))


def _alike(rows: Mapping[int, Sequence[Any]]) -> Iterable[tuple[Sequence[Any], list[int]]]:
    """Rows that end up alike, together. (Values are compared as text: some cannot be keys.)"""
    alike: dict[str, tuple[Sequence[Any], list[int]]] = {}
    for row_id, values in rows.items():
        alike.setdefault(repr(values), (values, []))[1].append(row_id)
    return alike.values()


def update_rows(
    model: type[Model],
    ids: Iterable[int],
    *,
    only: dict[str, Any] | None = None,
    counts_up: bool = True,
    **values: Any,
) -> int:
    """Rows with these ids, and with the values in ``only``, have ``values`` now; returns how many there were.

    ``version`` counts up by one where the model has it, unless it is not to.
    """
    wanted = sorted(set(ids))
    if not wanted:
        return 0
    quote = connection.ops.quote_name
    fields: dict[str, Any] = {name: model._meta.get_field(name) for name in (*values, *(only or ()))}
    sets = [f"{quote(fields[name].column)} = %s" for name in values]
    if counts_up and _has_version(model):
        sets.append("version = version + 1")
    parameters = [_prepared(fields[name], value) for name, value in values.items()]
    where = "".join(f" AND {quote(fields[name].column)} = %s" for name in only or ())
    conditions = [_prepared(fields[name], value) for name, value in (only or {}).items()]
    table = quote(model._meta.db_table)
    changed = 0
    postgresql = connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        for start in range(0, len(wanted), VARIABLES):
            some = wanted[start : start + VARIABLES]
            one, ids = ("= ANY(%s)", [some]) if postgresql else (f"IN ({', '.join(['%s'] * len(some))})", some)
            statement = f"UPDATE {table} SET {', '.join(sets)} WHERE id {one}{where}"  # noqa: S608
            cursor.execute(statement, [*parameters, *ids, *conditions])
            changed += cursor.rowcount
    return changed


def _prepared(field: Any, value: Any) -> Any:
    return field.get_db_prep_save(value.pk if isinstance(value, Model) else value, connections[connection.alias])
