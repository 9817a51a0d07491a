"""How REST speaks, for the settings to name: exact JSON in and out, one form of answer, and the rate of requests."""

from __future__ import annotations

import json
import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.cache import cache
from rest_framework.exceptions import APIException, ParseError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from events.errors import Invalid, shortened
from wire.fields import storable

if TYPE_CHECKING:
    # Settings name this module: what it needs must be there before the views are.
    from rest_framework.views import APIView

MAX_DEPTH = 32
MAX_DIGITS = 40


class TooLarge(APIException):
    status_code = 413
    default_code = "too_large"
    default_detail = "The request is too large"

    def __init__(self) -> None:
        super().__init__(f"The body has more than {settings.DATA_UPLOAD_MAX_MEMORY_SIZE} bytes.")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        # The first to come again, in one walk: a body may hold hundreds of thousands of keys.
        met: set[str] = set()
        for key, _ in pairs:
            if key in met:
                raise ValueError(f"the key {shortened(key)!r} is given twice")
            met.add(key)
    return found


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits, more than {MAX_DIGITS}")
    return int(digits)


def _check_texts(value: Any, path: str = "", depth: int = 0) -> None:
    """Raises Invalid at the first text that no database can keep, ParseError where it is nested too deeply."""
    if isinstance(value, str):
        if not storable(value):
            raise Invalid.at(path or "body", "must not contain NUL or half of a surrogate pair", value=repr(value))
        return
    if not isinstance(value, dict | list):
        return
    if depth >= MAX_DEPTH:
        raise ParseError(f"The body is nested more than {MAX_DEPTH} levels deep.")
    if isinstance(value, list):
        for position, item in enumerate(value):
            _check_texts(item, f"{path}[{position}]", depth + 1)
        return
    for key, item in value.items():
        if not storable(key):
            raise Invalid.at(path or "body", "a name must not contain NUL or half of a surrogate pair", value=repr(key))
        _check_texts(item, f"{path}.{key[:80]}" if path else key[:80], depth + 1)


class ExactJSONParser(JSONParser):
    """Fractions arrive as the Decimal that was written; NaN, Infinity, doubled keys and broken text are 400."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise TooLarge
        try:
            value = json.loads(
                body.decode("utf-8"),
                parse_int=_whole,
                parse_float=Decimal,
                parse_constant=_refuse_constant,
                object_pairs_hook=_refuse_doubles,
            )
        except RecursionError:
            raise ParseError(f"The body is nested more than {MAX_DEPTH} levels deep.") from None
        except ValueError as error:
            raise ParseError(f"The body is not JSON: {shortened(str(error))}") from None
        _check_texts(value)
        return value


class ExactJSONRenderer(JSONRenderer):
    """Compact JSON in UTF-8; a NaN is an error here, never on the wire."""

    strict = True
    charset = None


class OneForm(BaseContentNegotiation):
    """One form of answer to everything, whatever is asked for: better than 406 for who opens it in a browser."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        media_type = (request.content_type or "").split(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == media_type), None)

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> tuple[Any, str]:
        return renderers[0], renderers[0].media_type


class RequestRate(BaseThrottle):
    """At most ``API_REQUESTS_PER_MINUTE`` in each clock minute for a token, a user, or an address without either."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        limit = settings.API_REQUESTS_PER_MINUTE
        window, passed = divmod(int(time.time()), 60)
        self.reset = 60 - passed
        key = f"api-rate:{_caller(request, self)}:{window}"
        # Two steps, not one: a lost add is lost by all, so the count is at most one too low.
        count = 1 if cache.add(key, 1, timeout=120) else _increment(key)
        view.rate_headers = {  # type: ignore[attr-defined]
            "RateLimit-Limit": str(limit),
            "RateLimit-Remaining": str(max(0, limit - count)),
            "RateLimit-Reset": str(self.reset),
        }
        return count <= limit

    def wait(self) -> float:
        return self.reset


def _increment(key: str) -> int:
    try:
        return cache.incr(key)
    except ValueError:  # it ran out between the two
        cache.set(key, 1, timeout=120)
        return 1


def _caller(request: Request, throttle: BaseThrottle) -> str:
    token = getattr(request.auth, "pk", None)
    if token is not None:
        return f"token-{token}"
    return f"user-{request.user.pk}" if request.user.is_authenticated else f"address-{throttle.get_ident(request)}"
