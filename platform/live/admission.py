"""Who may open a socket, before it is accepted: an allowed origin with a session, or a token of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from channels.security.websocket import OriginValidator
from channels.sessions import CookieMiddleware
from django.conf import settings

from live.access import Credentials

# An ASGI application; Channels' own types do not know what is put into a scope on the way.
Application = Callable[..., Any]

# A token is some 50 characters; a header that is far longer is no token.
LONGEST_TOKEN = 512


class Admission:
    """Puts ``scope["credentials"]``. A browser must come from one of our hosts, because it sends its cookie by itself
    wherever it stands; a token is sent by nobody unawares, so scripts need no origin. What a token asks counts as the
    token's only, even where a cookie comes with it."""

    def __init__(self, inner: Application):
        self._inner = inner
        # Origins name IPv6 hosts without the brackets that ALLOWED_HOSTS has around them.
        hosts = [host.strip("[]") for host in settings.ALLOWED_HOSTS]
        self._browser = OriginValidator(CookieMiddleware(self._with_session), hosts)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        secret = bearer_token(scope)
        if secret is None:
            return await self._browser(scope, receive, send)  # type: ignore[arg-type]
        return await self._inner({**scope, "credentials": Credentials(token=secret)}, receive, send)

    async def _with_session(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        key = scope["cookies"].get(settings.SESSION_COOKIE_NAME, "")
        return await self._inner({**scope, "credentials": Credentials(session_key=key)}, receive, send)


def bearer_token(scope: dict[str, Any]) -> str | None:
    """The secret in ``Authorization: Bearer …``; empty where it cannot be one, None where there is no such header."""
    for name, value in scope.get("headers", ()):
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            secret = value[7:].strip().decode("latin-1")
            return secret if len(secret) <= LONGEST_TOKEN else ""
    return None
