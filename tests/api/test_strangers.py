"""Every address of the API as someone who has no business there: nothing of nlp is seen and nothing changes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver

from billing.models import Budget, Invoice, Package
from config.api_urls import urlpatterns
from events.models import Event
from quotas.models import Quota
from scheduling.models import Allocation, Job
from tenants.models import ApiToken
from tests.api.client import HELLO, money_of, settled

PUBLIC = {"openapi.json", "openapi.yaml", "docs"}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
BODIES: tuple[Any, ...] = (
    *(None, {}, HELLO, {"limit": 1}, {"name": "x"}, {"per_gpu_hour": "0"}),
    {"filter": {"team": "nlp"}},
    *({"team": "nlp", "amount": "1"}, {"amount": "1"}, {"team": "nlp", "gpu_hours": "1"}, {"reason": "x"}),
    {"team": "nlp", "month": "2026-03"},
)


def routes() -> list[str]:
    found: list[str] = []

    def walk(patterns: list, before: str) -> None:
        for each in patterns:
            if isinstance(each, URLResolver):
                walk(each.url_patterns, before + str(each.pattern))
            elif isinstance(each, URLPattern) and str(each.pattern) != "^":
                found.append(before + str(each.pattern))

    walk(urlpatterns, "")
    return found


@pytest.fixture
def things(api, world):
    """Something of nlp behind every address, under a name that nobody else uses."""
    from quotas.services import set_quota

    job = api["bob"].post("/jobs", {**HELLO, "name": "zebra-job", "environment": {"K": "zebra-env"}})
    settled(world)
    set_quota(world.teams["nlp"], world.pool, world.now, guaranteed=3000, limit=5000)
    money = money_of(world.teams["nlp"], world.now)
    token = ApiToken.objects.get(user=world.users["bob"])
    return {
        "job_id": job["id"],
        "team": "nlp",
        "slug": "nlp",
        "pool": "train",
        "node_id": world.pool.nodes.order_by("id").first().pk,
        "device_id": world.pool.nodes.order_by("id").first().devices.first().pk,
        "token_id": token.pk,
        "model": "A100-80G",
        "name": "normal",
        **money,
    }


def addresses(things):
    for route in routes():
        if route not in PUBLIC:
            yield route, re.sub(r"<(?:\w+:)?(\w+)>", lambda found: str(things[found[1]]), route)


def state():
    return (
        Event.objects.count(),
        list(Job.objects.order_by("pk").values_list("pk", "state", "hold", "ending", "version")),
        list(Quota.objects.order_by("pk").values_list("pk", "guaranteed", "limit", "updated_at")),
        list(ApiToken.objects.order_by("pk").values_list("pk", "revoked_at", "scopes")),
        Allocation.objects.count(),
        [list(model.objects.order_by("pk").values()) for model in (Budget, Invoice, Package)],
    )


def test_a_stranger_sees_and_changes_nothing(api, world, things):
    before = state()
    own = set()
    for _, address in addresses(things):
        for method in METHODS:
            for body in BODIES if method != "GET" else (None,):
                if address == "tokens" and method == "POST" and body == {"name": "x"}:
                    continue  # everybody may make a token of their own
                response = api["mallory"].send(method, f"/{address}", body)
                own.add(response.status_code)
                text = response.content.decode()
                for word in ("zebra", "NLP", "bob", "alice"):
                    assert word not in text, (method, address, body, word)
                if response.status_code < 400:
                    assert "nlp" not in text, (method, address, body)
                assert response.status_code < 500, (method, address)
    assert state() == before
    assert own <= {200, 400, 401, 403, 404, 405}
    for listing in ("jobs", "quotas", "budgets", "packages", "invoices"):
        assert api["mallory"].get(f"/{listing}")["results"] == []
    assert [team["slug"] for team in api["mallory"].get("/teams")["results"]] == ["ads"]
    ids = {"ids": [things["job_id"]]}
    assert api["mallory"].post("/jobs/cancel", ids, 200)["not_found"] == ids["ids"]
    assert state() == before


def test_foreign_and_absent_are_told_apart_by_nobody(api, things):
    """The same words for what is not there and for what is another's."""
    for there, not_there in (
        (f"/jobs/{things['job_id']}", "/jobs/987654"),
        ("/teams/nlp", "/teams/nobody"),
        (f"/tokens/{things['token_id']}", "/tokens/987654"),
        ("/jobs?team=nlp", "/jobs?team=nobody"),
        ("/usage?team=nlp", "/usage?team=nobody"),
        (f"/usage?job={things['job_id']}", "/usage?job=987654"),
        ("/quotas/train/nlp", "/quotas/train/nobody"),
        (f"/budgets/{things['budget_id']}", "/budgets/987654"),
        (f"/packages/{things['package_id']}", "/packages/987654"),
        (f"/invoices/{things['invoice_id']}", "/invoices/987654"),
        (f"/invoices/{things['invoice_id']}/csv", "/invoices/987654/csv"),
        ("/invoices?team=nlp", "/invoices?team=nobody"),
        ("/invoices/draft?team=nlp&month=2026-03", "/invoices/draft?team=nobody&month=2026-03"),
    ):
        answers = [json.dumps(api["mallory"].get(path, 404)) for path in (there, not_there)]
        assert answers[0].replace("nlp", "nobody") == answers[1]


def test_nobody_gets_nothing_without_signing_in(things):
    before = state()
    client = Client()
    for _, address in addresses(things):
        for method in METHODS:
            response = client.generic(method, f"/api/v1/{address}", "{}", content_type="application/json")
            assert response.status_code in (401, 405), (method, address)
            assert response["Content-Type"] == "application/problem+json"
    assert state() == before


def test_an_auditor_sees_all_and_changes_nothing(world, things):
    from django.utils import timezone

    from tenants.services import create_user
    from tests.api.client import make_api

    auditor = make_api(create_user("ada", timezone.now(), is_auditor=True))
    assert auditor.get(f"/jobs/{things['job_id']}")["environment"] is None
    before = state()
    for _, address in addresses(things):
        for method in METHODS[1:]:
            for body in BODIES:
                if address.startswith("tokens") and body == {"name": "x"}:
                    continue
                assert auditor.send(method, f"/{address}", body).status_code in (400, 403, 404, 405), (
                    method,
                    address,
                    body,
                )
    assert state() == before
