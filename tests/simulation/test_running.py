"""What a scenario sees, and what it says when that is not what was wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from billing.books import LedgerBooks
from billing.services import set_rate
from scheduling.simulation.scenario import Outcome, run_scenario

pytestmark = pytest.mark.django_db

HEAD = """title: t
pools:
  - {name: train, options: {grace: 10s}, nodes: [{name: n, count: 2, accelerators: 2, model: A}]}
rates: [{model: A, per_gpu_hour: "2.00"}]
teams: [{name: top}, {name: a, parent: top}, {name: b}]
quotas: [{team: a, limit: 3}]
steps:
  - {at: 0s, submit: {job: j, team: a, gpus: 1, tasks: 2, duration: 1h}}
  - {at: 1s, submit: {job: w, team: a, gpus: 2}}
  - {at: 1s, submit: {job: s, team: b, gpus: 0.25, repeat: 2, duration: 2h}}
"""


def run(tmp_path: Path, *steps: str) -> Outcome:
    path = tmp_path / "scenario.yaml"
    path.write_text(HEAD + "".join(f"  - {{{step}}}\n" for step in steps), encoding="utf-8")
    return run_scenario(path, set_rate, books=LedgerBooks())


TRUE_AT_HALF_TIME = [
    "jobs: {j: running, w: pending, s: running, s-1: {state: running}}",
    "jobs: {j: {tasks_running: 2, devices: 2, preemptions: 0, started_at: 0s, cost: 2}}",
    "jobs: {j: {node: n-0}, w: {nodes: [], devices: 0, started_at: null, node: null}}",
    "jobs: {j: {nodes: [n-0], devices: [0, 1]}}",
    "jobs: {j: {devices: [n-0/0, n-0/1], reason: null}}",
    "jobs: {w: {reason: over_limit}}",
    'jobs: {w: {reason: "2 of 3 GPUs in use"}, s: {started_at: "<= 1s"}}',
    "teams: {a: {allocated: 2, pending: 2, cost: 2, gpu_hours: 1}, top: {allocated: 2, pending: 2}}",
    'teams: {a: {allocated: ">= 2", deserved: "<= 3"}, b: {allocated: "> 0.45", cost: "< 1"}}',
    "teams: {a: {pool: train, allocated: 2}}",
    "invoice: {team: a, month: 2026-01, total: 2, issued: false, lines: [{model: A, gpu_hours: 1}]}",
    "pools: {train: {capacity: 4, allocated: 2.5, free: 1.5, fragmented: 0.5}}",
    "nodes: {n-0: {allocated: 2, free: 0}, train/n-1: {allocated: 0.5, free: 1.5}}",
    "counts: {running: 3, pending: 1, starting: 0, succeeded: 0, failed: 0, cancelled: 0}",
]


@pytest.mark.parametrize("expected", TRUE_AT_HALF_TIME, ids=str)
def test_what_is_so_is_seen(tmp_path, expected):
    outcome = run(tmp_path, f"at: 30m, expect: {{{expected}}}")
    assert outcome.failures == []
    assert outcome.checks >= 1


FALSE_AT_HALF_TIME = [
    ("jobs: {j: pending}", "jobs.j.state", "pending", "running"),
    ("jobs: {s: pending}", "jobs.s-0.state", "pending", "running"),
    ("jobs: {j: {tasks_running: 1}}", "jobs.j.tasks_running", "1", "2"),
    ("jobs: {j: {node: n-1}}", "jobs.j.node", "n-1", "n-0"),
    ("jobs: {j: {nodes: [n-0, n-1]}}", "jobs.j.nodes", "['n-0', 'n-1']", "n-0"),
    ("jobs: {j: {devices: 3}}", "jobs.j.devices", "3", "2"),
    ("jobs: {j: {devices: [0]}}", "jobs.j.devices", "[0]", "[0, 1]"),
    ("jobs: {j: {preemptions: 1}}", "jobs.j.preemptions", "1", "0"),
    ("jobs: {w: {started_at: 0s}}", "jobs.w.started_at", "0s", "not started"),
    ("jobs: {j: {cost: 3}}", "jobs.j.cost", "3", "2"),
    ("jobs: {j: {reason: held}}", "jobs.j.reason", "held", "none"),
    ('teams: {a: {allocated: ">= 3"}}', "teams.a.allocated", ">= 3", "2"),
    ("teams: {a: {pool: train, allocated: 1}}", "teams.a.train.allocated", "1", "2"),
    ("teams: {a: {cost: 2.01}}", "teams.a.cost", "2.01", "2"),
    ("pools: {train: {free: 1}}", "pools.train.free", "1", "1.5"),
    ("nodes: {n-0: {free: 1}}", "nodes.n-0.free", "1", "0"),
    ("counts: {pending: 2}", "counts.pending", "2", "1"),
    ("invoice: {team: a, month: 2026-01, total: 2.01}", "invoice.a.2026-01.total", "2.01", "2.00"),
    ("invoice: {team: a, month: 2026-01, issued: true}", "invoice.a.2026-01.issued", "true", "false"),
    ("invoice: {team: a, month: 2026-01, lines: 2}", "invoice.a.2026-01.lines", "2", "1"),
    (
        "invoice: {team: a, month: 2026-01, lines: [{gpu_hours: 2}]}",
        "invoice.a.2026-01.lines",
        "[{gpu_hours: 2}]",
        "[A in train, 2.00 per GPU-hour: 1 h, 2.00]",
    ),
]


@pytest.mark.parametrize(("expected", "field", "wanted", "seen"), FALSE_AT_HALF_TIME, ids=str)
def test_what_is_not_so_is_told_with_wanted_and_seen(tmp_path, expected, field, wanted, seen):
    outcome = run(tmp_path, f"at: 30m, expect: {{{expected}}}")
    failure = outcome.failures[0]
    assert (failure.line, failure.at, failure.field, failure.wanted, failure.seen) == (11, "30m", field, wanted, seen)


def test_a_reason_that_is_not_given_tells_those_that_are(tmp_path):
    outcome = run(tmp_path, "at: 30m, expect: {jobs: {w: {reason: no_fit}}}")
    assert outcome.failures[0].seen.startswith("over_limit (a would pass its limit in train")


@pytest.mark.parametrize(
    ("step", "wanted", "seen"),
    [
        ("cancel: {job: w}, refused: true", "refused", "accepted"),
        ("hold: {job: j}, refused: nonsense", "refused with 'nonsense'", "refused: Only a job that waits"),
        ("hold: {job: j}", "accepted", "refused: Only a job that waits"),
        ("team: {name: a, delete: true}", "accepted", "refused: The team 'a' still has unfinished jobs: 1 running"),
    ],
)
def test_an_action_that_goes_otherwise_than_told_is_a_failure(tmp_path, step, wanted, seen):
    outcome = run(tmp_path, f"at: 30m, {step}")
    assert outcome.failures[0].wanted == wanted
    assert outcome.failures[0].seen.startswith(seen)


def test_refused_may_stand_inside_the_action(tmp_path):
    outcome = run(tmp_path, "at: 30m, hold: {job: j, refused: waits}", "at: 30m, hold: {job: w}")
    assert (outcome.failures, outcome.checks) == ([], 1)


def test_nothing_is_expected_after_an_action_that_was_refused_by_surprise(tmp_path):
    outcome = run(tmp_path, "at: 30m, hold: {job: j}", "at: 31m, expect: {jobs: {w: running}}")
    assert len(outcome.failures) == 1


def test_time_goes_from_event_to_event(tmp_path):
    moments = []
    path = tmp_path / "scenario.yaml"
    path.write_text(HEAD + "  - {at: 3h, expect: {counts: {running: 1, succeeded: 3}}}\n", encoding="utf-8")
    outcome = run_scenario(path, set_rate, pace=lambda now, moment: moments.append((moment - now).total_seconds()))
    assert outcome.failures == []
    assert moments == [1, 3599, 3601, 3599]


def test_utilization_is_what_the_devices_report(tmp_path):
    outcome = run(tmp_path, "at: 1m, utilization: {job: j, compute: 0.5, memory: 1}", "at: 2m, cancel: {job: j}")
    assert outcome.failures == []


def test_the_same_file_twice_decides_the_same(tmp_path):
    from scheduling.models import AllocationDevice

    def placed() -> list[tuple]:
        rows = AllocationDevice.objects.order_by("id")
        return list(rows.values_list("allocation__job__name", "device__node__name", "device__index", "compute_milli"))

    from django.db import transaction

    seen = []
    for _ in range(2):
        with transaction.atomic():
            run(tmp_path, "at: 30m, expect: {jobs: {j: running}}")
            seen.append(placed())
            transaction.set_rollback(True)
    assert seen[0] == seen[1] != []
