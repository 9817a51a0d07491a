"""Who is asking: a browser session, or a token in ``Authorization: Bearer …``."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone
from rest_framework import authentication, exceptions

from tenants import services
from tenants.models import ApiToken, User, name_key

LAST_USE_PRECISION = timedelta(minutes=1)


class NamedUserBackend(ModelBackend):
    """Signs in by any spelling of the user's name that means the same."""

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **kwargs: Any
    ) -> User | None:
        if username is None or password is None or len(username) > 300 or len(password) > 4096:
            return None
        user = User.objects.filter(username_key=name_key(username)).first()
        if user is None:
            User().set_password(password)  # the same work as for a known name, so that time does not tell
            return None
        return user if user.check_password(password) and self.user_can_authenticate(user) else None


def token_digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def live_token(secret: str) -> ApiToken | None:
    """The token with this secret, if it and its owner are good at this moment."""
    now = timezone.now()
    return (
        ApiToken.objects.select_related("user")
        .filter(digest=token_digest(secret), revoked_at__isnull=True, user__is_active=True)
        .filter(Q(expires_at__isnull=True) | Q(expires_at__gt=now))
        .first()
    )


class TokenAuthentication(authentication.BaseAuthentication):
    """The owner of a good token, with ``user.token`` set; a bad one is an error, never an anonymous request."""

    def authenticate(self, request: Any) -> tuple[User, ApiToken] | None:
        header = authentication.get_authorization_header(request).decode("latin-1").split()
        if not header or header[0].lower() != "bearer":
            return None
        token = live_token(header[1]) if len(header) == 2 else None
        if token is None:
            raise exceptions.AuthenticationFailed("The token is unknown, expired or revoked.", code="bad_token")
        user = token.user
        user.token = token  # type: ignore[attr-defined]
        now = timezone.now()
        if token.last_used_at is None or now - token.last_used_at > LAST_USE_PRECISION:
            services.note_token_use(token, now)
        return user, token

    def authenticate_header(self, request: Any) -> str:
        return 'Bearer realm="Allotment"'


class BrowserSession(authentication.SessionAuthentication):
    """The signed-in browser, with Django's CSRF check on everything that writes."""
