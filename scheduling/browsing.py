"""Jobs as pages show them: filtered lists in stable pages, and one job with where it runs and what happened to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import Count, Q, QuerySet
from django.utils.dateparse import parse_datetime

from events.models import Event
from inventory.models import Device, Node
from scheduling import ports
from scheduling.granted import Granted, granted_to_allocations
from scheduling.models import Allocation, AllocationDevice, Decision, Job, Task
from scheduling.selectors import LARGEST_ID, jobs_seen, visible_jobs
from scheduling.states import JOB_ENDED
from scheduling.telling import decision_told
from tenants.models import Team, User
from tenants.policy import team_tree

PAGE = 50
MOST_TASKS = 200
MOST_PLACES = 24
MOST_DECISIONS = 20

STATES: Mapping[str, Q] = {
    "unfinished": ~Q(state__in=sorted(JOB_ENDED)),
    "running": Q(state__in=[Job.State.STARTING, Job.State.RUNNING]),
    "waiting": Q(state=Job.State.PENDING),
    "held": Q(state=Job.State.PENDING) & ~Q(hold=""),
    "finished": Q(state__in=sorted(JOB_ENDED)),
    "succeeded": Q(state=Job.State.SUCCEEDED),
    "failed": Q(state=Job.State.FAILED),
    "cancelled": Q(state=Job.State.CANCELLED),
}
# What a list can be sorted by: the field, and whether the greatest comes first when nothing is said.
SORTS: Mapping[str, tuple[str, bool]] = {
    "submitted": ("submitted_at", True),
    "name": ("name", False),
    "gpus": ("milli_wanted", True),
    "state": ("state", False),
}


@dataclass(frozen=True, slots=True)
class JobFilter:
    """What a list shows. ``sort`` begins with ``-`` where it is turned round. Unknown values are left aside."""

    state: str = ""
    team: str = ""
    pool: str = ""
    user: str = ""
    q: str = ""
    sort: str = "submitted"
    after: str = ""
    before: str = ""

    @classmethod
    def read(cls, query: Mapping[str, str]) -> JobFilter:
        """From an address: texts cut to what a name can be."""
        found = {name: str(query.get(name, "")).replace("\0", "")[:200] for name in cls.__dataclass_fields__}
        if found["state"] not in STATES:
            found["state"] = ""
        if found["sort"].removeprefix("-") not in SORTS:
            found["sort"] = "submitted"
        return cls(**found)

    @property
    def narrowed(self) -> bool:
        return bool(self.team or self.pool or self.user or self.q or self.state)


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job of a list with its cost so far (None: nothing was used yet)."""

    job: Job
    cost: Decimal | None


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of a list; ``after`` and ``before`` are the places of the next and previous ones, empty at the ends."""

    rows: list[JobRow]
    after: str = ""
    before: str = ""


def filtered_jobs(user: User, wanted: JobFilter) -> QuerySet[Job]:
    """The jobs that the viewer may see and the filter leaves, in no order."""
    jobs = visible_jobs(user)
    if wanted.state:
        jobs = jobs.filter(STATES[wanted.state])
    if wanted.team:
        team = Team.objects.filter(slug=wanted.team, deleted_at__isnull=True).first()
        jobs = jobs.filter(team_id__in=team_tree().below(team.pk)) if team else jobs.none()
    if wanted.pool:
        jobs = jobs.filter(pool__name=wanted.pool)
    if wanted.user:
        jobs = jobs.filter(user__username=wanted.user)
    if wanted.q:
        number = wanted.q.removeprefix("#")
        by_id = Q(pk=int(number)) if number.isascii() and number.isdigit() and int(number) <= LARGEST_ID else Q()
        jobs = jobs.filter(Q(name__icontains=wanted.q) | by_id if by_id else Q(name__icontains=wanted.q))
    return jobs


def job_page(user: User, wanted: JobFilter, now: datetime, size: int = PAGE) -> JobPage:
    """The page at the filter's place. Places are keys, not numbers: rows that come in meanwhile shift nothing."""
    name, falls = SORTS[wanted.sort.removeprefix("-")]
    falls = falls != wanted.sort.startswith("-")
    back = bool(wanted.before)
    place = _place(wanted.before or wanted.after, name)
    jobs = filtered_jobs(user, wanted)
    if place is not None:
        jobs = jobs.filter(_beyond(name, place, falls != back))
    sign = "-" if falls != back else ""
    found = list(jobs.order_by(f"{sign}{name}", f"{sign}id")[: size + 1])
    more, found = len(found) > size, found[:size]
    if back:
        found.reverse()
    rows = rows_of(found, now)
    if not found:
        return JobPage([])
    has_after = more if not back else place is not None
    has_before = more if back else place is not None
    return JobPage(
        rows,
        after=_key(found[-1], name) if has_after else "",
        before=_key(found[0], name) if has_before else "",
    )


