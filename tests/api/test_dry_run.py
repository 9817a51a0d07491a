"""A submission tried out: what it says comes true, what it refuses is refused for real, and nothing changes by it."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.apps import apps
from django.utils import timezone

from billing.services import set_rate
from events.models import Event
from inventory.models import AcceleratorModel
from quotas.services import set_quota
from scheduling.models import Allocation, Job
from scheduling.services.dry_run import dry_run
from scheduling.services.following import KeptPicture
from tests.api.client import HELLO, make_api, settled


def everything() -> dict[str, Any]:
    """Rows of every table but tokens' last use, and where the events and the scheduler are."""
    counts: dict[str, Any] = {model._meta.label: model.objects.count() for model in apps.get_models()}  # type: ignore
    lease = apps.get_model("scheduling", "SchedulerLease").objects.values_list("cycle", "term", "expires_at")
    return counts | {"lease": list(lease), "seq": Event.objects.order_by("-seq").values_list("seq", flat=True).first()}


def tried(api: Any, body: Any, status: int = 200) -> Any:
    before = everything()
    answer = api.post("/jobs?dry_run=true", body, status)
    assert everything() == before
    return answer


def test_what_fits_is_told_with_its_place_and_then_comes_true(api, world):
    api["bob"].post("/jobs", {**HELLO, "gpus": 3})
    settled(world)
    body = {**HELLO, "gpus": 0.5, "tasks": 3, "cpu": 2, "memory_gib": 4}
    said = tried(api["bob"], body)
    assert (said["dry_run"], said["fits"], said["reasons"], said["granted"]) == (True, True, [], 1.5)
    assert (said["price_per_hour"], said["price_per_hour_at_most"]) == ("3.600000", "3.600000")
    assert datetime.fromisoformat(said["estimated_start"]) <= timezone.now()
    job = api["bob"].post("/jobs", body)
    settled(world)
    came = [
        (row["task"], row["node"], [(each["index"], each["gpus"], each["memory_mib"]) for each in row["devices"]])
        for row in api["bob"].get(f"/jobs/{job['id']}/allocations")["results"]
    ]
    assert sorted(came) == [
        (row["task"], row["node"], [(each["index"], each["gpus"], each["memory_mib"]) for each in row["devices"]])
        for row in said["placement"]
    ]
    assert [row["requested"]["gpus"] for row in said["placement"]] == [0.5] * 3


def test_what_does_not_fit_says_why_and_what_would_help_as_the_job_does(api, world):
    set_quota(world.teams["nlp"], world.pool, world.now, limit=4000)
    api["bob"].post("/jobs", {**HELLO, "gpus": 3})
    settled(world)
    said = tried(api["bob"], {**HELLO, "gpus": 2})
    assert (said["fits"], said["placement"], said["granted"], said["estimated_start"]) == (False, [], 0, None)
    job = api["bob"].post("/jobs", {**HELLO, "gpus": 2})
    settled(world)
    assert said["reasons"] == api["bob"].get(f"/jobs/{job['id']}")["reasons"]
    assert said["reasons"][0]["helps"]["quota"]["limit"] == 5
    assert said["standing"] == {"allocated": 5, "guaranteed": 0, "deserved": 4, "limit": 4, "headroom": 0}


def test_a_request_for_memory_is_granted_in_steps(api):
    said = tried(api["bob"], {"team": "nlp", "pool": "train", "gpu_memory_mib": 9000})
    (landing,) = said["placement"]
    assert landing["requested"] == {"devices": 1, "gpu_memory_mib": 9000, "cpu": 0, "memory_gib": 0.0}
    assert landing["devices"] == [{"index": 0, "gpus": 0.15, "memory_mib": 9000}]
    assert (said["requested"], said["granted"]) == (0.15, 0.15)


def test_the_price_is_of_the_model_where_it_would_land_or_of_all_that_it_may(api, world):
    cheap = AcceleratorModel.objects.create(name="T4", vendor="nvidia", memory_mib=16384)
    set_rate(Decimal("0.40"), world.now, model=cheap)
    node = world.pool.nodes.order_by("rank").last()
    node.devices.update(model=cheap, memory_mib=16384)
    assert tried(api["bob"], {**HELLO, "gpus": 1, "model": "T4"})["price_per_hour"] == "0.400000"
    waits = tried(api["bob"], {**HELLO, "gpus": 1, "tasks": 100})
    assert (waits["price_per_hour"], waits["price_per_hour_at_most"]) == ("40.000000", "240.000000")


