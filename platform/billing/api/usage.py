"""REST: usage in a window of time, what was idle in it, and rates."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from django.db.models import Q
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.burn import PER_UNIT
from billing.idle import By, divided, idle_cost, idle_weights
from billing.models import Rate
from billing.rates import month_start
from billing.services import set_rate
from billing.terms import terms
from billing.usage import GROUPS, Used, used
from events.errors import Fault, Forbidden, Invalid, NotThere
from inventory.models import AcceleratorModel, Pool
from inventory.selectors import model_named, pool_named
from scheduling.models import Job
from scheduling.selectors import class_named, visible_job
from tenants.models import Team, User, name_key
from tenants.policy import require, sees_everything, team_tree, visible
from wire.fields import Moment, Price, Text, decimal_text, exact_text, identifier, moment_text
from wire.pages import Listing, PageQuery, page_answer, page_of, paged
from wire.strict import Strict
from wire.views import ApiView

RATES = Listing[Rate]({"effective_from": "effective_from"}, default="-effective_from")
EXACT = r"^[0-9]+(\.[0-9]+)?$"
SIX_PLACES = r"^[0-9]+\.[0-9]{6}$"


class UsageQuery(PageQuery):
    """``from`` and ``to`` are the window [from, to): this billing month so far, where nothing is said."""

    team = Text(required=False, max_length=63, help_text="a team and all below it, deleted ones too")
    pool = Text(required=False, max_length=63)
    user = Text(required=False, max_length=150)
    job = identifier(required=False)
    to = Moment(required=False)
    group_by = serializers.ChoiceField(list(GROUPS), required=False)

    def get_fields(self) -> dict[str, Any]:
        return {**super().get_fields(), "from": Moment(required=False)}


class UsedSerializer(serializers.Serializer):
    """``seconds``: GPU-seconds (core-seconds where ``unit`` is cpu), exact; ``hours`` the same to 6 places. ``amount``
    in the installation's currency, to 6 places. ``running``: some of it still grows."""

    unit = serializers.ChoiceField(Pool.Unit.choices)
    seconds = serializers.RegexField(EXACT)
    hours = serializers.RegexField(SIX_PLACES)
    amount = serializers.RegexField(SIX_PLACES)
    running = serializers.BooleanField()


class UsageRowSerializer(UsedSerializer):
    """The sum of one team, user, pool, model, job or day, with the name of what it was grouped by."""

    team = serializers.CharField(required=False)
    team_id = serializers.IntegerField(required=False)
    team_deleted = serializers.BooleanField(required=False)
    user = serializers.CharField(required=False)
    pool = serializers.CharField(required=False)
    model = serializers.CharField(required=False, allow_null=True)
    job = serializers.IntegerField(required=False)
    job_name = serializers.CharField(required=False)
    day = serializers.DateField(required=False)


class UsageSerializer(serializers.Serializer):
    """Usage in [from, to). ``total`` has one sum for each unit; GPUs and cores are never added."""

    to = Moment()
    group_by = serializers.ChoiceField(list(GROUPS), allow_null=True)
    currency = serializers.CharField()
    total = UsedSerializer(many=True)
    results = UsageRowSerializer(many=True)
    next = serializers.URLField(allow_null=True)

    def get_fields(self) -> dict[str, Any]:
        return {"from": Moment(), **super().get_fields()}


class Usage(ApiView):
    queries = {"GET": UsageQuery}

    @extend_schema(operation_id="usage", parameters=[UsageQuery], responses=UsageSerializer)
    def get(self, request: Request) -> Response:
        """What was used and what it costs, exact to the second and the fraction; what runs is counted up to now."""
        query, now = self.query, self.now
        end = query.get("to", now)
        start = query.get("from") or min(month_start(now, terms().time_zone), end)
        group_by = query.get("group_by")
        sums = used(_chosen(request, query), start, end, now, group_by)
        total: dict[str, Used] = {}
        for (_, unit), each in sums.items():
            total[unit] = total.get(unit, Used()) + each
        rows, following = page_of(_rows(sums, group_by), request, query) if group_by else ([], None)
        return Response(
            {
                "from": moment_text(start),
                "to": moment_text(end),
                "group_by": group_by,
                "currency": terms().currency,
                "total": [_used_told(unit, each) for unit, each in sorted(total.items())],
                "results": rows,
                "next": following,
            }
        )


