"""Pages for what did not work: refused, not there, not allowed, our own fault. For the API: its own answers."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template import TemplateDoesNotExist
from django.utils.translation import gettext as _

from config.errors import not_found as api_not_found
from events.errors import Refusal


def error_page(request: HttpRequest, status: int, title: str, message: str, **context: Any) -> HttpResponse:
    """The page for ``status``, or for htmx a line of text that the browser shows as a notice."""
    if getattr(request, "htmx", False):
        response = HttpResponse(message, status=status, content_type="text/plain; charset=utf-8")
        response.headers["X-Refusal"] = "1"
        return response
    return render(
        request, "errors/error.html", {"status": status, "title": title, "message": message, **context}, status=status
    )


def refusal_page(request: HttpRequest, refusal: Refusal) -> HttpResponse:
    return error_page(request, refusal.status, _(refusal.title), refusal.message, faults=refusal.faults)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if request.path.startswith("/api/"):
        return api_not_found(request, exception)
    return error_page(request, 404, _("Not found"), _("There is no such page, or you may not see it."))


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return error_page(request, 403, _("Not allowed"), _("You may see this, but not do this."))


def stale_form(request: HttpRequest, reason: str = "") -> HttpResponse:
    """A form whose token does not match: most often a page that was open across a sign-in."""
    message = _("This page was open for too long, or you signed in anew meanwhile. Load it again and retry.")
    return error_page(request, 403, _("This form has expired"), message)


def server_error(request: HttpRequest) -> HttpResponse:
    """Our fault. Rendered with nothing that could fail again: no user, no database."""
    try:
        return render(None, "errors/500.html", status=500)
    except TemplateDoesNotExist:
        return HttpResponse("Something went wrong on our side.", status=500, content_type="text/plain")
