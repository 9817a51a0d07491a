"""Jobs and what belongs to them, as they are answered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from inventory.models import Pool
from scheduling.core.units import MILLI_PER_DEVICE, gpus_from_milli
from scheduling.models import Allocation, AllocationDevice, Decision, Job, PriorityClass, TaskGroup
from scheduling.selectors import job_figures, jobs_seen, named_to
from scheduling.telling import decision_told, jobs_named, reason_told
from wire.fields import Moment, Money, Quantity, decimal_text

TEXT_OR_NULL = {"type": ["string", "null"]}
NUMBER_OR_NULL = {"type": ["number", "null"]}


class ReasonSerializer(serializers.Serializer):
    """Why a job waits: a stable code, a sentence, the numbers that were seen, and what would help, if that is known."""

    code = serializers.CharField()
    message = serializers.CharField()
    numbers = serializers.DictField()
    helps = serializers.DictField(allow_null=True)


class GroupSerializer(serializers.ModelSerializer):
    """Tasks of one kind, in the words of the request. ``gpus`` null: it follows from the memory."""

    tasks = serializers.IntegerField(source="count")
    min_tasks = serializers.IntegerField(source="min_count")
    gpus = serializers.SerializerMethodField()
    gpu_memory_mib = serializers.IntegerField(source="memory_mib", allow_null=True)
    cpu = Quantity(source="cpu_milli")
    memory_gib = serializers.SerializerMethodField()
    model = serializers.ListField(source="models_allowed", child=serializers.CharField())
    vendor = serializers.ListField(source="vendors_allowed", child=serializers.CharField())
    node_selector = serializers.DictField(child=serializers.CharField())
    command = serializers.ListField(child=serializers.CharField(), allow_null=True)

    class Meta:
        model = TaskGroup
        fields = (
            *("name", "tasks", "min_tasks", "devices", "gpus", "gpu_memory_mib", "cpu", "memory_gib", "model"),
            *("vendor", "node_selector", "min_device_memory_mib", "command"),
        )

    @extend_schema_field(NUMBER_OR_NULL)
    def get_gpus(self, group: TaskGroup) -> float | int | None:
        return gpus_asked(group)

    def get_memory_gib(self, group: TaskGroup) -> float:
        return group.host_memory_mib / 1024


def gpus_asked(group: TaskGroup) -> float | int | None:
    """As in the request: whole GPUs together, a fraction of each device; None where only memory was asked for."""
    if group.devices == 0:
        return 0
    if group.compute_milli is None:
        return None
    return group.devices if group.compute_milli == MILLI_PER_DEVICE else gpus_from_milli(group.compute_milli)


class JobSerializer(serializers.ModelSerializer):
    """A job. ``gpus`` is what each task asks for, as in the request (null where groups differ or only memory was asked
    for); ``requested`` and ``allocated`` are all tasks together in the pool's ``unit``, GPUs or cores. Give it jobs
    through ``jobs_told``.
    """

    team = serializers.CharField(source="team.slug")
    user = serializers.CharField(source="user.username")
    pool = serializers.CharField(source="pool.name")
    pools = serializers.ListField(source="figures.pools", child=serializers.CharField())
    unit = serializers.ChoiceField(Pool.Unit.choices, source="pool.unit")
    priority = serializers.SerializerMethodField()
    reasons = serializers.SerializerMethodField()
    tasks = serializers.IntegerField(source="tasks_wanted")
    tasks_running = serializers.IntegerField(source="figures.tasks_running")
    gpus = serializers.SerializerMethodField()
    requested = serializers.SerializerMethodField()
    allocated = Quantity(source="figures.allocated")
    cost = Money(source="figures.cost")
    gpu_hours = serializers.SerializerMethodField(help_text="used so far; core-hours in a CPU pool")
    time_limit = serializers.IntegerField(source="time_limit_s", allow_null=True, help_text="seconds")
    min_runtime = serializers.IntegerField(source="min_runtime_s", allow_null=True, help_text="seconds")
    submitted_at = Moment()
    started_at = Moment(allow_null=True)
    ended_at = Moment(allow_null=True)
    estimated_start = Moment(allow_null=True)

    class Meta:
        model = Job
        fields: tuple[str, ...] = (
            *("id", "name", "team", "user", "pool", "pools", "unit", "kind", "framework", "state", "hold", "ending"),
            *("reasons", "priority", "preemptible", "tasks", "tasks_running", "gpus", "requested", "allocated", "cost"),
            *("gpu_hours", "time_limit", "min_runtime", "retries", "retries_used", "preemptions", "submitted_at"),
            *("started_at", "ended_at", "estimated_start", "exit_code", "end_message", "version"),
        )

    @extend_schema_field({"type": ["string", "integer"]})
    def get_priority(self, job: Job) -> str | int:
        return job.priority_class.name if job.priority_value is None else job.priority_value

    @extend_schema_field(ReasonSerializer(many=True))
    def get_reasons(self, job: Job) -> list[dict[str, Any]]:
        seen, jobs = self.context["seen"], self.context["jobs_seen"]
        return [reason_told(reason, job.pool.unit, seen, jobs) for reason in job.reasons]

    @extend_schema_field(NUMBER_OR_NULL)
    def get_gpus(self, job: Job) -> float | int | None:
        groups = job.figures.groups  # type: ignore[attr-defined]
        return gpus_asked(groups[0]) if len(groups) == 1 else None

    def get_requested(self, job: Job) -> float:
        groups = job.figures.groups  # type: ignore[attr-defined]
        if job.pool.unit == Pool.Unit.CPU:
            return gpus_from_milli(sum(group.count * group.cpu_milli for group in groups))
        return gpus_from_milli(job.milli_wanted)

    def get_gpu_hours(self, job: Job) -> str:
        return decimal_text(job.figures.milli_seconds / 3_600_000)  # type: ignore[attr-defined]


class JobDetailSerializer(JobSerializer):
    """A job with its request. ``environment`` is null for those who may only look: it often holds secrets."""

    groups = GroupSerializer(source="figures.groups", many=True)
    command = serializers.ListField(child=serializers.CharField())
    environment = serializers.SerializerMethodField()

    class Meta(JobSerializer.Meta):
        fields = (*JobSerializer.Meta.fields, "groups", "command", "image", "environment")

    @extend_schema_field({"type": ["object", "null"], "additionalProperties": {"type": "string"}})
    def get_environment(self, job: Job) -> dict[str, str] | None:
        may_stop = self.context["may_stop"]
        return job.environment if may_stop is None or job.team_id in may_stop else None


def jobs_told(
    jobs: Sequence[Job], user: Any, now: datetime, *, detail: bool = False, may_stop: set[int] | None = None
) -> list[dict[str, Any]]:
    """The jobs as they are answered to ``user``; ``may_stop``: the teams whose jobs it may stop, None for all."""
    figures = job_figures(jobs, now)
    for job in jobs:
        job.figures = figures[job.pk]  # type: ignore[attr-defined]
    teams, named = named_to(user, jobs_named(reason for job in jobs for reason in job.reasons))
    serializer = JobDetailSerializer if detail else JobSerializer
    context = {"seen": teams, "jobs_seen": named, "may_stop": may_stop}
    return list(serializer(jobs, many=True, context=context).data)


class SliceSerializer(serializers.ModelSerializer):
    """The part of one device that is held."""

    device = serializers.IntegerField(source="device_id")
    index = serializers.IntegerField(source="device.index")
    gpus = Quantity(source="compute_milli")

    class Meta:
        model = AllocationDevice
        fields = ("device", "index", "gpus", "memory_mib")


class AllocationSerializer(serializers.ModelSerializer):
    """What one task holds, or held in an earlier attempt (then ``released_at`` is set)."""

    task = serializers.IntegerField(source="task.index")
    group = serializers.CharField(source="task.group.name")
    pool = serializers.CharField(source="pool.name")
    node = serializers.CharField(source="node.name")
    model = serializers.CharField(source="model.name", allow_null=True, default=None)
    gpus = Quantity(source="milli")
    cpu = Quantity(source="cpu_milli")
    memory_gib = serializers.SerializerMethodField()
    devices = SliceSerializer(source="slices", many=True)
    bound_at = Moment()
    running_at = Moment(allow_null=True)
    stop_requested_at = Moment(allow_null=True)
    released_at = Moment(allow_null=True)

    class Meta:
        model = Allocation
        fields = (
            *("id", "task", "group", "state", "pool", "node", "model", "gpus", "cpu", "memory_gib", "devices"),
            *("bound_at", "running_at", "stop_requested_at", "released_at", "end_reason", "exit_code"),
        )

    def get_memory_gib(self, allocation: Allocation) -> float:
        return allocation.host_memory_mib / 1024


class DecisionSerializer(serializers.ModelSerializer):
    """What the scheduler did or refused to do, by which rule, and the numbers that it saw, in the pool's ``unit``.
    Whose job another gave way to is told to those who may see that job. Give it decisions through ``decisions_told``.
    """

    at = Moment()
    pool = serializers.CharField(source="pool.name")
    unit = serializers.ChoiceField(Pool.Unit.choices, source="pool.unit")
    message = serializers.SerializerMethodField()
    numbers = serializers.SerializerMethodField()

    class Meta:
        model = Decision
        fields = ("id", "at", "cycle", "kind", "pool", "unit", "rule", "message", "numbers")

    def get_message(self, decision: Decision) -> str:
        return self._told(decision)[0]

    def get_numbers(self, decision: Decision) -> dict[str, Any]:
        return self._told(decision)[1]

    def _told(self, decision: Decision) -> tuple[str, dict[str, Any]]:
        unit, seen = decision.pool.unit, self.context["jobs_seen"]
        return decision_told(decision.kind, decision.rule, decision.numbers, unit, seen)


def decisions_told(decisions: Sequence[Decision], user: Any) -> list[dict[str, Any]]:
    """The decisions as they are answered to ``user``."""
    named = {each.numbers["for_job"] for each in decisions if each.numbers.get("for_job")}
    return list(DecisionSerializer(decisions, many=True, context={"jobs_seen": jobs_seen(user, named)}).data)


class EventSerializer(serializers.Serializer):
    """Something that happened. ``seq`` orders all events; ``actor`` is null for the scheduler and for strangers."""

    seq = serializers.IntegerField()
    at = Moment()
    kind = serializers.CharField()
    team = serializers.CharField(allow_null=True)
    pool = serializers.CharField(allow_null=True)
    job = serializers.IntegerField(allow_null=True)
    node = serializers.IntegerField(allow_null=True)
    actor = serializers.CharField(allow_null=True)
    data = serializers.DictField()  # type: ignore[assignment]


class EventsSerializer(serializers.Serializer):
    """Events in order. ``last`` is what to give as ``after`` for those that follow."""

    results = EventSerializer(many=True)
    last = serializers.IntegerField()


class PriorityClassSerializer(serializers.ModelSerializer):
    """A named priority; its value counts live. ``roles`` empty: open to all that may submit."""

    roles = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = PriorityClass
        fields = ("name", "value", "cluster_wide", "roles", "max_jobs_per_team")
