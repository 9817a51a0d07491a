"""Jobs through REST: the fixed shape, filters, stable pages, stopping and holding, and what each leaves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from events.models import Event
from scheduling.models import Allocation, Job, PriorityClass
from tests.api.client import HELLO, settled, walk


def test_the_shape_of_a_job(api, world):
    job = api["bob"].post("/jobs", HELLO)
    assert (job["state"], job["cost"], job["reasons"][0]["code"]) == ("pending", "0.000000", "queued")
    assert (job["gpus"], job["requested"], job["allocated"], job["unit"]) == (0.5, 0.5, 0, "gpu")
    assert (job["team"], job["pool"], job["user"], job["command"]) == ("nlp", "train", "bob", HELLO["command"])
    assert job["submitted_at"].endswith("Z")
    settled(world)
    seen = api["bob"].get(f"/jobs/{job['id']}")
    assert (seen["state"], seen["allocated"], seen["tasks_running"]) == ("running", 0.5, 1)
    (held,) = api["bob"].get(f"/jobs/{job['id']}/allocations")["results"]
    assert (held["gpus"], held["devices"][0]["gpus"], held["released_at"]) == (0.5, 0.5, None)
    (decision,) = api["bob"].get(f"/jobs/{job['id']}/decisions")["results"]
    assert decision["numbers"]["requested"] == 0.5
    kinds = [event["kind"] for event in api["bob"].get(f"/jobs/{job['id']}/events")["results"]]
    assert kinds[0] == "job.submitted"
    assert "job.state" in kinds


def test_a_waiting_job_tells_why_in_people_s_units(api, world):
    from quotas.services import set_quota

    set_quota(world.teams["nlp"], world.pool, world.now, limit=500)
    job = api["bob"].post("/jobs", {**HELLO, "gpus": 2})
    settled(world)
    (reason,) = api["bob"].get(f"/jobs/{job['id']}")["reasons"]
    assert reason["code"] == "over_limit"
    assert (reason["numbers"]["limit"], reason["numbers"]["requested"]) == (0.5, 2)
    assert "0.5" in reason["message"]


def test_a_list_is_submitted_whole_or_not_at_all(api):
    jobs = api["bob"].post("/jobs", [{**HELLO, "name": f"job-{i}"} for i in range(3)])
    assert [job["name"] for job in jobs] == ["job-0", "job-1", "job-2"]
    problem = api["bob"].post("/jobs", [HELLO, {**HELLO, "gpus": 0.07}], 400)
    assert problem["field"] == "[1].gpus"
    assert problem["allowed"] == ["0.05", "0.1"]
    assert Job.objects.count() == 3
    assert api["bob"].post("/jobs", [HELLO] * 1001, 400)["field"] == "body"
    assert api["bob"].post("/jobs", [], 400)["field"] == "body"


def test_open_02_refused_creates_charge_nothing(api, world):
    """Names need not be unique here, so the five creates fail in another way."""
    from quotas.services import set_quota

    set_quota(world.teams["nlp"], world.pool, world.now, limit=8000)
    api["bob"].post("/jobs", {**HELLO, "name": "train", "gpus": 1})
    settled(world)
    for _ in range(5):
        api["bob"].post("/jobs", {**HELLO, "name": "train", "gpus": 1, "image": "a\nb"}, 400)
        assert share(api, "nlp")["allocated"] == 1
    big = api["bob"].post("/jobs", {**HELLO, "name": "big", "gpus": 1, "tasks": 7})
    settled(world)
    assert api["bob"].get(f"/jobs/{big['id']}")["state"] == "running"
    assert share(api, "nlp")["allocated"] == 8


def share(api, team, user="bob"):
    return next(pool for pool in api[user].get(f"/teams/{team}")["pools"] if pool["pool"] == "train")


def test_open_08_three_times_0_3_is_0_9(api, world):
    from quotas.services import set_quota

    set_quota(world.teams["nlp"], world.pool, world.now, limit=900)
    job = api["bob"].post("/jobs", {**HELLO, "gpus": 0.3, "tasks": 3, "duration": "1s"})
    settled(world)
    raw = api["bob"].send("GET", "/teams/nlp").content.decode()
    assert '"allocated":0.9,' in raw
    assert '"headroom":0,' in raw
    assert share(api, "nlp")["over_by"] == 0
    assert api["bob"].get(f"/jobs/{job['id']}")["requested"] == 0.9
    world.pass_time(seconds=2)
    assert share(api, "nlp")["allocated"] == 0
    assert share(api, "nlp")["headroom"] == 0.9


def test_over_its_limit_a_team_has_no_headroom_and_never_less(api, world):
    from quotas.services import set_quota

    set_quota(world.teams["nlp"], world.pool, world.now, limit=4000, guaranteed=2000)
    api["bob"].post("/jobs", {**HELLO, "gpus": 1, "tasks": 4})
    settled(world)
    set_quota(world.teams["nlp"], world.pool, world.now, limit=3000)
    seen = share(api, "nlp")
    assert (seen["allocated"], seen["limit"], seen["over_by"], seen["headroom"]) == (4, 3, 1, 0)
    assert (seen["guaranteed"], seen["deserved"]) == (2, 3)


def test_a_limit_above_binds_the_headroom_below(api, world):
    from quotas.services import set_quota

    set_quota(world.teams["research"], world.pool, world.now, limit=3000)
    api["bob"].post("/jobs", {**HELLO, "gpus": 1})
    settled(world)
    assert (share(api, "nlp")["limit"], share(api, "nlp")["headroom"]) == (None, 2)


def test_shares_are_those_that_the_scheduler_decided_over(api, world):
    from quotas.services import set_quota
    from scheduling.selectors import team_shares

    set_quota(world.teams["nlp"], world.pool, world.now, guaranteed=4000, limit=6000)
    set_quota(world.teams["ads"], world.pool, world.now, guaranteed=2000, weight=3)
    for gpus in (1, 2, 4, 0.5):
        api["bob"].post("/jobs", {**HELLO, "gpus": gpus, "tasks": 2})
    api["mallory"].post("/jobs", {**HELLO, "team": "ads", "gpus": 4, "tasks": 2})
    api["mallory"].post("/jobs", {"team": "ads", "pool": "train", "gpu_memory_mib": 9000, "tasks": 3})
    held = api["bob"].post("/jobs", {**HELLO, "gpus": 1})
    api["bob"].post(f"/jobs/{held['id']}/hold", status=200)
    settled(world)
    plan = world.clockwork.scheduler.last_plan
    ours = team_shares(timezone.now())
    for pool_id, shares in plan.shares.items():
        for team_id, theirs in shares.items():
            mine = ours[pool_id][team_id]
            for name in ("allocated", "guaranteed", "deserved", "limit", "pending", "demand"):
                assert getattr(mine, name) == getattr(theirs, name), (team_id, name)


def test_open_37_the_same_key_twice_is_one_job(api, world):
    one = api["bob"].post("/jobs", {**HELLO, "gpus": 2}, Idempotency_Key="k-1")
    again = api["bob"].post("/jobs", {**HELLO, "gpus": 2}, 200, Idempotency_Key="k-1")
    assert again["id"] == one["id"]
    assert Job.objects.count() == 1
    api["bob"].post("/jobs", {**HELLO, "gpus": 1}, 409, Idempotency_Key="k-1")
    assert api["bob"].post("/jobs", HELLO, 400, Idempotency_Key="k" * 201)["field"] == "Idempotency-Key"
    settled(world)
    assert share(api, "nlp")["allocated"] == 2
    # Another user's key is another key.
    assert api["alice"].post("/jobs", {**HELLO, "gpus": 2}, Idempotency_Key="k-1")["id"] != one["id"]


def test_open_37_what_a_key_stood_for_is_not_shown_to_who_left(api, world):
    from tenants.services import remove_membership

    api["bob"].post("/jobs", HELLO, Idempotency_Key="k")
    remove_membership(world.users["bob"], world.teams["nlp"], timezone.now())
    api["bob"].post("/jobs", HELLO, 404, Idempotency_Key="k")


def test_open_38_names_are_nobody_s_own(api, world):
    first = api["bob"].post("/jobs", {**HELLO, "name": "resnet", "gpus": 1})
    other = api["mallory"].post("/jobs", {**HELLO, "team": "ads", "name": "resnet", "gpus": 1})
    settled(world)
    third = api["bob"].post("/jobs", {**HELLO, "name": "resnet", "gpus": 1})
    assert len({first["id"], other["id"], third["id"]}) == 3
    settled(world)
    assert api["bob"].get(f"/jobs/{first['id']}")["preemptions"] == 0
    assert set(Job.objects.values_list("state", flat=True)) == {"running"}


def test_open_52_long_names_are_kept_whole_or_refused_with_the_length(api):
    names = [f"{'n' * 79}{last}" for last in "ab"]
    jobs = [api["bob"].post("/jobs", {**HELLO, "name": name}) for name in names]
    assert [job["name"] for job in jobs] == names
    problem = api["bob"].post("/jobs", {**HELLO, "name": "n" * 201}, 400)
    assert problem["field"] == "name"
    assert "200" in problem["detail"]


@pytest.mark.parametrize("ordering", ["submitted_at", "-submitted_at", "name", "-gpus", "id"])
def test_open_53_pages_repeat_and_skip_nothing(api, world, ordering):
    api["bob"].post("/jobs", [{**HELLO, "name": "same"}] * 250)
    assert Job.objects.values("submitted_at").distinct().count() == 1
    first = walk(api["bob"], f"/jobs?ordering={ordering}&page_size=50")
    assert len({job["id"] for job in first}) == len(first) == 250
    original = {job["id"] for job in first}
    seen, path, pages = [], f"/jobs?ordering={ordering}&page_size=50", 0
    while path:
        page = api["bob"].get(path)
        seen += [job["id"] for job in page["results"]]
        api["bob"].post("/jobs", [{**HELLO, "name": name} for name in ("a", "same", "z")])
        path, pages = page["next"] and page["next"].partition("/api/v1")[2], pages + 1
        assert pages < 20
    assert original <= set(seen)
    assert len(set(seen)) == len(seen)


def test_a_cursor_is_good_for_its_own_list_only(api):
    api["bob"].post("/jobs", [HELLO] * 3)
    page = api["bob"].get("/jobs?page_size=1&name=hel")
    cursor = page["next"].partition("cursor=")[2].partition("&")[0]
    assert len(api["bob"].get(f"/jobs?page_size=2&name=hel&cursor={cursor}")["results"]) == 2
    for path in (
        f"/jobs?cursor={cursor}",
        f"/jobs?name=hel&ordering=id&cursor={cursor}",
        "/jobs?cursor=AAAA",
        "/jobs?cursor=é",
    ):
        assert api["bob"].get(path, 404)["field"] == "cursor"


def test_lists_are_filtered(api, world):
    api["bob"].post("/jobs", [{**HELLO, "name": "Alpha"}, {**HELLO, "name": "beta", "gpus": 2}])
    api["mallory"].post("/jobs", {**HELLO, "team": "ads", "name": "alpha of ads"})
    settled(world)

    def names(query, user="bob"):
        return [job["name"] for job in api[user].get(f"/jobs?ordering=name&{query}")["results"]]

    assert names("name=ALPHA") == ["Alpha"]
    assert names("state=running,pending") == names("state=running&state=pending") == ["Alpha", "beta"]
    assert names("state=failed") == []
    assert names("user=BOB") == ["Alpha", "beta"]
    assert names("user=mallory") == []
    assert names("team=research", "root") == ["Alpha", "beta"]
    assert names("pool=train", "root") == ["Alpha", "alpha of ads", "beta"]
    later = (timezone.now() + timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    assert names(f"submitted_after={later}") == []
    assert names(f"submitted_before={later}") == ["Alpha", "beta"]


@pytest.mark.parametrize(
    ("query", "field", "status"),
    [
        ("state=sleeping", "state", 400),
        ("colour=red", "colour", 400),
        ("page_size=0", "page_size", 400),
        ("page_size=501", "page_size", 400),
        ("page_size=1&page_size=2", "page_size", 400),
        ("ordering=password", "ordering", 400),
        ("submitted_after=2026-03-02T09:00:00", "submitted_after", 400),
        ("submitted_after=yesterday", "submitted_after", 400),
        ("submitted_after=0001-01-01T00:00:00%2B14:00", "submitted_after", 400),
        ("name=%00", "name", 400),
        ("team=ads", "team", 404),
        ("team=nobody", "team", 404),
        ("pool=nowhere", "pool", 404),
        ("dry_run=true", "dry_run", 400),
    ],
)
def test_what_a_query_cannot_mean_is_refused_by_name(api, query, field, status):
    assert api["bob"].get(f"/jobs?{query}", status)["field"] == field


def test_a_parameter_that_there_is_not_is_refused_by_name(api):
    assert api["bob"].post("/jobs?dry-run=true", HELLO, 400)["errors"][0]["code"] == "unknown_name"
    assert not Job.objects.exists()


def test_cancelling_waits_for_nothing_and_does_it_once(api, world):
    job = api["bob"].post("/jobs", HELLO)
    assert api["bob"].post(f"/jobs/{job['id']}/cancel", status=200)["state"] == "cancelled"
    before = Event.objects.count()
    assert api["bob"].post(f"/jobs/{job['id']}/cancel", status=200)["state"] == "cancelled"
    assert Event.objects.count() == before
    running = api["bob"].post("/jobs", HELLO)
    settled(world)
    assert api["bob"].post(f"/jobs/{running['id']}/cancel", status=200)["ending"] == "cancelled"
    world.pass_time(seconds=1)
    assert api["bob"].get(f"/jobs/{running['id']}")["state"] == "cancelled"


def test_holding_and_releasing(api, world):
    job = api["bob"].post("/jobs", HELLO)
    assert api["bob"].post(f"/jobs/{job['id']}/hold", status=200)["hold"] == "owner"
    settled(world)
    assert api["bob"].get(f"/jobs/{job['id']}")["reasons"][0]["code"] == "held"
    # An operator's hold takes the owner's place, and the owner can neither lift it nor put its own over it.
    assert api["root"].post(f"/jobs/{job['id']}/hold", status=200)["hold"] == "operator"
    assert api["bob"].post(f"/jobs/{job['id']}/hold", status=200)["hold"] == "operator"
    assert api["bob"].post(f"/jobs/{job['id']}/release", status=403)["code"] == "held_by_operator"
    assert api["root"].post(f"/jobs/{job['id']}/release", status=200)["hold"] == ""
    settled(world)
    assert api["bob"].post(f"/jobs/{job['id']}/hold", status=409)["code"] == "not_waiting"


def test_open_55_a_bulk_stop_reaches_nobody_else(api, world):
    ours = [api["bob"].post("/jobs", HELLO)["id"] for _ in range(3)]
    theirs = [api["mallory"].post("/jobs", {**HELLO, "team": "ads"})["id"] for _ in range(2)]
    settled(world)
    answer = api["bob"].post("/jobs/cancel", {"ids": [*ours, *theirs, 10**9]}, 200)
    assert answer == {"cancelled": [], "stopping": ours, "ended_before": [], "not_found": [*theirs, 10**9]}
    wrong: tuple[Any, ...] = (
        {"filter": {}},
        {},
        {"ids": []},
        {"ids": ours, "filter": {"name": "x"}},
        [],
        {"filter": {"colour": 1}},
    )
    for body in wrong:
        api["bob"].post("/jobs/cancel", body, 400)
    assert api["bob"].post("/jobs/cancel", {"filter": {"name": "hello"}}, 200)["stopping"] == []
    assert api["bob"].post("/jobs/cancel", {"filter": {"team": "ads"}}, 404)["field"] == "filter.team"
    world.pass_time(seconds=1)
    assert set(Job.objects.filter(pk__in=theirs).values_list("state", "ending")) == {("running", "")}
    assert set(Job.objects.filter(pk__in=ours).values_list("state", flat=True)) == {"cancelled"}
    assert Allocation.objects.filter(released_at=None).count() == 2


def test_who_may_only_look_stops_nothing(api, world):
    from tenants.services import set_membership

    set_membership(world.users["mallory"], world.teams["nlp"], "viewer", timezone.now())
    job = api["bob"].post("/jobs", {**HELLO, "environment": {"KEY": "secret"}})
    own = api["mallory"].post("/jobs", {**HELLO, "team": "ads"})
    assert api["mallory"].get(f"/jobs/{job['id']}")["environment"] is None
    assert api["bob"].get(f"/jobs/{job['id']}")["environment"] == {"KEY": "secret"}
    api["mallory"].post("/jobs/cancel", {"ids": [job["id"], own["id"]]}, 403)
    for action in ("cancel", "hold", "release"):
        api["mallory"].post(f"/jobs/{job['id']}/{action}", status=403)
    assert set(Job.objects.values_list("state", "hold")) == {("pending", "")}
    assert api["mallory"].post("/jobs/cancel", {"filter": {"state": ["pending"]}}, 200)["cancelled"] == [own["id"]]


def test_open_24_a_thousand_waiting_ones_in_one_request(api, world):
    api["bob"].post("/jobs", [{**HELLO, "gpus": 4}] * 2)
    settled(world)
    api["bob"].post("/jobs", [HELLO] * 1000)
    answer = api["bob"].post("/jobs/cancel", {"filter": {"state": ["pending"]}}, 200)
    assert len(answer["cancelled"]) == 1000
    assert api["bob"].post("/jobs/cancel", {"filter": {"state": ["pending"]}}, 200)["cancelled"] == []
    assert Event.objects.filter(kind="job.state", data__state="cancelled").count() == 1000
    assert share(api, "nlp")["allocated"] == 8


def test_open_63_a_job_without_a_gpu_counts_none(api, world):
    from quotas.services import set_quota

    set_quota(world.teams["nlp"], world.pool, world.now, limit=4000)
    api["bob"].post("/jobs", {**HELLO, "gpus": 4})
    settled(world)
    job = api["bob"].post("/jobs", {**HELLO, "gpus": 0, "cpu": 2})
    settled(world)
    seen = api["bob"].get(f"/jobs/{job['id']}")
    assert (seen["state"], seen["gpus"], seen["cost"]) == ("running", 0, "0.000000")
    assert share(api, "nlp")["allocated"] == 4


def test_in_a_cpu_pool_quantities_are_cores(api, world):
    from inventory.models import EngineConnection
    from inventory.services import NodeEntry, add_nodes, create_pool
    from quotas.services import set_quota

    pool = create_pool("cores", EngineConnection.objects.get(), timezone.now(), unit="cpu", grace_s=0)
    add_nodes(pool, [NodeEntry("c-0", 8000, 16384)], timezone.now())
    set_quota(world.teams["nlp"], pool, timezone.now(), limit=6000)
    job = api["bob"].post("/jobs", {"team": "nlp", "pool": "cores", "cpu": 1.5, "tasks": 2})
    settled(world)
    seen = api["bob"].get(f"/jobs/{job['id']}")
    assert (seen["state"], seen["unit"], seen["requested"], seen["allocated"]) == ("running", "cpu", 3, 3)
    cores = next(each for each in api["bob"].get("/teams/nlp")["pools"] if each["pool"] == "cores")
    assert (cores["unit"], cores["allocated"], cores["limit"], cores["headroom"]) == ("cpu", 3, 6, 3)
    (quota,) = api["bob"].get("/quotas?pool=cores")["results"]
    assert (quota["limit"], quota["unit"]) == (6, "cpu")
    assert api["bob"].get("/pools/cores")["free"] == 5


def test_a_priority_class_that_is_not_open_is_named(api):
    PriorityClass.objects.create(name="urgent", value=2000, roles=["manager"])
    problem = api["bob"].post("/jobs", {**HELLO, "priority": "urgent"}, 404)
    assert (problem["field"], problem["allowed"]) == ("priority", ["high", "low", "normal"])
    assert api["alice"].post("/jobs", {**HELLO, "priority": "urgent"})["priority"] == "urgent"
    assert api["bob"].get("/priority-classes/urgent")["value"] == 2000


def test_the_request_can_be_read_back_and_sent_again(api):
    asked = {
        "team": "nlp",
        "pool": "train",
        "name": "two kinds",
        "groups": [
            {"name": "workers", "tasks": 2, "min_tasks": 1, "gpus": 0.5, "devices": 2, "memory_gib": 1.5, "cpu": 0.5},
            {
                "name": "servers",
                "tasks": 1,
                "gpus": 2,
                "model": "A100-80G",
                "node_selector": {"rack": "r1"},
                "tolerations": {"spot": "*"},
            },
        ],
        "time_limit": "90s",
        "retries": 2,
        "topology": {"level": "zone", "required": False},
        "apart": "rack",
    }
    job = api["bob"].post("/jobs", asked)
    assert (job["topology"], job["apart"]) == ({"level": "zone", "required": False}, "rack")
    assert (job["gpus"], job["time_limit"], job["requested"]) == (None, 90, 4)
    workers, servers = job["groups"]
    assert (workers["gpus"], workers["devices"], workers["memory_gib"], workers["cpu"]) == (0.5, 2, 1.5, 0.5)
    assert (servers["gpus"], servers["devices"], servers["model"]) == (2, 2, ["A100-80G"])
    assert (workers["tolerations"], servers["tolerations"]) == ({}, {"spot": "*"})
    again = api["bob"].post("/jobs", {**asked, "groups": job["groups"]})
    assert again["groups"] == job["groups"]
    plain = api["bob"].post("/jobs", {**HELLO, "topology": {"level": "host"}})
    assert (plain["topology"], plain["apart"]) == ({"level": "host", "required": True}, None)
