"""Submitting jobs: one or a thousand, all of them or none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import IntegrityError

from events.errors import Conflict, Fault, Forbidden, Invalid
from events.rows import insert_rows
from events.services import Journal, require_aware, unit_of_work
from inventory.models import Pool
from scheduling import ports
from scheduling.models import Job, PriorityClass, SubmissionKey, Task, TaskGroup
from scheduling.services import budget_holds
from scheduling.services.dependencies import Predecessors, find_predecessors, link
from scheduling.services.holding import composed
from scheduling.services.place_rules import stored_topology
from scheduling.services.priorities import priority_fault
from scheduling.services.requests import JobSpec, read_job
from tenants.models import Team, User
from tenants.policy import may, roles, sees_everything, team_tree
from tenants.services import hold_team_tree

MAX_JOBS = 1000
# Where nobody has set up classes, these exist.
DEFAULT_CLASSES: Mapping[str, int] = {"low": 100, "normal": 500, "high": 900}
WAITING: dict[str, Any] = {
    "code": "queued",
    "message": "Waiting for the scheduler to look at it.",
    "numbers": {},
    "helps": None,
}


def ensure_priority_classes() -> None:
    """low, normal and high exist; their values are left as they are where they already did."""
    existing = set(PriorityClass.objects.values_list("name", flat=True))
    PriorityClass.objects.bulk_create(
        [PriorityClass(name=name, value=value) for name, value in DEFAULT_CLASSES.items() if name not in existing],
        ignore_conflicts=True,
    )


def request_digest(payload: Any) -> str:
    """What tells two request bodies apart, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(payload, sort_keys=True, default=str).encode()).hexdigest()


def submit_payload(
    user: User, payload: Any, now: datetime, *, idempotency_key: str | None = None
) -> tuple[list[Job], bool]:
    """What ``payload`` (one job or a list) asks for, submitted; and whether that happened now (False: it had before).

    With an idempotency key that this user used before, the jobs of then are returned if the body is the same, and
    Conflict is raised if it is another. Invalid, Forbidden: nothing was submitted.
    """
    if idempotency_key is not None and not 1 <= len(idempotency_key) <= 200:
        raise Invalid.at("Idempotency-Key", "must have 1 to 200 characters", value=idempotency_key)
    digest = request_digest(payload) if idempotency_key else ""
    if idempotency_key:
        earlier = _earlier(user, idempotency_key, digest)
        if earlier is not None:
            return earlier, False
    specs = read_payload(payload)
    try:
        with unit_of_work() as journal:
            key = None
            if idempotency_key:
                # First of all: the unique index lets one of two equal requests wait here for the other.
                key = SubmissionKey.objects.create(user=user, key=idempotency_key, digest=digest, created_at=now)
            jobs = submit(user, specs, now, journal, many=isinstance(payload, list))
            if key is not None:
                SubmissionKey.objects.filter(pk=key.pk).update(job_ids=[job.pk for job in jobs])
    except IntegrityError:
        earlier = _earlier(user, idempotency_key, digest) if idempotency_key else None
        if earlier is None:
            raise
        return earlier, False
    return jobs, True


def _earlier(user: User, key: str, digest: str) -> list[Job] | None:
    used = SubmissionKey.objects.filter(user=user, key=key).first()
    if used is None:
        return None
    if used.digest != digest:
        raise Conflict("This Idempotency-Key was used with another request.", code="idempotency_key_reused")
    by_id = Job.objects.in_bulk(used.job_ids)
    return [by_id[job_id] for job_id in used.job_ids if job_id in by_id]


def read_payload(payload: Any) -> list[JobSpec]:
    """The jobs that the payload asks for. Raises Invalid with the faults of all of them."""
    pools = {pool.name: pool for pool in Pool.objects.order_by("name")}
    items = payload if isinstance(payload, list) else [payload]
    if not 1 <= len(items) <= MAX_JOBS:
        raise Invalid.at("body", f"must hold 1 to {MAX_JOBS} jobs, holds {len(items)}", allowed=[1, MAX_JOBS])
    specs: list[JobSpec] = []
    faults: list[Fault] = []
    for position, item in enumerate(items):
        try:
            specs.append(read_job(item, pools, where=f"[{position}]." if isinstance(payload, list) else ""))
        except Invalid as error:
            faults += error.faults
    if faults:
        raise Invalid(faults[:100])
    return specs


def submit(user: User, specs: Sequence[JobSpec], now: datetime, journal: Journal, *, many: bool = False) -> list[Job]:
    """Every spec is a pending job of its team, in this order, with its groups and tasks; called in a unit of work."""
    require_aware(now)
    hold_team_tree()
    permit = permitted(user, specs, many=many)
    ports.budgets.settle(now)
    jobs, groups = rows_of(user, specs, permit, now)
    insert_rows(jobs)
    link(jobs, permit.predecessors)
    for group in groups:
        group.job = group.job  # which has an id now
    insert_rows(groups)
    insert_rows(_tasks(groups))
    for job in jobs:
        journal.record(
            "job.submitted",
            now,
            team_id=job.team_id,
            pool_id=job.pool_id,
            job_id=job.pk,
            actor_id=user.pk,
            state=Job.State.PENDING,
            name=job.name,
        )
    return jobs


