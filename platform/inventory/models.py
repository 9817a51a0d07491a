"""What there is to share: accelerator models, engine connections, pools, nodes, devices.

Quantities are integers: milli-GPU (1000 = one device), MiB, milli-cores. The ``*_allocated`` columns are the account
of what is bound; they change only in the transaction that binds or frees, and CHECKs keep them within what exists.
"""

from __future__ import annotations

from typing import ClassVar

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import F, Q

SLUG = RegexValidator(r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$", "Use letters, digits, dots, dashes and underscores.")


class AcceleratorModel(models.Model):
    """A kind of device: what it is called, who makes it, how it may be sliced and what engines call it."""

    class Vendor(models.TextChoices):
        NVIDIA = "nvidia", "NVIDIA"
        AMD = "amd", "AMD"
        ASCEND = "ascend", "Ascend"
        KUNLUN = "kunlun", "Kunlun"
        CAMBRICON = "cambricon", "Cambricon"
        HYGON = "hygon", "Hygon"
        INTEL = "intel", "Intel"
        PRETEND = "pretend", "Pretend (no hardware)"
        OTHER = "other", "Other"

    class Slicing(models.TextChoices):
        ANY = "any", "Any multiple of the pool's step"
        TEMPLATES = "templates", "Fixed templates"
        WHOLE = "whole", "Whole devices only"

    name = models.CharField(max_length=63, unique=True, validators=[SLUG])
    vendor = models.CharField(max_length=16, choices=Vendor)
    family = models.CharField(max_length=63, blank=True)
    memory_mib = models.PositiveIntegerField()
    resource_name = models.CharField(max_length=120, blank=True, help_text="Kubernetes extended resource")
    slicing = models.CharField(max_length=12, choices=Slicing, default=Slicing.ANY)
    slice_templates = models.JSONField(default=list, blank=True, help_text="[{name, compute_milli, memory_mib}, …]")

    class Meta:
        ordering: ClassVar = ["vendor", "name"]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(memory_mib__gt=0), name="accelerator_model_has_memory"),
        ]

    def __str__(self) -> str:
        return self.name


class EngineConnection(models.Model):
    """Where a pool's work is carried out: one cluster, this machine, or a simulation."""

    class Kind(models.TextChoices):
        SIMULATED = "simulated", "Simulated"
        LOCAL = "local", "This machine"
        KUBERNETES = "kubernetes", "Kubernetes"

    class State(models.TextChoices):
        UNKNOWN = "unknown", "Not seen yet"
        OK = "ok", "Reachable"
        LOST = "lost", "Out of reach"

    name = models.CharField(max_length=63, unique=True, validators=[SLUG])
    kind = models.CharField(max_length=16, choices=Kind)
    settings = models.JSONField(default=dict, blank=True)
    enabled = models.BooleanField(default=True)
    state = models.CharField(max_length=12, choices=State, default=State.UNKNOWN)
    state_message = models.CharField(max_length=500, blank=True)
    last_seen_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name


