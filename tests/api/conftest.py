"""Clients of the cast, at the present moment: the API takes its time from the clock."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

PROBLEM = "application/problem+json"


@dataclass
class Api:
    """Requests with a token, answers as (status, value)."""

    secret: str
    client: Client

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        data = body if isinstance(body, str | bytes) else "" if body is None else json.dumps(body)
        headers = {"Authorization": f"Bearer {self.secret}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        return self.client.generic(method, f"/api/v1{path}", data, content_type="application/json", headers=headers)

    def get(self, path: str, status: int = 200) -> Any:
        return self.told(self.send("GET", path), status)

    def post(self, path: str, body: Any = None, status: int = 201, **headers: str) -> Any:
        return self.told(self.send("POST", path, body, **headers), status)

    def put(self, path: str, body: Any, status: int = 200) -> Any:
        return self.told(self.send("PUT", path, body), status)

    def patch(self, path: str, body: Any, status: int = 200) -> Any:
        return self.told(self.send("PATCH", path, body), status)

    def delete(self, path: str, status: int = 204) -> Any:
        return self.told(self.send("DELETE", path), status)

    @staticmethod
    def told(response: Any, status: int) -> Any:
        assert response.status_code == status, f"{response.status_code}: {response.content.decode()[:2000]}"
        if status >= 400:
            assert response["Content-Type"] == PROBLEM
        return json.loads(response.content) if response.content else None


def make_api(user: Any, **options: Any) -> Api:
    from tenants.services import issue_token

    options.setdefault("scopes", ["read", "submit", "manage", "operate"])
    return Api(issue_token(user, "test", timezone.now(), **options)[1], Client(raise_request_exception=True))


@pytest.fixture(autouse=True)
def _no_counts_of_other_tests():
    cache.clear()


@pytest.fixture
def world(world):
    world.now = timezone.now()
    return world


@pytest.fixture
def api(world):
    """Each of the cast with a token that narrows nothing."""
    return {name: make_api(user) for name, user in world.users.items()}
