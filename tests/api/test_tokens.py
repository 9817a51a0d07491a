"""Tokens: what they narrow, what they can make, and when they end."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from tenants.models import ApiToken
from tenants.services import deactivate_user, remove_membership
from tests.api.client import HELLO, make_api


def test_me_tells_who_asks_and_how_far_the_token_goes(api, world):
    me = api["alice"].get("/me")
    assert (me["username"], me["is_operator"], me["teams"]) == ("alice", False, [{"team": "nlp", "role": "manager"}])
    assert me["token"]["scopes"] == ["manage", "operate", "read", "submit"]
    blind = make_api(world.users["alice"], scopes=["submit"])
    assert blind.get("/me")["token"]["scopes"] == ["submit"]


def test_a_token_without_read_reads_nothing(world):
    blind = make_api(world.users["bob"], scopes=["submit"])
    for path in ("/jobs", "/teams", "/pools", "/quotas", "/usage", "/events", "/tokens", "/rates"):
        assert "read" in blind.get(path, 403)["detail"]
    assert blind.post("/jobs", HELLO)["state"] == "pending"


def test_a_token_without_submit_submits_and_stops_nothing(world):
    job = make_api(world.users["bob"]).post("/jobs", HELLO)
    reader = make_api(world.users["bob"], scopes=["read"])
    reader.post("/jobs", HELLO, 403)
    for action in ("cancel", "hold", "release"):
        reader.post(f"/jobs/{job['id']}/{action}", status=403)
    reader.post("/jobs/cancel", {"ids": [job["id"]]}, 403)
    reader.post("/jobs/cancel", {"filter": {"team": "nlp"}}, 403)
    assert reader.get(f"/jobs/{job['id']}")["state"] == "pending"


def test_a_token_of_one_team_sees_only_that(world):
    make_api(world.users["bob"]).post("/jobs", HELLO)
    bound = make_api(world.users["root"], team=world.teams["ads"])
    assert bound.get("/jobs")["results"] == []
    assert [team["slug"] for team in bound.get("/teams")["results"]] == ["ads"]
    bound.get("/teams/nlp", 404)
    bound.post("/jobs", HELLO, 404)
    bound.post("/rates", {"per_gpu_hour": "1"}, 403)
    assert bound.get("/tokens")["results"][0]["team"] == "ads"
    assert bound.post("/tokens", {"name": "mine"})["team"] == "ads"
    bound.post("/tokens", {"name": "other", "team": "nlp"}, 404)


def test_a_new_token_is_shown_once_and_works(api, world):
    made = api["bob"].post("/tokens", {"name": "ci", "scopes": ["read"], "days": 7})
    assert made["secret"].startswith("alt_")
    assert made["scopes"] == ["read"]
    assert "secret" not in api["bob"].get(f"/tokens/{made['id']}")
    assert made["secret"] not in str(api["bob"].get("/tokens"))
    response = api["bob"].client.get("/api/v1/me", headers={"Authorization": f"Bearer {made['secret']}"})
    assert response.json()["username"] == "bob"
    api["bob"].delete(f"/tokens/{made['id']}")
    response = api["bob"].client.get("/api/v1/me", headers={"Authorization": f"Bearer {made['secret']}"})
    assert response.status_code == 401
    assert api["bob"].get(f"/tokens/{made['id']}")["revoked_at"]


def test_a_token_makes_none_that_is_stronger(world):
    ends = timezone.now() + timedelta(days=10)
    maker = make_api(world.users["alice"], scopes=["read", "manage"], expires_at=ends)
    before = ApiToken.objects.count()
    problem = maker.post("/tokens", {"name": "x", "scopes": ["read", "submit"]}, 403)
    assert (problem["field"], problem["value"], problem["allowed"]) == ("scopes", "['submit']", ["manage", "read"])
    assert maker.post("/tokens", {"name": "x", "scopes": ["read"], "days": 11}, 403)["field"] == "days"
    assert ApiToken.objects.count() == before
    made = maker.post("/tokens", {"name": "x"})
    assert made["scopes"] == ["read"]
    assert ApiToken.objects.get(pk=made["id"]).expires_at == ends
    make_api(world.users["alice"], scopes=["read", "submit"]).post("/tokens", {"name": "x"}, 403)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": " "}, "name"),
        ({"name": "x" * 121}, "name"),
        ({"name": "a\tb"}, "name"),
        ({"name": 5}, "name"),
        ({"name": "x", "scopes": []}, "scopes"),
        ({"name": "x", "scopes": ["root"]}, "scopes"),
        ({"name": "x", "scopes": "read"}, "scopes"),
        ({"name": "x", "days": 0}, "days"),
        ({"name": "x", "days": "7"}, "days"),
        ({"name": "x", "days": 10**30}, "days"),
        ({"name": "x", "user": "root"}, "user"),
    ],
)
def test_wrong_tokens_name_their_field(api, body, field):
    before = ApiToken.objects.count()
    assert api["bob"].post("/tokens", body, 400)["field"] == field
    assert ApiToken.objects.count() == before


def test_other_people_s_tokens_are_not_there(api, world):
    hers = ApiToken.objects.get(user=world.users["alice"])
    for name in ("bob", "root"):
        api[name].get(f"/tokens/{hers.pk}", 404)
        api[name].delete(f"/tokens/{hers.pk}", 404)
    hers.refresh_from_db()
    assert hers.revoked_at is None


def test_a_token_may_end_itself_and_no_other_without_manage(world):
    reader = make_api(world.users["bob"], scopes=["read"])
    own, other = ApiToken.objects.get(user=world.users["bob"]), None
    other = make_api(world.users["bob"], scopes=["read"])
    other_id = ApiToken.objects.filter(user=world.users["bob"]).exclude(pk=own.pk).get().pk
    reader.delete(f"/tokens/{other_id}", 403)
    reader.delete(f"/tokens/{own.pk}")
    reader.get("/me", 401)
    assert other.get("/me")["username"] == "bob"


def test_open_56_a_token_ends_with_its_owner(api, world):
    api["bob"].get("/me")
    token = ApiToken.objects.get(user=world.users["bob"])
    ApiToken.objects.filter(pk=token.pk).update(last_used_at=None)
    deactivate_user(world.users["bob"], timezone.now())
    api["bob"].get("/jobs", 401)
    token.refresh_from_db()
    assert token.last_used_at is None


def test_open_56_a_token_follows_its_owner_out_of_a_team(api, world):
    job = api["bob"].post("/jobs", HELLO)
    remove_membership(world.users["bob"], world.teams["nlp"], timezone.now())
    api["bob"].get(f"/jobs/{job['id']}", 404)
    api["bob"].post(f"/jobs/{job['id']}/cancel", status=404)
    api["bob"].post("/jobs", HELLO, 404)
    assert api["bob"].get("/jobs")["results"] == []
    assert api["bob"].get("/events")["results"] == [
        event for event in api["bob"].get("/events")["results"] if event["team"] is None
    ]


def test_the_command_prints_the_token_and_nothing_else(world):
    out, err = io.StringIO(), io.StringIO()
    call_command("issue_token", "BOB", "--scopes", "read", "--days", "3", "--name", "night", stdout=out, stderr=err)
    secret = out.getvalue()
    assert secret.startswith("alt_")
    assert secret.count("\n") == 1
    assert "bob" in err.getvalue()
    token = ApiToken.objects.get(name="night")
    assert token.scopes == ["read"]
    assert token.expires_at is not None
    assert timedelta(days=2) < token.expires_at - timezone.now() <= timedelta(days=3)
    with pytest.raises(CommandError, match="no user 'nobody'"):
        call_command("issue_token", "nobody", stdout=out)
    with pytest.raises(CommandError, match="--days"):
        call_command("issue_token", "bob", "--days", "0", stdout=out)
    deactivate_user(world.users["bob"], timezone.now())
    with pytest.raises(CommandError, match="deactivated"):
        call_command("issue_token", "bob", stdout=out)
