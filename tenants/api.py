"""REST: who is asking, and tokens."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from events.errors import Fault, Forbidden, NotThere
from tenants import services
from tenants.answers import TeamSerializer, TokenSerializer
from tenants.models import ApiToken, Membership, Team
from tenants.policy import require, roles, team_tree, token_of, visible_team_ids
from tenants.selectors import own_tokens, team_named, visible_teams
from wire.fields import MAX_ID, Choices, Name, Text, Whole
from wire.pages import Listing, PageQuery, page_answer, paged
from wire.strict import Strict
from wire.views import ApiView

TOKENS = Listing[ApiToken]({"created_at": "created_at"}, default="-created_at")
MAX_DAYS = 3650


class NewTokenSerializer(TokenSerializer):
    """A token that was just made. ``secret`` is shown here and never again."""

    secret = serializers.CharField()

    class Meta(TokenSerializer.Meta):
        fields = (*TokenSerializer.Meta.fields, "secret")


class TokenRequest(Strict):
    """A token to be made. ``days``: how long it is good; left out, as long as the token that asks, or for good."""

    name = Name(max_length=120)
    scopes = Choices(ApiToken.Scope.choices, required=False, help_text="read and submit, where nothing is said")
    team = Text(required=False, max_length=63, help_text="narrows it to this team and those below it")
    days = Whole(min_value=1, max_value=MAX_DAYS, required=False)


class MyTeamSerializer(serializers.Serializer):
    """A team in which one has a role."""

    team = serializers.CharField()
    role = serializers.ChoiceField(Membership.Role.choices)


class MeSerializer(serializers.Serializer):
    """Who is asking, with every role, inherited ones included, as far as this token goes."""

    id = serializers.IntegerField()
    username = serializers.CharField()
    is_operator = serializers.BooleanField()
    is_auditor = serializers.BooleanField()
    time_zone = serializers.CharField()
    language = serializers.CharField()
    teams = MyTeamSerializer(many=True)
    token = TokenSerializer(allow_null=True)


class Me(ApiView):
    permission_classes = (IsAuthenticated,)

    @extend_schema(operation_id="me", responses=MeSerializer)
    def get(self, request: Request) -> Response:
        """Who is asking."""
        user: Any = request.user
        own = roles(user)
        slugs = Team.objects.filter(pk__in=own, deleted_at__isnull=True).order_by("slug").values_list("pk", "slug")
        user.teams = [{"team": slug, "role": own[team_id]} for team_id, slug in slugs]
        user.token = token_of(user)
        return Response(MeSerializer(user).data)


class Tokens(ApiView):
    queries = {"GET": PageQuery}

    @extend_schema(operation_id="tokens", parameters=[PageQuery], responses=paged(TokenSerializer))
    def get(self, request: Request) -> Response:
        """One's own tokens, the newest first."""
        rows, following = TOKENS.page(own_tokens(request.user), request, self.query)  # type: ignore[arg-type]
        return page_answer(TokenSerializer(rows, many=True).data, following)

    @extend_schema(operation_id="create_token", request=TokenRequest, responses={201: NewTokenSerializer})
    def post(self, request: Request) -> Response:
        """A new token. One that is made with a token never may more, nor lives longer, than that one."""
        user: Any = request.user
        require(user, "token.issue")
        asked = TokenRequest.read_body(self.body())
        team = team_named(user, asked["team"]) if "team" in asked else None
        expires_at = self.now + timedelta(days=asked["days"]) if "days" in asked else None
        scopes = asked.get("scopes")
        maker = token_of(user)
        if maker is not None:
            scopes = scopes or [
                scope for scope in (ApiToken.Scope.READ, ApiToken.Scope.SUBMIT) if scope in maker.scopes
            ]
            expires_at = expires_at or maker.expires_at
            team = team or maker.team
            _refuse_stronger(maker, scopes, expires_at, team)
        options = {"scopes": scopes} if scopes else {}
        token, secret = services.issue_token(
            user, asked["name"], self.now, team=team, expires_at=expires_at, actor_id=user.pk, **options
        )
        token.secret = secret  # type: ignore[attr-defined]
        return Response(NewTokenSerializer(token).data, status=201)


def _refuse_stronger(maker: ApiToken, scopes: Any, expires_at: Any, team: Team | None) -> None:
    """Raises Forbidden where a token with these would be good for more than ``maker``."""
    faults = []
    more = [scope for scope in scopes if scope not in maker.scopes]
    if more:
        faults.append(Fault("scopes", "this token cannot give what it lacks", "stronger", more, maker.scopes))
    if maker.expires_at is not None and (expires_at is None or expires_at > maker.expires_at):
        faults.append(Fault("days", f"this token ends at {maker.expires_at.isoformat()}, its own may not live longer"))
    if maker.team_id is not None and (team is None or team.pk not in team_tree().below(maker.team_id)):
        faults.append(Fault("team", "is outside the team that this token is bound to", "stronger", team and team.slug))
    if faults:
        message = "; ".join(f"{fault.field}: {fault.message}" for fault in faults)
        raise Forbidden(message, code="stronger_token", faults=faults)


class OneToken(ApiView):
    @extend_schema(operation_id="token", responses=TokenSerializer)
    def get(self, request: Request, token_id: int) -> Response:
        """One of one's own tokens."""
        return Response(TokenSerializer(_own_token(request, token_id)).data)

    @extend_schema(operation_id="revoke_token", responses={204: None})
    def delete(self, request: Request, token_id: int) -> Response:
        """The token is good for nothing from now on. A token may always revoke itself."""
        token = _own_token(request, token_id)
        maker = token_of(request.user)
        if maker is None or maker.pk != token.pk:
            require(request.user, "token.issue")
        services.revoke_token(token, self.now, actor_id=request.user.pk)
        return Response(status=204)


def _own_token(request: Request, token_id: int) -> ApiToken:
    own = own_tokens(request.user)  # type: ignore[arg-type]
    found = own.filter(pk=token_id).first() if token_id <= MAX_ID else None
    if found is None:
        raise NotThere("There is no such token, or you may not see it.")
    return found


class Teams(ApiView):
    queries = {"GET": PageQuery}

    @extend_schema(operation_id="teams", parameters=[PageQuery], responses=paged(TeamSerializer))
    def get(self, request: Request) -> Response:
        """The teams that one may see."""
        listing = Listing[Team]({"slug": "slug"}, default="slug")
        rows, following = listing.page(visible_teams(request.user), request, self.query)
        context = {"seen": visible_team_ids(request.user)}
        return page_answer(TeamSerializer(rows, many=True, context=context).data, following)
