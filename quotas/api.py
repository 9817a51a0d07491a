"""REST: quotas, to read and to set."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from events.errors import Invalid, NotThere
from inventory.models import Pool
from inventory.selectors import pool_named
from quotas.models import Quota
from quotas.services import LARGEST, remove_quota, set_quota
from tenants.models import Team
from tenants.policy import require, visible, visible_team_ids
from tenants.selectors import team_named
from wire.fields import Flag, Moment, Quantity, Text, Whole
from wire.pages import Listing, PageQuery, page_answer, paged
from wire.strict import Strict
from wire.views import ApiView

QUOTAS = Listing[Quota]({"id": "id"}, default="id")
# What a standing quota is where a field is not named.
UNSET: dict[str, int | None] = {
    **dict.fromkeys(("guaranteed", "limit", "per_user_limit", "memory_limit_mib")),
    "weight": 1,
    "reserved": 0,
}


class QuotaSerializer(serializers.ModelSerializer):
    """A team's claim in a pool, in the pool's ``unit``; ``memory_limit_mib`` is what its jobs may hold of GPU memory.
    null is "not set", 0 is 0. Temporary ones: [from, until)."""

    team = serializers.CharField(source="team.slug")
    pool = serializers.CharField(source="pool.name")
    unit = serializers.ChoiceField(Pool.Unit.choices, source="pool.unit")
    guaranteed = Quantity(allow_null=True)
    limit = Quantity(allow_null=True)
    reserved = Quantity()
    per_user_limit = Quantity(allow_null=True)
    valid_from = Moment(allow_null=True)
    valid_until = Moment(allow_null=True)
    updated_at = Moment()

    class Meta:
        model = Quota
        fields: tuple[str, ...] = (
            *("id", "team", "pool", "unit", "guaranteed", "limit", "weight", "reserved", "per_user_limit"),
            *("memory_limit_mib", "valid_from", "valid_until", "updated_at"),
        )


class SetQuotaSerializer(QuotaSerializer):
    """The quota as it is now, and what the one who set it should know."""

    warnings = serializers.ListField(child=serializers.CharField())

    class Meta(QuotaSerializer.Meta):
        fields = (*QuotaSerializer.Meta.fields, "warnings")


class QuotaRequest(Strict):
    """A quota to be set, in GPUs (cores in a CPU pool)."""

    guaranteed = Quantity(required=False, allow_null=True)
    limit = Quantity(required=False, allow_null=True)
    weight = Whole(required=False, min_value=0, max_value=1_000_000_000)
    reserved = Quantity(required=False)
    per_user_limit = Quantity(required=False, allow_null=True)
    memory_limit_mib = Whole(required=False, allow_null=True, min_value=0, max_value=LARGEST)
    valid_from = Moment(required=False, allow_null=True)
    valid_until = Moment(required=False, allow_null=True)
    override_capacity = Flag(required=False, help_text="operators only: more may be guaranteed than the pool has")


class QuotaQuery(PageQuery):
    team = Text(required=False, max_length=63)
    pool = Text(required=False, max_length=63)


class Quotas(ApiView):
    queries = {"GET": QuotaQuery}

    @extend_schema(operation_id="quotas", parameters=[QuotaQuery], responses=paged(QuotaSerializer))
    def get(self, request: Request) -> Response:
        """Quotas of the teams that one may see, temporary ones too."""
        quotas = Quota.objects.filter(visible(request.user)).select_related("team", "pool")
        if "team" in self.query:
            quotas = quotas.filter(team=team_named(request.user, self.query["team"]))
        if "pool" in self.query:
            quotas = quotas.filter(pool=pool_named(self.query["pool"]))
        rows, following = QUOTAS.page(quotas, request, self.query)
        return page_answer(QuotaSerializer(rows, many=True).data, following)


class OneQuota(ApiView):
    """The standing quota of a team in a pool; with valid_from or valid_until, a temporary one beside it."""

    @extend_schema(operation_id="quota", responses=QuotaSerializer)
    def get(self, request: Request, pool: str, team: str) -> Response:
        """The standing quota."""
        found_team, found_pool = team_named(request.user, team), pool_named(pool)
        return Response(QuotaSerializer(_standing(found_team, found_pool)).data)

    @extend_schema(operation_id="set_quota", request=QuotaRequest, responses=SetQuotaSerializer)
    def put(self, request: Request, pool: str, team: str) -> Response:
        """The quota is as given; what is not named is not set."""
        return self._set(request, pool, team, UNSET)

    @extend_schema(operation_id="change_quota", request=QuotaRequest, responses=SetQuotaSerializer)
    def patch(self, request: Request, pool: str, team: str) -> Response:
        """What is named is as given; the rest stays."""
        return self._set(request, pool, team, {})

    @extend_schema(operation_id="remove_quota", responses={204: None})
    def delete(self, request: Request, pool: str, team: str) -> Response:
        """The team has no standing quota in the pool; what it holds stays counted."""
        found_team, found_pool = _editable(request, team, pool)
        _standing(found_team, found_pool)
        remove_quota(found_team, found_pool, self.now, actor_id=request.user.pk)
        return Response(status=204)

    def _set(self, request: Request, pool: str, team: str, unset: dict[str, int | None]) -> Response:
        found_team, found_pool = _editable(request, team, pool)
        asked: dict[str, Any] = QuotaRequest.read_body(self.body())
        span: dict[str, datetime | None] = {name: asked.pop(name, None) for name in ("valid_from", "valid_until")}
        override = asked.pop("override_capacity", False)
        if override:
            require(request.user, "fleet.operate")
        try:
            change = set_quota(
                found_team,
                found_pool,
                self.now,
                override_capacity=override,
                actor_id=request.user.pk,
                **span,
                **{**unset, **asked},
            )
        except Invalid as error:
            raise _without_listings(error, request.user) from None
        change.quota.warnings = change.warnings  # type: ignore[attr-defined]
        return Response(SetQuotaSerializer(change.quota).data)


def _without_listings(error: Invalid, user: Any) -> Invalid:
    """The refusal; for those who do not see every team, without the lists of what others are guaranteed."""
    if visible_team_ids(user) is None:
        return error
    return Invalid([replace(fault, message=re.sub(r" \([^()]*\)", "", fault.message)) for fault in error.faults])


def _editable(request: Request, team: str, pool: str) -> tuple[Team, Pool]:
    """The team and the pool, if who asks may set its quotas; else NotThere or Forbidden."""
    found = team_named(request.user, team)
    require(request.user, "quota.edit", found.pk, what="quota")
    return found, pool_named(pool)


def _standing(team: Team, pool: Pool) -> Quota:
    rows = Quota.objects.filter(team=team, pool=pool, valid_from=None, valid_until=None)
    found = rows.select_related("team", "pool").first()
    if found is None:
        raise NotThere(f"The team '{team.slug}' has no standing quota in the pool '{pool.name}'.")
    return found
