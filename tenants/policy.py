"""Who may see and do what: the one file that answers both.

Roles hold for a team and all teams below it. An operator may do everything, an auditor sees everything and changes
nothing. A token narrows its owner: by scope, and to one team's subtree where it names a team.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from django.db.models import Q

from events.errors import Forbidden, NotThere
from tenants.models import ApiToken, Membership, Team, User

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

Action = Literal[
    "team.see",
    "team.manage",
    "job.submit",
    "job.stop",
    "job.hold",
    "quota.edit",
    "fleet.operate",
    "token.issue",
]

RANK = {"": 0, Membership.Role.VIEWER: 1, Membership.Role.MEMBER: 2, Membership.Role.MANAGER: 3}
NEEDS: dict[Action, str] = {
    "team.see": Membership.Role.VIEWER,
    "team.manage": Membership.Role.MANAGER,
    "job.submit": Membership.Role.MEMBER,
    "job.stop": Membership.Role.MEMBER,
    "job.hold": Membership.Role.MEMBER,
}
SCOPE: dict[Action, str] = {
    "team.see": ApiToken.Scope.READ,
    "team.manage": ApiToken.Scope.MANAGE,
    "job.submit": ApiToken.Scope.SUBMIT,
    "job.stop": ApiToken.Scope.SUBMIT,
    "job.hold": ApiToken.Scope.SUBMIT,
    "quota.edit": ApiToken.Scope.MANAGE,
    "fleet.operate": ApiToken.Scope.OPERATE,
    "token.issue": ApiToken.Scope.MANAGE,
}


@dataclass(frozen=True)
class Verdict:
    """``allowed``, and if not, ``why`` in words for the person."""

    allowed: bool
    why: str = ""

    def __bool__(self) -> bool:
        return self.allowed


@dataclass(frozen=True)
class Tree:
    """The tree of teams as ids: parents and children."""

    parent: dict[int, int | None]
    children: dict[int | None, list[int]]

    def below(self, team_id: int) -> set[int]:
        """The team and all teams below it."""
        found: set[int] = set()
        waiting = [team_id]
        while waiting:
            current = waiting.pop()
            if current not in found:
                found.add(current)
                waiting.extend(self.children.get(current, ()))
        return found

    def line(self, team_id: int) -> list[int]:
        """The team, its parent, and so on up to the top."""
        line: list[int] = []
        current: int | None = team_id
        while current is not None and current not in line:
            line.append(current)
            current = self.parent.get(current)
        return line


def team_tree() -> Tree:
    parent: dict[int, int | None] = dict(Team.objects.order_by("id").values_list("id", "parent_id"))
    children: dict[int | None, list[int]] = defaultdict(list)
    for team_id, parent_id in parent.items():
        children[parent_id].append(team_id)
    return Tree(parent, dict(children))


def token_of(user: Any) -> ApiToken | None:
    """The token that ``user`` came with in this request, if it came with one."""
    return getattr(user, "token", None)


def sees_everything(user: User | AnonymousUser) -> bool:
    token = token_of(user)
    return bool(
        user.is_authenticated
        and user.is_active
        and (getattr(user, "is_operator", False) or getattr(user, "is_auditor", False))
        and (token is None or token.team_id is None)
    )


def roles(user: User | AnonymousUser, tree: Tree | None = None) -> dict[int, str]:
    """The user's role in every team where it has one, inherited ones included, narrowed by its token's team."""
    if not (user.is_authenticated and user.is_active):
        return {}
    tree = tree or team_tree()
    found: dict[int, str] = {}
    for team_id, role in Membership.objects.filter(user_id=user.pk).values_list("team_id", "role"):
        for below in tree.below(team_id):
            if RANK[role] > RANK[found.get(below, "")]:
                found[below] = role
    token = token_of(user)
    if token is not None and token.team_id is not None:
        inside = tree.below(token.team_id)
        found = {team_id: role for team_id, role in found.items() if team_id in inside}
        if user.is_operator or user.is_auditor:
            kept = Membership.Role.MANAGER if user.is_operator else Membership.Role.VIEWER
            found = {**dict.fromkeys(inside, kept), **(found if user.is_auditor and not user.is_operator else {})}
    return found


def visible_team_ids(user: User | AnonymousUser) -> set[int] | None:
    """Ids of the teams whose jobs, quotas and costs ``user`` may see; None: all."""
    if not has_scope(user, ApiToken.Scope.READ):
        return set()
    if sees_everything(user):
        return None
    return set(roles(user))


def visible(user: User | AnonymousUser, field: str = "team_id") -> Q:
    """The filter that leaves only rows of teams that ``user`` may see; ``field`` is the way to the team's id."""
    ids = visible_team_ids(user)
    if ids is None:
        return Q()
    return Q(**{f"{field}__in": ids}) if ids else Q(pk__in=[])


def has_scope(user: Any, scope: str) -> bool:
    token = token_of(user)
    return token is None or scope in token.scopes


def may(
    user: User | AnonymousUser,
    action: Action,
    team_id: int | None = None,
    *,
    known: tuple[Tree, dict[int, str]] | None = None,
) -> Verdict:
    """Whether ``user`` may do ``action`` (to ``team_id``'s things, where it is about a team).

    ``known``: the tree and the user's roles, for a caller that has just read them.
    """
    if not (user.is_authenticated and user.is_active):
        return Verdict(False, "You are not signed in.")
    scope = SCOPE[action]
    if not has_scope(user, scope):
        return Verdict(False, f"This token lacks the scope '{scope}'.")
    token = token_of(user)
    if user.is_operator and (token is None or token.team_id is None):
        return Verdict(True)
    if action in ("fleet.operate", "quota.edit") and (team_id is None or action == "fleet.operate"):
        return Verdict(False, "Only an operator may do this.")
    if team_id is None:
        return Verdict(action == "token.issue", "" if action == "token.issue" else "This needs a team.")
    tree, own = known or (team_tree(), None)
    own = roles(user, tree) if own is None else own
    if action == "quota.edit":
        # A manager hands out within its own team: the quota of a team below one that it manages, never its own.
        parent = tree.parent.get(team_id)
        allowed = parent is not None and own.get(parent) == Membership.Role.MANAGER
        return Verdict(allowed, "" if allowed else "Only a manager of the team above, or an operator, sets a quota.")
    if action == "team.see" and sees_everything(user):
        return Verdict(True)
    needed = NEEDS.get(action, Membership.Role.MANAGER)
    if RANK[own.get(team_id, "")] >= RANK[needed]:
        return Verdict(True)
    return Verdict(False, f"This needs the role {needed} in the team; you have {own.get(team_id) or 'none'}.")


def require(user: User | AnonymousUser, action: Action, team_id: int | None = None, *, what: str = "team") -> None:
    """Returns when ``user`` may; else raises NotThere where it may not even see the team, Forbidden where it may."""
    verdict = may(user, action, team_id)
    if verdict:
        return
    if team_id is not None and not may(user, "team.see", team_id):
        raise NotThere(f"There is no such {what}, or you may not see it.")
    raise Forbidden(verdict.why)


def top_teams(user: User | AnonymousUser) -> list[Team]:
    """The living teams that the user may see and whose parent it may not: all that it sees is at or below these."""
    teams = list(Team.objects.filter(visible(user, "pk"), deleted_at__isnull=True).order_by("slug"))
    seen = {team.pk for team in teams}
    return [team for team in teams if team.parent_id not in seen]
