"""What a first start finds: the cast, and a demo that is alive. Everything is made through services."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from django.db.models import Max

from billing.services import set_rate
from events.services import unit_of_work
from inventory.models import AcceleratorModel, Pool
from inventory.services import NodeEntry, add_nodes, create_engine, create_pool, set_accelerator_model
from quotas.services import set_quota
from scheduling.models import Job
from scheduling.services.submit import ensure_priority_classes, submit_payload
from scheduling.workload.accelerators import ACCELERATOR_MODELS
from scheduling.workload.demo_teams import DEMO_DEPARTMENTS, DEMO_TEAMS, Claim
from scheduling.workload.fleets import demo_fleet
from scheduling.workload.generator import GeneratedJob, Workload
from tenants.models import Team, User
from tenants.services import create_team, create_user, set_membership

LOCAL_POOL = "local"
DEMO_POOL = "fleet"
PRETEND_DEVICES = 4
MOST_WAITING = 120  # arrivals are left out while so many of the demo's jobs wait
HOMES = {"alice": "nlp", "bob": "nlp", "mallory": "recsys"}
COLLEAGUES = {
    "nlp": "carol",
    "vision": "dave",
    "speech": "erin",
    "search": "frank",
    "recsys": "grace",
    "robotics": "heidi",
}


@dataclass(frozen=True)
class Cast:
    """The password that the cast was given at the first start; empty where there was a first start before."""

    password: str
    created: bool


def credentials_file(data_dir: Path) -> Path:
    return data_dir / "credentials.txt"


def make_cast(now: datetime, data_dir: Path) -> Cast:
    """root, alice, bob and mallory exist with their teams and the pool ``local``; a second call changes nothing."""
    if User.objects.filter(username_key="root").exists():
        return Cast("", False)
    password = os.environ.get("ALLOTMENT_PASSWORD") or secrets.token_urlsafe(12)
    with unit_of_work():
        ensure_priority_classes()
        for model in ACCELERATOR_MODELS:
            set_accelerator_model(
                model.name,
                model.vendor,
                model.memory_mib,
                family=model.family,
                resource_name=model.resource,
                slicing=model.slice_rule,
                slice_templates=model.stored_templates,
                now=now,
            )
        users = {
            name: create_user(name, now, password=password, is_operator=name == "root")
            for name in ("root", "alice", "bob", "mallory")
        }
        teams = _make_teams(now, only={"nlp", "recsys"})
        set_membership(users["alice"], teams["nlp"], "manager", now)
        set_membership(users["bob"], teams["nlp"], "member", now)
        set_membership(users["mallory"], teams[HOMES["mallory"]], "member", now)
        connection = create_engine("this-machine", "local", settings={"pretend_devices": PRETEND_DEVICES})
        pool = create_pool(
            LOCAL_POOL,
            connection,
            now,
            description="This machine. Without a GPU its accelerators are pretend ones, to try things out.",
            grace_s=5,
            placement="binpack",
        )
        for team in teams.values():
            set_quota(team, pool, now, limit=2000, actor_id=users["root"].pk)
        set_rate(Decimal("0.50"), now, pool=pool, actor_id=users["root"].pk)
        # Before the commit: whatever ends this process, nobody is left with a password that is nowhere.
        path = credentials_file(data_dir)
        path.touch(mode=0o600)
        path.write_text(f"{password}\n")
    return Cast(password, True)


def first_start(now: datetime, data_dir: Path, *, empty: bool) -> Cast:
    """The cast is there and, unless ``empty``, the demo: both or neither, once and for all at the first start."""
    with unit_of_work():
        cast = make_cast(now, data_dir)
        if cast.created and not empty:
            make_demo(now)
    return cast


def _make_teams(now: datetime, only: set[str] | None = None) -> dict[str, Team]:
    """The demo's departments and teams by slug, or only those named and their departments; existing ones stay."""
    found = {team.slug: team for team in Team.objects.filter(deleted_at=None)}
    wanted = [profile for profile in DEMO_TEAMS if only is None or profile.name in only]
    departments = {profile.department for profile in wanted}
    for department in DEMO_DEPARTMENTS:
        if department.name in departments and department.name not in found:
            found[department.name] = create_team(department.title, now, slug=department.name)
    for profile in wanted:
        if profile.name not in found:
            parent = found[profile.department]
            found[profile.name] = create_team(profile.title or profile.name, now, parent=parent, slug=profile.name)
    return {profile.name: found[profile.name] for profile in wanted} | {
        department.name: found[department.name] for department in DEMO_DEPARTMENTS if department.name in found
    }