def test_an_elastic_job_starts_in_part(api, world):
    said = tried(api["bob"], {**HELLO, "gpus": 1, "tasks": 12, "min_tasks": 2})
    assert (said["fits"], said["granted"], said["requested"], len(said["placement"])) == (True, 8, 12, 8)
    assert [each["task"] for each in said["placement"]] == list(range(8))
    assert [each["code"] for each in said["reasons"]] == ["no_fit"]


def test_groups_are_numbered_through(api):
    groups = [
        {"name": "launcher", "cpu": 1},
        {"name": "rank", "tasks": 2, "gpus": 4},
    ]
    said = tried(api["bob"], {"team": "nlp", "pool": "train", "groups": groups})
    assert [(each["task"], each["group"]) for each in said["placement"]] == [(0, "launcher"), (1, "rank"), (2, "rank")]


def test_jobs_of_a_list_are_tried_out_together(api):
    said = tried(api["bob"], [{**HELLO, "gpus": 4}] * 3)
    assert [each["fits"] for each in said] == [True, True, False]
    assert len({each["placement"][0]["node"] for each in said[:2]}) == 2
    assert said[2]["reasons"][0]["code"] == "no_fit"


def test_who_would_give_way_is_counted_and_named_only_to_those_who_may_see(api, world):
    for team in ("nlp", "ads"):
        set_quota(world.teams[team], world.pool, world.now, guaranteed=4000)
    jobs = api["mallory"].post("/jobs", [{**HELLO, "team": "ads", "gpus": 1, "name": f"secret-{n}"} for n in range(8)])
    settled(world)
    asked = {**HELLO, "gpus": 2}
    said = tried(api["bob"], asked)
    assert (said["fits"], said["gives_way"]) == (False, {"count": 2, "jobs": []})
    assert said["reasons"][0]["code"] == "waiting_for_preemption"
    assert said["reasons"][0]["numbers"]["jobs"] == ["one of another team"] * 2
    ids = {job["id"] for job in jobs}
    assert "secret" not in str(said)
    shown = tried(api["root"], asked)["gives_way"]["jobs"]
    assert len(shown) == 2
    assert set(shown) <= ids
    assert not Allocation.objects.filter(stop_requested_at__isnull=False).exists()
    # The real one, and the ledger of it: the same is told to the same people.
    job = api["bob"].post("/jobs", asked)
    world.clockwork.scheduler.cycle(timezone.now())
    assert api["bob"].get(f"/jobs/{job['id']}")["reasons"][0]["numbers"]["jobs"] == ["one of another team"] * 2
    assert set(api["root"].get(f"/jobs/{job['id']}")["reasons"][0]["numbers"]["jobs"]) == set(shown)
    (evicted, started) = api["mallory"].get(f"/jobs/{shown[0]}/decisions")["results"]
    assert (evicted["kind"], evicted["numbers"]["for_job"], evicted["numbers"]["freed"]) == ("evict", None, 1)
    assert "to a job of another team, which needs 2 GPUs" in evicted["message"]
    assert started["kind"] == "start"
    assert api["root"].get(f"/jobs/{shown[0]}/decisions")["results"][0]["numbers"]["for_job"] == job["id"]


def test_a_refusal_to_evict_is_read_through_the_api(api, world):
    set_quota(world.teams["nlp"], world.pool, world.now, guaranteed=4000)
    set_quota(world.teams["ads"], world.pool, world.now, guaranteed=4000)
    api["mallory"].post("/jobs", {**HELLO, "team": "ads", "gpus": 4, "tasks": 2, "min_runtime": "1h"})
    settled(world)
    waits = api["bob"].post("/jobs", {**HELLO, "gpus": 4})
    settled(world)
    (refusal,) = api["bob"].get(f"/jobs/{waits['id']}/decisions")["results"]
    assert (refusal["kind"], refusal["rule"], refusal["unit"]) == ("refuse", "out_of_reach", "gpu")
    assert {name: refusal["numbers"][name] for name in ("requested", "lent", "protected", "team")} == {
        "requested": 4,
        "lent": 4,
        "protected": 8,
        "team": "nlp",
    }
    assert "8 GPUs started too short a time ago" in refusal["message"]


