"""A job that is only tried out, as it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rest_framework import serializers

from inventory.models import Pool
from scheduling.api.answers import ReasonSerializer
from scheduling.core.units import MILLI_PER_DEVICE, gpus_from_milli
from scheduling.selectors import named_to
from scheduling.services.dry_run import Landing, Outcome
from scheduling.services.requests import GroupSpec
from scheduling.telling import jobs_named, reason_told
from wire.fields import Moment, Money, Quantity


class SliceToGiveSerializer(serializers.Serializer):
    """The part of one device that the task would hold."""

    index = serializers.IntegerField()
    gpus = Quantity()
    memory_mib = serializers.IntegerField()


class LandingSerializer(serializers.Serializer):
    """Where one task would run. ``requested`` in the words of the request; what it is granted may be more of a device,
    where a smaller part of it is not given out."""

    task = serializers.IntegerField()
    group = serializers.CharField()
    node = serializers.CharField()
    model = serializers.CharField(allow_null=True)
    devices = SliceToGiveSerializer(many=True)
    cpu = Quantity()
    memory_gib = serializers.FloatField()
    requested = serializers.DictField()


class GivingWaySerializer(serializers.Serializer):
    """How many running jobs would give way, and which of them, as far as one may see them."""

    count = serializers.IntegerField()
    jobs = serializers.ListField(child=serializers.IntegerField())


class StandingSerializer(serializers.Serializer):
    """The team's numbers in the pool once the job runs; ``headroom`` null: no limit, its own or one above, binds."""

    allocated = Quantity()
    guaranteed = Quantity()
    deserved = Quantity()
    limit = Quantity(allow_null=True)
    headroom = Quantity(allow_null=True)


class DryRunSerializer(serializers.Serializer):
    """What would become of a job if it were submitted now: ``fits`` says whether it would start at once.

    ``estimated_start`` null: nobody can say. Prices are of an hour: of what would start, or, where it would wait, of
    all that is asked for on the cheapest and on the dearest model that the request allows.
    """

    dry_run = serializers.BooleanField(help_text="always true")
    fits = serializers.BooleanField()
    team = serializers.CharField()
    pool = serializers.CharField(help_text="where it would start, else its first choice")
    unit = serializers.ChoiceField(Pool.Unit.choices)
    tasks = serializers.IntegerField(help_text="asked for")
    requested = Quantity(help_text="all tasks together; the least, where it depends on the device")
    granted = Quantity(help_text="what would start now")
    placement = LandingSerializer(many=True)
    reasons = ReasonSerializer(many=True)
    gives_way = GivingWaySerializer()
    estimated_start = Moment(allow_null=True)
    price_per_hour = Money()
    price_per_hour_at_most = Money()
    standing = StandingSerializer()


def outcomes_told(outcomes: Sequence[Outcome], user: Any) -> list[dict[str, Any]]:
    """The outcomes as they are answered to ``user``: nobody's job or team is named that it may not see."""
    named = jobs_named(reason for each in outcomes for reason in each.reasons)
    teams, jobs = named_to(user, named | {job_id for each in outcomes for job_id in each.gives_way})
    return list(DryRunSerializer([_told(each, teams, jobs) for each in outcomes], many=True).data)


def _told(outcome: Outcome, teams: frozenset[str] | None, jobs: frozenset[int] | None) -> dict[str, Any]:
    unit = outcome.pool.unit
    return {
        "dry_run": True,
        "fits": outcome.fits,
        "team": outcome.spec.team,
        "pool": outcome.pool.name,
        "unit": unit,
        "tasks": outcome.spec.tasks,
        "requested": outcome.requested,
        "granted": outcome.granted,
        "placement": [_landing(each) for each in outcome.landings],
        "reasons": [reason_told(each, unit, teams, jobs) for each in outcome.reasons],
        "gives_way": {
            "count": len(outcome.gives_way),
            "jobs": [each for each in outcome.gives_way if jobs is None or each in jobs],
        },
        "estimated_start": outcome.estimated_start,
        "price_per_hour": outcome.lowest_price,
        "price_per_hour_at_most": outcome.highest_price,
        "standing": outcome.standing,
    }


def _landing(landing: Landing) -> dict[str, Any]:
    slices = zip(landing.device_indexes, landing.memory_mib, strict=True)
    return {
        "task": landing.task,
        "group": landing.group.name,
        "node": landing.node,
        "model": landing.model,
        "devices": [{"index": index, "gpus": landing.compute_milli, "memory_mib": memory} for index, memory in slices],
        "cpu": landing.cpu_milli,
        "memory_gib": landing.host_memory_mib / 1024,
        "requested": asked_of(landing.group),
    }


def asked_of(group: GroupSpec) -> dict[str, Any]:
    """What each task of the group asks for, as in the request."""
    asked: dict[str, Any] = {"devices": group.devices}
    if group.devices and group.compute_milli is not None:
        whole = group.compute_milli == MILLI_PER_DEVICE
        asked["gpus"] = group.devices if whole else gpus_from_milli(group.compute_milli)
    if group.memory_mib is not None:
        asked["gpu_memory_mib"] = group.memory_mib
    return {
        **asked,
        "cpu": gpus_from_milli(group.cpu_milli),
        "memory_gib": group.host_memory_mib / 1024,
    }
