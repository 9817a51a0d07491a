"""The one door for writes to users, teams, memberships and tokens."""

from __future__ import annotations

import hashlib
import re
import secrets
import unicodedata
from collections.abc import Iterable
from datetime import datetime

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection

from events.errors import Conflict, Invalid
from events.services import require_aware, unit_of_work
from tenants.models import SLUG, ApiToken, Membership, Team, User, name_key

TEAM_TREE_LOCK = 0x414C4C02
TOKEN_PREFIX = "alt_"  # noqa: S105
# Embeddings, overrides and isolates: with them a name can show as another, and reach into the text around it.
TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
UNSEEN = frozenset("\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\u2064\ufeff")


def checked_name(name: object, field: str = "name", longest: int = 200) -> str:
    """``name`` stripped and normalised (NFC), 1 to ``longest`` characters on one line of which some can be seen and
    none turns the direction of what stands beside it; else Invalid."""
    if not isinstance(name, str):
        raise Invalid.at(field, f"must be a text of 1 to {longest} characters", value=name)
    text = unicodedata.normalize("NFC", name.strip())
    if not text or len(text) > longest:
        raise Invalid.at(field, f"must have 1 to {longest} characters, has {len(text)}", value=name)
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in text):
        raise Invalid.at(field, "must not contain control characters", value=name)
    if any(character in TURNING for character in text):
        raise Invalid.at(field, "must not contain characters that turn the direction of text", value=repr(name)[:200])
    if all(character in UNSEEN or character.isspace() for character in text):
        raise Invalid.at(field, "must have at least one character that can be seen", value=repr(name)[:200])
    return text


def slug_from(name: str, taken: Iterable[str]) -> str:
    """A slug for ``name`` that is not in ``taken``: its ASCII letters and digits, or ``team``, numbered if needed."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    stem = re.sub(r"[^a-z0-9]+", "-", ascii_name).strip("-")[:50] or "team"
    used = set(taken)
    slug, number = stem, 2
    while slug in used:
        slug, number = f"{stem}-{number}", number + 1
    return slug


def create_user(
    username: str,
    now: datetime,
    *,
    password: str | None = None,
    email: str = "",
    is_operator: bool = False,
    is_auditor: bool = False,
    actor_id: int | None = None,
) -> User:
    """A new user; an operator may also enter the admin console. Conflict if a name that means the same is taken."""
    username = checked_name(username, "username", 150)
    user = User(username=username, email=email, is_operator=is_operator, is_auditor=is_auditor, is_staff=is_operator)
    user.is_superuser = is_operator
    if password is not None:
        try:
            validate_password(password, user)
        except ValidationError as error:
            raise Invalid.at("password", " ".join(error.messages)) from None
        user.set_password(password)
    else:
        user.set_unusable_password()
    try:
        with unit_of_work() as journal:
            user.save()
            journal.record("user.created", now, actor_id=actor_id, user_id=user.pk)
    except IntegrityError:
        raise Conflict(f"There is already a user whose name reads like '{username}'.", code="name_taken") from None
    return user


def deactivate_user(user: User, now: datetime, *, actor_id: int | None = None) -> None:
    """The user can do nothing from now on: sessions, tokens and sockets of theirs end at their next check."""
    with unit_of_work() as journal:
        User.objects.filter(pk=user.pk).update(is_active=False)
        journal.record("user.deactivated", now, actor_id=actor_id, user_id=user.pk)
    user.is_active = False


def record_sign_out(user: User, session_key: str | None, now: datetime) -> None:
    """Tells every process that this browser session ended, so that its sockets close. Keeps a digest of the key."""
    with unit_of_work() as journal:
        journal.record(
            "session.ended", now, actor_id=user.pk, user_id=user.pk, session=session_digest(session_key or "")
        )


def session_digest(session_key: str) -> str:
    return hashlib.sha256(session_key.encode()).hexdigest()[:32]


def lock_team_tree() -> None:
    """Only one transaction at a time changes the shape of the tree. (SQLite has one writer anyway.)"""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [TEAM_TREE_LOCK])


def hold_team_tree() -> None:
    """Until this transaction ends no team is made, moved, closed or deleted; others may hold the tree too."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [TEAM_TREE_LOCK])


def create_team(
    name: str, now: datetime, *, parent: Team | None = None, slug: str | None = None, actor_id: int | None = None
) -> Team:
    """A new team under ``parent``. Conflict if a living team has a name that reads the same, or the slug."""
    name = checked_name(name)
    require_aware(now)
    with unit_of_work() as journal:
        lock_team_tree()
        living = Team.objects.exclude(state=Team.State.DELETED)
        if living.filter(name_key=name_key(name)).exists():
            raise Conflict(f"There is already a team whose name reads like '{name}'.", code="name_taken")
        if slug is None:
            slug = slug_from(name, living.values_list("slug", flat=True))
        elif not re.match(SLUG.regex, slug):
            raise Invalid.at("slug", str(SLUG.message), value=slug)
        elif living.filter(slug=slug).exists():
            raise Conflict(f"There is already a team '{slug}'.", code="slug_taken")
        _check_parent(parent)
        team = Team(name=name, name_key=name_key(name), slug=slug, parent=parent, created_at=now)
        team.save()
        journal.record("team.created", now, team_id=team.pk, actor_id=actor_id, slug=slug, name=name)
    return team


