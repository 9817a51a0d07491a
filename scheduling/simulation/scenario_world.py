"""The world of a scenario: what its file describes, made through the services, and found again by the file's names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol

from events.errors import Refusal
from inventory.models import AcceleratorModel, Node, Pool
from inventory.services import NodeEntry, add_nodes, create_engine, create_pool
from quotas.services import set_quota
from scheduling import ports
from scheduling.engines.simulated import SimulatedEngine
from scheduling.models import PriorityClass
from scheduling.services.cycle import Scheduler
from scheduling.services.reconcile import Reconciler
from scheduling.services.requests import read_job
from scheduling.services.stop import set_priority_class
from scheduling.services.submit import ensure_priority_classes
from scheduling.simulation.clockwork import Clockwork, Watcher
from scheduling.simulation.scenario_model import Entry, NodeSpec, PoolSpec, Scenario
from scheduling.simulation.scenario_yaml import ScenarioError
from tenants.models import SLUG, Membership, Team, User
from tenants.services import create_team, create_user, set_membership

HOLDER = "simulation"


class SetRate(Protocol):
    """How a price is set: ``billing.services.set_rate``, which this app may not import."""

    def __call__(
        self,
        per_hour: Decimal,
        now: datetime,
        *,
        effective_from: datetime | None = None,
        pool: Pool | None = None,
        model: AcceleratorModel | None = None,
    ) -> object: ...


class InvoiceSeen(Protocol):
    """A team's month as it was billed, or would be now. ``sums`` has net, tax, total, prepaid and due; each of
    ``lines`` kind, description, pool, model, per_hour, work (milli × microseconds) and amount."""

    @property
    def number(self) -> str:
        """Empty until it is issued."""

    @property
    def sums(self) -> Any: ...

    @property
    def lines(self) -> Sequence[Any]: ...


class Books(Protocol):
    """How money is kept: ``billing.books``, which this app may not import. What is refused is a Refusal."""

    def on_terms(self, terms: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Inside, money is kept on these terms: time_zone, tax_percent, packages_pay."""

    def set_budget(self, team: Team, values: Mapping[str, Any], now: datetime) -> None:
        """The team's budget of this period is as given: made, changed, or removed."""

    def add_package(
        self,
        team: Team,
        values: Mapping[str, Any],
        now: datetime,
        *,
        pool: Pool | None = None,
        model: AcceleratorModel | None = None,
    ) -> None:
        """The team has bought and paid a package."""

    def set_plan(self, team: Team, values: Mapping[str, Any], now: datetime) -> None:
        """The team is on the plan from a day on."""

    def issue_invoice(self, team: Team, month: str, now: datetime) -> None:
        """The team's invoice of the month is issued."""

    def invoice_of(self, team: Team, month: str, now: datetime) -> InvoiceSeen:
        """The invoice that was issued, or the draft."""


@dataclass
class World:
    """Everything by the name that the scenario's file gives it. ``jobs``: ids, of every submission under the name."""

    scenario: Scenario
    clockwork: Clockwork
    engine: SimulatedEngine
    set_rate: SetRate
    books: Books | None = None
    pools: dict[str, Pool] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    models: dict[str, AcceleratorModel] = field(default_factory=dict)
    teams: dict[str, Team] = field(default_factory=dict)
    users: dict[str, User] = field(default_factory=dict)
    jobs: dict[str, list[int]] = field(default_factory=dict)

    @property
    def now(self) -> datetime:
        return self.clockwork.now

    def pool_of(self, values: Mapping[str, Any]) -> Pool:
        """The pool that is named, or the only one."""
        return self.pools[values["pool"]] if "pool" in values else next(iter(self.pools.values()))

    def member(self, values: Mapping[str, Any]) -> User:
        """The user who submits: the one that is named or the team's own, made a member of it where it was none."""
        name = values.get("user", f"{values['team']}-member")
        if name not in self.users:
            self.users[name] = create_user(name, self.now)
        user, team = self.users[name], self.teams.get(values["team"])
        if team is not None and not Membership.objects.filter(user=user, team=team).exists():
            set_membership(user, team, Membership.Role.MEMBER, self.now)
        return user

    def payload(self, values: Mapping[str, Any], name: str) -> dict[str, Any]:
        """The request that a submit step stands for, under this name."""
        team = self.teams.get(values["team"])
        rest = {key: value for key, value in values.items() if key not in ("job", "user", "repeat", "after")}
        if "after" in values:
            rest["after"] = self._predecessors(values["after"])
        return {**rest, "name": name, "team": team.slug if team else values["team"]}

    def _predecessors(self, names: Sequence[str]) -> list[int | str]:
        """The ids of the jobs that stand under these names; a name under which there is none as it is."""
        found: dict[int | str, None] = {}
        for name in names:
            known: list[int | str] = [*self.jobs.get(name, ())]
            found.update(dict.fromkeys(known or [name]))
        return list(found)

    def restart(self) -> None:
        """The scheduler and its reconcilers are new ones that know nothing but the database; the engine went on."""
        self.clockwork.scheduler = leading_scheduler(self.now)
        self.clockwork.watch = ports.budgets.watch()
        self.clockwork.reconcilers = [
            Reconciler(reconciler.connection, reconciler.engine) for reconciler in self.clockwork.reconcilers
        ]


