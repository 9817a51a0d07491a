"""Jobs and what belongs to them, as they are answered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from inventory.models import Pool
from scheduling.core.units import MILLI_PER_DEVICE, gpus_from_milli
from scheduling.granted import granted_to_groups, template_of, told
from scheduling.models import Allocation, AllocationDevice, Decision, Job, PriorityClass, TaskGroup
from scheduling.selectors import job_figures, jobs_seen, links_of, named_to
from scheduling.services.place_rules import WIDEST_FIRST
from scheduling.telling import decision_told, jobs_named, reason_told
from tenants.policy import visible_team_ids
from wire.fields import Moment, Money, Quantity, decimal_text

TEXT_OR_NULL = {"type": ["string", "null"]}
NUMBER_OR_NULL = {"type": ["number", "null"]}


class ReasonSerializer(serializers.Serializer):
    """Why a job waits: a stable code, a sentence, the numbers that were seen, and what would help, if that is known."""

    code = serializers.CharField()
    message = serializers.CharField()
    numbers = serializers.DictField()
    helps = serializers.DictField(allow_null=True)


class GrantedSerializer(serializers.Serializer):
    """What each task was given of the devices of one model, in the words of the request: it can be more than was asked
    where devices are cut by templates or given whole. This is what counts and is billed."""

    group = serializers.CharField()
    model = serializers.CharField()
    devices = serializers.IntegerField()
    gpus = serializers.FloatField()
    gpu_memory_mib = serializers.IntegerField(help_text="of each device")
    template = serializers.CharField(allow_null=True, help_text="what the slice was cut by")


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
    tolerations = serializers.DictField(child=serializers.CharField())
    command = serializers.ListField(child=serializers.CharField(), allow_null=True)

    class Meta:
        model = TaskGroup
        fields = (
            *("name", "tasks", "min_tasks", "devices", "gpus", "gpu_memory_mib", "cpu", "memory_gib", "model"),
            *("vendor", "node_selector", "tolerations", "min_device_memory_mib", "command"),
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
    after = serializers.SerializerMethodField(help_text="jobs that must succeed first, of those that you may see")
    followers = serializers.SerializerMethodField(help_text="jobs that come after it, of those that you may see")

    class Meta:
        model = Job
        fields: tuple[str, ...] = (
            *("id", "name", "team", "user", "pool", "pools", "unit", "kind", "framework", "state", "hold", "ending"),
            *("reasons", "priority", "preemptible", "tasks", "tasks_running", "gpus", "requested", "allocated", "cost"),
            *("gpu_hours", "time_limit", "min_runtime", "retries", "retries_used", "preemptions", "submitted_at"),
            *("started_at", "ended_at", "estimated_start", "exit_code", "end_message", "version"),
            *("max_evictions", "after", "followers"),
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

    @extend_schema_field({"type": "array", "items": {"type": "integer"}})
    def get_after(self, job: Job) -> list[int]:
        return list(self.context["links"][job.pk][0])

    @extend_schema_field({"type": "array", "items": {"type": "integer"}})
    def get_followers(self, job: Job) -> list[int]:
        return list(self.context["links"][job.pk][1])

    def get_gpu_hours(self, job: Job) -> str:
        return decimal_text(job.figures.milli_seconds / 3_600_000)  # type: ignore[attr-defined]


class TopologySerializer(serializers.Serializer):
    """All tasks in one domain of the level; not required: as close together as they fit."""

    level = serializers.ChoiceField(WIDEST_FIRST)
    required = serializers.BooleanField()  # type: ignore[assignment]


class JobDetailSerializer(JobSerializer):
    """A job with its request, and what is ``granted`` for it: the different slices that its tasks hold now.
    ``environment`` is null for those who may only look: it often holds secrets."""

    topology = TopologySerializer(allow_null=True)
    apart = serializers.SerializerMethodField(help_text="no two of its tasks share a domain of this level")
    groups = GroupSerializer(source="figures.groups", many=True)
    granted = serializers.SerializerMethodField()
    command = serializers.ListField(child=serializers.CharField())
    environment = serializers.SerializerMethodField()

    class Meta(JobSerializer.Meta):
        fields = (
            *JobSerializer.Meta.fields,
            *("groups", "granted", "topology", "apart", "command", "image", "environment"),
        )

    @extend_schema_field({"type": ["string", "null"], "enum": [*WIDEST_FIRST, None]})
    def get_apart(self, job: Job) -> str | None:
        return job.apart or None

    @extend_schema_field(GrantedSerializer(many=True))
    def get_granted(self, job: Job) -> list[dict[str, Any]]:
        found = granted_to_groups(job.pk) if job.figures.allocated else {}  # type: ignore[attr-defined]
        groups = job.figures.groups  # type: ignore[attr-defined]
        return [{"group": group.name, **told(each)} for group in groups for each in found.get(group.pk, ())]

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
    links = links_of([job.pk for job in jobs], visible_team_ids(user))
    context = {"seen": teams, "jobs_seen": named, "may_stop": may_stop, "links": links}
    return list(serializer(jobs, many=True, context=context).data)


class SliceSerializer(serializers.ModelSerializer):
    """The part of one device that is held."""

    device = serializers.IntegerField(source="device_id")
    index = serializers.IntegerField(source="device.index")
    gpus = Quantity(source="compute_milli")
    template = serializers.SerializerMethodField(help_text="what it was cut by, where the model is cut by templates")

    class Meta:
        model = AllocationDevice
        fields = ("device", "index", "gpus", "memory_mib", "template")

    @extend_schema_field(TEXT_OR_NULL)
    def get_template(self, slice_: AllocationDevice) -> str | None:
        return template_of(slice_.device.model, slice_.compute_milli, slice_.memory_mib)


class RequestedSerializer(serializers.Serializer):
    """What one task asked of devices, in the words of the request."""

    devices = serializers.IntegerField()
    gpus = serializers.SerializerMethodField()
    gpu_memory_mib = serializers.IntegerField(source="memory_mib", allow_null=True)

    @extend_schema_field(NUMBER_OR_NULL)
    def get_gpus(self, group: TaskGroup) -> float | int | None:
        return gpus_asked(group)


class AllocationSerializer(serializers.ModelSerializer):
    """What one task holds, or held in an earlier attempt (then ``released_at`` is set), and what it asked for:
    ``requested`` beside what was granted, ``gpus`` in all and the slice of each of ``devices``."""

    task = serializers.IntegerField(source="task.index")
    group = serializers.CharField(source="task.group.name")
    pool = serializers.CharField(source="pool.name")
    node = serializers.CharField(source="node.name")
    model = serializers.CharField(source="model.name", allow_null=True, default=None)
    gpus = Quantity(source="milli")
    cpu = Quantity(source="cpu_milli")
    memory_gib = serializers.SerializerMethodField()
    requested = RequestedSerializer(source="task.group")
    devices = SliceSerializer(source="slices", many=True)
    bound_at = Moment()
    running_at = Moment(allow_null=True)
    stop_requested_at = Moment(allow_null=True)
    released_at = Moment(allow_null=True)

    class Meta:
        model = Allocation
        fields = (
            *("id", "task", "group", "state", "pool", "node", "model", "gpus", "cpu", "memory_gib", "requested"),
            *("devices", "bound_at", "running_at", "stop_requested_at", "released_at", "end_reason", "exit_code"),
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
    """A named priority; its value counts live. ``roles`` empty: open to all that may submit. ``max_jobs_per_team`` and
    ``max_gpus_per_team``: what a team's jobs of the class may be and hold at a time, over all pools."""

    max_gpus_per_team = Quantity(source="max_milli_per_team", allow_null=True)
    roles = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = PriorityClass
        fields = ("name", "value", "cluster_wide", "roles", "max_jobs_per_team", "max_gpus_per_team")
