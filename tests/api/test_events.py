"""The feed of events: in order, without gaps, and nothing of others in it."""

from __future__ import annotations

import json
import threading

from django.utils import timezone

from events.models import Event
from events.services import unit_of_work
from inventory.models import EngineConnection, Node
from inventory.services import set_engine_state, set_node_state
from scheduling.feed import follow
from tests.api.client import HELLO, settled


def test_the_feed_goes_on_where_it_stopped(api, world):
    api["bob"].post("/jobs", [HELLO] * 3)
    settled(world)
    whole = api["bob"].get("/events?limit=1000")
    assert whole["last"] == Event.objects.order_by("-seq").first().seq
    seen, after = [], 0
    while True:
        piece = api["bob"].get(f"/events?after={after}&limit=2")
        if not piece["results"]:
            break
        seen += piece["results"]
        after = piece["last"]
    assert seen == whole["results"]
    assert [event["seq"] for event in seen] == sorted(event["seq"] for event in seen)
    kinds = {event["kind"] for event in seen}
    assert {"job.submitted", "job.state", "fleet.changed"} <= kinds
    (state, *_) = api["bob"].get("/events?kind=job.state&team=nlp")["results"]
    assert (state["team"], state["pool"], state["at"][-1]) == ("nlp", "train", "Z")


def test_open_54_a_stranger_hears_no_name_of_others(api, world):
    api["bob"].post("/jobs", {**HELLO, "name": "secret-run"})
    settled(world)
    world.now = timezone.now()
    node = Node.objects.earliest("id")
    set_node_state(node, "draining", world.now, reason="secret-run broke it", actor_id=world.users["root"].pk)
    set_engine_state(EngineConnection.objects.get(), "lost", world.now, "https://secret-run.internal: refused")
    told = api["mallory"].get("/events?limit=1000")
    text = json.dumps(told)
    for name in ("secret", "nlp", "NLP", "bob", "alice", "session"):
        assert name not in text, name
    assert {event["team"] for event in told["results"]} == {None, "ads"}
    assert not [event for event in told["results"] if event["job"]]
    kinds = {event["kind"] for event in told["results"]}
    assert {"fleet.changed", "node.state", "engine.state"} <= kinds
    assert not kinds & {"user.created", "allocations.released", "session.ended"}
    assert "secret-run broke it" in json.dumps(api["root"].get("/events?limit=1000"))


def test_a_reason_does_not_name_teams_for_which_something_is_kept(api, world):
    from quotas.services import set_quota

    set_quota(world.teams["ads"], world.pool, world.now, guaranteed=7000, reserved=7000)
    job = api["bob"].post("/jobs", {**HELLO, "gpus": 2})
    settled(world)
    (reason,) = api["bob"].get(f"/jobs/{job['id']}")["reasons"]
    assert (reason["code"], reason["numbers"]["reserved"], reason["numbers"]["reserved_for"]) == (
        *("over_share", 7),
        ["other teams"],
    )
    for path in (f"/jobs/{job['id']}", "/jobs", "/events?limit=1000", f"/jobs/{job['id']}/events"):
        assert "ads" not in json.dumps(api["bob"].get(path)), path
    (reason,) = api["root"].get(f"/jobs/{job['id']}")["reasons"]
    assert reason["numbers"]["reserved_for"] == ["ads"]


def test_quantities_in_events_are_those_that_people_use(api):
    api["root"].put("/quotas/train/nlp", {"guaranteed": 2.5, "weight": 3})
    event = api["bob"].get("/events?kind=quota.set")["results"][-1]
    assert event["data"]["changed"]["guaranteed"] == [None, 2.5]
    assert event["data"]["changed"]["weight"] == [1, 3]
    assert event["actor"] == "root"


def test_who_waits_hears_what_comes(world, monkeypatch):
    """A follower that found nothing is woken by the commit, not by the clock: it would wait for an hour."""
    monkeypatch.setattr("scheduling.feed.POLL_S", 3600)
    last = Event.objects.order_by("-seq").first().seq
    root = world.users["root"]

    def commit() -> None:
        from events.services import bell

        bell.ring()

    class Later(threading.Thread):
        def run(self) -> None:
            commit()

    with unit_of_work() as journal:
        journal.record("pool.changed", timezone.now(), changed={})
    thread = Later()
    thread.start()
    piece = follow(root, last, 10, wait_s=3600)
    thread.join()
    assert [event["kind"] for event in piece.events] == ["pool.changed"]


def test_waiting_ends(api):
    last = Event.objects.order_by("-seq").first().seq
    told = api["root"].get(f"/events?after={last}&wait=1")
    assert told == {"results": [], "last": last}
    assert api["root"].get(f"/events?after={2**62}")["results"] == []
    assert api["root"].get("/events?wait=26", 400)["field"] == "wait"
    assert api["root"].get("/events?after=-1", 400)["field"] == "after"
    assert api["root"].get(f"/events?after={10**30}", 400)["field"] == "after"