def _chosen(request: Request, query: dict[str, Any]) -> Q:
    """The records that may be seen and are asked for. Raises NotThere for what is not to be seen."""
    where = visible(request.user)
    if "team" in query:
        named = Team.objects.filter(visible(request.user, "pk"), slug=query["team"]).order_by("pk")
        ids = list(named.values_list("pk", flat=True))
        if not ids:
            message = "there is no such team, or you may not see it"
            raise NotThere(message, faults=[Fault("team", message, "unknown", query["team"])])
        tree = team_tree()
        where &= Q(team_id__in=set().union(*(tree.below(team_id) for team_id in ids)))
    if "pool" in query:
        where &= Q(pool=pool_named(query["pool"]))
    if "user" in query:
        where &= Q(user__username_key=name_key(query["user"]))
    if "job" in query:
        where &= Q(job=visible_job(request.user, query["job"]))
    return where


def _used_told(unit: str, each: Used) -> dict[str, Any]:
    return {
        "unit": unit,
        "seconds": exact_text(each.milli_seconds / 1000),
        "hours": decimal_text(each.milli_seconds / 3_600_000),
        "amount": decimal_text(each.amount),
        "running": each.running,
    }


def _rows(sums: dict[tuple[Any, str], Used], group_by: str) -> list[tuple[list[Any], dict[str, Any]]]:
    """Each sum with its key for the order: name, id, unit."""
    names = _names({group for group, _ in sums}, group_by)
    rows = []
    for (group, unit), each in sums.items():
        label, described = names[group]
        number = group if isinstance(group, int) else 0
        rows.append(([label, number, unit], {**described, **_used_told(unit, each)}))
    return rows


def _names(groups: set[Any], group_by: str) -> dict[Any, tuple[str, dict[str, Any]]]:
    """By group: what it sorts by, and how it is told."""
    if group_by == "day":
        return {day: (day.isoformat(), {"day": day.isoformat()}) for day in groups if isinstance(day, date)}
    ids = [group for group in groups if group is not None]
    if group_by == "team":
        teams = Team.objects.filter(pk__in=ids).values_list("pk", "slug", "deleted_at")
        return {
            pk: (slug, {"team": slug, "team_id": pk, "team_deleted": deleted is not None})
            for pk, slug, deleted in teams
        }
    if group_by == "job":
        # A number as a text of one length, so that texts sort like numbers.
        jobs = Job.objects.filter(pk__in=ids).values_list("pk", "name") if len(ids) < 500 else _all_names(ids)
        return {pk: (f"{pk:019}", {"job": pk, "job_name": name}) for pk, name in jobs}
    column = "username" if group_by == "user" else "name"
    things = {"user": User.objects, "pool": Pool.objects, "model": AcceleratorModel.objects}[group_by]
    found = {pk: (name, {group_by: name}) for pk, name in things.filter(pk__in=ids).values_list("pk", column)}
    return {**found, None: ("", {group_by: None})}


def _all_names(ids: list[int]) -> list[tuple[int, str]]:
    wanted = set(ids)
    rows = Job.objects.filter(pk__gte=min(ids), pk__lte=max(ids)).values_list("pk", "name")
    return [(pk, name) for pk, name in rows.iterator() if pk in wanted]


class IdleQuery(Strict):
    """The window [from, to): this billing month so far, where nothing is said."""

    pool = Text(required=False, max_length=63)
    to = Moment(required=False)
    by = serializers.ChoiceField(
        ["none", "usage", "guarantee"], required=False, help_text="divide it over teams: not at all, unless asked"
    )

    def get_fields(self) -> dict[str, Any]:
        return {**super().get_fields(), "from": Moment(required=False)}


class IdleShareSerializer(serializers.Serializer):
    team = serializers.CharField()
    team_id = serializers.IntegerField()
    cost = serializers.RegexField(SIX_PLACES)


class IdlePoolSerializer(serializers.Serializer):
    """GPU-hours in service, held and idle, and what idle ones would have cost. ``shares`` and ``undivided`` add up to
    ``cost``. ``known_from``: the capacity before is not known and not counted."""

    pool = serializers.CharField()
    capacity_hours = serializers.RegexField(SIX_PLACES)
    allocated_hours = serializers.RegexField(SIX_PLACES)
    idle_hours = serializers.RegexField(SIX_PLACES)
    cost = serializers.RegexField(SIX_PLACES)
    shares = IdleShareSerializer(many=True)
    undivided = serializers.RegexField(SIX_PLACES)
    known_from = Moment(allow_null=True)


class IdleSerializer(serializers.Serializer):
    to = Moment()
    currency = serializers.CharField()
    results = IdlePoolSerializer(many=True)

    def get_fields(self) -> dict[str, Any]:
        return {"from": Moment(), **super().get_fields()}


