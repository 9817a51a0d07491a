"""Who a socket speaks for, and what that person may see at this moment. Only reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.utils.crypto import constant_time_compare

from tenants.authentication import live_token
from tenants.models import ApiToken, User
from tenants.policy import has_scope, visible_team_ids


@dataclass(frozen=True, slots=True)
class Credentials:
    """What came with the handshake: a session's key or a token's secret."""

    session_key: str = ""
    token: str = ""


@dataclass(frozen=True, slots=True)
class Access:
    """What may be heard: teams by id; None: all."""

    user_id: int
    visible: frozenset[int] | None

    def sees(self, team_id: int | None) -> bool:
        """Whether this is for these eyes; what belongs to no team is the fleet's, which everyone here may see."""
        return team_id is None or self.visible is None or team_id in self.visible


def read_accesses(credentials: Iterable[Credentials]) -> dict[Credentials, Access]:
    """The access of each as it is at this moment; those that are not good (any more) are left out."""
    found: dict[Credentials, Access] = {}
    seen: dict[tuple[int, int | None], Access] = {}
    for each in dict.fromkeys(credentials):
        user = _token_user(each.token) if each.token else _session_user(each.session_key)
        if user is None:
            continue
        token: ApiToken | None = getattr(user, "token", None)
        key = (user.pk, None if token is None else token.pk)
        if key not in seen:
            ids = visible_team_ids(user)
            seen[key] = Access(user.pk, None if ids is None else frozenset(ids))
        found[each] = seen[key]
    return found


def _token_user(secret: str) -> User | None:
    token = live_token(secret)
    if token is None:
        return None
    user = token.user
    user.token = token  # type: ignore[attr-defined]
    return user if has_scope(user, ApiToken.Scope.READ) else None


def _session_user(session_key: str) -> User | None:
    """The active user whose session this is; None where it ended, ran out, or the password was changed since.

    What Django's middleware does for a request, but without its writes (it would also flush a session that is stale).
    """
    if not session_key:
        return None
    session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user_id, backend = session.get(SESSION_KEY), session.get(BACKEND_SESSION_KEY)
    if user_id is None or backend not in settings.AUTHENTICATION_BACKENDS:
        return None
    user = User.objects.filter(pk=user_id, is_active=True).first()
    if user is None:
        return None
    told = session.get(HASH_SESSION_KEY) or ""
    good = (user.get_session_auth_hash(), *user.get_session_auth_fallback_hash())
    return user if any(constant_time_compare(told, each) for each in good) else None
