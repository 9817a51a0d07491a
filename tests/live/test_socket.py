"""What a browser hears over a real socket from a real server."""

from __future__ import annotations

import pytest

from inventory.models import Device
from live import selectors
from tests.live.server import listening, session_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_jobs_way_is_seen_as_it_goes(server, world):
    with listening(server, session=session_of(world.users["bob"])) as bob:
        assert bob.ask({"subscribe": "team", "team": "nlp"})["subscribed"] == {"subscribe": "team", "team": "nlp"}
        job = world.submit(gpus=0.5, duration="90s", name="quarter")
        bob.until(lambda: bob.jobs.get(job.pk, {}).get("state") == "pending")
        world.settle()
        bob.until(lambda: bob.jobs[job.pk]["state"] == "running")
        assert bob.jobs[job.pk]["user"] == "bob"
        world.pass_time(seconds=90)
        bob.until(lambda: bob.jobs[job.pk]["state"] == "succeeded")
        assert bob.jobs[job.pk]["exit_code"] == 0


def test_a_team_above_hears_of_the_teams_below(server, world):
    with listening(server, session=session_of(world.users["root"])) as root:
        root.ask({"subscribe": "team", "team": "research"})
        job = world.submit(gpus=1)
        other = world.submit("mallory", team="ads", gpus=1)
        world.settle()
        root.until(lambda: root.jobs.get(job.pk, {}).get("state") == "running")
        assert other.pk not in root.jobs


def test_a_stranger_hears_the_fill_of_a_pool_and_nothing_else(server, world):
    with (
        listening(server, session=session_of(world.users["mallory"])) as mallory,
        listening(server, session=session_of(world.users["bob"])) as bob,
    ):
        for listener in (mallory, bob):
            listener.ask({"subscribe": "pool", "pool": "train", "snapshot": True})
        mallory.until(lambda: len(mallory.devices) == 8 and len(mallory.nodes) == 2)
        job = world.submit(gpus=0.5, name="very-secret-name")
        world.settle()
        device = Device.objects.get(compute_allocated_milli=500)
        mallory.until(lambda: mallory.devices[device.pk][1] == 500)
        bob.until(lambda: bob.devices.get(device.pk, [0, 0])[1] == 500)
        assert mallory.devices[device.pk] == [device.pk, 500, 40960, "ok", None, None, []]
        assert bob.devices[device.pk][6] == [[job.pk, "nlp", 500, 40960]]
        mallory.until(lambda: mallory.pools.get("train", {}).get("allocated_milli") == 500)
        assert "nlp" not in mallory.heard()
        assert "very-secret-name" not in mallory.heard()
        assert "bob" not in mallory.heard()
        assert not mallory.jobs


def test_what_one_may_not_see_does_not_exist(server, world):
    with listening(server, session=session_of(world.users["mallory"])) as mallory:
        for name in ("nlp", "research", "no-such-team"):
            answer = mallory.ask({"subscribe": "team", "team": name})
            assert answer["error"] == {"code": "not_found", "message": "There is no such team, or you may not see it."}
        job = world.submit(gpus=1)
        assert mallory.ask({"subscribe": "job", "id": job.pk})["error"]["code"] == "not_found"
        assert mallory.ask({"subscribe": "job", "id": 10**9})["error"]["code"] == "not_found"
        world.settle()
        mallory.ask({"ping": 1})
        assert not mallory.jobs


def test_one_job_comes_with_its_use_and_cost(server, world):
    from telemetry.sampler import Sampler

    job = world.submit(gpus=0.5, duration="1h")
    world.settle()
    with listening(server, session=session_of(world.users["bob"])) as bob:
        bob.ask({"subscribe": "job", "id": job.pk})
        bob.until(lambda: job.pk in bob.readings)
        assert bob.readings[job.pk][:4] == [job.pk, 500, None, None]
        assert isinstance(bob.readings[job.pk][4], str)
    # Readings are of the present, not of the little world's clock.
    from django.utils import timezone

    world.engine.play(job.pk, 0.8, 0.5)
    Sampler().step(timezone.now(), world.clockwork.reconcilers)
    with listening(server, session=session_of(world.users["bob"])) as bob:
        bob.ask({"subscribe": "job", "id": job.pk})
        bob.until(lambda: job.pk in bob.readings)
        assert bob.readings[job.pk][1:4] == [500, 400, 20480]
        bob.ask({"subscribe": "pool", "pool": "train"})
        bob.until(lambda: any(device[4] == 400 for device in bob.devices.values()))


