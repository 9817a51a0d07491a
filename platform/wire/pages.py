"""Pages by keyset: a page goes on after the last row of the one before, in a total order that ends in the id.

So rows with equal sort keys neither repeat nor go missing, and rows that come in meanwhile shift nothing. (Offsets and
cursors that count rows with an equal key do both: encode/django-rest-framework issue 6886.)
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar

from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from events.errors import Fault, NotThere
from wire.fields import MAX_ID, Text, Whole, storable
from wire.strict import Strict

M = TypeVar("M")
R = TypeVar("R", bound=Model)
PAGE_SIZE = 50
MAX_PAGE_SIZE = 500
OUTSIDE = ("cursor", "page_size")


class PageQuery(Strict):
    """Every list's parameters."""

    page_size = Whole(min_value=1, max_value=MAX_PAGE_SIZE, required=False, help_text=f"rows of a page ({PAGE_SIZE})")
    cursor = Text(
        max_length=1000, required=False, help_text="where the page begins: that of ``next`` in the page before"
    )


class UnknownCursor(NotThere):
    """The cursor is of another list, order or filter, or of nothing."""

    def __init__(self, cursor: str):
        message = "this cursor is not of this list with these filters; begin again without one"
        super().__init__(message, code="unknown_cursor", faults=[Fault("cursor", message, "unknown_cursor", cursor)])


@dataclass(frozen=True, slots=True)
class Place:
    """After which row a page begins: its sort key and its id."""

    key: Any
    id: int


@dataclass(frozen=True)
class Listing(Generic[R]):
    """How a list can be ordered: name → column of its own table, never null. A ``-`` turns it round."""

    orders: Mapping[str, str]
    default: str

    @property
    def choices(self) -> list[str]:
        return [f"{sign}{name}" for name in self.orders for sign in ("", "-")]

    def page(self, rows: QuerySet[R], request: Request, query: Mapping[str, Any]) -> tuple[list[R], str | None]:
        """The page's rows and the address of the next page, None on the last. Raises UnknownCursor."""
        ordering = query.get("ordering") or self.default
        column = self.orders[ordering.removeprefix("-")]
        down = ordering.startswith("-")
        size = query.get("page_size") or PAGE_SIZE
        mark = _digest(request, ordering)
        if query.get("cursor"):
            rows = rows.filter(_after(_place(query["cursor"], mark, rows, column), column, down=down))
        sign = "-" if down else ""
        order = (f"{sign}id",) if column == "id" else (f"{sign}{column}", f"{sign}id")
        found = list(rows.order_by(*order)[: size + 1])
        if len(found) <= size:
            return found, None
        last = found[size - 1]
        return found[:size], _next_address(request, _cursor(mark, getattr(last, column), last.pk))


def page_of(
    rows: Sequence[tuple[list[Any], M]], request: Request, query: Mapping[str, Any]
) -> tuple[list[M], str | None]:
    """The same for rows that were worked out, each with its key: a list of texts and numbers, all keys different and
    of one form. Raises UnknownCursor."""
    size = query.get("page_size") or PAGE_SIZE
    mark = _digest(request, "")
    ordered = sorted(rows, key=lambda row: row[0])
    if query.get("cursor"):
        key = _opened(query["cursor"], mark)[0]
        try:
            ordered = [row for row in ordered if row[0] > key]
        except TypeError:
            raise UnknownCursor(query["cursor"]) from None
    found = [row for _, row in ordered[:size]]
    if len(ordered) <= size:
        return found, None
    return found, _next_address(request, _cursor(mark, ordered[size - 1][0]))


def _after(place: Place, column: str, *, down: bool) -> Q:
    beyond = "lt" if down else "gt"
    if column == "id":
        return Q(**{f"id__{beyond}": place.id})
    # The first part alone bounds the range, so that an index on the column is used.
    return Q(**{f"{column}__{beyond}e": place.key}) & (
        Q(**{f"{column}__{beyond}": place.key}) | Q(**{f"id__{beyond}": place.id})
    )


def _digest(request: Request, ordering: str) -> str:
    """What a cursor must agree with: the list, its filters and its order."""
    given = sorted(
        (name, values) for name, values in request.query_params.lists() if name not in (*OUTSIDE, "ordering")
    )
    text = json.dumps([request.path, ordering, given])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _cursor(mark: str, *parts: Any) -> str:
    told = [part.isoformat() if isinstance(part, datetime) else part for part in parts]
    return base64.urlsafe_b64encode(json.dumps([mark, *told]).encode()).decode().rstrip("=")


def _opened(cursor: str, mark: str) -> list[Any]:
    """What ``_cursor`` put in. Raises UnknownCursor where it is not one, or one of another list."""
    try:
        found = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError, binascii.Error):
        raise UnknownCursor(cursor) from None
    if not isinstance(found, list) or len(found) < 2 or found[0] != mark:
        raise UnknownCursor(cursor)
    return found[1:]


def _place(cursor: str, mark: str, rows: QuerySet[Any], column: str) -> Place:
    try:
        key, row_id = _opened(cursor, mark)
        value = rows.model._meta.get_field(column).to_python(key)
    except (ValueError, TypeError, ValidationError):
        raise UnknownCursor(cursor) from None
    whole = isinstance(row_id, int) and not isinstance(row_id, bool) and 0 < row_id <= MAX_ID
    if not whole or not _usable(value):
        raise UnknownCursor(cursor)
    return Place(value, row_id)


def _usable(value: Any) -> bool:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, int):
        return abs(value) <= MAX_ID
    return isinstance(value, datetime) and value.tzinfo is not None


def _next_address(request: Request, cursor: str) -> str:
    parameters = request.query_params.copy()
    parameters["cursor"] = cursor
    return request.build_absolute_uri(f"{request.path}?{parameters.urlencode()}")


def page_answer(results: Any, following: str | None) -> Response:
    """A page as it is sent."""
    return Response({"results": results, "next": following})


class PageSchema(serializers.Serializer):
    """What ``page_answer`` sends; ``paged`` gives it its rows."""

    next = serializers.URLField(allow_null=True, help_text="the address of the next page; null on the last")


_paged: dict[type, type[serializers.Serializer]] = {}


def paged(row: type[serializers.BaseSerializer]) -> type[serializers.Serializer]:
    """The description of a page of ``row``."""
    if row not in _paged:
        name = f"{row.__name__.removesuffix('Serializer')}Page"
        attributes: dict[str, Any] = {"results": row(many=True), "__doc__": ""}
        _paged[row] = type(name, (PageSchema,), attributes)
    return _paged[row]


class NoParameters(Strict):
    """A request that takes no parameters."""

    in_query: ClassVar[bool] = True  # type: ignore[misc]
