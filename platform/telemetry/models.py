"""What is really used: the last reading of each device and task, and samples over time. Unknown is null, never 0."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class DeviceReading(models.Model):
    """The latest that is known of a device. ``compute_milli`` 0..1000 is busy time; None where it does not say."""

    device = models.OneToOneField(
        "inventory.Device", primary_key=True, on_delete=models.CASCADE, related_name="reading"
    )
    at = models.DateTimeField(db_index=True)
    compute_milli = models.PositiveSmallIntegerField(null=True, blank=True)
    memory_mib = models.PositiveIntegerField(null=True, blank=True)

    def __str__(self) -> str:
        return f"device {self.device_id}"


class TaskReading(models.Model):
    """The latest that is known of an allocation's own use, in milli of its devices and in MiB of device memory."""

    allocation = models.OneToOneField(
        "scheduling.Allocation", primary_key=True, on_delete=models.CASCADE, related_name="reading"
    )
    at = models.DateTimeField(db_index=True)
    compute_milli = models.PositiveIntegerField(null=True, blank=True)
    memory_mib = models.PositiveIntegerField(null=True, blank=True)
    cpu_milli = models.PositiveBigIntegerField(null=True, blank=True)
    host_memory_mib = models.PositiveBigIntegerField(null=True, blank=True)
    idle_since = models.DateTimeField(
        null=True,
        blank=True,
        help_text="since when every reading of it shows no use, without a gap; kept where the pool ends idle jobs",
    )

    def __str__(self) -> str:
        return f"allocation {self.allocation_id}"


class PoolSample(models.Model):
    """A pool (team None) or a team's part of it at a moment, in milli-GPU; ``resolution_s`` > 0 is an average."""

    pool = models.ForeignKey("inventory.Pool", on_delete=models.CASCADE, related_name="samples")
    team = models.ForeignKey("tenants.Team", null=True, blank=True, on_delete=models.CASCADE, related_name="samples")
    at = models.DateTimeField()
    resolution_s = models.PositiveIntegerField(default=0)
    capacity_milli = models.BigIntegerField(null=True, blank=True)
    allocated_milli = models.BigIntegerField()
    used_milli = models.BigIntegerField(null=True, blank=True)
    deserved_milli = models.BigIntegerField(null=True, blank=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["pool", "resolution_s", "at"], condition=models.Q(team__isnull=True), name="pool_sample_once"
            ),
            models.UniqueConstraint(
                fields=["pool", "team", "resolution_s", "at"],
                condition=models.Q(team__isnull=False),
                name="pool_team_sample_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.pool_id} at {self.at}"


class JobSample(models.Model):
    """A job's use at a moment, over all its tasks; ``resolution_s`` > 0 is an average over that long."""

    job = models.ForeignKey("scheduling.Job", on_delete=models.CASCADE, related_name="samples")
    at = models.DateTimeField()
    resolution_s = models.PositiveIntegerField(default=0)
    allocated_milli = models.BigIntegerField()
    used_milli = models.BigIntegerField(null=True, blank=True)
    memory_mib = models.BigIntegerField(null=True, blank=True)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["job", "resolution_s", "at"], name="job_sample_once")]

    def __str__(self) -> str:
        return f"{self.job_id} at {self.at}"


class Finding(models.Model):
    """Something that wants attention: an idle allocation, a slow node. Open until ``ended_at``."""

    class Kind(models.TextChoices):
        IDLE = "idle", "Allocated but unused"
        SLOW_NODE = "slow_node", "Slow node"

    kind = models.CharField(max_length=12, choices=Kind)
    team = models.ForeignKey("tenants.Team", null=True, blank=True, on_delete=models.CASCADE, related_name="findings")
    job = models.ForeignKey("scheduling.Job", null=True, blank=True, on_delete=models.CASCADE, related_name="findings")
    node = models.ForeignKey("inventory.Node", null=True, blank=True, on_delete=models.CASCADE, related_name="findings")
    numbers = models.JSONField(default=dict)
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["-began_at", "-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["kind", "job"],
                condition=models.Q(ended_at__isnull=True, job__isnull=False),
                name="one_open_finding_of_a_job",
            ),
            models.UniqueConstraint(
                fields=["kind", "node"],
                condition=models.Q(ended_at__isnull=True, node__isnull=False),
                name="one_open_finding_of_a_node",
            ),
        ]

    def __str__(self) -> str:
        return self.kind
