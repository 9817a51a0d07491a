"""``GET /healthz``: whether this installation is ready to take work."""

from __future__ import annotations

from django.db import DatabaseError
from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from scheduling.services.lease import leader_seen


@require_safe
@never_cache
def healthz(request: HttpRequest) -> JsonResponse:
    """200 when the database answers and a scheduler leads; 503 with what is missing otherwise. Tells no secrets."""
    try:
        leads = leader_seen(timezone.now())
    except DatabaseError:
        return JsonResponse({"ready": False, "database": False, "scheduler": False}, status=503)
    return JsonResponse({"ready": leads, "database": True, "scheduler": leads}, status=200 if leads else 503)
