"""Requests that cannot be meant: each gets a 4xx that names the field and what is allowed, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.conf import settings

from tests.api.client import HELLO, PROBLEM

LEFT_ALONE = {"tenants.ApiToken", "sessions.Session"}  # a token remembers its last use


def everything():
    """How many rows of each kind there are, and the highest id of each."""
    found = {}
    for model in apps.get_models():
        if model._meta.managed and model._meta.label not in LEFT_ALONE:
            found[model._meta.label] = (
                model._default_manager.count(),
                str(model._default_manager.order_by("pk").values_list("pk").last()),
            )
    return found


WRONG_JOBS: dict[str, tuple[dict[str, Any], str, int, Any]] = {
    "a fraction off the step": ({"gpus": 0.07}, "gpus", 400, ["0.05", "0.1"]),
    "an unknown pool": ({"pool": "nowhere"}, "pool", 404, ["train"]),
    "a pool that is no text": ({"pool": 7}, "pool", 404, ["train"]),
    "a team one is not in": ({"team": "ads"}, "team", 404, ["nlp"]),
    "no such team": ({"team": "ghosts"}, "team", 404, ["nlp"]),
    "no team": ({"team": None}, "team", 400, None),
    "a billion GPUs": ({"gpus": 10**9}, "gpus", 400, [256]),
    "ten to the thirtieth": ({"gpus": 10**30}, "gpus", 400, None),
    "a negative number of GPUs": ({"gpus": -1}, "gpus", 400, None),
    "a GPU number that is a flag": ({"gpus": True}, "gpus", 400, None),
    "digits of another script": ({"gpus": "٣"}, "gpus", 400, None),
    "a fraction finer than any account": ({"gpus": "0.5" + "0" * 30 + "1"}, "gpus", 400, None),
    "a task that would hold nothing": ({"gpus": 0, "cpu": 0}, "cpu", 400, None),
    "a name of a megabyte": ({"name": "x" * 2**20}, "name", 400, None),
    "an empty name": ({"name": ""}, "name", 400, None),
    "a name of two lines": ({"name": "a\nb"}, "name", 400, None),
    "a name that nobody can see": ({"name": "\u200b \u2060"}, "name", 400, None),
    "a name that turns what stands beside it": ({"name": "a\u202eb"}, "name", 400, None),
    "a name that is a number": ({"name": 5}, "name", 400, None),
    "negative memory": ({"memory_gib": -1}, "memory_gib", 400, None),
    "negative GPU memory": ({"gpus": None, "gpu_memory_mib": -5}, "gpu_memory_mib", 400, None),
    "an unknown field": ({"gpu": 1}, "gpu", 400, "fields"),
    "an unknown model": ({"model": "H9000"}, "model", 404, ["A100-80G"]),
    "an unknown class": ({"priority": "now"}, "priority", 404, ["high", "low", "normal"]),
    "no tasks": ({"tasks": 0}, "tasks", 400, None),
    "too many tasks": ({"tasks": 10**6}, "tasks", 400, None),
    "more least tasks than tasks": ({"tasks": 2, "min_tasks": 3}, "min_tasks", 400, None),
    "a duration in words": ({"time_limit": "soon"}, "time_limit", 400, None),
    "an endless duration": ({"time_limit": "99999999999999w"}, "time_limit", 400, None),
    "a variable with a space": ({"environment": {"A B": "1"}}, "environment", 400, None),
    "NUL in the command": ({"command": ["echo", "\0"]}, "command[1]", 400, None),
    "NUL in the name": ({"name": "a\0b"}, "name", 400, None),
    "half a surrogate pair": ({"name": "a\ud800"}, "name", 400, None),
    "half a surrogate pair as a key": ({"environment": {"\udfff": "1"}}, "environment", 400, None),
    "what comes later": ({"after": [1]}, "after", 400, None),
    "an unknown level": ({"topology": {"level": "row"}}, "topology.level", 400, ["zone", "block", "rack", "host"]),
    "a level for nobody": ({"apart": "row"}, "apart", 400, ["zone", "block", "rack", "host"]),
}


@pytest.mark.parametrize("case", WRONG_JOBS)
def test_a_wrong_job_names_its_field_and_changes_nothing(api, case):
    change, field, status, allowed = WRONG_JOBS[case]
    before = everything()
    problem = api["bob"].post("/jobs", {**HELLO, **change}, status)
    assert problem["field"] == field
    assert problem["errors"][0]["message"]
    if allowed == "fields":
        assert "gpus" in problem["allowed"]
    elif allowed is not None:
        assert problem["allowed"] == allowed
    assert len(str(problem)) < 10_000
    assert everything() == before


def test_every_fault_is_told_at_once(api):
    problem = api["bob"].post("/jobs", {"team": "nlp", "pool": "train", "gpus": 0.07, "tasks": 0, "kind": "odd"}, 400)
    assert {error["field"] for error in problem["errors"]} == {"gpus", "tasks", "kind"}


BROKEN = {
    "no JSON": b"{team: nlp}",
    "nothing": b"",
    "half of it": b'{"team": "nlp"',
    "two values": b"{}{}",
    "no UTF-8": b'{"team": "\xff"}',
    "NaN": b'{"team": "nlp", "gpus": NaN}',
    "Infinity": b'{"team": "nlp", "gpus": -Infinity}',
    "a doubled key": b'{"team": "nlp", "team": "ads"}',
    "a doubled key, the last of very many": b"{" + b",".join(b'"k%d":1' % n for n in [*range(100_000), 99_999]) + b"}",
    "a number of 5,000 digits": b'{"gpus": ' + b"9" * 5000 + b"}",
    "nested beyond reason": b"[" * 100_000 + b"]" * 100_000,
    "nested objects": b'{"a":' * 500 + b"1" + b"}" * 500,
    "a text": b'"job"',
    "null": b"null",
    "an exponent beyond reason": b'{"team": "nlp", "pool": "train", "gpus": 1e999999999}',
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize(("method", "path"), [("POST", "/jobs"), ("PUT", "/quotas/train/nlp"), ("POST", "/tokens")])
def test_a_body_that_is_not_what_it_should_be(api, case, method, path):
    before = everything()
    response = api["root"].send(method, path, BROKEN[case])
    assert response.status_code == 400
    assert response["Content-Type"] == PROBLEM
    assert everything() == before


def test_a_body_beyond_the_limit_is_413(api):
    before = everything()
    problem = api["bob"].post("/jobs", b'"' + b"x" * settings.DATA_UPLOAD_MAX_MEMORY_SIZE + b'"', 413)
    assert problem["code"] == "too_large"
    assert str(settings.DATA_UPLOAD_MAX_MEMORY_SIZE) in problem["detail"]
    assert everything() == before


def test_another_kind_of_body_is_415(api):
    client = api["bob"].client
    headers = {"Authorization": f"Bearer {api['bob'].secret}"}
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
    ):
        response = client.generic("POST", "/api/v1/jobs", "team=nlp", content_type=kind, headers=headers)
        assert (response.status_code, response["Content-Type"]) == (415, PROBLEM), kind
        problem = response.json()
        assert problem["title"] == "Unsupported media type"
        assert "Send application/json" in problem["detail"]
    good = client.generic("POST", "/api/v1/jobs", "{}", content_type="application/json; charset=utf-8", headers=headers)
    assert good.status_code == 400


@pytest.mark.parametrize(
    "path",
    [
        *("/nothing", "/jobs/abc", "/jobs/-1", "/jobs/1.5", f"/jobs/{10**30}", "/jobs/999999", "/jobs/", "/jobs/%00"),
        *(f"/nodes/{10**30}", "/nodes/0", f"/devices/{2**63}", "/devices/x", f"/tokens/{10**30}", "/teams/ghosts"),
        *("/teams/%00", "/teams/ads", "/teams/a%20b", "/pools/nowhere", "/pools/%F0%9F%90%8D", "/quotas/train/ads"),
        *("/quotas/nowhere/nlp", "/accelerator-models/none", "/priority-classes/none", f"/jobs/{10**30}/logs"),
        *("", "/../../../etc/passwd", "/jobs/1/2/3"),
    ],
)
def test_what_is_not_there_is_404_whatever_the_id(api, path):
    assert api["bob"].get(path, 404)["status"] == 404


def test_other_addresses_below_api_are_404_too(api):
    for path in ("/api/", "/api/v2/jobs", "/api/v1", "/api/x/"):
        response = api["bob"].client.get(path)
        assert (response.status_code, response["Content-Type"]) == (404, PROBLEM), path


def test_other_methods_are_405_with_what_is_allowed(api):
    for method, path, allowed in (
        ("DELETE", "/jobs", "GET, POST, HEAD"),
        ("PUT", "/me", "GET, HEAD"),
        ("GET", "/jobs/cancel", "POST"),
        ("TRACE", "/pools", "GET, HEAD"),
        ("OPTIONS", "/pools", "GET, HEAD"),
    ):
        response = api["bob"].send(method, path)
        assert (response.status_code, response["Content-Type"]) == (405, PROBLEM)
        assert response["Allow"] == allowed
        problem = response.json()
        assert problem["title"] == "Method not allowed"
        assert allowed in problem["detail"]


def test_one_form_of_answer_whatever_is_accepted(api):
    response = api["bob"].send("GET", "/me", None, Accept="text/html")
    assert (response.status_code, response["Content-Type"]) == (200, "application/json")


@pytest.mark.parametrize(
    "header",
    ["Bearer nonsense", "Bearer", "Bearer a b", "bearer é", "Bearer alt_" + "x" * 5000, "Basic Zm9vOmJhcg==", None],
)
def test_a_token_that_is_none_is_401(api, header):
    response = api["bob"].client.get("/api/v1/jobs", headers={"Authorization": header} if header else {})
    assert (response.status_code, response["Content-Type"]) == (401, PROBLEM)
    assert response["WWW-Authenticate"].startswith("Bearer")


def test_too_many_requests_are_429_and_told_before(api, settings):
    settings.API_REQUESTS_PER_MINUTE = 2
    seen = [api["bob"].send("GET", "/me") for _ in range(3)]
    assert seen[0]["RateLimit-Limit"] == "2"
    if seen[0]["RateLimit-Reset"] >= seen[2]["RateLimit-Reset"]:  # all in one clock minute
        assert [response.status_code for response in seen] == [200, 200, 429]
        assert [response["RateLimit-Remaining"] for response in seen] == ["1", "0", "0"]
        assert seen[2]["Content-Type"] == PROBLEM
        assert 0 < int(seen[2]["Retry-After"]) <= 60
    assert api["alice"].send("GET", "/me").status_code == 200


def test_a_browser_needs_its_csrf_token_to_write(world):
    from django.test import Client

    client = Client(enforce_csrf_checks=True)
    client.force_login(world.users["bob"])
    assert client.get("/api/v1/me").json()["username"] == "bob"
    response = client.post("/api/v1/jobs", HELLO, content_type="application/json")
    assert (response.status_code, response["Content-Type"]) == (403, PROBLEM)
    form = client.post("/api/v1/jobs", {"team": "nlp"})
    assert form.status_code == 403
