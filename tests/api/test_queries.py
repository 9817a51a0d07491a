"""As many questions to the database for many rows as for few."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.api.client import HELLO, settled

LISTS = {
    "/jobs?page_size=500": 17,
    "/teams": 8,
    "/teams/nlp": 18,
    "/pools": 7,
    "/nodes?pool=train": 7,
    "/devices?pool=train": 7,
    "/quotas": 8,
    "/accelerator-models": 5,
    "/priority-classes": 5,
    "/usage?group_by=job": 11,
    "/usage?group_by=day": 10,
    "/rates": 5,
    "/events?limit=1000": 15,
    "/tokens": 5,
    "/me": 8,
}


def grow(api, world, times):
    from inventory.services import NodeEntry, add_nodes
    from tenants.services import create_team, issue_token

    model = world.pool.nodes.first().devices.first().model
    for number in range(times):
        name = f"more-{world.pool.nodes.count()}-{number}"
        add_nodes(world.pool, [NodeEntry(name, 64_000, 524_288, ((model, 81920, f"u{name}"),))], timezone.now())
        team = create_team(name, timezone.now(), parent=world.teams["nlp"])
        api["root"].put(f"/quotas/train/{team.slug}", {"limit": 1})
        issue_token(world.users["bob"], name, timezone.now())
        api["bob"].post(
            "/jobs", [{**HELLO, "tasks": 2, "duration": "1s"}, HELLO, {**HELLO, "gpus": 4, "team": team.slug}]
        )
    settled(world)
    world.pass_time(seconds=2)


def questions(api, path):
    with CaptureQueriesContext(
        connection,
    ) as asked:
        api["bob"].get(path)
    return [query["sql"] for query in asked.captured_queries]


@pytest.mark.parametrize("path", LISTS)
def test_questions_do_not_grow_with_rows(api, world, path):
    grow(api, world, 1)
    api["bob"].get("/me")  # the token's use is kept now, once a minute
    few = questions(api, path)
    grow(api, world, 4)
    many = questions(api, path)
    assert len(many) == len(few), "\n".join(many)
    assert len(many) <= LISTS[path], "\n".join(many)


def test_a_submission_of_many_asks_as_often_as_one_of_few(api, world):
    def submitted(count):
        with CaptureQueriesContext(connection) as asked:
            api["bob"].post("/jobs", [{**HELLO, "tasks": 2}] * count)
        return len(asked)

    api["bob"].get("/me")
    assert submitted(40) <= submitted(4) + 4  # bulk inserts go in batches on SQLite
