"""JSON in and out for REST: exact numbers, no NaN, and pages that stay stable while rows come in."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from django.conf import settings
from rest_framework.exceptions import ParseError
from rest_framework.pagination import CursorPagination
from rest_framework.parsers import JSONParser
from rest_framework.renderers import JSONRenderer


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return found


class ExactJSONParser(JSONParser):
    """Fractions arrive as the Decimal that was written; NaN, Infinity, doubled keys and broken text are 400."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        try:
            return json.loads(
                stream.read().decode(settings.DEFAULT_CHARSET),
                parse_float=Decimal,
                parse_constant=_refuse_constant,
                object_pairs_hook=_refuse_doubles,
            )
        except (ValueError, RecursionError) as error:
            raise ParseError(f"The body is not JSON: {error}") from None


class ExactJSONRenderer(JSONRenderer):
    """Compact JSON in UTF-8; a NaN is an error here, never on the wire."""

    strict = True
    charset = None


class SequencePagination(CursorPagination):
    """Cursor pages over a total order that ends in the id, so that equal sort keys neither repeat nor go missing."""

    page_size = 50
    max_page_size = 500
    page_size_query_param = "page_size"
    ordering = "-id"