@dataclass(frozen=True, slots=True)
class Permit:
    """What the specs of one submission name: teams and classes by name, and what each comes after."""

    teams: Mapping[str, Team]
    classes: Mapping[str, PriorityClass]
    predecessors: Sequence[Predecessors]


def permitted(user: User, specs: Sequence[JobSpec], *, many: bool = False, lock: bool = True) -> Permit:
    """What the specs name, all of it there and open to the user. Invalid, Forbidden: it may not be submitted so.

    ``lock``: jobs that they come after are locked, so that these cannot end meanwhile.
    """
    teams, classes, faults = _teams_and_classes(user, specs, many)
    predecessors, unknown = find_predecessors(user, specs, many=many, lock=lock)
    faults += unknown
    if faults:
        raise Invalid(faults[:100])
    return Permit(teams, classes, predecessors)


def rows_of(user: User, specs: Sequence[JobSpec], permit: Permit, now: datetime) -> tuple[list[Job], list[TaskGroup]]:
    """The jobs and their groups as they would be submitted at ``now``. They are in no database."""
    teams, classes = permit.teams, permit.classes
    spent = ports.budgets.spent({team.pk for team in teams.values()})
    jobs = [
        Job(
            name=spec.name,
            team=teams[spec.team],
            user=user,
            pool=spec.pools[0],
            pool_ids=[pool.pk for pool in spec.pools],
            kind=spec.kind,
            framework=spec.framework,
            priority_class=classes[spec.priority if isinstance(spec.priority, str) else "normal"],
            priority_value=spec.priority if isinstance(spec.priority, int) else None,
            preemptible=spec.preemptible,
            command=list(spec.command),
            environment=dict(spec.environment),
            image=spec.image,
            time_limit_s=spec.time_limit_s,
            retries=spec.retries,
            min_runtime_s=spec.min_runtime_s,
            topology=stored_topology(spec.topology),
            apart=spec.apart or "",
            max_evictions=spec.max_evictions,
            hold=composed(person="", budget_spent=teams[spec.team].pk in spent, waits=before.waits),
            simulated_duration_ms=spec.duration_ms,
            simulated_exit_code=spec.exit_code,
            submitted_at=now,
            reasons=[budget_holds.told(spent[teams[spec.team].pk]) if teams[spec.team].pk in spent else WAITING],
            tasks_wanted=spec.tasks,
            milli_wanted=spec.milli,
        )
        for spec, before in zip(specs, permit.predecessors, strict=True)
    ]
    groups = [
        TaskGroup(
            job=job,
            position=position,
            name=group.name,
            count=group.count,
            min_count=group.min_count,
            devices=group.devices,
            compute_milli=group.compute_milli,
            memory_mib=group.memory_mib,
            cpu_milli=group.cpu_milli,
            host_memory_mib=group.host_memory_mib,
            models_allowed=list(group.models),
            vendors_allowed=list(group.vendors),
            min_device_memory_mib=group.min_device_memory_mib,
            node_selector=dict(group.node_selector),
            tolerations=dict(group.tolerations),
            command=None if group.command is None else list(group.command),
        )
        for job, spec in zip(jobs, specs, strict=True)
        for position, group in enumerate(spec.groups)
    ]
    return jobs, groups


def _tasks(groups: Sequence[TaskGroup]) -> list[Task]:
    tasks: list[Task] = []
    index = 0
    previous = None
    for group in groups:
        if group.job_id != previous:
            index, previous = 0, group.job_id
        for _ in range(group.count):
            tasks.append(Task(job_id=group.job_id, group=group, index=index))
            index += 1
    return tasks


def _teams_and_classes(
    user: User, specs: Sequence[JobSpec], many: bool
) -> tuple[dict[str, Team], dict[str, PriorityClass], list[Fault]]:
    teams = {team.slug: team for team in Team.objects.filter(slug__in={spec.team for spec in specs}, deleted_at=None)}
    classes = {found.name: found for found in PriorityClass.objects.order_by("name")}
    tree = team_tree()
    own = roles(user, tree)
    faults: list[Fault] = []
    verdicts = {slug: may(user, "job.submit", team.pk, known=(tree, own)) for slug, team in teams.items()}
    for position, spec in enumerate(specs):
        where = f"[{position}]." if many else ""
        team = teams.get(spec.team)
        seen = team is not None and (team.pk in own or sees_everything(user))
        if team is None or not seen:
            allowed = sorted(Team.objects.filter(pk__in=own, state=Team.State.ACTIVE).values_list("slug", flat=True))
            message = "is not a team that you belong to"
            faults.append(Fault(f"{where}team", message, "unknown", spec.team, allowed))
            continue
        if not verdicts[spec.team]:
            raise Forbidden(verdicts[spec.team].why)
        if team.state != Team.State.ACTIVE:
            faults.append(Fault(f"{where}team", f"is {team.state}", value=spec.team))
        fault = priority_fault(user, own.get(team.pk, ""), classes.values(), spec.priority, f"{where}priority")
        if fault is not None:
            faults.append(fault)
    return teams, classes, faults
