"""REST: prepaid packages of GPU-hours."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.burn import PER_UNIT
from billing.models import Package
from billing.services.packages import add_package, confirm_package
from events.errors import NotThere
from inventory.selectors import model_named, pool_named
from tenants.policy import require, visible
from tenants.selectors import team_named
from wire.fields import Flag, Moment, Money, Price, Text
from wire.pages import Listing, PageQuery, page_answer, paged
from wire.strict import Strict
from wire.views import ApiView

PACKAGES = Listing[Package]({"id": "id"}, default="-id")


class PackageSerializer(serializers.ModelSerializer):
    """GPU-hours in [starts_at, expires_at) for a team and all below it, drawn once it is confirmed, the one that
    expires first before the others. ``gpu_hours_left``: not drawn by what has ended; what runs is drawn when it ends,
    at the month's end and where the package runs out."""

    team = serializers.CharField(source="team.slug")
    pool = serializers.CharField(source="pool.name", allow_null=True, default=None)
    model = serializers.CharField(source="model.name", allow_null=True, default=None)
    gpu_hours = serializers.SerializerMethodField()
    gpu_hours_left = serializers.SerializerMethodField()
    price = Money()
    starts_at = Moment()
    expires_at = Moment(allow_null=True)
    confirmed_at = Moment(allow_null=True)

    class Meta:
        model = Package
        fields = (
            *("id", "team", "pool", "model", "state", "gpu_hours", "gpu_hours_left", "price", "starts_at"),
            *("expires_at", "confirmed_at"),
        )

    def get_gpu_hours(self, package: Package) -> str:
        return _hours(package.work)

    def get_gpu_hours_left(self, package: Package) -> str:
        return _hours(package.left)


def _hours(work: int) -> str:
    return Money().to_representation(Decimal(work) / PER_UNIT)


class PackageRequest(Strict):
    """A package that was ordered; ``confirmed`` where it is paid already."""

    team = Text(max_length=63)
    gpu_hours = Price()
    pool = Text(required=False, max_length=63)
    model = Text(required=False, max_length=63)
    price = Price(required=False)
    starts_at = Moment(required=False, help_text="now, where nothing is said; never in the past")
    expires_at = Moment(required=False, allow_null=True)
    confirmed = Flag(required=False)


class PackageQuery(PageQuery):
    team = Text(required=False, max_length=63)


class Packages(ApiView):
    queries = {"GET": PackageQuery}

    @extend_schema(operation_id="packages", parameters=[PackageQuery], responses=paged(PackageSerializer))
    def get(self, request: Request) -> Response:
        """Packages of the teams that one may see, the newest first."""
        packages = Package.objects.filter(visible(request.user)).select_related("team", "pool", "model")
        if "team" in self.query:
            packages = packages.filter(team=team_named(request.user, self.query["team"]))
        rows, following = PACKAGES.page(packages, request, self.query)
        return page_answer(PackageSerializer(rows, many=True).data, following)

    @extend_schema(operation_id="add_package", request=PackageRequest, responses={201: PackageSerializer})
    def post(self, request: Request) -> Response:
        """A new package, by an operator."""
        require(request.user, "fleet.operate")
        asked: dict[str, Any] = PackageRequest.read_body(self.body())
        package = add_package(
            team_named(request.user, asked["team"]),
            asked["gpu_hours"],
            self.now,
            pool=pool_named(asked["pool"]) if "pool" in asked else None,
            model=model_named(asked["model"]) if "model" in asked else None,
            price=asked.get("price", Decimal(0)),
            starts_at=asked.get("starts_at"),
            expires_at=asked.get("expires_at"),
            confirmed=asked.get("confirmed", False),
            actor_id=request.user.pk,
        )
        return Response(PackageSerializer(package).data, status=201)


class OnePackage(ApiView):
    @extend_schema(operation_id="package", responses=PackageSerializer)
    def get(self, request: Request, package_id: int) -> Response:
        """One package."""
        return Response(PackageSerializer(_package(request, package_id)).data)


class ConfirmPackage(ApiView):
    @extend_schema(operation_id="confirm_package", request=None, responses=PackageSerializer)
    def post(self, request: Request, package_id: int) -> Response:
        """The package is paid and can be drawn from, by an operator. Again: nothing more."""
        require(request.user, "fleet.operate")
        package = _package(request, package_id)
        confirm_package(package, self.now, actor_id=request.user.pk)
        return Response(PackageSerializer(package).data)


def _package(request: Request, package_id: int) -> Package:
    rows = Package.objects.filter(visible(request.user), pk=package_id).select_related("team", "pool", "model")
    found = rows.first()
    if found is None:
        raise NotThere("There is no such package, or you may not see it.")
    return found
