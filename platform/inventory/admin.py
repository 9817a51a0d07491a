"""The console's view of the fleet."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet, Sum
from django.http import HttpRequest

from inventory import services
from inventory.models import AcceleratorModel, Device, EngineConnection, Node, Pool
from scheduling.core.units import format_gpus
from wire.console import ReadOnly, ReadOnlyRows, ThroughService, do_each


@admin.register(AcceleratorModel)
class AcceleratorModelAdmin(ThroughService):
    list_display = ("name", "vendor", "family", "memory_mib", "slicing", "resource_name", "device_count")
    list_filter = ("vendor", "slicing")
    search_fields = ("name", "family", "resource_name")
    form_fields = ("name", "vendor", "family", "memory_mib", "resource_name", "slicing", "slice_templates")
    fixed_fields = ("name",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[AcceleratorModel]:
        return super().get_queryset(request).annotate(owned=Count("devices"))

    @admin.display(description="devices", ordering="owned")
    def device_count(self, model: AcceleratorModel) -> int:
        return model.owned  # type: ignore[attr-defined]

    def service(self, instance: Any, values: dict[str, Any], now: datetime, actor_id: int) -> AcceleratorModel:
        return services.set_accelerator_model(
            values.get("name") or instance.name,
            values["vendor"],
            values["memory_mib"],
            family=values["family"],
            resource_name=values["resource_name"],
            slicing=values["slicing"],
            slice_templates=() if values["slice_templates"] is None else values["slice_templates"],
            now=now,
            actor_id=actor_id,
        )


@admin.register(EngineConnection)
class EngineConnectionAdmin(ReadOnly):
    list_display = ("name", "kind", "enabled", "state", "state_message", "last_seen_at")
    list_filter = ("kind", "state", "enabled")
    search_fields = ("name",)


@admin.register(Pool)
class PoolAdmin(ThroughService):
    list_display = ("name", "engine", "unit", "sharing", "placement", "state", "node_count", "step", "grace_s")
    list_filter = ("state", "unit", "sharing", "placement", "engine")
    search_fields = ("name", "description")
    form_fields = (
        "name",
        "engine",
        "unit",
        "description",
        "state",
        "sharing",
        "share_across_teams",
        "placement",
        "step_milli",
        "half_life_s",
        "grace_s",
        "min_runtime_s",
        "max_evictions",
        "idle_limit_s",
        "billing_start",
    )
    fixed_fields = ("engine", "unit")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Pool]:
        return super().get_queryset(request).annotate(owned=Count("nodes"))

    @admin.display(description="nodes", ordering="owned")
    def node_count(self, pool: Pool) -> int:
        return pool.owned  # type: ignore[attr-defined]

    @admin.display(description="sharing step", ordering="step_milli")
    def step(self, pool: Pool) -> str:
        return f"{format_gpus(pool.step_milli)} GPU"

    def service(self, instance: Any, values: dict[str, Any], now: datetime, actor_id: int) -> Pool:
        if instance.pk is None:
            name, engine, unit = values.pop("name"), values.pop("engine"), values.pop("unit")
            return services.create_pool(name, engine, now, unit=unit, actor_id=actor_id, **values)
        return services.change_pool(Pool.objects.get(pk=instance.pk), now, actor_id=actor_id, **values)


class DeviceRows(ReadOnlyRows):
    model = Device
    fields = ("index", "model", "memory_mib", "compute_allocated_milli", "memory_allocated_mib", "health", "uuid")
    readonly_fields = fields


@admin.register(Node)
class NodeAdmin(ThroughService):
    """Labels and taints are edited here; the rest is said by the engine, by files of nodes or by actions."""

    adds = False
    fixed_fields = (
        *("name", "pool", "rank", "state", "state_reason", "cpu_milli", "host_memory_mib", "cpu_allocated_milli"),
        *("host_memory_allocated_mib", "last_seen_at", "created_at"),
    )
    form_fields = (*fixed_fields, "labels", "taints")
    list_display = ("name", "pool", "state", "state_reason", "allocated", "cpu", "memory", "last_seen_at")
    list_filter = ("state", "pool")
    search_fields = ("name",)
    list_select_related = ("pool",)
    inlines = (DeviceRows,)
    actions = ("cordon", "uncordon")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Node]:
        return (
            super()
            .get_queryset(request)
            .annotate(owned=Count("devices"), bound=Sum("devices__compute_allocated_milli", default=0))
        )

    @admin.display(description="GPUs allocated", ordering="bound")
    def allocated(self, node: Node) -> str:
        return f"{format_gpus(node.bound)} of {node.owned}"  # type: ignore[attr-defined]

    @admin.display(description="cores allocated", ordering="cpu_allocated_milli")
    def cpu(self, node: Node) -> str:
        return f"{format_gpus(node.cpu_allocated_milli)} of {format_gpus(node.cpu_milli)}"

    @admin.display(description="GiB allocated", ordering="host_memory_allocated_mib")
    def memory(self, node: Node) -> str:
        return f"{node.host_memory_allocated_mib / 1024:.0f} of {node.host_memory_mib / 1024:.0f}"

    def service(self, instance: Any, values: dict[str, Any], now: datetime, actor_id: int) -> Node:
        return services.change_node(
            Node.objects.get(pk=instance.pk),
            now,
            labels=values["labels"] or {},
            taints=values["taints"] or {},
            actor_id=actor_id,
        )

    @admin.action(description="Cordon: nothing new starts there")
    def cordon(self, request: HttpRequest, rows: QuerySet[Node]) -> None:
        do_each(
            request,
            rows,
            lambda node, now, actor: services.cordon(node, now, reason="by an operator", actor_id=actor),
            "cordoned",
        )

    @admin.action(description="Uncordon: takes work again")
    def uncordon(self, request: HttpRequest, rows: QuerySet[Node]) -> None:
        do_each(request, rows, lambda node, now, actor: services.uncordon(node, now, actor_id=actor), "uncordoned")


@admin.register(Device)
class DeviceAdmin(ReadOnly):
    list_display = ("place", "model", "health", "health_reason", "allocated", "memory", "uuid")
    list_filter = ("health", "model", "node__pool")
    search_fields = ("node__name", "uuid")
    list_select_related = ("node", "model")
    actions = ("mark_failed", "mark_healthy")

    @admin.display(description="device", ordering="node__name")
    def place(self, device: Device) -> str:
        return f"{device.node.name} #{device.index}"

    @admin.display(description="allocated", ordering="compute_allocated_milli")
    def allocated(self, device: Device) -> str:
        return f"{format_gpus(device.compute_allocated_milli)} of 1"

    @admin.display(description="MiB allocated", ordering="memory_allocated_mib")
    def memory(self, device: Device) -> str:
        return f"{device.memory_allocated_mib} of {device.memory_mib}"

    @admin.action(description="Mark failed: gets no new work")
    def mark_failed(self, request: HttpRequest, rows: QuerySet[Device]) -> None:
        self._mark(request, rows, Device.Health.FAILED, "marked failed")

    @admin.action(description="Mark healthy")
    def mark_healthy(self, request: HttpRequest, rows: QuerySet[Device]) -> None:
        self._mark(request, rows, Device.Health.OK, "marked healthy")

    def _mark(self, request: HttpRequest, rows: QuerySet[Device], health: str, done: str) -> None:
        def act(device: Device, now: datetime, actor: int) -> None:
            services.set_device_health(device, health, now, reason="by an operator", actor_id=actor)

        do_each(request, rows.select_related("node"), act, done)
