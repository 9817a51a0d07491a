"""When and where: priority classes, jobs and their tasks, allocations, decisions, the scheduler's lease.

Services are the only writers. Lifecycles are the tables in ``scheduling.states``; rows move along them by
compare-and-swap on ``state`` and ``version``.
"""

from __future__ import annotations

from typing import ClassVar

from django.core.validators import MaxLengthValidator, MinLengthValidator
from django.db import models
from django.db.models import Q


class PriorityClass(models.Model):
    """A named priority. Its value counts live: changing it reorders the jobs that name it, everywhere at once."""

    name = models.CharField(max_length=63, unique=True)
    value = models.IntegerField()
    cluster_wide = models.BooleanField(default=False, help_text="goes ahead of other teams' jobs")
    roles = models.JSONField(default=list, blank=True, help_text="roles that may use it; empty: all that may submit")
    max_jobs_per_team = models.PositiveIntegerField(null=True, blank=True)
    max_milli_per_team = models.PositiveBigIntegerField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["-value", "name"]
        verbose_name_plural = "priority classes"

    def __str__(self) -> str:
        return self.name


class Job(models.Model):
    """What a person submits. ``pool_ids`` are its pools in order of preference; ``pool`` is where it is or would go."""

    class State(models.TextChoices):
        PENDING = "pending", "Pending"
        STARTING = "starting", "Starting"
        RUNNING = "running", "Running"
        SUCCEEDED = "succeeded", "Succeeded"
        FAILED = "failed", "Failed"
        CANCELLED = "cancelled", "Cancelled"

    class Kind(models.TextChoices):
        BATCH = "batch", "Batch"
        INTERACTIVE = "interactive", "Interactive"
        SERVICE = "service", "Service"

    class Hold(models.TextChoices):
        NONE = "", "Not held"
        OWNER = "owner", "Held by its owner"
        OPERATOR = "operator", "Held by an operator"
        BUDGET = "budget", "Held by a spent budget"
        DEPENDENCY = "dependency", "Waits for another job"

    class Ending(models.TextChoices):
        NONE = "", "Not ending"
        SUCCEEDED = "succeeded", "Succeeded"
        FAILED = "failed", "Failed"
        CANCELLED = "cancelled", "Cancelled"
        REQUEUE = "requeue", "Back to the queue"

    name = models.CharField(max_length=200, validators=[MinLengthValidator(1), MaxLengthValidator(200)])
    team = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="jobs")
    user = models.ForeignKey("tenants.User", on_delete=models.PROTECT, related_name="jobs")
    pool = models.ForeignKey("inventory.Pool", on_delete=models.PROTECT, related_name="jobs")
    pool_ids = models.JSONField()
    kind = models.CharField(max_length=12, choices=Kind, default=Kind.BATCH)
    framework = models.CharField(max_length=32, blank=True)
    priority_class = models.ForeignKey(PriorityClass, on_delete=models.PROTECT, related_name="jobs")
    priority_value = models.IntegerField(null=True, blank=True, help_text="takes the place of the class's value")
    preemptible = models.BooleanField(default=True)
    command = models.JSONField(default=list)
    environment = models.JSONField(default=dict)
    image = models.CharField(max_length=500, blank=True)
    time_limit_s = models.PositiveIntegerField(null=True, blank=True)
    retries = models.PositiveSmallIntegerField(default=0)
    retries_used = models.PositiveSmallIntegerField(default=0)
    min_runtime_s = models.PositiveIntegerField(null=True, blank=True)
    max_evictions = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="how often it is made to give way; empty: as its pool says"
    )
    topology = models.JSONField(null=True, blank=True, help_text="{level, required}")
    apart = models.CharField(max_length=16, blank=True, help_text="a level: no two of its tasks share a domain of it")
    after = models.ManyToManyField("self", symmetrical=False, blank=True, related_name="followers")
    # What a simulated engine plays: how long it would run and how it would end. None: until it is cancelled.
    simulated_duration_ms = models.PositiveBigIntegerField(null=True, blank=True)
    simulated_exit_code = models.SmallIntegerField(default=0)

    state = models.CharField(max_length=10, choices=State, default=State.PENDING)
    version = models.PositiveIntegerField(default=0)
    hold = models.CharField(max_length=12, choices=Hold, default=Hold.NONE, blank=True)
    # Once set, every allocation of the job is being stopped, and the last release brings it to this end.
    ending = models.CharField(max_length=10, choices=Ending, default=Ending.NONE, blank=True)
    ending_reason = models.CharField(max_length=40, blank=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    submitted_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True, help_text="when the current or last attempt began to run")
    ended_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    end_message = models.CharField(max_length=500, blank=True)
    preemptions = models.PositiveIntegerField(default=0)
    room_made_at = models.DateTimeField(
        null=True, blank=True, help_text="when others were told to give way to it; empty once it has started"
    )
    reasons = models.JSONField(default=list)
    estimated_start = models.DateTimeField(null=True, blank=True)
    # The request in figures that lists sort and filter by: all tasks together.
    tasks_wanted = models.PositiveIntegerField()
    milli_wanted = models.BigIntegerField(
        help_text="milli-GPU of all tasks; memory-only slices count at their smallest"
    )

    class Meta:
        ordering: ClassVar = ["-submitted_at", "-id"]
        indexes: ClassVar = [
            models.Index(fields=["team", "-submitted_at", "-id"], name="job_by_team_newest"),
            models.Index(fields=["-submitted_at", "-id"], name="job_newest"),
            models.Index(
                fields=["pool", "state"],
                condition=Q(state__in=["pending", "starting", "running"]),
                name="job_unfinished",
            ),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(state__in=["succeeded", "failed", "cancelled"], ended_at__isnull=False)
                | Q(state__in=["pending", "starting", "running"], ended_at__isnull=True),
                name="job_ended_has_a_time",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class TaskGroup(models.Model):
    """Tasks of one kind in a job, and what each of them asks for. One gang of a job may have several."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="groups")
    position = models.PositiveSmallIntegerField(default=0)
    name = models.CharField(max_length=63, default="task")
    count = models.PositiveIntegerField()
    min_count = models.PositiveIntegerField()
    devices = models.PositiveSmallIntegerField(default=0, help_text="different devices of one node; 0: CPU only")
    compute_milli = models.PositiveSmallIntegerField(null=True, blank=True, help_text="of each device")
    memory_mib = models.PositiveIntegerField(null=True, blank=True, help_text="of each device")
    cpu_milli = models.PositiveBigIntegerField(default=0)
    host_memory_mib = models.PositiveBigIntegerField(default=0)
    models_allowed = models.JSONField(default=list, blank=True)
    vendors_allowed = models.JSONField(default=list, blank=True)
    min_device_memory_mib = models.PositiveIntegerField(default=0)
    node_selector = models.JSONField(default=dict, blank=True)
    tolerations = models.JSONField(default=dict, blank=True, help_text="taints of nodes that it bears: {key: value}")
    command = models.JSONField(null=True, blank=True, help_text="takes the place of the job's command")

    class Meta:
        ordering: ClassVar = ["job_id", "position"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["job", "position"], name="group_position_once"),
            models.CheckConstraint(
                condition=Q(count__gte=1, min_count__gte=0, min_count__lte=models.F("count")), name="group_counts"
            ),
            models.CheckConstraint(
                condition=Q(devices=0, compute_milli__isnull=True, memory_mib__isnull=True)
                | Q(devices__gte=1) & (Q(compute_milli__isnull=False) | Q(memory_mib__isnull=False)),
                name="group_asks_for_something",
            ),
            models.CheckConstraint(
                condition=Q(compute_milli__isnull=True) | Q(compute_milli__gte=1, compute_milli__lte=1000),
                name="group_compute_within_device",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id}/{self.name}"


class Task(models.Model):
    """One member of a job."""

    class State(models.TextChoices):
        PENDING = "pending", "Pending"
        STARTING = "starting", "Starting"
        RUNNING = "running", "Running"
        SUCCEEDED = "succeeded", "Succeeded"
        FAILED = "failed", "Failed"
        CANCELLED = "cancelled", "Cancelled"

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="tasks")
    group = models.ForeignKey(TaskGroup, on_delete=models.CASCADE, related_name="tasks")
    index = models.PositiveIntegerField(help_text="rank in the whole job, from 0")
    restarts = models.PositiveIntegerField(default=0, help_text="how often it was started again after it ended")
    state = models.CharField(max_length=10, choices=State, default=State.PENDING)
    exit_code = models.IntegerField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["job_id", "index"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["job", "index"], name="task_index_once")]

    def __str__(self) -> str:
        return f"{self.job_id}/{self.index}"


class Allocation(models.Model):
    """Devices, CPU and memory of one node that one task holds, from ``bound_at`` to ``released_at``.

    It counts in every account until it is released, while it is being stopped too.
    """

    class State(models.TextChoices):
        BOUND = "bound", "Bound"
        RUNNING = "running", "Running"
        RELEASING = "releasing", "Releasing"
        RELEASED = "released", "Released"

    task = models.ForeignKey(Task, on_delete=models.PROTECT, related_name="allocations")
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="allocations")
    team = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="allocations")
    user = models.ForeignKey("tenants.User", on_delete=models.PROTECT, related_name="allocations")
    pool = models.ForeignKey("inventory.Pool", on_delete=models.PROTECT, related_name="allocations")
    node = models.ForeignKey("inventory.Node", on_delete=models.PROTECT, related_name="allocations")
    model = models.ForeignKey(
        "inventory.AcceleratorModel", null=True, blank=True, on_delete=models.PROTECT, related_name="allocations"
    )
    state = models.CharField(max_length=10, choices=State, default=State.BOUND)
    milli = models.IntegerField(help_text="milli-GPU over all its devices")
    compute_milli = models.PositiveSmallIntegerField(default=0, help_text="of each device")
    cpu_milli = models.BigIntegerField(default=0)
    host_memory_mib = models.BigIntegerField(default=0)
    bound_at = models.DateTimeField()
    running_at = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)
    evicted_for = models.ForeignKey(
        Job, null=True, blank=True, on_delete=models.SET_NULL, related_name="evictions", help_text="who it gives way to"
    )
    released_at = models.DateTimeField(null=True, blank=True)
    end_reason = models.CharField(max_length=40, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["id"]
        indexes: ClassVar = [
            models.Index(fields=["pool", "state"], condition=~Q(state="released"), name="allocation_live"),
            models.Index(fields=["team", "bound_at"], name="allocation_by_team"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["task"], condition=~Q(state="released"), name="one_live_allocation_of_a_task"
            ),
            models.CheckConstraint(
                condition=Q(state="released", released_at__isnull=False)
                | Q(~Q(state="released"), released_at__isnull=True),
                name="allocation_released_has_a_time",
            ),
            models.CheckConstraint(
                condition=Q(released_at__isnull=True) | Q(released_at__gte=models.F("bound_at")),
                name="allocation_ends_after_it_begins",
            ),
        ]

    def __str__(self) -> str:
        return f"allocation {self.pk}"


class AllocationDevice(models.Model):
    """The slice of one device that an allocation holds."""

    allocation = models.ForeignKey(Allocation, on_delete=models.CASCADE, related_name="slices")
    device = models.ForeignKey("inventory.Device", on_delete=models.PROTECT, related_name="slices")
    compute_milli = models.PositiveSmallIntegerField()
    memory_mib = models.PositiveIntegerField()

    class Meta:
        ordering: ClassVar = ["allocation_id", "device_id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["allocation", "device"], name="one_slice_of_a_device"),
            models.CheckConstraint(condition=Q(compute_milli__gte=1, compute_milli__lte=1000), name="slice_compute"),
        ]

    def __str__(self) -> str:
        return f"{self.compute_milli} of {self.device_id}"


class Decision(models.Model):
    """The ledger: what the scheduler did to a job, by which rule, and the numbers that it saw."""

    class Kind(models.TextChoices):
        START = "start", "Started"
        GROW = "grow", "Grew"
        EVICT = "evict", "Evicted"
        REFUSE = "refuse", "Refused"

    at = models.DateTimeField()
    cycle = models.PositiveBigIntegerField()
    kind = models.CharField(max_length=8, choices=Kind)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="decisions")
    team = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="decisions")
    pool = models.ForeignKey("inventory.Pool", on_delete=models.PROTECT, related_name="decisions")
    rule = models.CharField(max_length=40)
    numbers = models.JSONField(default=dict)

    class Meta:
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"{self.kind} {self.job_id}"


class CycleRecord(models.Model):
    """What one cycle decided over, so that the decision can be worked out again: a snapshot and the plan, encoded."""

    cycle = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    body = models.BinaryField()
    size = models.PositiveIntegerField(help_text="bytes of body")

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [models.Index(fields=["cycle"], name="record_of_a_cycle")]

    def __str__(self) -> str:
        return f"cycle {self.cycle}"


class PastUse(models.Model):
    """What is remembered of a pool's allocations that were released, up to an event: see ``scheduling.past_use``.

    It could be worked out from their rows anew at any time, and is kept because these are many.
    """

    pool = models.OneToOneField("inventory.Pool", on_delete=models.CASCADE, related_name="past_use")
    half_life_s = models.PositiveIntegerField()
    seq = models.BigIntegerField(help_text="the last event whose releases are counted")
    sums = models.JSONField(default=list, help_text="[[team, period, sum], …]")

    def __str__(self) -> str:
        return f"past use of {self.pool_id}"


class SubmissionKey(models.Model):
    """An Idempotency-Key that was used: the same user sending it again gets the same jobs, never new ones."""

    user = models.ForeignKey("tenants.User", on_delete=models.CASCADE, related_name="submission_keys")
    key = models.CharField(max_length=200)
    digest = models.CharField(
        max_length=64, help_text="of the request body: the same key with another body is an error"
    )
    job_ids = models.JSONField(default=list)
    created_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["user", "key"], name="submission_key_once")]

    def __str__(self) -> str:
        return self.key


class SchedulerLease(models.Model):
    """Who may commit placements. A commit renews it in its own transaction: a leader that lost it commits nothing."""

    name = models.CharField(max_length=32, primary_key=True)
    holder = models.CharField(max_length=200, blank=True)
    term = models.PositiveBigIntegerField(default=0)
    expires_at = models.DateTimeField(null=True, blank=True)
    cycle = models.PositiveBigIntegerField(default=0)
    cycle_at = models.DateTimeField(null=True, blank=True)
    cycle_ms = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.name} held by {self.holder}"
