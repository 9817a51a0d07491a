"""Runs a scenario file on a virtual clock, through the services, models and scheduler of production.

``run_scenario`` works in the database that is connected; ``scheduling.simulation.database`` makes one to throw away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from django.db.models import Max

from events.errors import Refusal
from events.models import Event
from events.services import unit_of_work
from inventory.models import Device, Node, Pool
from quotas.models import Quota
from scheduling.models import Allocation, Job, PriorityClass, Task
from scheduling.simulation.clockwork import Unsettled
from scheduling.simulation.scenario_actions import act
from scheduling.simulation.scenario_facts import differences, failures_of
from scheduling.simulation.scenario_model import Failure, Scenario, Step
from scheduling.simulation.scenario_money import kept_on
from scheduling.simulation.scenario_reading import read_scenario
from scheduling.simulation.scenario_world import Books, SetRate, World, build_world
from tenants.models import Team

Pace = Callable[[datetime, datetime], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a scenario. ``checks``: how many expectations it has, refusals included."""

    title: str
    checks: int
    failures: list[Failure] = field(default_factory=list)
    decisions: int = 0

    @property
    def passed(self) -> bool:
        return not self.failures


def run_scenario(path: Path, set_rate: SetRate, *, books: Books | None = None, pace: Pace | None = None) -> Outcome:
    """The scenario's outcome. Raises ScenarioError where the file is not valid, or speaks of money and there are no
    ``books``. ``pace``: see Clockwork."""
    scenario = read_scenario(path)
    with kept_on(scenario, books):
        return _play(scenario, build_world(scenario, set_rate, books), pace)


def _play(scenario: Scenario, world: World, pace: Pace | None) -> Outcome:
    world.clockwork.pace = pace
    failures: list[Failure] = []
    for step in scenario.steps:
        try:
            failures += _run_step(world, step)
        except Unsettled as error:
            failures.append(Failure(step.line, step.at_written, step.kind, "a settled world", str(error)))
            break
        if step.kind != "expect" and step.refused is None and failures and failures[-1].field == step.kind:
            break  # what follows speaks of what did not happen
    return Outcome(scenario.title, _count_checks(scenario), failures, world.clockwork.decisions)


def _count_checks(scenario: Scenario) -> int:
    return sum(len(step.checks) + (step.refused is not None) for step in scenario.steps)


def _run_step(world: World, step: Step) -> list[Failure]:
    """Time goes on to the step, then it happens, then all that follows from it at the same moment."""
    world.clockwork.run_until(step.at)
    world.clockwork.settle()
    if step.kind == "expect":
        return [failure for check in step.checks for failure in failures_of(world, check, step.at_written)]
    failure = _perform(world, step)
    world.clockwork.settle()
    wrong = next(iter(differences(world)), None)
    found = [failure] if failure else []
    return found + ([Failure(step.line, step.at_written, "accounts", "to add up", wrong)] if wrong else [])


def _perform(world: World, step: Step) -> Failure | None:
    """The action, and whether it was taken or refused as the file says."""
    if step.kind == "submit":
        world.member(step.values)  # the one who asks is not a part of what is asked
    before = _fingerprint() if step.refused is not None else ""
    try:
        with unit_of_work():
            act(world, step.kind, step.values)
    except Refusal as error:
        return _refused(step, error, before)
    if step.refused is None:
        return None
    wanted = f"refused with '{step.refused}'" if step.refused else "refused"
    return Failure(step.line, step.at_written, step.kind, wanted, "accepted")


def _refused(step: Step, error: Refusal, before: str) -> Failure | None:
    if step.refused is None:
        return Failure(step.line, step.at_written, step.kind, "accepted", f"refused: {error.message}")
    if step.refused not in error.message:
        return Failure(
            step.line, step.at_written, step.kind, f"refused with '{step.refused}'", f"refused: {error.message}"
        )
    if _fingerprint() != before:
        return Failure(
            step.line, step.at_written, step.kind, "refused, with nothing changed", "refused, but something changed"
        )
    return None


def _fingerprint() -> str:
    """Differs after anything that a service may change: every row of what they own, and how far the event log goes."""
    digest = hashlib.sha256()
    for model in (Team, Pool, Node, Device, Quota, PriorityClass, Job, Task, Allocation):
        for row in model._default_manager.order_by("pk").values_list():
            digest.update(repr(row).encode())
    digest.update(repr(Event.objects.aggregate(last=Max("seq"))).encode())
    return digest.hexdigest()
