"""What is not a scenario is told by file, line, field and what is allowed; nothing in a file is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from billing.books import LedgerBooks
from billing.services import set_rate
from scheduling.simulation.scenario import run_scenario
from scheduling.simulation.scenario_reading import read_scenario
from scheduling.simulation.scenario_yaml import ScenarioError

HEAD = """title: t
pools:
  - {name: train, nodes: [{name: n, accelerators: 2, model: A100-80G}]}
teams: [{name: a}]
"""
STEP = "steps:\n  - {at: 0s, %s}\n"
SUBMIT = "submit: {job: j, team: a, gpus: 1, %s}"


def scenario(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    return path


FAULTS = [
    # (the file, line, field, a part of the message)
    ("", 1, "", "must be a mapping"),
    ("- a\n", 1, "", "must be a mapping"),
    ("title: [\n", 2, "", "is not YAML"),
    (
        "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
        + "".join(
            f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
        )
        + "title: *i\n",
        1,
        "",
        "more than 200000 values",
    ),
    ("title: t\ntitle: u\n", 2, "title", "given twice, first on line 1"),
    ("pools: []\n", 1, "title", "is required"),
    ("title: t\n", 1, "pools", "needs at least one pool"),
    ("title: t\ncolour: red\n", 2, "colour", "no such field"),
    (HEAD + "steps: {}\n", 5, "steps", "must be a list"),
    (HEAD + "steps: [a]\n", 5, "steps[0]", "must be a mapping"),
    (HEAD + "start: 2026-03-01T00:00:00\n", 5, "start", "names no time zone"),
    (HEAD + "start: tomorrow\n", 5, "start", "must be a moment"),
    ("title: t\npools:\n  - {name: x, placement: tetris}\n", 3, "pools[0].placement", "not one of"),
    ("title: t\npools:\n  - {name: x, sharing: maybe}\n", 3, "pools[0].sharing", "not one of"),
    (
        "title: t\npools:\n  - name: x\n    options:\n      half_life: 0.5s\n",
        5,
        "pools[0].options.half_life",
        "whole seconds",
    ),
    ("title: t\npools:\n  - {name: x, options: {min_runtime: 0.5s}}\n", 3, "pools[0].options.min_runtime", "whole"),
    ("title: t\npools:\n  - {name: x, options: {grace: 0.5s}}\n", 3, "pools[0].options.grace", "whole seconds"),
    ("title: t\npools:\n  - {name: x, options: {speed: 1}}\n", 3, "pools[0].options.speed", "no such field"),
    ("title: t\npools:\n  - {name: x}\n  - {name: x}\n", 4, "pools[1].name", "twice"),
    ("title: t\npools:\n  - {name: x, nodes: [{name: n}, {name: n}]}\n", 3, "pools[0].nodes", "twice"),
    (
        "title: t\npools:\n  - {name: x, nodes: [{name: n, accelerators: -1}]}\n",
        3,
        "pools[0].nodes[0].accelerators",
        "whole",
    ),
    ("title: t\npools:\n  - {name: x, nodes: [{name: n, cpu: x}]}\n", 3, "pools[0].nodes[0].cpu", "not a number"),
    (
        "title: t\npools:\n  - {name: x, nodes: [{name: n, taints: []}]}\n",
        3,
        "pools[0].nodes[0].taints",
        "must map texts to texts",
    ),
    (HEAD + "quotas: [{team: b}]\n", 5, "quotas[0].team", "there is no b"),
    (HEAD + "quotas: [{team: a, pool: y}]\n", 5, "quotas[0].pool", "there is no y"),
    (HEAD + "quotas: [{team: a, guaranteed: 3}]\n", 5, "quotas[0].guaranteed", "more than the pool's capacity 2"),
    (HEAD + "quotas: [{team: a, guaranteed: 2, limit: 1}]\n", 5, "quotas[0].guaranteed", "more than the limit"),
    (HEAD + "quotas: [{team: a, weight: 0.5}]\n", 5, "quotas[0].weight", "whole"),
    (HEAD + "rates: [{model: H100, per_gpu_hour: 1}]\n", 5, "rates[0].model", "there is no H100"),
    (HEAD + "rates: [{model: A100-80G, per_gpu_hour: -1}]\n", 5, "rates[0].per_gpu_hour", "0 or more"),
    (HEAD + "priority_classes: [{name: p}]\n", 5, "priority_classes[0].value", "required"),
    (HEAD.replace("{name: a}", "{name: a, parent: b}, {name: b, parent: a}"), 4, "teams[0].parent", "above itself"),
    (HEAD.replace("{name: a}", "{name: a, parent: b}"), 4, "teams[0].parent", "there is no b"),
    (HEAD + "steps:\n  - {submit: {job: j, team: a}}\n", 6, "steps[0].at", "required"),
    (HEAD + "steps:\n  - {at: 0s}\n", 6, "steps[0]", "0 actions"),
    (HEAD + "steps:\n  - {at: 0s, hold: {job: j}, release: {job: j}}\n", 6, "steps[0]", "2 actions"),
    (HEAD + "steps:\n  - {at: soon, restart: scheduler}\n", 6, "steps[0].at", "not a duration"),
    (HEAD + "steps:\n  - {at: 2026-03-01T00:00:00Z, restart: scheduler}\n", 1, "start", "needs start"),
    (
        HEAD + "steps:\n  - {at: 2s, restart: scheduler}\n  - {at: 1s, restart: scheduler}\n",
        7,
        "steps[1].at",
        "order of time",
    ),
    (HEAD + STEP % "explode: {}", 6, "steps[0].explode", "no such action"),
    (HEAD + STEP % "restart: engine", 6, "steps[0].restart", "not one of"),
    (HEAD + STEP % "budget: {team: a}", 6, "steps[0].budget", "needs amount"),
    (HEAD + STEP % "budget: {team: x, amount: 5}", 6, "budget.team", "there is no x"),
    (HEAD + STEP % "budget: {team: a, amount: -5}", 6, "steps[0].budget.amount", "0 or more"),
    (HEAD + STEP % "budget: {team: a, amount: 5, period: week}", 6, "steps[0].budget.period", "month, quarter"),
    (HEAD + STEP % "budget: {team: a, amount: 5, thresholds: [0]}", 6, "steps[0].budget.thresholds", "from 1 to"),
    (HEAD + STEP % "budget: {team: a, amount: 5, remove: true}", 6, "steps[0].budget.remove", "no other values"),
    (HEAD + STEP % "package: {team: a}", 6, "steps[0].package.gpu_hours", "is required"),
    (HEAD + STEP % "package: {team: a, gpu_hours: 1, pool: x}", 6, "package.pool", "there is no x"),
    (HEAD + STEP % "plan: {team: a, name: v, monthly_fee: 1, day: soon}", 6, "steps[0].plan.day", "must be a day"),
    (HEAD + STEP % "invoice: {team: a, month: 2026-13}", 6, "steps[0].invoice.month", "must be a month"),
    (HEAD + STEP % "expect: {invoice: {team: a}}", 6, "steps[0].expect.invoice.month", "is required"),
    (HEAD + STEP % "expect: {invoice: {team: a, month: 2026-01}}", 6, "steps[0].expect.invoice", "expects nothing"),
    (HEAD + STEP % "expect: {invoice: {team: x, month: 2026-01, total: 1}}", 6, "expect.invoice.team", "there is no x"),
    (HEAD + STEP % "expect: {invoice: {team: a, month: 2026-01, sum: 1}}", 6, "steps[0].expect.invoice.sum", "no such"),
    (
        HEAD + STEP % "expect: {invoice: [{team: a, month: 2026-01, lines: [{colour: 1}]}]}",
        6,
        "steps[0].expect.invoice[0].lines[0].colour",
        "no such field",
    ),
    (HEAD + "billing: {time_zone: Atlantis}\n", 5, "billing.time_zone", "must be a time zone"),
    (HEAD + "billing: {packages_pay: late}\n", 5, "billing.packages_pay", "net, gross"),
    (HEAD + STEP % "expect: {jobs: {x: running}}", 6, "expect.jobs", "there is no x"),
    (HEAD + STEP % "expect: {teams: {a: {colour: 1}}}", 6, "steps[0].expect.teams.a.colour", "no such fact"),
    (HEAD + STEP % "expect: {teams: {a: {allocated: many}}}", 6, "steps[0].expect.teams.a.allocated", "not a number"),
    (HEAD + STEP % "expect: {nodes: {m: {free: 1}}}", 6, "expect.nodes", "there is no m"),
    (HEAD + STEP % "expect: {counts: {waiting: 1}}", 6, "steps[0].expect.counts.waiting", "no such fact"),
    (HEAD + STEP % "expect: {}", 6, "steps[0].expect", "expects something"),
    (HEAD + STEP % "expect: {jobs: {}}, refused: true", 6, "steps[0].refused", "belongs to an action"),
    (HEAD + STEP % "cancel: {job: x}", 6, "cancel.job", "there is no x"),
    (HEAD + STEP % "node: {name: n, state: asleep}", 6, "steps[0].node.state", "not one of"),
    (HEAD + STEP % "node: {name: m, state: down}", 6, "node.name", "there is no m"),
    (HEAD + STEP % "device: {node: n, index: 2, health: ok}", 6, "device.index", "2 devices"),
    (HEAD + STEP % "quota: {team: a, remove: true, limit: 1}", 6, "steps[0].quota.remove", "no other values"),
    (HEAD + STEP % "rate: {per_gpu_hour: 1}", 6, "steps[0].rate", "model or pool"),
    (HEAD + STEP % "restart: scheduler, refused: false", 6, "steps[0].refused", "must be true"),
    (HEAD + STEP % (SUBMIT % "topology: {level: row}"), 6, "submit.topology.level", "not one of"),
    (HEAD + STEP % (SUBMIT % "after: [x]"), 6, "submit.after", "there is no x"),
    (HEAD + STEP % (SUBMIT % "colour: red"), 6, "steps[0].submit.colour", "no such field"),
    (HEAD + STEP % (SUBMIT % "repeat: 0"), 6, "steps[0].submit.repeat", "whole"),
    (HEAD + STEP % (SUBMIT % "priority: royal"), 6, "submit.priority", "there is no royal"),
    (HEAD + STEP % (SUBMIT % "pool: nowhere"), 6, "submit.pool", "no such pool"),
    (HEAD + STEP % (SUBMIT % "tasks: 0"), 6, "submit.tasks", "whole number"),
    (HEAD + STEP % (SUBMIT % "duration: soon"), 6, "submit.duration", "not a duration"),
    (HEAD + STEP % (SUBMIT % "groups: [{gpus: 1}]"), 6, "submit.gpus", "belongs in the groups"),
    (HEAD + STEP % "submit: {job: j, team: a, gpus: 0.07}", 6, "submit.gpus", "nearest are 0.05 and 0.1"),
    (
        HEAD + "steps:\n  - {at: 0s, submit: {job: j, team: a}}\n  - {at: 0s, submit: {job: j, team: a}}\n",
        7,
        "submit.job",
        "on line 6 already",
    ),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("text", "line", "field", "message"), FAULTS, ids=lambda value: str(value)[-40:])
def test_a_fault_is_told_by_its_place(tmp_path, text, line, field, message):
    with pytest.raises(ScenarioError) as refused:
        run_scenario(scenario(tmp_path, text), set_rate, books=LedgerBooks())
    error = refused.value
    assert (error.line, error.field) == (line, field)
    assert message in str(error)


def test_a_fault_over_several_lines_is_told_by_its_own(tmp_path):
    text = HEAD + "steps:\n  - at: 0s\n    submit:\n      job: j\n      team: a\n      gpus: 1\n      colour: red\n"
    with pytest.raises(ScenarioError) as refused:
        read_scenario(scenario(tmp_path, text))
    assert refused.value.line == 11


def test_allowed_values_are_told(tmp_path):
    with pytest.raises(ScenarioError) as refused:
        read_scenario(scenario(tmp_path, "title: t\npools:\n  - {name: x, sharing: maybe}\n"))
    assert refused.value.allowed == ["exclusive", "fraction"]


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ScenarioError, match="No such file"):
        read_scenario(tmp_path / "none.yaml")


def test_texts_that_other_yaml_readers_take_for_something_else(tmp_path):
    """``no`` and ``on`` are names, 010 is ten, 1:30 is no duration of ninety."""
    text = (
        HEAD.replace("{name: a}", "{name: no}, {name: on}, {name: 10}") + STEP % "submit: {job: off, team: no, gpus: 1}"
    )
    read = read_scenario(scenario(tmp_path, text))
    assert [entry.values["name"] for entry in read.teams] == ["no", "on", "10"]
    assert read.steps[0].values["job"] == "off"


def test_no_tag_runs_code(tmp_path):
    with pytest.raises(ScenarioError):
        read_scenario(scenario(tmp_path, "title: !!python/object/apply:os.getcwd []\n"))


@pytest.mark.django_db
def test_money_needs_books(tmp_path):
    path = scenario(tmp_path, HEAD + STEP % "budget: {team: a, amount: 5}")
    with pytest.raises(ScenarioError) as refused:
        run_scenario(path, set_rate)
    assert (refused.value.line, "keeps books" in str(refused.value)) == (6, True)
