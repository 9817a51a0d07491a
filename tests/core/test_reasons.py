"""What the core says, word by word."""

import json

import pytest

from scheduling.core.model import Reason
from scheduling.core.reasons import REASONS, held_reason, message, reason

QUOTA = {"team": "nlp", "pool": "train", "allocated": 2000, "requested": 500}
MEMORY = {"team": "nlp", "pool": "train", "limit_mib": 40_000, "requested_mib": 10_000}
ROOM = {
    "pool": "train",
    "models": [],
    "vendors": [],
    "min_device_memory_mib": 0,
    "node_selector": [],
    "devices": 1,
    "compute": 600,
    "memory_mib": None,
    "cpu_milli": 0,
    "host_memory_mib": 0,
    "free": 6400,
    "cordoned_nodes": 0,
    "matching_nodes": 2,
    "possible_nodes": 2,
    "largest_piece": 400,
    "free_devices": 0,
    "most_devices": 0,
    "largest_free_memory_mib": 32_000,
    "free_cpu_milli": 9500,
    "largest_free_cpu_milli": 8000,
    "largest_free_host_memory_mib": 1024,
    "short": "compute",
}

SENTENCES: list[tuple[str, dict[str, object], str]] = [
    ("over_limit", QUOTA | {"limit": 2000}, "nlp is at its limit in train: 2 of 2 GPUs in use, this job needs 0.5"),
    (
        "over_limit",
        QUOTA | {"limit": 2400},
        "nlp would pass its limit in train: 2 of 2.4 GPUs in use, this job needs 0.5",
    ),
    (
        "over_limit",
        QUOTA | {"limit": 1000},
        "nlp is over its limit in train: 2 of 1 GPU in use, over by 1; this job needs 0.5",
    ),
    ("over_limit", QUOTA | {"limit": 0, "allocated": 0}, "nlp has limit 0 in train: this job needs 0.5"),
    (
        "over_user_limit",
        QUOTA | {"limit": 2000, "user": 7},
        "one member of nlp may hold 2 GPUs in train: 2 in use by this one, this job needs 0.5",
    ),
    (
        "over_memory_limit",
        MEMORY | {"allocated_mib": 40_000},
        "nlp is at its limit of GPU memory in train: 40000 of 40000 MiB in use, this job needs 10000 MiB",
    ),
    (
        "over_memory_limit",
        MEMORY | {"allocated_mib": 30_001},
        "nlp would pass its limit of GPU memory in train: 30001 of 40000 MiB in use, this job needs 10000 MiB",
    ),
    (
        "over_memory_limit",
        MEMORY | {"allocated_mib": 50_000},
        (
            "nlp is over its limit of GPU memory in train: 50000 of 40000 MiB in use, over by 10000 MiB; "
            "this job needs 10000 MiB"
        ),
    ),
    (
        "over_memory_limit",
        MEMORY | {"allocated_mib": 0, "limit_mib": 0},
        "nlp has limit 0 of GPU memory in train: this job needs 10000 MiB",
    ),
    (
        "class_cap",
        {
            "team": "nlp",
            "priority_class": "urgent",
            "limit_milli": 1500,
            "in_use_milli": 1000,
            "requested_milli": 1000,
        },
        "jobs of class urgent may hold 1.5 GPUs in nlp: 1 in use, this job needs 1",
    ),
    (
        "class_cap",
        {"team": "nlp", "priority_class": "urgent", "limit": 1, "running": 1},
        "nlp may run 1 job of class urgent at a time: 1 running",
    ),
    (
        "over_share",
        QUOTA | {"guaranteed": 2000},
        (
            "a job that cannot be preempted must stay inside the guarantee of nlp in train: "
            "2 of 2 GPUs in use, this job needs 0.5"
        ),
    ),
    (
        "over_share",
        QUOTA | {"guaranteed": 0, "free": 3000, "reserved": 2750, "reserved_for": ["vision", "speech"]},
        "2.75 of 3 free GPUs in train stay reserved for vision and speech: this job needs 0.5",
    ),
    ("no_fit", ROOM, "no single GPU has 0.6 free: 6.4 GPUs are free in all, the largest free piece is 0.4"),
    (
        "no_fit",
        ROOM | {"compute": 1000},
        "no GPU is entirely free: 6.4 GPUs are free in all, the largest free piece is 0.4",
    ),
    ("no_fit", ROOM | {"free": 0}, "train is full: no GPU is free"),
    ("no_fit", ROOM | {"free": 0, "models": ["H100"]}, "no GPU in train that matches is free"),
    (
        "no_fit",
        ROOM | {"free": 0, "cordoned_nodes": 1},
        "train is full: no GPU is free; 1 node that matches is cordoned or not ready",
    ),
    (
        "no_fit",
        ROOM | {"short": None, "cordoned_nodes": 2},
        "no node of train that matches takes new tasks; 2 nodes that match are cordoned or not ready",
    ),
    (
        "no_fit",
        ROOM | {"compute": None, "memory_mib": 12_000, "free": 500},
        "no single GPU has enough compute free beside 12000 MiB: 0.5 GPU is free in all, the largest free piece is 0.4",
    ),
    (
        "no_fit",
        ROOM | {"short": "device_memory", "memory_mib": 12_000, "largest_free_memory_mib": 3000},
        "no GPU has 12000 MiB free: the largest free memory of one GPU is 3000 MiB",
    ),
    (
        "no_fit",
        ROOM | {"short": "device_memory", "largest_free_memory_mib": 3000},
        "no GPU has 0.6 of its memory free: the largest free memory of one GPU is 3000 MiB",
    ),
    (
        "no_fit",
        ROOM | {"short": "devices", "devices": 4, "compute": 1000, "most_devices": 3, "free_devices": 6},
        "no node has 4 entirely free GPUs: at most 3 in one node, 6 entirely free in all",
    ),
    (
        "no_fit",
        ROOM | {"short": "devices", "devices": 2, "compute": 500, "most_devices": 1},
        "no node has 2 GPUs with 0.5 free on each: at most 1 in one node",
    ),
    (
        "no_fit",
        ROOM | {"short": "devices", "devices": 2, "compute": None, "memory_mib": 4000, "most_devices": 1},
        "no node has 2 GPUs with 4000 MiB free on each: at most 1 in one node",
    ),
    ("no_fit", ROOM | {"short": "devices", "devices": 2, "free": 0}, "train is full: no GPU is free"),
    (
        "no_fit",
        ROOM | {"short": "cpu", "cpu_milli": 16_000},
        "no node with room on its GPUs has 16 cores free: 9.5 cores are free in all, the most on one node is 8",
    ),
    (
        "no_fit",
        ROOM | {"short": "cpu", "devices": 0, "cpu_milli": 16_000},
        "no node has 16 cores free: 9.5 cores are free in all, the most on one node is 8",
    ),
    ("no_fit", ROOM | {"short": "cpu", "free_cpu_milli": 0}, "train is full: no core is free"),
    (
        "no_fit",
        ROOM | {"short": "host_memory", "host_memory_mib": 4096},
        "no node with room on its GPUs and CPU has 4096 MiB of memory free: the most on one node is 1024 MiB",
    ),
    (
        "no_fit",
        ROOM | {"short": "sharing", "free_devices": 1},
        (
            "the GPUs with room are held by tasks that share with nobody or only inside their team: "
            "6.4 GPUs are free in all, 1 entirely"
        ),
    ),
    (
        "no_fit",
        ROOM | {"possible_nodes": 0, "devices": 9, "compute": 1000, "cpu_milli": 1000, "host_memory_mib": 10},
        "no node of train is large enough for 9 GPUs, 1 core and 10 MiB of memory, even when empty",
    ),
    (
        "no_fit",
        ROOM | {"possible_nodes": 0, "memory_mib": 90_000},
        "no node of train is large enough for 0.6 GPU and 90000 MiB on each GPU, even when empty",
    ),
    (
        "no_fit",
        ROOM | {"possible_nodes": 0, "devices": 2, "compute": None, "memory_mib": 90_000},
        "no node of train is large enough for 2 GPUs with 90000 MiB of each, even when empty",
    ),
    (
        "no_fit",
        ROOM | {"short": "device_memory", "devices": 2, "memory_mib": 9000, "largest_free_memory_mib": 3000},
        "no node has 2 GPUs, each with 9000 MiB free: the largest free memory of one GPU is 3000 MiB",
    ),
    (
        "no_fit",
        ROOM | {"matching_nodes": 0, "devices": 0, "node_selector": [["rack", "r1"], ["zone", "b"]]},
        "no node of train carries rack=r1 and zone=b",
    ),
    (
        "no_matching_accelerator",
        {"pool": "train", "models": ["H100", "H200"], "vendors": ["nvidia"], "min_device_memory_mib": 90_000}
        | {"node_selector": [["rack", "r1"]]},
        "no accelerator in train matches: model H100 or H200, vendor nvidia, at least 90000 MiB, a node with rack=r1",
    ),
    (
        "no_matching_accelerator",
        {"pool": "cores", "models": [], "vendors": [], "min_device_memory_mib": 0, "node_selector": []},
        "no accelerator in cores matches: it has none",
    ),
    (
        "gang_incomplete",
        {"pool": "train", "devices": 1, "free": 4500, "cordoned_nodes": 0, "needed": 10, "fitting": 4},
        "10 tasks must start together and there is room for 4: 4.5 GPUs are free in all",
    ),
    (
        "gang_incomplete",
        {"pool": "train", "devices": 0, "free": 1000, "cordoned_nodes": 1, "needed": 3, "fitting": 1},
        (
            "3 tasks must start together and there is room for 1: 1 core is free in all; "
            "1 node that matches is cordoned or not ready"
        ),
    ),
    ("reserved_for", {"pool": "train", "job": 12}, "the room in train is kept for job 12, which comes first"),
    ("held", {}, "held"),
    ("held", {"by": "an operator"}, "held: an operator"),
    ("held", {"by": "owner"}, "held by its owner"),
    ("held", {"by": "operator"}, "held by an operator"),
    ("held", {"by": "dependency"}, "held until the jobs that it comes after have succeeded"),
    ("held", {"after": [3]}, "waits for 1 job to succeed: 3"),
    (
        "held",
        {"after": [{"job": 3, "name": "prepare"}, {"job": 4, "name": None}]},
        "waits for 2 jobs to succeed: prepare (3) and 4",
    ),
    (
        "held",
        {"after": [{"job": 3, "name": "a"}, {"job": 4, "name": "b", "state": "failed"}]},
        (
            "waits for 2 jobs to succeed: a (3) and b (4); b (4) failed: it never starts by itself, "
            "release it to start it all the same, or cancel it"
        ),
    ),
    (
        "crash_loop",
        {"replicas": 1, "in_a_row": 1, "exit_code": 0, "ended": "exited", "next_try": "2026-01-05T00:00:01+00:00"},
        "a replica ended by itself (exit code 0): it is started again at 2026-01-05 00:00:01 UTC",
    ),
    (
        "crash_loop",
        {"replicas": 3, "in_a_row": 4, "exit_code": None, "ended": "lost", "next_try": "2026-01-05T00:00:08+00:00"},
        (
            "a replica ended 4 times in a row soon after its start (lost), as did 2 others: "
            "it is started again at 2026-01-05 00:00:08 UTC"
        ),
    ),
    (
        "budget_spent",
        {"team": "nlp", "budget": "100.00", "spent": "100.00"},
        "the budget of nlp is spent: 100.00 of 100.00",
    ),
    (
        "pool_unavailable",
        {"pool": "train"},
        "pool train takes no new jobs: its engine is out of reach or the operator paused it",
    ),
    ("waiting_for_preemption", {"jobs": [4, 9]}, "waits until 2 jobs that give way have stopped: 4 and 9"),
    ("next_cycle", {"max_starts": 1}, "next in line: one cycle starts at most 1 job"),
    ("next_cycle", {}, "next in line: there is room for it now, it is tried again in the next cycle"),
]


