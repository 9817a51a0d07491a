"""Teams, tokens and roles as those who ask may see them."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from events.errors import Fault, NotThere
from tenants.models import ApiToken, Team, User
from tenants.policy import NEEDS, RANK, SCOPE, Action, has_scope, roles, team_tree, token_of, visible


def visible_teams(user: Any) -> QuerySet[Team]:
    """The teams that ``user`` may see and that are not deleted."""
    return Team.objects.filter(visible(user, "pk"), deleted_at__isnull=True).select_related("parent")


def team_named(user: Any, slug: str, field: str = "team") -> Team:
    """The team with this slug. Raises NotThere, naming ``field`` and the slugs that could be meant."""
    found = visible_teams(user).filter(slug=slug).first()
    if found is None:
        allowed = list(visible_teams(user).order_by("slug").values_list("slug", flat=True)[:100])
        message = "there is no such team, or you may not see it"
        raise NotThere(message, faults=[Fault(field, message, "unknown", slug, allowed)])
    return found


def teams_where(user: Any, action: Action) -> set[int] | None:
    """Ids of the teams to whose things ``user`` may do ``action``, one that a role allows; None: all."""
    if not (user.is_authenticated and user.is_active and has_scope(user, SCOPE[action])):
        return set()
    token = token_of(user)
    if user.is_operator and (token is None or token.team_id is None):
        return None
    return {team_id for team_id, role in roles(user).items() if RANK[role] >= RANK[NEEDS[action]]}


def own_tokens(user: User) -> QuerySet[ApiToken]:
    """The user's tokens; through a token that is bound to a team, only those bound inside it."""
    tokens = ApiToken.objects.filter(user_id=user.pk).select_related("team")
    token = token_of(user)
    return (
        tokens if token is None or token.team_id is None else tokens.filter(team__in=team_tree().below(token.team_id))
    )