def _check_parent(parent: Team | None) -> None:
    """Returns where the team may have sub-teams, by its row now; call it with the tree locked."""
    if parent is None:
        return
    state = Team.objects.values_list("state", flat=True).get(pk=parent.pk)
    if state != Team.State.ACTIVE:
        raise Invalid.at("parent", f"the team '{parent.slug}' is {state}", value=parent.slug)


def move_team(team: Team, parent: Team | None, now: datetime, *, actor_id: int | None = None) -> None:
    """The team and all below it hang under ``parent``. Invalid if that would make it its own ancestor."""
    with unit_of_work() as journal:
        lock_team_tree()
        _check_parent(parent)
        above = parent
        while above is not None:
            if above.pk == team.pk:
                raise Invalid.at("parent", f"'{team.slug}' would be its own ancestor", value=parent and parent.slug)
            above = Team.objects.filter(pk=above.parent_id).first() if above.parent_id else None
        before = team.parent_id
        Team.objects.filter(pk=team.pk).update(parent=parent)
        team.parent = parent
        journal.record("team.moved", now, team_id=team.pk, actor_id=actor_id, before=before, after=parent and parent.pk)


def retire_team(team: Team, now: datetime, *, actor_id: int | None = None) -> None:
    """The team is deleted: its row and history stay, its slug and name are free. Conflict while it has sub-teams.

    Whether it may go (its jobs, its quotas) is for ``scheduling.services.teams.delete_team``, which calls this.
    """
    with unit_of_work() as journal:
        lock_team_tree()
        row = Team.objects.get(pk=team.pk)
        if row.state == Team.State.DELETED:
            raise Conflict(f"The team '{row.slug}' is deleted already.", code="team_deleted")
        below = list(Team.objects.filter(parent=row, deleted_at=None).order_by("id").values_list("slug", flat=True))
        if below:
            names = ", ".join(below)
            raise Conflict(f"The team '{row.slug}' still has teams below it: {names}.", code="team_has_teams")
        Team.objects.filter(pk=row.pk).update(state=Team.State.DELETED, deleted_at=require_aware(now))
        journal.record("team.deleted", now, team_id=row.pk, actor_id=actor_id, slug=row.slug)
    team.refresh_from_db()


def set_membership(user: User, team: Team, role: str, now: datetime, *, actor_id: int | None = None) -> Membership:
    """The user has exactly this role in the team."""
    if role not in Membership.Role.values:
        raise Invalid.at("role", "is not a role", value=role, allowed=Membership.Role.values)
    with unit_of_work() as journal:
        membership, _ = Membership.objects.update_or_create(
            user=user, team=team, defaults={"role": role}, create_defaults={"role": role, "created_at": now}
        )
        journal.record("member.set", now, team_id=team.pk, actor_id=actor_id, user_id=user.pk, role=role)
    return membership


def remove_membership(user: User, team: Team, now: datetime, *, actor_id: int | None = None) -> None:
    """The user has no role of its own in the team any more; nothing happens if it had none."""
    with unit_of_work() as journal:
        gone, _ = Membership.objects.filter(user=user, team=team).delete()
        if gone:
            journal.record("member.removed", now, team_id=team.pk, actor_id=actor_id, user_id=user.pk)


def issue_token(
    user: User,
    name: str,
    now: datetime,
    *,
    scopes: Iterable[str] = (ApiToken.Scope.READ, ApiToken.Scope.SUBMIT),
    team: Team | None = None,
    expires_at: datetime | None = None,
    actor_id: int | None = None,
) -> tuple[ApiToken, str]:
    """A new token and its secret, which is nowhere else and cannot be shown again."""
    name = checked_name(name, "name", 120)
    chosen = sorted(set(scopes))
    unknown = [scope for scope in chosen if scope not in ApiToken.Scope.values]
    if unknown or not chosen:
        raise Invalid.at("scopes", "must name at least one scope", value=unknown or [], allowed=ApiToken.Scope.values)
    if expires_at is not None and require_aware(expires_at) <= now:
        raise Invalid.at("expires_at", "must lie in the future", value=expires_at.isoformat())
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    with unit_of_work() as journal:
        token = ApiToken(
            user=user,
            name=name,
            digest=hashlib.sha256(secret.encode()).hexdigest(),
            hint=secret[:8],
            scopes=chosen,
            team=team,
            created_at=require_aware(now),
            expires_at=expires_at,
        )
        token.save()
        journal.record("token.issued", now, actor_id=actor_id or user.pk, user_id=user.pk, token_id=token.pk)
    return token, secret


def revoke_token(token: ApiToken, now: datetime, *, actor_id: int | None = None) -> None:
    """The token is good for nothing from now on; revoking twice keeps the first time."""
    with unit_of_work() as journal:
        if ApiToken.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=now):
            journal.record("token.revoked", now, actor_id=actor_id, user_id=token.user_id, token_id=token.pk)


def note_token_use(token: ApiToken, now: datetime) -> None:
    """Keeps when the token was last good for something, to the minute."""
    ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
