"""What a token must carry to read at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from tenants.models import ApiToken
from tenants.policy import has_scope

if TYPE_CHECKING:
    # Settings name this module: what it needs must be there before the views are.
    from rest_framework.views import APIView


class TokenReads(BasePermission):
    """Reading needs the scope ``read``; what writes asks the policy itself."""

    message = "This token lacks the scope 'read'."

    def has_permission(self, request: Request, view: APIView) -> bool:
        return request.method not in SAFE_METHODS or has_scope(request.user, ApiToken.Scope.READ)
