"""What every page starts from: a signed-in person, an authorised object or "not there", and one view in two sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Max
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_cache_control, patch_vary_headers

from events.errors import NotThere
from events.models import Event
from tenants.models import Team, User
from tenants.policy import may, sees_everything

View = Callable[..., HttpResponse]


class SignedIn(HttpRequest):
    """What a page's view is given: someone is signed in, and ``live_seq`` is where the page's socket resumes."""

    user: User
    live_seq: int
    htmx: Any  # of django_htmx: true where htmx asks


def page(view: View) -> View:
    """The view is for people who are signed in. ``request.live_seq`` is the last event before the view's own queries,
    so that the page's socket resumes without a gap; what it shows is kept in no cache."""

    @wraps(view)
    def guarded(request: SignedIn, *args: Any, **kwargs: Any) -> HttpResponse:
        request.live_seq = Event.objects.aggregate(last=Max("seq"))["last"] or 0
        response = view(request, *args, **kwargs)
        patch_cache_control(response, private=True, no_store=True)
        patch_vary_headers(response, ["HX-Request"])
        return response

    return login_required(guarded)


def operators_page(view: View) -> View:
    """A page that exists for operators and auditors only."""

    @wraps(view)
    def guarded(request: SignedIn, *args: Any, **kwargs: Any) -> HttpResponse:
        if not sees_everything(request.user):
            raise NotThere("There is no such page, or you may not see it.")
        return view(request, *args, **kwargs)

    return page(guarded)


def visible_team(request: SignedIn, slug: str) -> Team:
    """The living team with this slug that the viewer may see; else NotThere, whether or not there is one."""
    team = Team.objects.filter(slug=slug, deleted_at__isnull=True).select_related("parent").first()
    if team is None or not may(request.user, "team.see", team.pk):
        raise NotThere("There is no such team, or you may not see it.")
    return team


def show(
    request: SignedIn,
    template: str,
    context: Mapping[str, Any],
    parts: Mapping[str, str] | None = None,
    *,
    status: int = 200,
) -> HttpResponse:
    """The whole page, or the part of it that htmx asks for by name (``?part=``)."""
    part = (parts or {}).get(request.GET.get("part", ""))
    htmx = getattr(request, "htmx", False)
    return render(request, part if htmx and part else template, dict(context), status=status)
