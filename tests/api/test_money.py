"""Budgets, packages, invoices and idle cost through REST: who may, what they say, and the same figures everywhere."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.utils import timezone

from billing.models import Budget, Invoice, Package, Rate
from billing.services import set_rate
from billing.services.invoices import issue_invoice, issue_last_month
from events.models import Event
from tenants.services import create_team, set_membership
from tests.api.client import make_api, settled, walk

MAY = datetime(2024, 5, 31, 21, 0, tzinfo=UTC)


@pytest.fixture
def manager(api, world):
    """alice manages the department too."""
    set_membership(world.users["alice"], world.teams["research"], "manager", timezone.now())
    return api["alice"]


# ---- budgets ---------------------------------------------------------------------------------------------------------


def test_a_budget_is_made_read_changed_and_removed(api, manager):
    made = manager.post("/budgets", {"team": "nlp", "amount": "100", "action": "hold", "thresholds": [90, 50]})
    assert (made["amount"], made["period"], made["thresholds"]) == ("100.000000", "month", [50, 90])
    assert (made["spent"], made["held"], made["active"]) == ("0.000000", False, True)
    path = f"/budgets/{made['id']}"
    assert api["bob"].get(path)["amount"] == "100.000000"
    assert [each["id"] for each in api["bob"].get("/budgets?team=nlp")["results"]] == [made["id"]]
    assert manager.patch(path, {"amount": "0"})["held"] is True
    job = api["bob"].post("/jobs", {"team": "nlp", "pool": "train", "gpus": 1})
    assert (job["state"], job["hold"], job["reasons"][0]["code"]) == ("pending", "budget", "budget_spent")
    assert job["reasons"][0]["message"] == "the budget of nlp is spent: 0.00 of 0.00"
    assert api["bob"].post(f"/jobs/{job['id']}/release", status=409)["code"] == "held_by_rule"
    manager.delete(path)
    manager.get(path, 404)
    assert api["bob"].get(f"/jobs/{job['id']}")["hold"] == ""
    actors = set(Event.objects.filter(kind__in=["budget.set", "budget.removed"]).values_list("actor_id", flat=True))
    assert len(actors) == 1


def test_a_manager_sets_no_budget_of_its_own_team(api, manager, world):
    body = {"team": "nlp", "amount": "1"}
    for name, status in (("bob", 403), ("mallory", 404)):
        api[name].post("/budgets", body, status)
    manager.post("/budgets", {"team": "research", "amount": "1"}, 403)
    own = api["root"].post("/budgets", {"team": "research", "amount": "1"})
    manager.patch(f"/budgets/{own['id']}", {"amount": "2"}, 403)
    manager.delete(f"/budgets/{own['id']}", 403)
    assert manager.get(f"/budgets/{own['id']}")["amount"] == "1.000000"
    assert Budget.objects.count() == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "amount"),
        ({"amount": 5}, "amount"),
        ({"amount": "-5"}, "amount"),
        ({"amount": "1e3"}, "amount"),
        ({"amount": "5", "period": "week"}, "period"),
        ({"amount": "5", "action": "shout"}, "action"),
        ({"amount": "5", "thresholds": [0]}, "thresholds"),
        ({"amount": "5", "thresholds": [50, 50]}, "thresholds"),
        ({"amount": "5", "thresholds": "50"}, "thresholds"),
        ({"amount": "5", "active": 1}, "active"),
        ({"amount": "5", "starts_at": "2026-01-01"}, "starts_at"),
        ({"amount": "5", "starts_at": "2026-01-02T00:00:00Z", "ends_at": "2026-01-01T00:00:00Z"}, "ends_at"),
        ({"amount": "5", "colour": "red"}, "colour"),
    ],
    ids=str,
)
def test_a_wrong_budget_names_its_field_and_changes_nothing(api, body, field):
    events = Event.objects.count()
    told = api["root"].post("/budgets", {"team": "nlp", **body}, 400)
    assert field in {fault["field"] for fault in told.get("faults", [told])}
    assert (Budget.objects.count(), Event.objects.count()) == (0, events)


# ---- packages --------------------------------------------------------------------------------------------------------


def test_a_package_is_ordered_confirmed_once_and_drawn(api, world):
    body = {"team": "nlp", "gpu_hours": "1.5", "price": "3.00"}
    for name, status in (("alice", 403), ("mallory", 403)):
        api[name].post("/packages", body, status)
    made = api["root"].post("/packages", body)
    assert (made["state"], made["gpu_hours_left"], made["price"]) == ("pending", "1.500000", "3.000000")
    path = f"/packages/{made['id']}"
    api["alice"].post(f"{path}/confirm", status=403)
    first = api["root"].post(f"{path}/confirm", status=200)
    assert first["state"] == "confirmed"
    assert api["root"].post(f"{path}/confirm", status=200) == first
    settled(world)
    world.submit(gpus=1, duration="1h")
    world.settle()
    world.pass_time(hours=2)
    assert api["bob"].get(path)["gpu_hours_left"] == "0.500000"
    assert Event.objects.filter(kind="package.confirmed").count() == 1
    assert [each["id"] for each in api["bob"].get("/packages?team=nlp")["results"]] == [made["id"]]


@pytest.mark.parametrize(
    ("body", "field", "status"),
    [
        ({}, "gpu_hours", 400),
        ({"gpu_hours": "0"}, "gpu_hours", 400),
        ({"gpu_hours": "2000000"}, "gpu_hours", 400),
        ({"gpu_hours": "1", "pool": "nowhere"}, "pool", 404),
        ({"gpu_hours": "1", "starts_at": "2020-01-01T00:00:00Z"}, "starts_at", 400),
        ({"gpu_hours": "1", "expires_at": "2020-01-01T00:00:00Z"}, "expires_at", 400),
    ],
    ids=str,
)
def test_a_wrong_package_names_its_field_and_changes_nothing(api, body, field, status):
    assert api["root"].post("/packages", {"team": "nlp", **body}, status)["field"] == field
    assert Package.objects.count() == 0


# ---- invoices --------------------------------------------------------------------------------------------------------


@pytest.fixture
def billed(world, api):
    """An hour at 0.333 in each of three pools of nlp in May, and something of ads."""
    from inventory.models import AcceleratorModel, EngineConnection
    from inventory.services import NodeEntry, add_nodes, create_pool

    Rate.objects.all().delete()
    world.now = MAY
    set_rate(Decimal("0.333"), world.now)
    model = AcceleratorModel.objects.get()
    for name in ("b", "c"):
        pool = create_pool(name, EngineConnection.objects.get(), world.now, grace_s=0)
        add_nodes(pool, [NodeEntry(f"{name}-0", 64_000, 524_288, ((model, 81920, f"u{name}"),))], world.now)
    for name in ("train", "b", "c"):
        world.submit(pool=name, gpus=1, duration="1h")
    world.submit("mallory", team="ads", gpus=1, duration="2h")
    world.settle()
    world.pass_time(hours=3)
    return world


def test_the_total_is_the_same_in_list_detail_draft_and_csv(api, billed):
    made = api["root"].post("/invoices", {"team": "nlp", "month": "2024-05"})
    assert [line["amount"] for line in made["lines"]] == ["0.33"] * 3
    assert api["root"].post("/invoices", {"team": "nlp", "month": "2024-05"}, 200) == made
    (listed,) = api["bob"].get("/invoices?month=2024-05")["results"]
    draft = api["bob"].get("/invoices/draft?team=nlp&month=2024-05")
    answer = api["bob"].send("GET", f"/invoices/{made['id']}/csv")
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    in_csv = {row["kind"]: row["amount"] for row in rows if not row["position"]}
    totals = {made["total"], listed["total"], draft["total"], in_csv["total"]}
    assert totals == {"0.99"}
    assert draft["invoice"] == made["number"]
    assert sum(Decimal(row["amount"]) for row in rows if row["position"]) == Decimal(in_csv["net"])
    assert [row["exact"] for row in rows if row["position"]] == ["0.333"] * 3


def test_a_draft_becomes_the_invoice(api, billed):
    draft = api["bob"].get("/invoices/draft?team=nlp&month=2024-05")
    made = api["root"].post("/invoices", {"team": "nlp", "month": "2024-05"})
    for name in ("net", "tax", "total", "due", "lines", "currency"):
        assert draft[name] == made[name]
    assert draft["invoice"] is None


def test_strangers_see_no_invoice(api, billed):
    issue_last_month(datetime(2024, 6, 2, tzinfo=UTC))
    own = Invoice.objects.get(team=billed.teams["nlp"])
    assert {row["team"] for row in api["mallory"].get("/invoices")["results"]} == {"ads"}
    for path in (f"/invoices/{own.pk}", f"/invoices/{own.pk}/csv", "/invoices?team=nlp"):
        api["mallory"].get(path, 404)
    api["mallory"].get("/invoices/draft?team=nlp&month=2024-05", 404)
    api["mallory"].post(f"/invoices/{own.pk}/credit", {"reason": "mine"}, 403)
    api["alice"].post("/invoices", {"team": "nlp", "month": "2024-04"}, 403)
    assert Invoice.objects.count() == 2


def test_a_credit_note_is_told_with_its_invoice(api, billed):
    made = api["root"].post("/invoices", {"team": "nlp", "month": "2024-05"})
    path = f"/invoices/{made['id']}"
    api["alice"].post(f"{path}/credit", {"reason": "no"}, 403)
    credit = api["root"].post(f"{path}/credit", {"reason": "wrong price"})
    assert (credit["kind"], credit["total"], credit["refers_to"]) == ("credit", "-0.99", made["number"])
    assert api["root"].post(f"{path}/credit", {"reason": "again"}, 409)["code"] == "credited_already"
    told = api["bob"].get(path)
    assert (told["state"], told["total"], told["credits"]) == ("credited", "0.99", [credit["number"]])
    assert {row["kind"] for row in walk(api["bob"], "/invoices?page_size=1")} == {"invoice", "credit"}


def test_a_deleted_team_and_its_namesake_are_told_apart(api, billed):
    from scheduling.services.teams import delete_team

    world, old = billed, billed.teams["nlp"]
    delete_team(old, world.now)
    new = create_team("NLP", world.now, slug="nlp")
    set_membership(world.users["mallory"], new, "member", world.now)
    issue_last_month(datetime(2024, 6, 2, tzinfo=UTC))
    issue_invoice(new, MAY.date(), datetime(2024, 6, 2, tzinfo=UTC))
    rows = api["root"].get("/invoices?team=nlp")["results"]
    assert {(row["team_id"], row["team_deleted"], row["total"]) for row in rows} == {
        (old.pk, True, "0.99"),
        (new.pk, False, "0.00"),
    }
    assert [row["team_id"] for row in make_api(world.users["mallory"]).get("/invoices?team=nlp")["results"]] == [new.pk]


@pytest.mark.parametrize(
    ("body", "field", "status"),
    [
        ({"month": "2024-13"}, "month", 400),
        ({"month": "May"}, "month", 400),
        ({"month": "2999-01"}, "month", 400),
        ({"month": 202405}, "month", 400),
        ({}, "month", 400),
    ],
    ids=str,
)
def test_a_wrong_month_is_refused_and_nothing_is_issued(api, world, body, field, status):
    assert api["root"].post("/invoices", {"team": "nlp", **body}, status)["field"] == field
    assert Invoice.objects.count() == 0


# ---- idle cost -------------------------------------------------------------------------------------------------------


def test_idle_cost_is_for_those_who_see_everything(api, world):
    world.now = timezone.now() - timedelta(hours=2)
    world.clockwork.watch = type(world.clockwork.watch)()
    world.submit(gpus=4, duration="1h")
    world.settle()
    start = world.now
    world.pass_time(hours=1)
    window = f"from={start:%Y-%m-%dT%H:%M:%S.%fZ}&to={world.now:%Y-%m-%dT%H:%M:%S.%fZ}"
    for name in ("alice", "bob", "mallory"):
        api[name].get(f"/idle-costs?{window}", 403)
    (row,) = api["root"].get(f"/idle-costs?{window}")["results"]
    assert (row["capacity_hours"], row["allocated_hours"], row["idle_hours"]) == ("8.000000", "4.000000", "4.000000")
    assert (row["shares"], row["undivided"]) == ([], row["cost"])
    (row,) = api["root"].get(f"/idle-costs?{window}&by=usage")["results"]
    assert [share["team"] for share in row["shares"]] == ["nlp"]
    assert row["undivided"] == "0.000000"
    assert api["root"].get("/idle-costs?by=height", 400)["field"] == "by"