@pytest.mark.parametrize(
    "body",
    [
        {**HELLO, "gpus": 0.123},
        {**HELLO, "team": "nobody"},
        {**HELLO, "team": "ads"},
        {**HELLO, "pool": "elsewhere"},
        {**HELLO, "priority": "urgent"},
        {**HELLO, "colour": "red"},
        {**HELLO, "tasks": 0},
        [],
        [HELLO, {"team": "nlp"}, {"gpus": "x"}],
        "text",
        7,
    ],
)
def test_what_a_real_submission_refuses_is_refused_the_same(api, body):
    real = api["bob"].send("POST", "/jobs", body)
    tried_out = api["bob"].send("POST", "/jobs?dry_run=true", body)
    assert real.status_code >= 400
    assert (tried_out.status_code, tried_out.json()) == (real.status_code, real.json())


def test_it_needs_what_submitting_needs(api, world):
    reads = make_api(world.users["bob"], scopes=["read"])
    assert tried(reads, HELLO, 403)["code"] == reads.post("/jobs", HELLO, 403)["code"]
    assert tried(api["mallory"], HELLO, 404)["field"] == "team"


@pytest.mark.parametrize("value", ["", "1", "yes", "True", "null", "true,false"])
def test_the_parameter_is_true_or_false_and_nothing_else(api, value):
    before = everything()
    problem = api["bob"].post(f"/jobs?dry_run={value}", HELLO, 400)
    assert problem["field"] == "dry_run"
    assert everything() == before
    assert api["bob"].post("/jobs?dry_run=false", HELLO)["state"] == "pending"


def test_no_key_is_used_up_and_none_is_looked_up(api):
    key = {"Idempotency_Key": "k-1"}
    api["bob"].post("/jobs?dry_run=true", HELLO, 200, **key)
    job = api["bob"].post("/jobs", {**HELLO, "gpus": 1}, **key)
    said = api["bob"].post("/jobs?dry_run=true", HELLO, 200, **key)
    assert said["dry_run"]
    assert Job.objects.get().pk == job["id"]


def test_many_are_tried_out_on_one_kept_picture_that_follows(world):
    """The fleet is as it was after each, and what the scheduler does meanwhile is seen."""
    kept = KeptPicture(timedelta(hours=1))
    bob = world.users["bob"]
    for round_ in range(8):
        assert dry_run(bob, {**HELLO, "gpus": 1, "tasks": 8 - round_}, world.now, kept=kept)[0].fits
        assert not dry_run(bob, {**HELLO, "gpus": 1, "tasks": 9 - round_}, world.now, kept=kept)[0].fits
        with kept.at(world.now) as picture:
            assert picture.check() == []
            assert len(picture.pending) == 0
        world.submit(gpus=1)
        world.settle()
    (full,) = dry_run(bob, HELLO, world.now, kept=kept)
    assert (full.fits, full.reasons[0]["code"]) == (False, "no_fit")


def test_a_paused_pool_says_so_and_a_second_choice_is_taken(api, world):
    from inventory.services import NodeEntry, add_nodes, change_pool, create_engine, create_pool

    other = create_pool("other", create_engine("second", "simulated"), timezone.now(), grace_s=0)
    model = AcceleratorModel.objects.get()
    add_nodes(other, [NodeEntry("o-0", 8000, 65536, ((model, 81920, "o0"),))], timezone.now())
    change_pool(world.pool, timezone.now(), state="paused")
    body = {key: value for key, value in HELLO.items() if key != "pool"}
    said = tried(api["bob"], {**body, "pools": ["train", "other"]})
    assert (said["fits"], said["pool"], said["placement"][0]["node"]) == (True, "other", "o-0")
    said = tried(api["bob"], HELLO)
    assert (said["fits"], said["reasons"][0]["code"]) == (False, "pool_unavailable")