class IdleCosts(ApiView):
    queries = {"GET": IdleQuery}

    @extend_schema(operation_id="idle_costs", parameters=[IdleQuery], responses=IdleSerializer)
    def get(self, request: Request) -> Response:
        """What nobody used, by pool, for operators and auditors. It is never part of what a team pays."""
        if not sees_everything(request.user):
            raise Forbidden("Only an operator or an auditor sees what is idle in money.")
        query, now = self.query, self.now
        end = query.get("to", now)
        start = query.get("from") or min(month_start(now, terms().time_zone), end)
        pools = [pool_named(query["pool"])] if "pool" in query else list(Pool.objects.order_by("name"))
        rows = [_idle_told(pool, start, end, now, query.get("by", "none")) for pool in pools]
        told = {"from": moment_text(start), "to": moment_text(end), "currency": terms().currency}
        return Response({**told, "results": rows})


def _idle_told(pool: Pool, start: datetime, end: datetime, now: datetime, by: By) -> dict[str, Any]:
    idle = idle_cost(pool, start, end, now)
    shares = divided(idle.cost, idle_weights(pool, start, end, now, by))
    slugs = dict(Team.objects.filter(pk__in=shares.shares).values_list("pk", "slug"))
    hours = {name: decimal_text(Decimal(getattr(idle, name)) / PER_UNIT) for name in ("capacity", "allocated", "idle")}
    return {
        "pool": pool.name,
        **{f"{name}_hours": value for name, value in hours.items()},
        "cost": decimal_text(idle.cost),
        "shares": [
            {"team": slugs[team_id], "team_id": team_id, "cost": decimal_text(cost)}
            for team_id, cost in shares.shares.items()
        ],
        "undivided": decimal_text(shares.rest),
        "known_from": idle.known_from and moment_text(idle.known_from),
    }


class RateSerializer(serializers.ModelSerializer):
    """A price from ``effective_from`` on, until a later one like it. null matches everything; the rate that names most
    wins. The band is [start, end) hours of the day in the billing time zone."""

    pool = serializers.CharField(source="pool.name", allow_null=True, default=None)
    model = serializers.CharField(source="model.name", allow_null=True, default=None)
    priority_class = serializers.CharField(source="priority_class.name", allow_null=True, default=None)
    per_gpu_hour = Price(source="per_hour", help_text="per core-hour in a CPU pool")
    band_start = serializers.TimeField(format="%H:%M", allow_null=True)
    band_end = serializers.TimeField(format="%H:%M", allow_null=True)
    effective_from = Moment()
    created_at = Moment()

    class Meta:
        model = Rate
        fields = (
            *("id", "pool", "model", "priority_class", "per_gpu_hour", "band_start", "band_end"),
            *("effective_from", "created_at"),
        )


class RateRequest(Strict):
    """A new rate. ``effective_from``: now, where nothing is said; never in the past."""

    per_gpu_hour = Price()
    pool = Text(required=False, max_length=63)
    model = Text(required=False, max_length=63)
    priority_class = Text(required=False, max_length=63)
    band_start = serializers.RegexField(r"^([01][0-9]|2[0-3]):[0-5][0-9]$", required=False, help_text="HH:MM")
    band_end = serializers.RegexField(r"^([01][0-9]|2[0-3]):[0-5][0-9]$", required=False, help_text="HH:MM")
    effective_from = Moment(required=False)


class Rates(ApiView):
    queries = {"GET": PageQuery}

    @extend_schema(operation_id="rates", parameters=[PageQuery], responses=paged(RateSerializer))
    def get(self, request: Request) -> Response:
        """All rates, the latest first."""
        rates = Rate.objects.select_related("pool", "model", "priority_class")
        rows, following = RATES.page(rates, request, self.query)
        return page_answer(RateSerializer(rows, many=True).data, following)

    @extend_schema(operation_id="set_rate", request=RateRequest, responses={201: RateSerializer})
    def post(self, request: Request) -> Response:
        """A new rate, by an operator. What is used already keeps its price."""
        require(request.user, "fleet.operate")
        asked = RateRequest.read_body(self.body())
        rate = set_rate(
            asked["per_gpu_hour"],
            self.now,
            effective_from=asked.get("effective_from"),
            pool=pool_named(asked["pool"]) if "pool" in asked else None,
            model=model_named(asked["model"]) if "model" in asked else None,
            priority_class=class_named(asked["priority_class"]) if "priority_class" in asked else None,
            band=_band(asked),
            actor_id=request.user.pk,
        )
        return Response(RateSerializer(rate).data, status=201)


def _band(asked: dict[str, Any]) -> tuple[time, time] | None:
    if ("band_start" in asked) != ("band_end" in asked):
        missing = "band_end" if "band_start" in asked else "band_start"
        raise Invalid.at(missing, "is needed where the other end of the band is given")
    if "band_start" not in asked:
        return None
    start, end = (datetime.strptime(asked[name], "%H:%M").time() for name in ("band_start", "band_end"))  # noqa: DTZ007
    if start == end:
        raise Invalid.at(
            "band_end", "is the same as band_start: leave both out for the whole day", value=asked["band_end"]
        )
    return start, end