def make_demo(now: datetime) -> None:
    """The pool ``fleet``, six teams in two departments with members and quotas, rates; a second call does nothing."""
    if Pool.objects.filter(name=DEMO_POOL).exists():
        return
    with unit_of_work():
        teams = _make_teams(now)
        operator = User.objects.get(username_key="root")
        for team_slug, name in COLLEAGUES.items():
            user = create_user(name, now, actor_id=operator.pk)
            set_membership(user, teams[team_slug], "member", now, actor_id=operator.pk)
        local = Pool.objects.get(name=LOCAL_POOL)
        for profile in DEMO_TEAMS:
            set_quota(teams[profile.name], local, now, limit=2000, actor_id=operator.pk)
        models = {model.name: model for model in AcceleratorModel.objects.all()}
        connection = create_engine("simulation", "simulated")
        pool = create_pool(
            DEMO_POOL,
            connection,
            now,
            description="A simulated data centre: a thousand mixed accelerators, and jobs as public traces have them.",
            grace_s=10,
            # Look-ahead takes some twenty seconds of a core to compile at the first start, which is when the page is
            # to be alive at once; who wants it changes the pool in the console.
            placement="fragmentation",
        )
        entries = [
            NodeEntry(
                node.name,
                node.cpu_milli,
                node.host_memory_mib,
                tuple((models[node.model], node.device_memory_mib, f"{node.name}/{i}") for i in range(node.devices)),
                dict(node.labels),
            )
            for node in demo_fleet()
        ]
        add_nodes(pool, entries, now, actor_id=operator.pk)
        capacity = 1000 * sum(len(entry.devices) for entry in entries)
        for department in DEMO_DEPARTMENTS:
            _claim(teams[department.name], pool, department.claim, capacity, now, operator)
        for profile in DEMO_TEAMS:
            _claim(teams[profile.name], pool, profile.claim, capacity, now, operator)
        for model in ACCELERATOR_MODELS:
            set_rate(model.demo_rate, now, model=models[model.name], actor_id=operator.pk)


def _claim(team: Team, pool: Pool, claim: Claim, capacity: int, now: datetime, operator: User) -> None:
    def whole_devices(per_mille: int) -> int:
        return capacity * per_mille // 1_000_000 * 1000

    set_quota(
        team,
        pool,
        now,
        guaranteed=whole_devices(claim.guaranteed),
        limit=None if claim.limit is None else whole_devices(claim.limit),
        weight=claim.weight,
        actor_id=operator.pk,
    )


def has_demo() -> bool:
    """Whether the demo was made, so that its jobs go on arriving."""
    return Pool.objects.filter(name=DEMO_POOL).exists()


def payload_of(job: GeneratedJob) -> dict[str, object]:
    """A generated job as anybody would submit it."""
    payload: dict[str, object] = {
        "team": job.team,
        "pool": DEMO_POOL,
        "name": job.name,
        "tasks": job.tasks,
        "min_tasks": job.min_tasks,
        "cpu": Decimal(job.cpu_milli) / 1000,
        "memory_gib": Decimal(job.host_memory_mib) / 1024,
        "priority": job.priority_class,
        "kind": job.kind,
        "framework": job.framework,
        "preemptible": job.preemptible,
        "duration": str(job.duration_s),
        "exit": job.exit,
        "command": ["train", "--config", f"{job.name}.yaml"],
    }
    if job.devices:
        payload["devices"] = job.devices
        payload["gpus"] = Decimal(job.gpus_milli) / 1000
        payload["model"] = list(job.models)
    return payload


@dataclass
class DemoLoop:
    """Submits the demo's jobs as their time comes, each as a colleague of its team."""

    seed: int = 1
    _jobs: Iterator[GeneratedJob] | None = None
    _next: GeneratedJob | None = None
    _began: datetime | None = None
    _users: dict[str, User] = field(default_factory=dict)

    def step(self, now: datetime) -> float:
        if self._jobs is None:
            self._begin(now)
        assert self._jobs is not None
        assert self._began is not None
        elapsed = Decimal(str((now - self._began).total_seconds()))
        due: list[GeneratedJob] = []
        while self._next is not None and self._next.at_s <= elapsed:
            due.append(self._next)
            self._next = next(self._jobs, None)
        waiting = Job.objects.filter(pool__name=DEMO_POOL, state=Job.State.PENDING).count()
        for job in due:
            if waiting < MOST_WAITING:
                submit_payload(self._users[job.team], payload_of(job), now)
                waiting += 1
        return 0.5

    def _begin(self, now: datetime) -> None:
        self._began = now
        self._users = {team: User.objects.get(username_key=name) for team, name in COLLEAGUES.items()}
        workload = Workload(DEMO_TEAMS, demo_fleet(), seed=self.seed)
        number = 1 + (Job.objects.filter(pool__name=DEMO_POOL).aggregate(last=Max("id"))["last"] or 0)
        if number == 1:
            running = workload.already_running(0, fill=0.9)
            self._submit_all(running, now)
            number += len(running)
        self._jobs = workload.jobs(0, first_number=number)
        self._next = next(self._jobs)

    def _submit_all(self, jobs: list[GeneratedJob], now: datetime) -> None:
        by_team: dict[str, list[dict[str, object]]] = {}
        for job in jobs:
            by_team.setdefault(job.team, []).append(payload_of(job))
        for team, payloads in sorted(by_team.items()):
            for start in range(0, len(payloads), 200):
                submit_payload(self._users[team], payloads[start : start + 200], now)
