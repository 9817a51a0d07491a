"""What every template may use."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from config.views.quotas import tree_rows
from tenants.models import Team
from tenants.policy import sees_everything, visible

MOST_IN_NAVIGATION = 40


def product(request: HttpRequest) -> dict[str, object]:
    user = getattr(request, "user", None)

    def teams() -> list[Any]:
        if user is None or not user.is_authenticated:
            return []
        seen = Team.objects.filter(visible(user, "pk"), deleted_at__isnull=True)
        return tree_rows(list(seen.order_by("name_key", "pk")[:MOST_IN_NAVIGATION]))

    return {
        "currency": settings.BILLING_CURRENCY,
        "languages": settings.LANGUAGES,
        "nav_teams": SimpleLazyObject(teams),
        "sees_fleet": SimpleLazyObject(lambda: bool(user is not None and sees_everything(user))),
        "live_seq": getattr(request, "live_seq", None),
    }
