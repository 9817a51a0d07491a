"""Whether what a scenario names is there when it is named: pools, nodes, teams, classes, models, jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from scheduling.services.submit import DEFAULT_CLASSES
from scheduling.simulation.scenario_model import Scenario, Step
from scheduling.simulation.scenario_yaml import ScenarioError


def job_names(values: Mapping[str, Any]) -> list[str]:
    """The names of the jobs of a submission: ``a``, or ``a-0`` … where it is repeated."""
    if "repeat" not in values:
        return [values["job"]]
    return [f"{values['job']}-{index}" for index in range(values["repeat"])]


class Names:
    """Walks through a scenario in order of time and knows what exists so far."""

    def __init__(self, scenario: Scenario):
        self.scenario = scenario
        self.pools: set[str] = set()
        self.teams: set[str] = set()
        self.classes = set(DEFAULT_CLASSES)
        self.models: set[str] = set()
        self.nodes: Counter[str] = Counter()
        self.devices: dict[str, int] = {}  # by node
        self.jobs: dict[str, int] = {}  # name → line; a repeated submission's own name is one too

    def check(self) -> None:
        """Raises ScenarioError at the first name of something that is not there, or is there twice."""
        self._check_setup()
        for step in self.scenario.steps:
            self._check_step(step)

    def _check_setup(self) -> None:
        scenario = self.scenario
        for position, pool in enumerate(scenario.pools):
            self._add(self.pools, pool.name, f"pools[{position}].name", pool.line)
            own: set[str] = set()
            for node in pool.nodes:
                self._add(own, node.name, f"pools[{position}].nodes", node.line)
                if node.accelerators:
                    self.models.add(node.model)
                for name in (node.name, f"{pool.name}/{node.name}"):
                    self.nodes[name] += 1
                    self.devices[name] = node.accelerators
        for position, entry in enumerate(scenario.priority_classes):
            own_name = entry.values["name"]
            if own_name in self.classes and own_name not in DEFAULT_CLASSES:
                raise ScenarioError(
                    f"{own_name} is there twice", line=entry.line, field=f"priority_classes[{position}].name"
                )
            self.classes.add(own_name)
        for position, entry in enumerate(scenario.teams):
            self._add(self.teams, entry.values["name"], f"teams[{position}].name", entry.line)
        for position, entry in enumerate(scenario.teams):
            self._known(entry.values.get("parent"), self.teams, f"teams[{position}].parent", entry.line)
        self._check_parents()
        for position, entry in enumerate(scenario.rates):
            self._known(entry.values.get("model"), self.models, f"rates[{position}].model", entry.line)
            self._known(entry.values.get("pool"), self.pools, f"rates[{position}].pool", entry.line)
        for position, entry in enumerate(scenario.quotas):
            self._known(entry.values["team"], self.teams, f"quotas[{position}].team", entry.line)
            self._pool(entry.values, f"quotas[{position}]", entry.line)

    def _check_parents(self) -> None:
        parents = {entry.values["name"]: entry.values.get("parent") for entry in self.scenario.teams}
        for position, entry in enumerate(self.scenario.teams):
            seen = {entry.values["name"]}
            above = entry.values.get("parent")
            while above is not None:
                if above in seen:
                    raise ScenarioError(
                        f"{entry.values['name']} would be above itself",
                        line=entry.line,
                        field=f"teams[{position}].parent",
                    )
                seen.add(above)
                above = parents[above]

    def _check_step(self, step: Step) -> None:
        values, lines = step.values, step.lines or {}

        def known(key: str, among: Iterable[str]) -> None:
            self._known(values.get(key), among, f"{step.kind}.{key}", lines.get(key, step.line))

        if step.kind == "expect":
            self._check_expectations(step)
        elif step.kind == "submit":
            self._check_submit(step)
        elif step.kind in ("cancel", "hold", "release", "priority", "utilization"):
            known("job", self.jobs)
            known("class", self.classes)
        elif step.kind == "priority_class":
            self.classes.add(values["name"])
        elif step.kind == "quota":
            known("team", self.teams)
            self._pool(values, "quota", step.line)
        elif step.kind == "team":
            known("parent", self.teams)
            if values.get("delete"):
                known("name", self.teams)
            self.teams.add(values["name"])
        elif step.kind == "pool":
            known("name", self.pools)
            if values.get("rename") and step.refused is None:
                self.pools.add(values["rename"])
        elif step.kind == "model":
            known("name", self.models)
        elif step.kind in ("budget", "package", "plan", "invoice"):
            known("team", self.teams)
            known("model", self.models)
            known("pool", self.pools)
        elif step.kind == "rate":
            known("model", self.models)
            known("pool", self.pools)
        elif step.kind in ("node", "device"):
            key = "name" if step.kind == "node" else "node"
            self._node(values[key], f"{step.kind}.{key}", lines.get(key, step.line))
            if step.kind == "device" and values["index"] >= self.devices[values["node"]]:
                raise ScenarioError(
                    f"{values['node']} has {self.devices[values['node']]} devices, counted from 0",
                    line=lines.get("index", step.line),
                    field="device.index",
                )

    def _check_submit(self, step: Step) -> None:
        values, lines = step.values, step.lines or {}
        if step.refused is None:
            self._known(values["team"], self.teams, "submit.team", lines.get("team", step.line))
            if isinstance(values.get("priority"), str):
                self._known(values["priority"], self.classes, "submit.priority", lines.get("priority", step.line))
            for before in values.get("after", ()):
                self._known(before, self.jobs, "submit.after", lines.get("after", step.line))
            names = dict.fromkeys([values["job"], *job_names(values)])
            for name in names:
                if name in self.jobs:
                    raise ScenarioError(
                        f"a job {name} is submitted on line {self.jobs[name]} already",
                        line=step.line,
                        field="submit.job",
                    )
                self.jobs[name] = step.line

    def _check_expectations(self, step: Step) -> None:
        known: Mapping[str, Iterable[str]] = {"jobs": self.jobs, "teams": self.teams, "pools": self.pools}
        for check in step.checks:
            field = f"expect.{check.subject}"
            if check.subject in known:
                self._known(check.name, known[check.subject], field, check.line)
            elif check.subject == "invoice":
                self._known(check.name.rpartition(" ")[0], self.teams, f"{field}.team", check.line)
            elif check.subject == "nodes":
                self._node(check.name, field, check.line)
            self._known(check.pool or None, self.pools, f"{field}.pool", check.line)

    def _pool(self, values: Mapping[str, Any], where: str, line: int) -> None:
        self._known(values.get("pool"), self.pools, f"{where}.pool", line)
        if "pool" not in values and len(self.scenario.pools) > 1:
            raise ScenarioError(
                "is required where there are several pools",
                line=line,
                field=f"{where}.pool",
                allowed=sorted(self.pools),
            )

    def _node(self, name: str, where: str, line: int) -> None:
        self._known(name, self.nodes, where, line)
        if self.nodes[name] > 1:
            several = sorted(each for each in self.nodes if each.endswith(f"/{name}"))
            raise ScenarioError(f"{name} is a node of several pools", line=line, field=where, allowed=several)

    @staticmethod
    def _add(names: set[str], name: str, where: str, line: int) -> None:
        if name in names:
            raise ScenarioError(f"{name} is there twice", line=line, field=where)
        names.add(name)

    @staticmethod
    def _known(name: str | None, among: Iterable[str], where: str, line: int) -> None:
        if name is not None and name not in among:
            raise ScenarioError(f"there is no {name}", line=line, field=where, allowed=sorted(among)[:50])