@pytest.mark.parametrize(("code", "numbers", "text"), SENTENCES)
def test_sentences(code, numbers, text):
    assert message(reason(code, numbers)) == text


def test_every_code_has_a_sentence_here():
    assert {code for code, _, _ in SENTENCES} == set(REASONS)


def test_a_cpu_pool_speaks_of_cores():
    text = message(reason("over_limit", QUOTA | {"limit": 2000}), unit="cpu")
    assert text == "nlp is at its limit in train: 2 of 2 cores in use, this job needs 0.5"


@pytest.mark.parametrize("code", [code for code, kind in REASONS.items() if kind.needs])
def test_a_reason_without_its_numbers_is_a_mistake(code):
    full = next(numbers for each, numbers, _ in SENTENCES if each == code)
    for missing in REASONS[code].needs:
        with pytest.raises(ValueError, match=missing):
            reason(code, {key: value for key, value in full.items() if key != missing})


def test_an_unknown_code_is_a_mistake():
    with pytest.raises(ValueError, match="no_such_code"):
        reason("no_such_code", {})


@pytest.mark.parametrize(("code", "numbers", "text"), SENTENCES)
def test_numbers_are_json(code, numbers, text):
    again = Reason(code, json.loads(json.dumps(numbers)))
    assert message(again) == text


def test_a_held_reason_keeps_a_known_code_with_its_numbers():
    numbers = {"team": "nlp", "budget": "1.00", "spent": "1.00"}
    assert held_reason("budget_spent", numbers) == Reason("budget_spent", numbers)
    assert held_reason("budget_spent", {"team": "nlp"}).code == "held"
    assert held_reason(None, {}) == Reason("held", {})