def leading_scheduler(now: datetime) -> Scheduler:
    scheduler = Scheduler(HOLDER)
    if not scheduler.lead(now):
        raise RuntimeError("another scheduler leads in the database of this scenario")
    return scheduler


def build_world(scenario: Scenario, set_rate: SetRate, books: Books | None = None) -> World:
    """The scenario's start, in the present database. Raises ScenarioError where the services refuse it."""
    now = scenario.start
    ensure_priority_classes()
    connection = create_engine("simulation", "simulated")
    engine = SimulatedEngine(swings=False)
    clockwork = Clockwork(now, leading_scheduler(now), [Reconciler(connection, engine)], watcher=Watcher())
    world = World(scenario, clockwork, engine, set_rate, books)
    for position, pool in enumerate(scenario.pools):
        with _refusals_at(f"pools[{position}]", pool.line):
            world.pools[pool.name] = create_pool(
                pool.name, connection, now, unit=pool.unit, **{"grace_s": 0, **pool.options}
            )
            _add_nodes(world, pool)
    _each(scenario.priority_classes, "priority_classes", lambda values: add_priority_class(values, now))
    _each(_parents_first(scenario.teams), "teams", lambda values: add_team(world, values))
    _each(scenario.quotas, "quotas", lambda values: give_quota(world, values))
    _each(scenario.rates, "rates", lambda values: give_rate(world, values))
    _check_submissions(world)
    return world


@contextmanager
def _refusals_at(where: str, line: int, lines: Mapping[str, int] | None = None) -> Iterator[None]:
    """What services refuse inside is a ScenarioError at this place of the file."""
    try:
        yield
    except Refusal as error:
        fault = error.faults[0] if error.faults else None
        name = fault.field if fault else ""
        raise ScenarioError(
            fault.message if fault else error.message,
            line=(lines or {}).get(re.split(r"[.\[]", name)[0], line),
            field=f"{where}.{name}" if name else where,
            allowed=fault.allowed if fault else None,
        ) from None


def _each(entries: Iterable[Entry], where: str, act: Callable[[Mapping[str, Any]], object]) -> None:
    for position, entry in enumerate(entries):
        with _refusals_at(f"{where}[{position}]", entry.line):
            act(entry.values)


def _add_nodes(world: World, pool: PoolSpec) -> None:
    for spec in pool.nodes:
        if spec.accelerators and spec.model not in world.models:
            world.models[spec.model] = world.scenario.models[spec.model].enter(world.now)
    entries = [_entry(world, spec) for spec in pool.nodes]
    for spec, node in zip(pool.nodes, add_nodes(world.pools[pool.name], entries, world.now), strict=True):
        world.nodes.setdefault(spec.name, node)
        world.nodes[f"{pool.name}/{spec.name}"] = node


def _entry(world: World, spec: NodeSpec) -> NodeEntry:
    devices = tuple((world.models[spec.model], spec.memory_mib, "") for _ in range(spec.accelerators))
    return NodeEntry(spec.name, spec.cpu_milli, spec.host_memory_mib, devices, spec.labels, spec.taints)


def _parents_first(teams: tuple[Entry, ...]) -> list[Entry]:
    placed: dict[str, Entry] = {}
    waiting = list(teams)
    while waiting:
        ready = [each for each in waiting if each.values.get("parent") is None or each.values["parent"] in placed]
        placed.update((each.values["name"], each) for each in ready)
        waiting = [each for each in waiting if each.values["name"] not in placed]
    return list(placed.values())


def add_priority_class(values: Mapping[str, Any], now: datetime) -> PriorityClass:
    options = {key: value for key, value in values.items() if key not in ("name", "value", "max_gpus_per_team")}
    if "max_gpus_per_team" in values:
        options["max_milli_per_team"] = values["max_gpus_per_team"]
    return set_priority_class(values["name"], values["value"], now, **options)


def add_team(world: World, values: Mapping[str, Any]) -> None:
    """A new team with this name; it takes the place of a deleted one of the same name."""
    name, parent = values["name"], values.get("parent")
    slug = name if re.match(SLUG.regex, name) else None
    world.teams[name] = create_team(name, world.now, parent=world.teams[parent] if parent else None, slug=slug)


def give_quota(world: World, values: Mapping[str, Any]) -> None:
    rest = {key: value for key, value in values.items() if key not in ("team", "pool", "override")}
    set_quota(
        world.teams[values["team"]],
        world.pool_of(values),
        world.now,
        override_capacity=values.get("override", False),
        **rest,
    )


def give_rate(world: World, values: Mapping[str, Any]) -> None:
    world.set_rate(
        values["per_gpu_hour"],
        world.now,
        effective_from=values.get("from"),
        pool=world.pools[values["pool"]] if "pool" in values else None,
        model=world.models[values["model"]] if "model" in values else None,
    )


def _check_submissions(world: World) -> None:
    """What can be told of the requests before anything happens: fields that cannot be meant are the file's fault."""
    pools = dict(world.pools)
    for step in world.scenario.steps:
        if step.kind == "pool" and step.values.get("rename"):
            pools[step.values["rename"]] = pools[step.values["name"]]
        if step.kind == "submit" and step.refused is None:
            with _refusals_at("submit", step.line, step.lines):
                read_job(world.payload(step.values, step.values["job"]), pools)
