"""REST: pools, nodes, devices and accelerator models, to read. Who holds what on them is told by jobs, not here."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from events.errors import Fault, NotThere
from inventory.models import AcceleratorModel, Device, EngineConnection, Node, Pool
from inventory.selectors import model_named, pool_named, pool_totals
from scheduling.core.units import gpus_from_milli
from wire.fields import MAX_ID, Choices, Moment, Quantity, Text, identifier
from wire.pages import Listing, PageQuery, page_answer, paged
from wire.views import ApiView

BY_NAME = {"name": "name"}
POOLS = Listing[Pool](BY_NAME, default="name")
MODELS = Listing[AcceleratorModel](BY_NAME, default="name")
NODES = Listing[Node]({"id": "id", "name": "name"}, default="id")
DEVICES = Listing[Device]({"id": "id"}, default="id")


class EngineSerializer(serializers.ModelSerializer):
    """What runs a pool's work, and whether it answers."""

    class Meta:
        model = EngineConnection
        fields = ("name", "kind", "state")


class PoolOptionsSerializer(serializers.Serializer):
    """Durations in seconds; null is off."""

    half_life = serializers.IntegerField(source="half_life_s", allow_null=True)
    grace = serializers.IntegerField(source="grace_s")
    min_runtime = serializers.IntegerField(source="min_runtime_s")
    max_evictions = serializers.IntegerField(allow_null=True, help_text="of one job; null: as often as it takes")
    idle_limit = serializers.IntegerField(
        source="idle_limit_s", allow_null=True, help_text="an interactive job that does nothing for so long ends"
    )


class PoolSerializer(serializers.ModelSerializer):
    """A pool. Quantities are in its ``unit``: GPUs, or cores.

    ``total`` is all that there is, ``schedulable`` what is healthy and in service, ``capacity`` what teams share
    (schedulable, and what is held elsewhere), ``free`` what is left of schedulable.
    """

    engine = EngineSerializer()
    step = Quantity(source="step_milli", help_text="fractions are multiples of it")
    options = PoolOptionsSerializer(source="*")
    total = Quantity(source="totals.total")
    schedulable = Quantity(source="totals.schedulable")
    capacity = Quantity(source="totals.capacity")
    allocated = Quantity(source="totals.allocated")
    free = Quantity(source="totals.free")
    nodes = serializers.IntegerField(source="totals.nodes")
    nodes_ready = serializers.IntegerField(source="totals.nodes_ready")
    devices = serializers.IntegerField(source="totals.devices")
    devices_failed = serializers.IntegerField(source="totals.devices_failed")
    created_at = Moment()

    class Meta:
        model = Pool
        fields = (
            *("name", "description", "state", "unit", "engine", "sharing", "share_across_teams", "step", "placement"),
            *("options", "billing_start", "total", "schedulable", "capacity", "allocated", "free"),
            *("nodes", "nodes_ready", "devices", "devices_failed", "created_at"),
        )


def _with_totals(pools: list[Pool]) -> list[Pool]:
    totals = pool_totals([pool.pk for pool in pools])
    for pool in pools:
        pool.totals = totals[pool.pk]  # type: ignore[attr-defined]
    return pools


class Pools(ApiView):
    queries = {"GET": PageQuery}

    @extend_schema(operation_id="pools", parameters=[PageQuery], responses=paged(PoolSerializer))
    def get(self, request: Request) -> Response:
        """All pools."""
        rows, following = POOLS.page(Pool.objects.select_related("engine"), request, self.query)
        return page_answer(PoolSerializer(_with_totals(rows), many=True).data, following)


class OnePool(ApiView):
    @extend_schema(operation_id="pool", responses=PoolSerializer)
    def get(self, request: Request, pool: str) -> Response:
        """One pool."""
        return Response(PoolSerializer(_with_totals([pool_named(pool)])[0]).data)


class NodeSerializer(serializers.ModelSerializer):
    """A node. ``cpu`` in cores, memory in GiB; what is allocated is held by somebody."""

    pool = serializers.CharField(source="pool.name")
    cpu = Quantity(source="cpu_milli")
    cpu_allocated = Quantity(source="cpu_allocated_milli")
    memory_gib = serializers.SerializerMethodField()
    memory_allocated_gib = serializers.SerializerMethodField()
    labels = serializers.DictField(child=serializers.CharField())
    taints = serializers.DictField(child=serializers.CharField(), help_text="only tasks that tolerate all come here")
    last_seen_at = Moment(allow_null=True)
    created_at = Moment()

    class Meta:
        model = Node
        fields = (
            *("id", "pool", "name", "rank", "state", "state_reason", "labels", "taints", "cpu", "cpu_allocated"),
            *("memory_gib", "memory_allocated_gib", "last_seen_at", "created_at"),
        )

    def get_memory_gib(self, node: Node) -> float:
        return _gib(node.host_memory_mib)

    def get_memory_allocated_gib(self, node: Node) -> float:
        return _gib(node.host_memory_allocated_mib)


