"""Teams and tokens as they are answered by REST."""

from __future__ import annotations

from rest_framework import serializers

from tenants.models import ApiToken, Team
from wire.fields import Moment


class TokenSerializer(serializers.ModelSerializer):
    """A token without its secret."""

    team = serializers.CharField(source="team.slug", allow_null=True, default=None)
    scopes = serializers.ListField(child=serializers.ChoiceField(ApiToken.Scope.choices))
    created_at = Moment()
    expires_at = Moment(allow_null=True)
    last_used_at = Moment(allow_null=True)
    revoked_at = Moment(allow_null=True)

    class Meta:
        model = ApiToken
        fields: tuple[str, ...] = (
            *("id", "name", "hint", "scopes", "team", "created_at", "expires_at", "last_used_at", "revoked_at"),
        )


class TeamSerializer(serializers.ModelSerializer):
    """A team. ``context["seen"]``: ids of the teams that the viewer may see, None for all."""

    parent = serializers.SerializerMethodField(  # type: ignore[assignment]
        help_text="null at the top, and where one may not see it"
    )
    created_at = Moment()

    def get_parent(self, team: Team) -> str | None:
        seen = self.context["seen"]
        return team.parent.slug if team.parent is not None and (seen is None or team.parent_id in seen) else None

    class Meta:
        model = Team
        fields: tuple[str, ...] = ("id", "slug", "name", "parent", "state", "color", "created_at")