def test_who_comes_back_hears_the_latest_of_what_was_missed(server, world):
    before = selectors.position()
    jobs = [world.submit(gpus=0.5, duration="10s", name=f"job-{number}") for number in range(20)]
    world.settle()
    world.pass_time(minutes=5)
    with listening(server, session=session_of(world.users["bob"])) as bob:
        bob.ask({"subscribe": "team", "team": "nlp", "after": before})
        bob.until(lambda: len(bob.jobs) == len(jobs))
        assert bob.states() == {"succeeded"}
        assert bob.seq == selectors.position()
        kinds = {kind for event in bob.events for kind in event["kinds"]}
        assert {"job.submitted", "job.state"} <= kinds
    with listening(server, session=session_of(world.users["bob"])) as bob:
        bob.ask({"subscribe": "team", "team": "nlp", "after": selectors.position()})
        bob.ask({"ping": 1})
        assert not bob.jobs
        assert not bob.resyncs


def test_who_missed_too_much_or_comes_from_the_future_is_told_to_read_anew(server, world, monkeypatch):
    from live import subjects

    world.submit(gpus=1)
    with listening(server, session=session_of(world.users["bob"])) as bob:
        bob.ask({"subscribe": "team", "team": "nlp", "after": 10**9})
        bob.until(lambda: bob.resyncs == 1)
    monkeypatch.setattr(subjects, "MOST_MISSED", 0)
    with listening(server, session=session_of(world.users["bob"])) as bob:
        bob.ask({"subscribe": "team", "team": "nlp", "after": 1})
        bob.until(lambda: bob.resyncs == 1)


MISUNDERSTOOD = [
    ("not json", "not_json", None),
    ("[]", "invalid", None),
    ("NaN", "not_json", None),
    (b"\x00\x01", "not_json", None),
    ("{}", "unknown", None),
    ('{"cancel": 1}', "unknown", None),
    ('{"subscribe": "team", "unsubscribe": "team", "team": "nlp"}', "unknown", None),
    ('{"subscribe": ["team"], "team": "nlp"}', "invalid", "subscribe"),
    ('{"subscribe": "everything"}', "invalid", "subscribe"),
    ('{"subscribe": "team"}', "invalid", "team"),
    ('{"subscribe": "team", "team": {"$ne": null}}', "invalid", "team"),
    ('{"subscribe": "job", "id": "1"}', "invalid", "id"),
    ('{"subscribe": "job", "id": 1e400}', "invalid", "id"),
    ('{"subscribe": "job", "id": 99999999999999999999999}', "invalid", "id"),
    ('{"subscribe": "team", "team": "nlp", "after": -1}', "invalid", "after"),
    ('{"subscribe": "team", "team": "nlp", "after": true}', "invalid", "after"),
    ('{"subscribe": "pool", "pool": "train", "snapshot": 1}', "invalid", "snapshot"),
    ('{"ping": 1, "ref": {}}', "invalid", "ref"),
    ("[" * 4000, "not_json", None),
]


def test_what_is_not_understood_is_refused_and_the_socket_lives_on(server, world):
    with listening(server, session=session_of(world.users["bob"])) as bob:
        for said, code, field in MISUNDERSTOOD:
            answer = bob.ask(said)
            assert (answer["error"]["code"], answer["error"].get("field")) == (code, field), said
        assert bob.ask({"ping": "still there", "ref": 7}) == {"pong": "still there", "ref": 7}


def test_a_message_that_is_too_large_is_refused(server, world):
    with listening(server, session=session_of(world.users["bob"])) as bob:
        bob.say('{"ping": "' + "x" * 9000 + '"}')
        assert bob.until_closed() == 1009
        assert bob.answers[0]["error"]["code"] == "too_large"


def test_one_socket_has_so_many_subscriptions_and_no_more(server, world):
    jobs = [world.submit(gpus=0.05) for _ in range(51)]
    with listening(server, session=session_of(world.users["bob"])) as bob:
        answers = [bob.ask({"subscribe": "job", "id": job.pk}) for job in jobs]
        assert answers[50]["error"]["code"] == "too_many"
        assert bob.ask({"unsubscribe": "job", "id": jobs[0].pk}) == {
            "unsubscribed": {"subscribe": "job", "id": jobs[0].pk}
        }
        assert "subscribed" in bob.ask({"subscribe": "job", "id": jobs[50].pk})


def test_a_burst_is_at_most_four_frames_a_second_with_the_last_state_of_each(server, world):
    import time

    with listening(server, session=session_of(world.users["bob"])) as bob:
        bob.ask({"subscribe": "team", "team": "nlp"})
        begun = time.monotonic()
        jobs = [world.submit(gpus=0.05, duration="1s") for _ in range(60)]
        world.settle()
        world.pass_time(seconds=2)
        bob.until(lambda: len(bob.jobs) == len(jobs) and bob.states() == {"succeeded"})
        frames = [frame for frame in bob.frames if "events" in frame]
        assert len(frames) <= 4 * (time.monotonic() - begun) + 2
