"""REST: how much of a pool or a job is used, over time, in columns as charts take them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from events.errors import Invalid
from inventory.models import Pool
from inventory.selectors import pool_named
from scheduling.core.units import gpus_from_milli
from scheduling.selectors import visible_job
from telemetry.readings import FULL_MILLI
from telemetry.selectors import Series, job_series, job_use, pool_now, pool_series, team_series
from tenants.selectors import team_named
from wire.fields import Moment, Text, moment_text
from wire.strict import Strict
from wire.views import ApiView

USUAL = timedelta(hours=1)
LONGEST = timedelta(days=400)
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)  # nothing was measured before; calendars end not far before it


class SpanQuery(Strict):
    """The half-open span [since, until); the last hour where nothing is said."""

    since = Moment(required=False, help_text="then or later; an hour before until")
    until = Moment(required=False, help_text="before then; now")


class PoolSpanQuery(SpanQuery):
    team = Text(required=False, max_length=63, help_text="only this team's part, all below it included")


class SeriesSerializer(serializers.Serializer):
    """Columns of one length, oldest first, in the pool's unit. ``used`` is null where nothing is known.

    ``resolution`` in seconds: 0 as measured, else averages over [at, at + resolution). Averages leave out the unknown.
    """

    resolution = serializers.IntegerField()
    at = serializers.ListField(child=Moment())
    allocated = serializers.ListField(child=serializers.FloatField())
    used = serializers.ListField(child=serializers.FloatField(allow_null=True))


class PoolSeriesSerializer(SeriesSerializer):
    capacity = serializers.ListField(child=serializers.FloatField(allow_null=True))


class PoolNowSerializer(serializers.Serializer):
    """How busy devices are now, 0 to 1, over the ``known`` ones; null where none is known."""

    average = serializers.FloatField(allow_null=True)
    maximum = serializers.FloatField(allow_null=True)
    known = serializers.IntegerField()
    unknown = serializers.IntegerField()


class PoolUtilizationSerializer(serializers.Serializer):
    """``teams`` holds those that one may see. With ``team`` asked for, ``series`` is that team's part."""

    pool = serializers.CharField()
    unit = serializers.ChoiceField(Pool.Unit.choices)
    now = PoolNowSerializer()
    series = PoolSeriesSerializer()
    teams = serializers.DictField(child=SeriesSerializer())


class JobNowSerializer(serializers.Serializer):
    """What the job holds and uses now; null is unknown. Memory is that of its devices, in MiB."""

    allocated = serializers.FloatField()
    used = serializers.FloatField(allow_null=True)
    memory_mib = serializers.IntegerField(allow_null=True)
    cpu = serializers.FloatField(allow_null=True)
    host_memory_mib = serializers.IntegerField(allow_null=True)


class JobSeriesSerializer(SeriesSerializer):
    memory_mib = serializers.ListField(child=serializers.IntegerField(allow_null=True))


class JobUtilizationSerializer(serializers.Serializer):
    """``now`` is null while the job holds nothing."""

    job = serializers.IntegerField()
    now = JobNowSerializer(allow_null=True)
    series = JobSeriesSerializer()
    average_used = serializers.FloatField(allow_null=True)


def _span(view: ApiView) -> tuple[Any, Any]:
    """The span that was asked for. Invalid where it is empty or longer than anything is kept."""
    until = view.query.get("until", view.now)
    if until < EARLIEST:
        raise Invalid.at("until", f"must be {moment_text(EARLIEST)} or later", value=moment_text(until))
    since = view.query.get("since", until - USUAL)
    if since >= until:
        raise Invalid.at("since", "must be before until", value=moment_text(since))
    if until - since > LONGEST:
        raise Invalid.at("since", f"must be at most {LONGEST.days} days before until", value=moment_text(since))
    return since, until


def _number(milli: int | None) -> float | int | None:
    return None if milli is None else gpus_from_milli(milli)


def _part(busy: int | None) -> float | None:
    return None if busy is None else busy / FULL_MILLI


def _columns(series: Series) -> dict[str, Any]:
    return {
        "resolution": series.resolution_s,
        "at": [moment_text(at) for at in series.at],
        "allocated": [_number(value) for value in series.allocated_milli],
        "used": [_number(value) for value in series.used_milli],
    }


class PoolUtilization(ApiView):
    queries = {"GET": PoolSpanQuery}

    @extend_schema(operation_id="pool_utilization", parameters=[PoolSpanQuery], responses=PoolUtilizationSerializer)
    def get(self, request: Request, pool: str) -> Response:
        """What was allocated and used in a pool over time: as a whole, and by each team that one may see."""
        found = pool_named(pool)
        since, until = _span(self)
        team = team_named(request.user, self.query["team"]) if "team" in self.query else None
        series = pool_series(found, since, until, self.now, team_id=None if team is None else team.pk)
        busy = pool_now(found, self.now)
        teams = {} if team is not None else team_series(request.user, found, since, until, self.now)
        return Response(
            {
                "pool": found.name,
                "unit": found.unit,
                "now": {
                    "average": _part(busy.average_milli),
                    "maximum": _part(busy.maximum_milli),
                    "known": busy.known,
                    "unknown": busy.unknown,
                },
                "series": {**_columns(series), "capacity": [_number(value) for value in series.capacity_milli]},
                "teams": {slug: _columns(each) for slug, each in teams.items()},
            }
        )


class JobUtilization(ApiView):
    queries = {"GET": SpanQuery}

    @extend_schema(operation_id="job_utilization", parameters=[SpanQuery], responses=JobUtilizationSerializer)
    def get(self, request: Request, job_id: int) -> Response:
        """What a job held and used over time, and what it does now."""
        job = visible_job(request.user, job_id)
        since, until = _span(self)
        series = job_series(job, since, until, self.now)
        use = job_use(self.now, [job.pk]).get(job.pk)
        return Response(
            {
                "job": job.pk,
                "now": use
                and {
                    "allocated": _number(use.allocated_milli),
                    "used": _number(use.used_milli),
                    "memory_mib": use.memory_mib,
                    "cpu": _number(use.cpu_milli),
                    "host_memory_mib": use.host_memory_mib,
                },
                "series": {**_columns(series), "memory_mib": series.memory_mib},
                "average_used": _number(series.average_used()),
            }
        )
