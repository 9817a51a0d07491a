"""The console's view of what is really used."""

from django.contrib import admin

from telemetry.models import DeviceReading, Finding, JobSample, PoolSample, TaskReading
from wire.console import ReadOnly


@admin.register(DeviceReading)
class DeviceReadingAdmin(ReadOnly):
    list_display = ("device", "at", "compute_milli", "memory_mib")
    list_filter = ("device__node__pool",)
    search_fields = ("device__node__name",)
    list_select_related = ("device",)


@admin.register(TaskReading)
class TaskReadingAdmin(ReadOnly):
    list_display = ("allocation", "at", "compute_milli", "memory_mib", "cpu_milli", "host_memory_mib")
    search_fields = ("=allocation__job__id",)


@admin.register(PoolSample)
class PoolSampleAdmin(ReadOnly):
    list_display = ("pool", "team", "at", "resolution_s", "capacity_milli", "allocated_milli", "used_milli")
    list_filter = ("pool", "team", "resolution_s")
    list_select_related = ("pool", "team")


@admin.register(JobSample)
class JobSampleAdmin(ReadOnly):
    list_display = ("job", "at", "resolution_s", "allocated_milli", "used_milli", "memory_mib")
    list_filter = ("resolution_s",)
    search_fields = ("=job__id",)
    list_select_related = ("job",)


@admin.register(Finding)
class FindingAdmin(ReadOnly):
    list_display = ("kind", "team", "job", "node", "numbers", "began_at", "ended_at")
    list_filter = ("kind", "ended_at")
    list_select_related = ("team", "job", "node")
