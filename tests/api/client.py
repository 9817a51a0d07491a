"""A client of the API with a token."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.test import Client
from django.utils import timezone

HELLO = {"team": "nlp", "pool": "train", "name": "hello", "gpus": 0.5, "command": ["python3", "-c", "print('hello')"]}
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


def settled(world: Any) -> None:
    """Everything that is due at the present moment has happened."""
    world.now = timezone.now()
    world.settle()


def walk(api: Api, path: str) -> list[Any]:
    """All rows of a list, page after page."""
    rows: list[Any] = []
    following: str | None = path
    while following:
        page = api.get(following)
        rows += page["results"]
        following = page["next"] and page["next"].partition("/api/v1")[2]
    return rows


def money_of(team: Any, now: datetime) -> dict[str, int]:
    """A budget, a package and an invoice of the team."""
    from billing.services.budgets import create_budget
    from billing.services.invoices import issue_invoice
    from billing.services.packages import add_package

    month = (now.replace(day=1) - timedelta(days=1)).date().replace(day=1)
    return {
        "budget_id": create_budget(team, Decimal(1000), now).pk,
        "package_id": add_package(team, Decimal(100), now).pk,
        "invoice_id": issue_invoice(team, month, now).pk,
    }
