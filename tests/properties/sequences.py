"""Random lives of one installation: what may happen to it, as data, and who makes it happen through the services.

A sequence is a list of actions, made out of a seed. An action that names what is not there (the third
job, before two were submitted) names another one instead, so that any list is a life; what the product refuses changes
nothing, and the life goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from events.errors import Refusal
from inventory.models import Device, EngineConnection, Node, Pool
from inventory.services import change_pool, set_device_health, set_node_state
from quotas.services import remove_quota, set_quota
from scheduling.engines.simulated import SimulatedEngine
from scheduling.models import Allocation, Job
from scheduling.services.cycle import Scheduler
from scheduling.services.holding import hold_job, release_job
from scheduling.services.reconcile import Reconciler, lose_node
from scheduling.services.stop import cancel_jobs, set_priority
from scheduling.services.submit import submit_payload
from scheduling.simulation.clockwork import Clockwork
from tenants.models import Team, User

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
HOLDER = "test"

Action = tuple[str, Any]

TEAMS = ["nlp", "vision", "ads", "research"]
GPUS = [0.05, 0.25, 0.3, 0.5, 0.6, 0.95, 1, 1, 1, 1, 2, 4]
OTHERS = ["cancel", "hold", "release", "priority", "no quota", "device", "lose", "grace", "least", "restart"]


class Maker:
    """Makes a sequence out of a seed: a rich one, which strategies that shrink well seldom make."""

    def __init__(self, seed: int):
        self.random = Random(seed)
        self.one_of = self.random.choice

    def sequence(self) -> list[Action]:
        """Some quotas, a few submissions at once, then anything."""
        actions: list[Action] = [("quota", (team, self.quota())) for team in TEAMS if self.one_of([True, False])]
        actions += [("submit", self.request()) for _ in range(self.one_of([2, 4, 7]))]
        actions += [self.action() for _ in range(self.one_of([6, 10, 15]))]
        return actions

    def action(self) -> Action:
        pick, one_of = self.random.randrange(12), self.one_of
        name = one_of(["submit"] * 7 + ["wait"] * 4 + ["quota"] * 2 + ["node"] * 2 + OTHERS)
        given = {
            "submit": self.request,
            "wait": lambda: one_of([1, 30, 61, 600, 3600]),
            "priority": lambda: (pick, one_of([0, 100, 500, 900])),
            "quota": lambda: (one_of(TEAMS), self.quota()),
            "no quota": lambda: one_of(TEAMS),
            "node": lambda: (pick, one_of(["ready", "ready", "cordoned", "draining", "down"])),
            "device": lambda: (pick, one_of(["ok", "ok", "failed"])),
            "grace": lambda: one_of([0, 30]),
            "least": lambda: one_of([0, 0, 300]),
        }.get(name, lambda: pick)()
        return name, given

    def quota(self) -> dict[str, Any]:
        values = {
            "guaranteed": self.one_of([0, 1000, 2000, 4000]),
            "limit": self.one_of([None, None, 0, 3000, 6000]),
            "weight": self.one_of([0, 1, 3]),
            "per_user_limit": self.one_of([None, None, None, 2000]),
        }
        return {name: value for name, value in values.items() if self.one_of([True, False])} or {"weight": 2}

    def request(self) -> dict[str, Any]:
        """A submission as a person writes it; some of them are refused."""
        one_of = self.one_of
        payload: dict[str, Any] = {"team": one_of(TEAMS)}
        kind = one_of(["gpus"] * 7 + ["memory", "both", "cpu", "groups"])
        if kind in ("gpus", "both"):
            payload["gpus"] = one_of(GPUS)
        if kind in ("memory", "both"):
            payload["gpu_memory_mib"] = one_of([1, 4096, 30_000, 40_960, 81_920])
        if kind == "groups":
            workers = {"name": "workers", "gpus": one_of(GPUS), "tasks": one_of([1, 2, 3]), "min_tasks": 1}
            payload["groups"] = [{"name": "chief", "gpus": 1}, workers]
        else:
            payload["cpu"] = one_of([1, 4, 30])
            payload["tasks"] = one_of([1, 1, 1, 2, 3, 5])
            payload["min_tasks"] = self.random.randint(1, payload["tasks"])
        payload["priority"] = one_of(["low", "normal", "normal", "high"])
        payload["preemptible"] = one_of([True, True, True, False])
        more = {
            "duration": one_of([None, None, "60s", "10m", "1h"]),
            "time_limit": one_of([None, None, "5m", "30m"]),
            "exit": one_of(["succeeded", "succeeded", "failed"]),
            "retries": one_of([None, None, 1]),
        }
        return payload | {name: value for name, value in more.items() if value is not None}


@dataclass
class Life:
    """One installation on a clock of its own. ``act`` carries an action out; ``refused`` counts what was refused."""

    pool: Pool
    connection: EngineConnection
    user: User
    engine: SimulatedEngine = field(default_factory=SimulatedEngine)
    refused: int = 0

    def __post_init__(self) -> None:
        self.clockwork = Clockwork(START, self._leader(), [Reconciler(self.connection, self.engine)])

    @property
    def now(self) -> datetime:
        return self.clockwork.now

    @property
    def scheduler(self) -> Scheduler:
        return self.clockwork.scheduler

    def act(self, action: Action) -> None:
        """The action has happened or was refused, and all that follows from it at this moment has happened too."""
        name, given = action
        try:
            _ACTIONS[name](self, given)
        except Refusal:
            self.refused += 1
        self.clockwork.settle()

    def jobs(self) -> list[Job]:
        return list(Job.objects.order_by("id"))

    def _leader(self) -> Scheduler:
        scheduler = Scheduler(HOLDER)
        assert scheduler.lead(START)
        return scheduler

    # ---- actions -----------------------------------------------------------------------------------------------------

    def submit(self, payload: dict[str, Any]) -> None:
        submit_payload(self.user, {"pool": self.pool.name, "name": "job", **payload}, self.now)

    def wait(self, seconds: int) -> None:
        self.clockwork.run_until(self.now + timedelta(seconds=seconds))

    def of_jobs(self, pick: int) -> Job | None:
        jobs = self.jobs()
        return jobs[-1 - pick % len(jobs)] if jobs else None

    def cancel(self, pick: int) -> None:
        if job := self.of_jobs(pick):
            cancel_jobs([job.pk], self.now)

    def hold(self, pick: int) -> None:
        if job := self.of_jobs(pick):
            hold_job(job, self.now)

    def release(self, pick: int) -> None:
        if job := self.of_jobs(pick):
            release_job(job, self.now)

    def priority(self, given: tuple[int, int]) -> None:
        if job := self.of_jobs(given[0]):
            set_priority(job, self.now, value=given[1])

    def quota(self, given: tuple[str, dict[str, Any]]) -> None:
        if given[1]:
            set_quota(Team.objects.get(slug=given[0]), self.pool, self.now, override_capacity=True, **given[1])

    def no_quota(self, slug: str) -> None:
        remove_quota(Team.objects.get(slug=slug), self.pool, self.now)

    def node(self, given: tuple[int, str]) -> None:
        nodes = list(Node.objects.order_by("rank"))
        node, state = nodes[given[0] % len(nodes)], given[1]
        if state == Node.State.DOWN:
            lose_node(node, self.engine, self.now)
        else:
            set_node_state(node, state, self.now)

    def device(self, given: tuple[int, str]) -> None:
        devices = list(Device.objects.order_by("id"))
        set_device_health(devices[given[0] % len(devices)], given[1], self.now)

    def lose(self, pick: int) -> None:
        live = list(Allocation.objects.filter(released_at=None).order_by("id").values_list("pk", flat=True))
        if live:
            self.engine.lose(live[pick % len(live)], self.now)

    def grace(self, seconds: int) -> None:
        change_pool(self.pool, self.now, grace_s=seconds)

    def least(self, seconds: int) -> None:
        change_pool(self.pool, self.now, min_runtime_s=seconds)

    def restart(self, _: int) -> None:
        """The scheduler and its reconciler are new ones that know nothing but the database; the engine went on."""
        self.clockwork.scheduler = self._leader()
        self.clockwork.reconcilers = [Reconciler(self.connection, self.engine)]


_ACTIONS: dict[str, Callable[[Life, Any], None]] = {
    "submit": Life.submit,
    "wait": Life.wait,
    "cancel": Life.cancel,
    "hold": Life.hold,
    "release": Life.release,
    "priority": Life.priority,
    "quota": Life.quota,
    "no quota": Life.no_quota,
    "node": Life.node,
    "device": Life.device,
    "lose": Life.lose,
    "grace": Life.grace,
    "least": Life.least,
    "restart": Life.restart,
}
