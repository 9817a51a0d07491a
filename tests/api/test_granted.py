"""What was asked and what was granted, limits of GPU memory, caps of classes and values of priorities, through REST."""

from __future__ import annotations

import pytest

from inventory.services import set_accelerator_model
from quotas.models import Quota
from scheduling.models import Job
from scheduling.services.stop import set_priority_class
from tests.api.client import HELLO, settled

VIR = [
    {"name": "vir02", "compute_milli": 250, "memory_mib": 20480},
    {"name": "vir04", "compute_milli": 500, "memory_mib": 40960},
]


def cut(world, slicing="templates", templates=VIR):
    set_accelerator_model("A100-80G", "nvidia", 81920, slicing=slicing, slice_templates=templates, now=world.now)


def test_a_job_tells_what_it_asked_for_and_what_it_was_granted(api, world):
    cut(world)
    memory = {"team": "nlp", "pool": "train", "gpu_memory_mib": 30720}
    job = api["bob"].post("/jobs", memory)
    assert job["granted"] == []
    settled(world)
    told = api["bob"].get(f"/jobs/{job['id']}")
    (group,) = told["groups"]
    assert (group["gpus"], group["gpu_memory_mib"]) == (None, 30720)
    granted = {"model": "A100-80G", "devices": 1, "gpus": 0.5, "gpu_memory_mib": 40960, "template": "vir04"}
    assert told["granted"] == [{"group": "task", **granted}]
    assert told["allocated"] == 0.5
    (allocation,) = api["bob"].get(f"/jobs/{job['id']}/allocations")["results"]
    assert allocation["requested"] == {"devices": 1, "gpus": None, "gpu_memory_mib": 30720}
    assert allocation["gpus"] == 0.5
    (device,) = allocation["devices"]
    assert (device["gpus"], device["memory_mib"], device["template"]) == (0.5, 40960, "vir04")


def test_slices_that_are_as_asked_say_so_without_a_template(api, world):
    job = api["bob"].post("/jobs", {**HELLO, "gpus": 0.25, "devices": 2})
    whole = api["bob"].post("/jobs", {**HELLO, "gpus": 3})
    settled(world)
    (granted,) = api["bob"].get(f"/jobs/{job['id']}")["granted"]
    assert granted == {
        "group": "task",
        "model": "A100-80G",
        "devices": 2,
        "gpus": 0.25,
        "gpu_memory_mib": 20480,
        "template": None,
    }
    (granted,) = api["bob"].get(f"/jobs/{whole['id']}")["granted"]
    assert (granted["devices"], granted["gpus"], granted["gpu_memory_mib"]) == (3, 3, 81920)


def test_a_limit_of_gpu_memory_is_set_shown_and_told_as_the_reason(api, world):
    root = api["root"]
    made = root.put("/quotas/train/nlp", {"memory_limit_mib": 100_000})
    assert (made["memory_limit_mib"], made["limit"]) == (100_000, None)
    assert root.patch("/quotas/train/nlp", {"limit": 4})["memory_limit_mib"] == 100_000
    warned = root.put("/quotas/train/research", {"memory_limit_mib": 50_000})
    assert warned["warnings"] == []
    warned = root.patch("/quotas/train/nlp", {"memory_limit_mib": 90_000})
    assert "GPU memory 90000 MiB is above the limit of GPU memory 50000 MiB of research" in warned["warnings"][0]
    root.delete("/quotas/train/research")
    first = api["bob"].post("/jobs", {**HELLO, "gpus": 1})
    second = api["bob"].post("/jobs", {**HELLO, "gpus": 0.5})
    settled(world)
    assert api["bob"].get(f"/jobs/{first['id']}")["state"] == "running"
    (reason,) = api["bob"].get(f"/jobs/{second['id']}")["reasons"]
    assert reason["code"] == "over_memory_limit"
    assert reason["numbers"]["limit_mib"] == 90_000
    assert (reason["numbers"]["allocated_mib"], reason["numbers"]["requested_mib"]) == (81_920, 40_960)
    assert reason["helps"]["quota"] == {"team": "nlp", "memory_limit_mib": 122_880, "by_mib": 32_880}
    share = api["bob"].get("/teams/nlp")["pools"][0]
    assert (share["memory_limit_mib"], share["memory_allocated_mib"], share["allocated"]) == (90_000, 81_920, 1)
    root.patch("/quotas/train/nlp", {"memory_limit_mib": 122_880})
    settled(world)
    assert api["bob"].get(f"/jobs/{second['id']}")["state"] == "running", "what helps helps"


@pytest.mark.parametrize("limit", [-1, 0.5, "1", True, 10**13])
def test_a_limit_of_gpu_memory_that_cannot_be_meant_is_refused(api, world, limit):
    api["root"].put("/quotas/train/nlp", {"memory_limit_mib": limit}, 400)
    assert not Quota.objects.exists()


def test_a_pool_of_cores_has_no_gpu_memory_to_limit(api, world):
    from inventory.services import create_pool

    create_pool("cores", world.pool.engine, world.now, unit="cpu")
    told = api["root"].put("/quotas/cores/nlp", {"memory_limit_mib": 0}, 400)
    assert "no device memory" in told["errors"][0]["message"] if "errors" in told else "no device memory" in str(told)
    assert not Quota.objects.exists()


def test_caps_of_classes_are_told_and_a_value_above_what_is_open_is_refused(api, world):
    set_priority_class("high", 900, world.now, max_milli_per_team=1500)
    told = {row["name"]: row for row in api["bob"].get("/priority-classes")["results"]}
    assert (told["high"]["max_gpus_per_team"], told["low"]["max_gpus_per_team"]) == (1.5, None)
    refused = api["bob"].post("/jobs", {**HELLO, "priority": 901}, 400)
    assert "from 0 to 900" in str(refused)
    assert not Job.objects.exists()
    assert api["bob"].post("/jobs", {**HELLO, "priority": 900})["priority"] == 900
    assert api["root"].post("/jobs", {**HELLO, "priority": 999_999})["priority"] == 999_999
    refused = api["bob"].post("/jobs", [HELLO, {**HELLO, "priority": 10**6}], 400)
    assert "[1].priority" in str(refused)
    assert Job.objects.count() == 2
    job = api["bob"].post("/jobs", {**HELLO, "priority": "high", "gpus": 2})
    settled(world)
    (reason,) = api["bob"].get(f"/jobs/{job['id']}")["reasons"]
    assert reason["code"] == "class_cap"
    wanted = {"team": "nlp", "priority_class": "high", "limit": 1.5, "in_use": 0, "requested": 2}
    assert reason["numbers"] == wanted