def rows_of(jobs: Sequence[Job], now: datetime) -> list[JobRow]:
    costs = ports.meter.job_costs([job.pk for job in jobs], now)
    return [JobRow(job, costs[job.pk].amount if job.pk in costs else None) for job in jobs]


def _beyond(name: str, place: tuple[Any, int], falls: bool) -> Q:
    value, job_id = place
    step = "lt" if falls else "gt"
    return Q(**{f"{name}__{step}": value}) | Q(**{name: value, f"id__{step}": job_id})


def _key(job: Job, name: str) -> str:
    value = getattr(job, name)
    return f"{value.isoformat() if isinstance(value, datetime) else value}~{job.pk}"


def _place(text: str, name: str) -> tuple[Any, int] | None:
    value, _, job_id = text.rpartition("~")
    if not (job_id.isascii() and job_id.isdigit()) or int(job_id) > LARGEST_ID:
        return None
    if name == "submitted_at":
        try:
            moment = parse_datetime(value)
        except ValueError:
            return None
        return (moment, int(job_id)) if moment is not None and moment.tzinfo is not None else None
    if name == "milli_wanted":
        return (int(value), int(job_id)) if value.isascii() and value.isdigit() and len(value) < 19 else None
    return value, int(job_id)


def unfinished_counts(jobs: QuerySet[Job]) -> dict[str, int]:
    """How many of these jobs wait and run."""
    found = (
        jobs.filter(STATES["unfinished"])
        .order_by()
        .aggregate(waiting=Count("pk", filter=STATES["waiting"]), running=Count("pk", filter=STATES["running"]))
    )
    return {"waiting": found["waiting"], "running": found["running"]}


# ---- one job ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DevicePart:
    """One device as a picture: what the job holds of it and what others hold, in milli."""

    index: int
    own: int
    others: int
    failed: bool
    model: str


@dataclass
class Place:
    """A node on which the job holds something now, with all its devices."""

    node: Node
    devices: list[DevicePart] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)
    milli: int = 0
    cpu_milli: int = 0
    host_memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task and its latest allocation, if it ever had one."""

    task: Task
    allocation: Allocation | None
    granted: tuple[Granted, ...] = ()  # the different slices of it


def task_rows(job: Job) -> list[TaskRow]:
    """The job's first tasks in order, at most MOST_TASKS."""
    tasks = list(job.tasks.select_related("group").order_by("index")[:MOST_TASKS])
    latest: dict[int, Allocation] = {}
    allocations = Allocation.objects.filter(task_id__in=[task.pk for task in tasks]).select_related("node", "model")
    for allocation in allocations.order_by("id"):
        latest[allocation.task_id] = allocation
    granted = granted_to_allocations([allocation.pk for allocation in latest.values()])
    rows = []
    for task in tasks:
        own = latest.get(task.pk)
        rows.append(TaskRow(task, own, tuple(granted.get(own.pk, ())) if own else ()))
    return rows


