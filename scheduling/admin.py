"""The console's view of jobs, what they hold, and why."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from scheduling.core.units import format_gpus
from scheduling.models import (
    Allocation,
    AllocationDevice,
    CycleRecord,
    Decision,
    Job,
    PastUse,
    PriorityClass,
    SchedulerLease,
    SubmissionKey,
    Task,
    TaskGroup,
)
from scheduling.services import holding, stop
from wire.console import ReadOnly, ReadOnlyRows, ThroughService, do_each


@admin.register(PriorityClass)
class PriorityClassAdmin(ThroughService):
    list_display = ("name", "value", "cluster_wide", "max_jobs_per_team", "gpus_per_team", "roles")
    list_filter = ("cluster_wide",)
    search_fields = ("name",)
    form_fields = ("name", "value", "cluster_wide", "roles", "max_jobs_per_team", "max_milli_per_team")
    fixed_fields = ("name",)

    @admin.display(description="GPUs per team", ordering="max_milli_per_team")
    def gpus_per_team(self, found: PriorityClass) -> str:
        return "–" if found.max_milli_per_team is None else format_gpus(found.max_milli_per_team)

    def service(self, instance: Any, values: dict[str, Any], now: datetime, actor_id: int) -> PriorityClass:
        name = values.pop("name", None) or instance.name
        return stop.set_priority_class(name, values.pop("value"), now, actor_id=actor_id, **values)


class GroupRows(ReadOnlyRows):
    model = TaskGroup
    fields = ("name", "count", "min_count", "devices", "compute_milli", "memory_mib", "cpu_milli", "host_memory_mib")
    readonly_fields = fields


class TaskRows(ReadOnlyRows):
    model = Task
    fields = ("index", "group", "state", "exit_code")
    readonly_fields = fields
    max_num = 50


class DecisionRows(ReadOnlyRows):
    model = Decision
    fields = ("at", "kind", "rule", "numbers", "cycle")
    readonly_fields = fields


@admin.register(Job)
class JobAdmin(ReadOnly):
    list_display = (
        "id",
        "name",
        "team",
        "user",
        "pool",
        "state",
        "asks_for",
        "priority",
        "hold",
        "submitted_at",
        "why",
    )
    list_filter = ("state", "pool", "team", "kind", "hold", "priority_class", "framework")
    search_fields = ("=id", "name", "user__username")
    list_select_related = ("team", "user", "pool", "priority_class")
    date_hierarchy = "submitted_at"
    inlines = (GroupRows, DecisionRows)
    actions = ("cancel", "hold_jobs", "release_jobs")

    @admin.display(description="GPUs", ordering="milli_wanted")
    def asks_for(self, job: Job) -> str:
        return format_gpus(job.milli_wanted)

    @admin.display(description="priority", ordering="priority_class__value")
    def priority(self, job: Job) -> int:
        return job.priority_class.value if job.priority_value is None else job.priority_value

    @admin.display(description="waits because")
    def why(self, job: Job) -> str:
        return "; ".join(reason["message"] for reason in job.reasons) if job.state == Job.State.PENDING else ""

    @admin.action(description="Cancel")
    def cancel(self, request: HttpRequest, rows: QuerySet[Job]) -> None:
        def act(job: Job, now: datetime, actor: int) -> None:
            stop.cancel_jobs([job.pk], now, actor_id=actor)

        do_each(request, rows, act, "cancelled or stopping")

    @admin.action(description="Hold: passed over until released")
    def hold_jobs(self, request: HttpRequest, rows: QuerySet[Job]) -> None:
        def act(job: Job, now: datetime, actor: int) -> None:
            holding.hold_job(job, now, by=Job.Hold.OPERATOR, actor_id=actor)

        do_each(request, rows, act, "held")

    @admin.action(description="Release")
    def release_jobs(self, request: HttpRequest, rows: QuerySet[Job]) -> None:
        do_each(request, rows, lambda job, now, actor: holding.release_job(job, now, actor_id=actor), "released")


@admin.register(Task)
class TaskAdmin(ReadOnly):
    list_display = ("id", "job", "index", "group", "state", "exit_code")
    list_filter = ("state",)
    search_fields = ("=job__id", "job__name")
    list_select_related = ("job", "group")


class SliceRows(ReadOnlyRows):
    model = AllocationDevice
    fields = ("device", "compute_milli", "memory_mib")
    readonly_fields = fields


@admin.register(Allocation)
class AllocationAdmin(ReadOnly):
    list_display = (
        "id",
        "job",
        "team",
        "pool",
        "node",
        "model",
        "gpus",
        "state",
        "bound_at",
        "released_at",
        "end_reason",
    )
    list_filter = ("state", "pool", "team", "model")
    search_fields = ("=job__id", "job__name", "node__name")
    list_select_related = ("job", "team", "pool", "node", "model")
    inlines = (SliceRows,)

    @admin.display(description="GPUs", ordering="milli")
    def gpus(self, allocation: Allocation) -> str:
        return format_gpus(allocation.milli)


@admin.register(Decision)
class DecisionAdmin(ReadOnly):
    list_display = ("id", "at", "cycle", "kind", "job", "team", "pool", "rule", "numbers")
    list_filter = ("kind", "rule", "pool", "team")
    search_fields = ("=job__id", "job__name")
    list_select_related = ("job", "team", "pool")


@admin.register(CycleRecord)
class CycleRecordAdmin(ReadOnly):
    """What was kept of cycles. The records themselves are for ``manage.py explain``, which writes one to a file."""

    list_display = ("id", "cycle", "at", "size")
    search_fields = ("=cycle",)
    exclude = ("body",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[CycleRecord]:
        return super().get_queryset(request).defer("body")


@admin.register(SchedulerLease)
class SchedulerLeaseAdmin(ReadOnly):
    list_display = ("name", "holder", "term", "expires_at", "cycle", "cycle_at", "cycle_ms")


@admin.register(PastUse)
class PastUseAdmin(ReadOnly):
    list_display = ("pool", "half_life_s", "seq")
    list_select_related = ("pool",)


@admin.register(SubmissionKey)
class SubmissionKeyAdmin(ReadOnly):
    list_display = ("user", "key", "created_at", "job_ids")
    search_fields = ("key", "user__username")
    list_select_related = ("user",)
