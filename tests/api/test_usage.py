"""Usage through REST: exact, clipped to the window, never negative; and rates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from django.utils import timezone

from billing.models import Rate
from scheduling.models import Job

START = datetime(2024, 5, 1, 5, 0, tzinfo=UTC)


@pytest.fixture
def at_five(world):
    """The world of the fixture, its clock at 2024-05-01 05:00, with the rate that holds since."""
    Rate.objects.update(effective_from=START, created_at=START)
    world.now = START
    world.settle()
    return world


def run(world, **asked):
    job = world.submit(**asked)
    world.settle()
    return job


def window(api, first, last, more=""):
    return api.get(f"/usage?from={first}&to={last}{more}")


def test_open_47_a_short_window_has_what_is_in_it_and_nothing_negative(api, at_five):
    ended = run(at_five, name="J", gpus=1, duration="42m30s")
    whole = run(at_five, name="K", gpus=1, duration="1h")
    at_five.pass_time(hours=2)
    told = window(api["bob"], "2024-05-01T05:44:57Z", "2024-05-01T05:46:13Z", "&group_by=job")
    (row,) = told["results"]
    assert (row["job"], row["seconds"], row["running"]) == (whole.pk, "76", False)
    assert row["amount"] == f"{Decimal(76) / 3600 * Decimal('2.40'):.6f}"
    assert "-" not in "".join(str(row[name]) for name in ("seconds", "hours", "amount"))
    assert window(api["bob"], "2024-05-01T05:46:13Z", "2024-05-01T05:44:57Z")["total"] == []
    assert window(api["bob"], "2024-05-01T05:44:57Z", "2024-05-01T05:44:57Z")["total"] == []
    (row,) = window(api["bob"], "2024-05-01T05:42:29Z", "2024-05-01T05:50:00Z", f"&job={ended.pk}")["total"]
    assert row["seconds"] == "1"


def test_windows_side_by_side_add_up_to_the_whole(api, at_five):
    run(at_five, gpus=0.35, tasks=2, duration="1h")
    run(at_five, gpus=2, duration="25m")
    at_five.pass_time(hours=2)
    edges = [START + timedelta(minutes=minutes) for minutes in range(0, 71, 7)]
    edges.append(START + timedelta(hours=2))

    def total(first, last):
        told = window(api["bob"], first.strftime("%Y-%m-%dT%H:%M:%SZ"), last.strftime("%Y-%m-%dT%H:%M:%SZ"))
        return sum((Decimal(row["seconds"]) for row in told["total"]), Decimal(0))

    parts = [total(*pair) for pair in pairwise(edges)]
    assert sum(parts) == total(edges[0], edges[-1]) == Decimal("0.7") * 3600 + 2 * 1500


def test_what_runs_is_counted_up_to_now(api, world):
    world.now = timezone.now() - timedelta(minutes=30)
    Rate.objects.update(effective_from=world.now, created_at=world.now)
    run(world, gpus=0.5)
    since = (world.now - timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")  # a month may have begun meanwhile
    (row,) = api["bob"].get(f"/usage?from={since}")["total"]
    assert row["running"] is True
    assert Decimal(900) <= Decimal(row["seconds"]) < Decimal(960)
    (job,) = api["bob"].get("/jobs")["results"]
    assert Decimal("0.6") <= Decimal(job["cost"]) < Decimal("0.64")
    ahead = (timezone.now() + timedelta(hours=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert Decimal(api["bob"].get(f"/usage?from={since}&to={ahead}")["total"][0]["seconds"]) < 960


def test_days_are_those_of_the_billing_zone(api, at_five, settings):
    settings.BILLING_TIME_ZONE = "Europe/Berlin"  # two hours ahead in May
    at_five.now = datetime(2024, 5, 1, 21, 0, tzinfo=UTC)
    run(at_five, gpus=1, duration="2h")
    at_five.pass_time(hours=3)
    told = window(api["bob"], "2024-05-01T00:00:00Z", "2024-05-03T00:00:00Z", "&group_by=day")
    assert [(row["day"], row["seconds"], row["amount"]) for row in told["results"]] == [
        ("2024-05-01", "3600", "2.400000"),
        ("2024-05-02", "3600", "2.400000"),
    ]


def test_groups_pages_and_totals_agree(api, at_five):
    for number in range(5):
        run(at_five, name=f"j{number}", gpus=0.5, duration="10m", user="alice" if number % 2 else "bob")
    at_five.pass_time(hours=1)
    span = ("2024-05-01T00:00:00Z", "2024-05-02T00:00:00Z")
    for group, rows in (("team", 1), ("user", 2), ("pool", 1), ("model", 1), ("job", 5), ("day", 1)):
        told = window(api["bob"], *span, f"&group_by={group}")
        assert len(told["results"]) == rows
        assert sum(Decimal(row["seconds"]) for row in told["results"]) == 1500
        assert told["total"][0]["amount"] == "1.000000"
    seen, path = [], f"/usage?from={span[0]}&to={span[1]}&group_by=job&page_size=2"
    while path:
        page = api["bob"].get(path)
        seen += [row["job"] for row in page["results"]]
        path = page["next"] and page["next"].partition("/api/v1")[2]
    assert seen == sorted(Job.objects.values_list("pk", flat=True))
    team = window(api["bob"], *span, "&group_by=team")["results"][0]
    assert (team["team"], team["team_deleted"]) == ("nlp", False)


def test_open_49_a_deleted_team_and_its_namesake_are_two_rows(api, at_five):
    from scheduling.services.teams import delete_team
    from tenants.services import create_team, set_membership

    run(at_five, gpus=1, duration="30m")
    at_five.pass_time(hours=1)
    old = at_five.teams["nlp"]
    delete_team(old, at_five.now)
    new = create_team("NLP", at_five.now, slug="nlp")
    set_membership(at_five.users["mallory"], new, "member", at_five.now)
    at_five.submit("mallory", gpus=1, duration="10m", team="nlp")
    at_five.settle()
    at_five.pass_time(hours=1)
    span = ("2024-05-01T00:00:00Z", "2024-05-02T00:00:00Z")
    rows = window(api["root"], *span, "&group_by=team&team=nlp")["results"]
    assert [(row["team_id"], row["team_deleted"], row["seconds"]) for row in rows] == [
        (old.pk, True, "1800"),
        (new.pk, False, "600"),
    ]
    (row,) = window(api["mallory"], *span, "&group_by=team")["results"]
    assert (row["team_id"], row["seconds"]) == (new.pk, "600")


def test_gpus_and_cores_are_never_added(api, at_five):
    from inventory.models import EngineConnection
    from inventory.services import NodeEntry, add_nodes, create_pool

    pool = create_pool("cores", EngineConnection.objects.get(), at_five.now, unit="cpu", grace_s=0)
    add_nodes(pool, [NodeEntry("c-0", 8000, 16384)], at_five.now)
    run(at_five, gpus=1, duration="10m")
    run(at_five, pool="cores", cpu=4, duration="10m")
    at_five.pass_time(hours=1)
    told = window(api["bob"], "2024-05-01T00:00:00Z", "2024-05-02T00:00:00Z", "&group_by=team")
    assert [(row["unit"], row["seconds"]) for row in told["total"]] == [("cpu", "2400"), ("gpu", "600")]
    assert len(told["results"]) == 2


@pytest.mark.parametrize(
    ("query", "field", "status"),
    [
        ("from=2024-05-01T05:00:00", "from", 400),
        ("to=noon", "to", 400),
        ("group_by=colour", "group_by", 400),
        ("job=1x", "job", 400),
        ("job=99", None, 404),
        ("team=ads", "team", 404),
        ("pool=nowhere", "pool", 404),
        ("since=2024-05-01T05:00:00Z", "since", 400),
        ("group_by=job&cursor=xyz", "cursor", 404),
    ],
)
def test_wrong_questions_are_refused_by_name(api, query, field, status):
    assert api["bob"].get(f"/usage?{query}", status).get("field") == field


def test_rates_are_read_by_all_and_set_by_operators(api, world):
    band = {"band_start": "22:00", "band_end": "06:00"}
    body = {"per_gpu_hour": "3.10", "pool": "train", "priority_class": "high", **band}
    for name in ("alice", "bob", "mallory"):
        api[name].post("/rates", body, 403)
    made = api["root"].post("/rates", body)
    assert (made["per_gpu_hour"], made["pool"], made["model"]) == ("3.100000", "train", None)
    assert (made["band_start"], made["band_end"]) == ("22:00", "06:00")
    assert [rate["per_gpu_hour"] for rate in api["bob"].get("/rates")["results"]] == ["3.100000", "2.400000"]


@pytest.mark.parametrize(
    ("body", "field", "status"),
    [
        ({}, "per_gpu_hour", 400),
        ({"per_gpu_hour": 2.4}, "per_gpu_hour", 400),
        ({"per_gpu_hour": "-1"}, "per_gpu_hour", 400),
        ({"per_gpu_hour": "NaN"}, "per_gpu_hour", 400),
        ({"per_gpu_hour": "1e3"}, "per_gpu_hour", 400),
        ({"per_gpu_hour": "1.0000001"}, "per_gpu_hour", 400),
        ({"per_gpu_hour": "1234567890123"}, "per_gpu_hour", 400),
        ({"per_gpu_hour": "1", "effective_from": "2020-01-01T00:00:00Z"}, "effective_from", 400),
        ({"per_gpu_hour": "1", "band_start": "08:00"}, "band_end", 400),
        ({"per_gpu_hour": "1", "band_start": "24:00", "band_end": "01:00"}, "band_start", 400),
        ({"per_gpu_hour": "1", "model": "none"}, "model", 404),
        ({"per_gpu_hour": "1", "priority_class": "none"}, "priority_class", 404),
    ],
)
def test_wrong_rates_name_their_field_and_change_nothing(api, body, field, status):
    assert api["root"].post("/rates", body, status)["field"] == field
    assert Rate.objects.count() == 1