def places(job: Job) -> list[Place]:
    """The nodes on which the job holds something now, in order of their names, at most MOST_PLACES."""
    live = list(job.allocations.filter(released_at__isnull=True).select_related("node", "task").order_by("id"))
    found: dict[int, Place] = {}
    for allocation in live:
        place = found.setdefault(allocation.node_id, Place(allocation.node))
        place.tasks.append(allocation.task.index)
        place.milli += allocation.milli
        place.cpu_milli += allocation.cpu_milli
        place.host_memory_mib += allocation.host_memory_mib
    shown = sorted(found.values(), key=lambda place: (place.node.name, place.node.pk))[:MOST_PLACES]
    own: dict[int, int] = defaultdict(int)
    slices = AllocationDevice.objects.filter(allocation_id__in=[allocation.pk for allocation in live])
    for device_id, milli in slices.values_list("device_id", "compute_milli"):
        own[device_id] += milli
    devices = Device.objects.filter(node_id__in=[place.node.pk for place in shown]).select_related("model")
    for device in devices.order_by("node_id", "index"):
        held = min(own[device.pk], device.compute_allocated_milli)
        found[device.node_id].devices.append(
            DevicePart(
                device.index,
                held,
                device.compute_allocated_milli - held,
                device.health != Device.Health.OK,
                device.model.name,
            )
        )
    return shown


def price_now(job: Job, now: datetime) -> Decimal:
    """What the job costs an hour at this moment, over all that it holds."""
    held: dict[int | None, int] = defaultdict(int)
    cpu = job.pool.unit == "cpu"
    live = job.allocations.filter(released_at__isnull=True).order_by("id")
    for model_id, milli, cpu_milli in live.values_list("model_id", "milli", "cpu_milli"):
        held[model_id] += cpu_milli if cpu else milli
    return sum(
        (
            ports.meter.price_per_hour(job.pool_id, model_id, job.priority_class_id, milli, now)
            for model_id, milli in held.items()
        ),
        Decimal(0),
    )


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """What the scheduler decided about a job, in words."""

    decision: Decision
    message: str


def decision_rows(job: Job, user: User, most: int = MOST_DECISIONS) -> list[DecisionRow]:
    """The latest decisions about the job, the latest first; of others' jobs, those are named that ``user`` may see."""
    found = list(Decision.objects.filter(job=job).select_related("pool").order_by("-id")[:most])
    seen = jobs_seen(user, {each.numbers["for_job"] for each in found if each.numbers.get("for_job")})
    return [
        DecisionRow(each, decision_told(each.kind, each.rule, each.numbers, each.pool.unit, seen)[0]) for each in found
    ]


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a job's life in one state; ``at`` and ``width`` in per cent of the whole."""

    state: str
    start: datetime
    end: datetime
    at: str
    width: str

    @property
    def seconds(self) -> float:
        return (self.end - self.start).total_seconds()


def history(job: Job, most: int = 60) -> list[Event]:
    """What happened to the job, the latest first; measurements and refreshed reasons left out."""
    kinds = (
        "job.submitted",
        "job.state",
        "job.held",
        "job.released",
        "job.priority",
        "job.stopping",
        "job.grew",
        "job.evicted",
        "job.shrunk",
        "job.lost_tasks",
        "job.replica",
        "job.idle",
        "job.dependency",
        "job.changed",
    )
    return list(Event.objects.filter(job_id=job.pk, kind__in=kinds).order_by("-seq")[:most])


def spans(job: Job, events: Sequence[Event], now: datetime) -> list[Span]:
    """The job's states one after another, from its submission to its end or ``now``."""
    end = job.ended_at or now
    marks: list[tuple[datetime, str]] = [(job.submitted_at, Job.State.PENDING)]
    for event in reversed(events):
        state = event.data.get("state")
        if event.kind == "job.state" and state and state != marks[-1][1] and event.at <= end:
            marks.append((max(event.at, marks[-1][0]), state))
    if len(marks) == 1 and job.started_at is not None:
        marks.append((job.started_at, Job.State.RUNNING))
    whole = max((end - job.submitted_at).total_seconds(), 0.001)
    found = []
    for (start, state), following in zip(marks, [*(start for start, _ in marks[1:]), end], strict=True):
        if state in JOB_ENDED:
            break
        at = (start - job.submitted_at).total_seconds() / whole * 100
        width = max((following - start).total_seconds() / whole * 100, 0)
        found.append(Span(state, start, max(start, following), f"{at:.2f}%", f"{width:.2f}%"))
    return found