class Pool(models.Model):
    """Devices that are shared under one set of quotas. ``unit`` says what quotas count: devices or CPU cores."""

    class Sharing(models.TextChoices):
        EXCLUSIVE = "exclusive", "Whole devices"
        FRACTION = "fraction", "Fractions"

    class Placement(models.TextChoices):
        BINPACK = "binpack", "Bin packing"
        SPREAD = "spread", "Spread"
        FRAGMENTATION = "fragmentation", "Least fragmentation"
        LOOKAHEAD = "lookahead", "Look-ahead"

    class Unit(models.TextChoices):
        GPU = "gpu", "GPUs"
        CPU = "cpu", "CPU cores"

    class State(models.TextChoices):
        ACTIVE = "active", "Active"
        PAUSED = "paused", "Paused"

    class BillingStart(models.TextChoices):
        BOUND = "bound", "When the devices are held"
        RUNNING = "running", "When the job runs"

    name = models.CharField(max_length=63, unique=True, validators=[SLUG])
    description = models.CharField(max_length=500, blank=True)
    engine = models.ForeignKey(EngineConnection, on_delete=models.PROTECT, related_name="pools")
    unit = models.CharField(max_length=4, choices=Unit, default=Unit.GPU)
    sharing = models.CharField(max_length=12, choices=Sharing, default=Sharing.FRACTION)
    share_across_teams = models.BooleanField(default=True)
    placement = models.CharField(max_length=16, choices=Placement, default=Placement.LOOKAHEAD)
    step_milli = models.PositiveSmallIntegerField(default=50)
    half_life_s = models.PositiveIntegerField(null=True, blank=True)
    grace_s = models.PositiveIntegerField(default=30)
    min_runtime_s = models.PositiveIntegerField(default=0)
    max_evictions = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="how often one job is made to give way; empty: as often as it takes"
    )
    idle_limit_s = models.PositiveIntegerField(
        null=True, blank=True, help_text="an interactive job that does nothing for so long ends; empty: never"
    )
    billing_start = models.CharField(max_length=8, choices=BillingStart, default=BillingStart.BOUND)
    state = models.CharField(max_length=8, choices=State, default=State.ACTIVE)
    created_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(step_milli__gt=0, step_milli__lte=1000), name="pool_step_within_device"),
        ]

    def __str__(self) -> str:
        return self.name


class Node(models.Model):
    """A machine. ``rank`` breaks ties between equally good nodes, the lower first."""

    class State(models.TextChoices):
        READY = "ready", "Ready"
        CORDONED = "cordoned", "Cordoned"
        DRAINING = "draining", "Draining"
        DOWN = "down", "Down"

    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="nodes")
    name = models.CharField(max_length=120)
    rank = models.PositiveIntegerField()
    state = models.CharField(max_length=10, choices=State, default=State.READY)
    state_reason = models.CharField(max_length=200, blank=True)
    cpu_milli = models.PositiveBigIntegerField()
    host_memory_mib = models.PositiveBigIntegerField()
    cpu_allocated_milli = models.BigIntegerField(default=0)
    host_memory_allocated_mib = models.BigIntegerField(default=0)
    labels = models.JSONField(default=dict, blank=True)
    taints = models.JSONField(
        default=dict, blank=True, help_text="only tasks that tolerate all of them come here: {key: value}"
    )
    last_seen_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["pool_id", "rank"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["pool", "name"], name="node_name_once_in_pool"),
            models.UniqueConstraint(fields=["pool", "rank"], name="node_rank_once_in_pool"),
            models.CheckConstraint(
                condition=Q(cpu_allocated_milli__gte=0, cpu_allocated_milli__lte=F("cpu_milli")),
                name="node_cpu_not_over_allocated",
            ),
            models.CheckConstraint(
                condition=Q(host_memory_allocated_mib__gte=0, host_memory_allocated_mib__lte=F("host_memory_mib")),
                name="node_memory_not_over_allocated",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Device(models.Model):
    """One accelerator. At most 1000 milli and its memory are ever bound on it: the database refuses more."""

    class Health(models.TextChoices):
        OK = "ok", "Healthy"
        FAILED = "failed", "Failed"

    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="devices")
    index = models.PositiveSmallIntegerField()
    model = models.ForeignKey(AcceleratorModel, on_delete=models.PROTECT, related_name="devices")
    uuid = models.CharField(max_length=120, blank=True)
    memory_mib = models.PositiveIntegerField()
    compute_allocated_milli = models.IntegerField(default=0)
    memory_allocated_mib = models.IntegerField(default=0)
    health = models.CharField(max_length=8, choices=Health, default=Health.OK)
    health_reason = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering: ClassVar = ["node_id", "index"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["node", "index"], name="device_index_once_in_node"),
            models.CheckConstraint(
                condition=Q(compute_allocated_milli__gte=0, compute_allocated_milli__lte=1000),
                name="device_compute_not_over_allocated",
            ),
            models.CheckConstraint(
                condition=Q(memory_allocated_mib__gte=0, memory_allocated_mib__lte=F("memory_mib")),
                name="device_memory_not_over_allocated",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.node_id}/{self.index}"