def _gib(mib: int) -> float | int:
    """Exactly: a binary fraction of at most ten places."""
    return mib // 1024 if mib % 1024 == 0 else mib / 1024


class NodeQuery(PageQuery):
    pool = Text(required=False, max_length=63)
    state = Choices(Node.State.choices, required=False)
    ordering = serializers.ChoiceField(NODES.choices, required=False)


class Nodes(ApiView):
    queries = {"GET": NodeQuery}

    @extend_schema(operation_id="nodes", parameters=[NodeQuery], responses=paged(NodeSerializer))
    def get(self, request: Request) -> Response:
        """Nodes, of one pool or of all."""
        nodes = Node.objects.select_related("pool")
        if "pool" in self.query:
            nodes = nodes.filter(pool=pool_named(self.query["pool"]))
        if "state" in self.query:
            nodes = nodes.filter(state__in=self.query["state"])
        rows, following = NODES.page(nodes, request, self.query)
        return page_answer(NodeSerializer(rows, many=True).data, following)


class OneNode(ApiView):
    @extend_schema(operation_id="node", responses=NodeSerializer)
    def get(self, request: Request, node_id: int) -> Response:
        """One node."""
        return Response(NodeSerializer(_node(node_id)).data)


def _node(node_id: int) -> Node:
    found = Node.objects.select_related("pool").filter(pk=node_id).first() if node_id <= MAX_ID else None
    if found is None:
        raise NotThere("There is no such node.", faults=[Fault("node", "there is no such node", "unknown", node_id)])
    return found


class DeviceSerializer(serializers.ModelSerializer):
    """One accelerator. ``allocated`` is the part of its compute that is held, 0 to 1."""

    pool = serializers.CharField(source="node.pool.name")
    node = serializers.CharField(source="node.name")
    node_id = serializers.IntegerField()
    model = serializers.CharField(source="model.name")
    vendor = serializers.CharField(source="model.vendor")
    allocated = Quantity(source="compute_allocated_milli")

    class Meta:
        model = Device
        fields = (
            *("id", "pool", "node", "node_id", "index", "model", "vendor", "uuid", "memory_mib", "allocated"),
            *("memory_allocated_mib", "health", "health_reason"),
        )


class DeviceQuery(PageQuery):
    pool = Text(required=False, max_length=63)
    node = identifier(required=False, help_text="the id of a node")
    health = Choices(Device.Health.choices, required=False)
    ordering = serializers.ChoiceField(DEVICES.choices, required=False)


class Devices(ApiView):
    queries = {"GET": DeviceQuery}

    @extend_schema(operation_id="devices", parameters=[DeviceQuery], responses=paged(DeviceSerializer))
    def get(self, request: Request) -> Response:
        """Devices, of one pool, one node or all."""
        devices = Device.objects.select_related("node__pool", "model")
        if "pool" in self.query:
            devices = devices.filter(node__pool=pool_named(self.query["pool"]))
        if "node" in self.query:
            devices = devices.filter(node=_node(self.query["node"]))
        if "health" in self.query:
            devices = devices.filter(health__in=self.query["health"])
        rows, following = DEVICES.page(devices, request, self.query)
        return page_answer(DeviceSerializer(rows, many=True).data, following)


class OneDevice(ApiView):
    @extend_schema(operation_id="device", responses=DeviceSerializer)
    def get(self, request: Request, device_id: int) -> Response:
        """One device."""
        devices = Device.objects.select_related("node__pool", "model")
        found = devices.filter(pk=device_id).first() if device_id <= MAX_ID else None
        if found is None:
            raise NotThere("There is no such device.")
        return Response(DeviceSerializer(found).data)


class SliceTemplateSerializer(serializers.Serializer):
    """A slice that a device can be cut into, where it cannot be cut freely."""

    name = serializers.CharField()
    gpus = serializers.SerializerMethodField()
    memory_mib = serializers.IntegerField()

    def get_gpus(self, template: dict[str, Any]) -> float:
        return gpus_from_milli(template["compute_milli"])


class AcceleratorModelSerializer(serializers.ModelSerializer):
    """A kind of accelerator."""

    slice_templates = SliceTemplateSerializer(many=True)

    class Meta:
        model = AcceleratorModel
        fields = ("name", "vendor", "family", "memory_mib", "resource_name", "slicing", "slice_templates")


class AcceleratorModels(ApiView):
    queries = {"GET": PageQuery}

    @extend_schema(
        operation_id="accelerator_models", parameters=[PageQuery], responses=paged(AcceleratorModelSerializer)
    )
    def get(self, request: Request) -> Response:
        """All accelerator models."""
        rows, following = MODELS.page(AcceleratorModel.objects.all(), request, self.query)
        return page_answer(AcceleratorModelSerializer(rows, many=True).data, following)


class OneAcceleratorModel(ApiView):
    @extend_schema(operation_id="accelerator_model", responses=AcceleratorModelSerializer)
    def get(self, request: Request, model: str) -> Response:
        """One accelerator model."""
        return Response(AcceleratorModelSerializer(model_named(model)).data)
