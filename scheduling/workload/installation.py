"""A whole installation for measurements, made through the services: nodes, teams with quotas, an operator, jobs.

It fills whatever database the settings name; who measures sees to it that this is one of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any

from django.db.models import Sum

from events.services import unit_of_work
from inventory.models import EngineConnection, Pool
from inventory.services import NodeEntry, add_nodes, create_engine, create_pool, set_accelerator_model
from quotas.services import set_quota
from scheduling.core.units import MILLI_PER_DEVICE, gpus_from_milli
from scheduling.models import Allocation, Job
from scheduling.services.cycle import Scheduler
from scheduling.services.stop import cancel_jobs
from scheduling.services.submit import MAX_JOBS, ensure_priority_classes, submit_payload
from scheduling.workload.crowded import SEED, Size, drawn_asks, fillers
from scheduling.workload.records import TraceNode
from tenants.models import Team, User
from tenants.services import create_team, create_user

POOL = "crowded"
DEPARTMENTS = 10
AT_ONCE = 5000


@dataclass(frozen=True)
class Installation:
    """What was made. ``teams``: those that submit, all below departments."""

    pool: Pool
    engine: EngineConnection
    teams: tuple[Team, ...]
    operator: User


def install(
    nodes: Sequence[TraceNode], teams: int, now: datetime, *, guaranteed: bool = True, **pool_options: Any
) -> Installation:
    """The nodes are a pool on a simulated engine; everyone is guaranteed the same part of it, or nothing yet."""
    ensure_priority_classes()
    operator = create_user("root", now, is_operator=True)
    engine = create_engine("simulation", "simulated")
    pool = create_pool(POOL, engine, now, grace_s=0, **pool_options)
    add_nodes(pool, list(_entries(nodes)), now)
    with unit_of_work():
        departments = [create_team(f"Department {i}", now) for i in range(min(DEPARTMENTS, teams))]
        made = tuple(create_team(f"Team {i}", now, parent=departments[i % len(departments)]) for i in range(teams))
        even = sum(node.devices for node in nodes) * MILLI_PER_DEVICE // teams
        if guaranteed:
            _guarantee(pool, dict.fromkeys(made, even), now)
    return Installation(pool, engine, made, operator)


def guarantee_what_is_held(made: Installation, now: datetime) -> None:
    """Everyone is guaranteed what it holds and has no claim on more: nobody has to give way to anybody."""
    live = Allocation.objects.filter(pool=made.pool, released_at__isnull=True).order_by()
    held = dict(live.values_list("team_id").annotate(held=Sum("milli")))
    with unit_of_work():
        _guarantee(made.pool, {team: held.get(team.pk, 0) for team in made.teams}, now, weight=0)


def _guarantee(pool: Pool, amounts: Mapping[Team, int], now: datetime, **more: Any) -> None:
    """The teams are guaranteed these amounts, and their departments the sums."""
    sums: Counter[Team] = Counter()
    for team, amount in amounts.items():
        if team.parent is not None:
            sums[team.parent] += amount
    for team, amount in (*sums.items(), *amounts.items()):
        set_quota(team, pool, now, guaranteed=amount, **more)


def fill(made: Installation, scheduler: Scheduler, size: Size, now: datetime) -> int:
    """About ``size.running`` jobs hold every device; returns how many there are. ``scheduler`` leads already."""
    running = 0
    for request, most in fillers(size.running):
        left = most
        while left > 0:
            asked = min(left, AT_ONCE)
            submit_many(made, [{"gpus": request.devices, "name": "holder"}] * asked, now)
            started = scheduler.cycle(now).started
            running += started
            left -= asked
            if started < asked:
                waiting = Job.objects.filter(state=Job.State.PENDING).order_by("id").values_list("pk", flat=True)
                cancel_jobs(list(waiting), now)
                break
    return running


def queue_up(made: Installation, size: Size, now: datetime) -> None:
    """``size.jobs`` more jobs of ``size.shapes`` shapes wait, as in ``crowded.crowd``."""
    random = Random(SEED)
    asks = list(drawn_asks(size.shapes, random))
    payloads = []
    for _ in range(size.jobs):
        tasks, request = random.choice(asks)
        payloads.append(
            {
                "name": "waiting",
                "tasks": tasks,
                "gpus": gpus_from_milli(request.devices * (request.compute_milli or 0)),
                "cpu": request.cpu_milli // 1000,
                "memory_gib": request.host_memory_mib // 1024,
            }
        )
    submit_many(made, payloads, now)


def submit_many(made: Installation, payloads: Sequence[Mapping[str, Any]], now: datetime) -> None:
    """All of them are submitted, the teams in turn."""
    slugs = [team.slug for team in made.teams]
    turns = [{**payload, "pool": POOL, "team": slugs[i % len(slugs)]} for i, payload in enumerate(payloads)]
    for start in range(0, len(turns), MAX_JOBS):
        submit_payload(made.operator, turns[start : start + MAX_JOBS], now)


def _entries(nodes: Sequence[TraceNode]) -> Iterator[NodeEntry]:
    models = {
        node.model: set_accelerator_model(node.model, node.vendor, node.device_memory_mib)
        for node in nodes
        if node.devices
    }
    for node in nodes:
        devices = tuple((models[node.model], node.device_memory_mib, "") for _ in range(node.devices))
        yield NodeEntry(node.name, node.cpu_milli, node.host_memory_mib, devices, dict(node.labels))
