"""Request-wide: the viewer's time zone, what a page may load and run, and refusals as pages."""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable

from django.core.exceptions import BadRequest
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone

from config.views.errors import refusal_page
from events.errors import Refusal

Answer = Callable[[HttpRequest], HttpResponse]

# The operator's console and the API's own documentation are built by packages that evaluate expressions and write
# styles into their markup; everything else is ours and runs under the strict policy.
LOOSE_PATHS = ("/admin/", "/api/")


class ViewerTimezone:
    """Times on pages are in the zone that the viewer chose; without one, in the browser's (cookie) or UTC."""

    def __init__(self, get_response: Answer):
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        name = getattr(request.user, "time_zone", "") or request.COOKIES.get("tz", "")
        try:
            timezone.activate(zoneinfo.ZoneInfo(name) if name else zoneinfo.ZoneInfo("UTC"))
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            timezone.activate(zoneinfo.ZoneInfo("UTC"))
        return self.get_response(request)


class StorableText:
    """A NUL has no place in anything that is kept (PostgreSQL refuses it, late and rudely): an address with one is not
    there, a query or form with one is a bad request. REST says so by itself, with the field."""

    def __init__(self, get_response: Answer):
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if "\0" in request.path_info:
            raise Http404
        if not request.path_info.startswith("/api/"):
            given = (text for values in (request.GET, request.POST) for _, each in values.lists() for text in each)
            if any(isinstance(text, str) and "\0" in text for text in given):
                raise BadRequest("A text must not contain the character NUL.")
        return self.get_response(request)


EMPTY_STYLE = " 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"


def content_policy(host: str, *, loose: bool) -> str:
    """The Content-Security-Policy of a page that ``host`` serves. Sockets are named: not every browser counts them
    among 'self'."""
    inline = " 'unsafe-inline'" if loose else ""
    return "; ".join(
        (
            # The one hash is that of nothing: the charts' library makes an empty style and fills it by script.
            "default-src 'none'",
            f"script-src 'self'{inline}" + (" 'unsafe-eval'" if loose else ""),
            f"style-src 'self'{inline or EMPTY_STYLE}",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            f"connect-src 'self' ws://{host} wss://{host}",
            "manifest-src 'self'",
            "worker-src 'self' blob:" if loose else "worker-src 'self'",
            "form-action 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        )
    )


class ContentSecurityPolicy:
    """Nothing inline runs and nothing comes from elsewhere, so that injected text stays text."""

    def __init__(self, get_response: Answer):
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        loose = request.path.startswith(LOOSE_PATHS)
        response.headers.setdefault("Content-Security-Policy", content_policy(request.get_host(), loose=loose))
        return response


class RefusalPages:
    """A refusal that a page view raises is that status's page; the API has its own answers."""

    def __init__(self, get_response: Answer):
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if isinstance(exception, Refusal) and not request.path.startswith("/api/"):
            return refusal_page(request, exception)
        return None
