"""The OpenAPI description: complete, true, and browsable without asking another host."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any

import pytest
import schemathesis
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from django.test import Client
from hypothesis import HealthCheck
from hypothesis import settings as examples
from schemathesis.specs.openapi import checks

from config.api_urls import NameConverter, urlpatterns
from scheduling.api.asked import JobRequest, TaskGroupRequest
from scheduling.services.requests import GROUP_FIELDS, JOB_FIELDS
from tests.api.client import HELLO, make_api, money_of, settled

UNDESCRIBED = {"openapi.json", "openapi.yaml", "docs", "^"}


@pytest.fixture
def served(db):
    return Client().get("/api/v1/openapi.json").json()


def test_every_address_is_described(served):
    described = {path.removeprefix("/api/v1/") for path in served["paths"]}
    routed = {re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", str(each.pattern)) for each in urlpatterns} - UNDESCRIBED
    assert described == routed
    assert served["openapi"].startswith("3.1")


def test_every_operation_says_what_it_is_and_how_it_refuses(served):
    names = set()
    for path, operations in served["paths"].items():
        for method, operation in operations.items():
            assert operation["description"], (method, path)
            assert operation["operationId"] not in names
            names.add(operation["operationId"])
            assert "4XX" in operation["responses"]
            assert {"token": []} in operation["security"]
    assert "application/problem+json" in served["components"]["responses"]["Problem"]["content"]


def test_what_is_described_of_a_job_is_what_is_read(served):
    assert set(JobRequest().fields) == set(JOB_FIELDS)
    assert set(TaskGroupRequest().fields) == set(GROUP_FIELDS)
    assert served["components"]["schemas"]["JobRequest"]["required"] == ["team"]


def test_the_description_is_served_as_yaml_too(db):
    response = Client().get("/api/v1/openapi.yaml")
    assert response.status_code == 200
    assert response.content.startswith(b"openapi: 3.1")


def test_the_documentation_loads_nothing_from_another_host(db):
    client = Client()
    response = client.get("/api/v1/docs")
    page = response.content.decode()
    assert response.status_code == 200
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert any("swagger-ui" in address for address in loaded)
    assert all(address.startswith("/") for address in loaded), loaded
    for address in loaded:
        if address.startswith("/static/"):
            with closing(client.get(address)) as file:
                assert file.status_code == 200, address
    assert "//" not in re.sub(r"//# |https?://(www\.)?w3\.org", "", "".join(loaded))


SCHEMA = schemathesis.openapi.from_wsgi("/api/v1/openapi.json", WSGIHandler())
THERE: dict[str, Any] = {}


@SCHEMA.hook
def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """What is drawn mostly names nothing: things that are there take its place, but not that of what could be none."""

    def there(name: str, drawn: Any) -> Any:
        known = THERE.get(name, drawn)
        could_be = isinstance(drawn, int) if isinstance(known, int) else re.fullmatch(NameConverter.regex, str(drawn))
        return known if could_be else drawn

    return path_parameters and {name: there(name, value) for name, value in path_parameters.items()}


@pytest.fixture
def bob(world):
    """A token of bob's, in a world with a job that runs and one that waits."""
    api = make_api(world.users["bob"])
    jobs = api.post("/jobs", [{**HELLO, "gpus": 4, "tasks": 3}, HELLO])
    settled(world)
    node = world.pool.nodes.first()
    THERE.update({"job_id": jobs[1]["id"], "team": "nlp", "pool": "train", "name": "normal", "model": "A100-80G"})
    THERE.update(money_of(world.teams["nlp"], world.now))
    THERE.update({"node_id": node.pk, "device_id": node.devices.first().pk})
    # The test's own connection answers; it may not be closed between requests.
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield api.secret
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.mark.slow
@SCHEMA.parametrize()
@examples(max_examples=10, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_what_is_drawn_from_the_description_is_answered_as_described(bob, case):
    # Which of two moments is the later no description can say: a span that ends before it begins is refused.
    spans = ("/utilization", "/budgets", "/budgets/{budget_id}", "/packages", "/idle-costs")
    excluded = [checks.positive_data_acceptance] if case.operation.path.endswith(spans) else []
    case.call_and_validate(headers={"Authorization": f"Bearer {bob}"}, excluded_checks=excluded)
