"""A team's shares, priority classes, and the events of everything."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from inventory.models import Pool
from inventory.selectors import pool_named
from scheduling.api.answers import EventsSerializer, PriorityClassSerializer
from scheduling.api.asked import FeedQuery
from scheduling.feed import follow
from scheduling.models import PriorityClass
from scheduling.selectors import class_named, team_shares
from tenants.answers import TeamSerializer
from tenants.policy import team_tree, visible_team_ids
from tenants.selectors import team_named
from wire.fields import Quantity
from wire.pages import Listing, PageQuery, page_answer, paged
from wire.views import ApiView

CLASSES = Listing[PriorityClass]({"value": "value", "name": "name"}, default="-value")


class PoolShareSerializer(serializers.Serializer):
    """A team's share of one pool, all below it included, in the pool's ``unit``.

    ``over_by`` is what it holds above its limit, ``headroom`` what it could still start before a limit binds (its own
    or one above; null without any). Neither is ever negative. ``memory_allocated_mib`` is the GPU memory that counts
    against limits of it; null where no team of the pool has one.
    """

    pool = serializers.CharField()
    unit = serializers.ChoiceField(Pool.Unit.choices)
    allocated = Quantity()
    guaranteed = Quantity()
    deserved = Quantity()
    limit = Quantity(allow_null=True)
    over_by = Quantity()
    headroom = Quantity(allow_null=True)
    pending = Quantity()
    memory_limit_mib = serializers.IntegerField(allow_null=True)
    memory_allocated_mib = serializers.IntegerField(allow_null=True)


class TeamDetailSerializer(TeamSerializer):
    """A team and its share of every pool."""

    pools = PoolShareSerializer(many=True)

    class Meta(TeamSerializer.Meta):
        fields = (*TeamSerializer.Meta.fields, "pools")


class OneTeam(ApiView):
    @extend_schema(operation_id="team", responses=TeamDetailSerializer)
    def get(self, request: Request, team: str) -> Response:
        """One team, with what it holds, is guaranteed, deserves and may have in each pool."""
        found: Any = team_named(request.user, team)
        shares = team_shares(self.now)
        found.pools = [
            {"pool": pool.name, "unit": pool.unit, **asdict(shares[pool.pk][found.pk])}
            for pool in Pool.objects.order_by("name")
            if found.pk in shares.get(pool.pk, {})
        ]
        return Response(TeamDetailSerializer(found, context={"seen": visible_team_ids(request.user)}).data)


class PriorityClasses(ApiView):
    queries = {"GET": PageQuery}

    @extend_schema(operation_id="priority_classes", parameters=[PageQuery], responses=paged(PriorityClassSerializer))
    def get(self, request: Request) -> Response:
        """All priority classes, the highest value first."""
        rows, following = CLASSES.page(PriorityClass.objects.all(), request, self.query)
        return page_answer(PriorityClassSerializer(rows, many=True).data, following)


class OnePriorityClass(ApiView):
    @extend_schema(operation_id="priority_class", responses=PriorityClassSerializer)
    def get(self, request: Request, name: str) -> Response:
        """One priority class."""
        return Response(PriorityClassSerializer(class_named(name)).data)


class Events(ApiView):
    queries = {"GET": FeedQuery}

    @extend_schema(operation_id="events", parameters=[FeedQuery], responses=EventsSerializer)
    def get(self, request: Request) -> Response:
        """What happened, in order, of the teams that one may see, and of the fleet what everybody may know.

        Follow it by giving ``last`` as the next ``after``: no event is ever passed over, though numbers have gaps.
        """
        query = self.query
        wanted: dict[str, Any] = {}
        if "team" in query:
            wanted["team_id__in"] = team_tree().below(team_named(request.user, query["team"]).pk)
        if "pool" in query:
            wanted["pool_id"] = pool_named(query["pool"]).pk
        if "kind" in query:
            wanted["kind"] = query["kind"]
        piece = follow(
            request.user, query.get("after", 0), query.get("limit", 100), wanted, wait_s=query.get("wait", 0)
        )
        return Response(EventsSerializer({"results": piece.events, "last": piece.last}).data)
