"""Who may hear what, at the beginning and from then on: whoever loses a right stops hearing within five seconds."""

from __future__ import annotations

import pytest
from django.contrib.sessions.models import Session
from django.test import override_settings
from django.utils import timezone
from websockets.exceptions import InvalidStatus

from tenants.models import ApiToken
from tenants.services import (
    deactivate_user,
    issue_token,
    move_team,
    record_sign_out,
    remove_membership,
    revoke_token,
    set_membership,
)
from tests.live.server import Server, listening, session_of, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

SOON_S = 5.0


def subscribed(listener, **words):
    answer = listener.ask(words)
    assert "subscribed" in answer, answer
    return listener


def nlp(listener):
    return subscribed(listener, subscribe="team", team="nlp")


def nothing_more_of_nlp(listener, world):
    """Twenty things happen to the team; none of them comes."""

    def of_nlp():
        return [event for event in listener.events if event.get("team") == "nlp"]

    before = of_nlp()
    for _ in range(20):
        world.submit("alice", gpus=0.05)
    world.settle()
    while listener.take(1.0):
        pass
    assert of_nlp() == before


def test_nobody_is_let_in_without_a_session(server, world):
    for session in ("", "no-such-session", "x" * 5000):
        with listening(server, session=session) as nobody:
            assert nobody.until_closed() == 4401
    with listening(server, token="alt_wrong") as nobody:
        assert nobody.until_closed() == 4401


def test_a_socket_from_a_foreign_page_is_refused(world):
    with override_settings(ALLOWED_HOSTS=["127.0.0.1"]):
        from channels.routing import URLRouter

        from config import asgi
        from live.admission import Admission
        from live.routing import websocket_urlpatterns

        admission = Admission(URLRouter(websocket_urlpatterns))
    before = asgi.application.application_mapping["websocket"]
    asgi.application.application_mapping["websocket"] = admission
    server = Server()
    try:
        session = session_of(world.users["bob"])
        with listening(server, session=session) as bob:
            nlp(bob)
        for origin in ("https://evil.example", "http://127.0.0.1.evil.example", "null"):
            with pytest.raises(InvalidStatus) as refused, listening(server, session=session, origin=origin):
                pass
            assert refused.value.response.status_code == 403
    finally:
        server.stop()
        asgi.application.application_mapping["websocket"] = before


def test_a_token_hears_what_its_owner_may_and_no_more(server, world):
    _, secret = issue_token(world.users["bob"], "script", world.now)
    with listening(server, token=secret) as script:
        nlp(script)
        assert script.ask({"subscribe": "team", "team": "ads"})["error"]["code"] == "not_found"
        world.submit(gpus=1)
        script.until(lambda: script.jobs)
    _, narrow = issue_token(world.users["root"], "narrow", world.now, team=world.teams["ads"])
    with listening(server, token=narrow) as script:
        subscribed(script, subscribe="team", team="ads")
        assert script.ask({"subscribe": "team", "team": "nlp"})["error"]["code"] == "not_found"
    _, blind = issue_token(world.users["bob"], "submits only", world.now, scopes=["submit"])
    with listening(server, token=blind) as script:
        assert script.until_closed() == 4401


def test_a_socket_ends_when_its_browser_signs_out(server, world):
    bob = world.users["bob"]
    session = session_of(bob)
    with listening(server, session=session) as here, listening(server, session=session_of(bob)) as elsewhere:
        nlp(here)
        nlp(elsewhere)
        Session.objects.filter(session_key=session).delete()
        record_sign_out(bob, session, world.now)
        assert here.until_closed(SOON_S) == 4401
        world.submit(gpus=1)
        elsewhere.until(lambda: elsewhere.jobs)
        assert not here.jobs


def test_a_session_that_ends_without_a_word_is_found_out(server, world):
    session = session_of(world.users["bob"])
    with listening(server, session=session) as bob:
        nlp(bob)
        Session.objects.filter(session_key=session).delete()
        assert bob.until_closed(SOON_S) == 4401


def test_a_socket_ends_with_the_old_password(server, world):
    bob = world.users["bob"]
    with listening(server, session=session_of(bob)) as listener:
        nlp(listener)
        bob.set_password("another correct horse")
        bob.save()
        assert listener.until_closed(SOON_S) == 4401


def test_sockets_and_tokens_end_with_the_account(server, world):
    bob = world.users["bob"]
    token, secret = issue_token(bob, "script", world.now)
    with listening(server, session=session_of(bob)) as browser, listening(server, token=secret) as script:
        nlp(browser)
        nlp(script)
        deactivate_user(bob, world.now)
        assert browser.until_closed(SOON_S) == 4401
        assert script.until_closed(SOON_S) == 4401
        world.submit("alice", gpus=1)
        world.settle()
        assert not browser.jobs
        assert not script.jobs
    with listening(server, token=secret) as script:
        assert script.until_closed() == 4401
    assert ApiToken.objects.get(pk=token.pk).last_used_at is None


def test_a_revoked_or_expired_token_hears_no_more(server, world):
    bob = world.users["bob"]
    token, secret = issue_token(bob, "revoked", world.now)
    from datetime import timedelta

    expiring, short = issue_token(bob, "expiring", world.now, expires_at=timezone.now() + timedelta(seconds=2))
    with listening(server, token=secret) as one, listening(server, token=short) as other:
        nlp(one)
        nlp(other)
        revoke_token(token, world.now)
        assert one.until_closed(SOON_S) == 4401
        assert other.until_closed(2 + SOON_S) == 4401
        assert expiring.expires_at is not None
        assert expiring.expires_at <= timezone.now()


def test_who_is_removed_from_a_team_hears_nothing_more_of_it(server, world):
    with listening(server, session=session_of(world.users["bob"])) as bob:
        nlp(bob)
        subscribed(bob, subscribe="pool", pool="train")
        remove_membership(world.users["bob"], world.teams["nlp"], world.now)
        bob.until(lambda: bob.answers[-1].get("ended"), SOON_S)
        assert bob.answers[-1] == {"ended": {"subscribe": "team", "team": "nlp"}, "why": "not_visible"}
        nothing_more_of_nlp_jobs = len(bob.jobs)
        world.submit("alice", gpus=1, name="after-the-removal")
        world.settle()
        bob.until(lambda: any(device[1] == 1000 for device in bob.devices.values()))
        assert len(bob.jobs) == nothing_more_of_nlp_jobs
        assert all(device[6] == [] for device in bob.devices.values())
        assert "after-the-removal" not in bob.heard()


def test_with_nothing_left_to_hear_the_socket_is_closed(server, world):
    with listening(server, session=session_of(world.users["bob"])) as bob:
        nlp(bob)
        remove_membership(world.users["bob"], world.teams["nlp"], world.now)
        assert bob.until_closed(SOON_S) == 4403


def test_what_waited_for_somebody_who_was_removed_meanwhile_is_not_sent(server, world):
    """The removal and what happened after it are committed before the relay looks: it is one batch."""
    with listening(server, session=session_of(world.users["bob"])) as bob:
        nlp(bob)
        subscribed(bob, subscribe="pool", pool="train")
        from events.services import unit_of_work

        with unit_of_work():
            world.submit("alice", gpus=1, name="just-before")
            remove_membership(world.users["bob"], world.teams["nlp"], world.now)
            world.submit("alice", gpus=1, name="just-after")
        bob.until(lambda: bob.answers[-1].get("ended"), SOON_S)
        nothing_more_of_nlp(bob, world)
        assert "just-" not in bob.heard()


def test_a_team_that_moves_takes_its_readers_with_it(server, world):
    """carol sees research and what is below; when nlp leaves research, she sees nlp no more."""
    set_membership(world.users["mallory"], world.teams["research"], "viewer", world.now)
    with listening(server, session=session_of(world.users["mallory"])) as viewer:
        subscribed(viewer, subscribe="team", team="research")
        nlp(viewer)
        job = world.submit(gpus=1)
        viewer.until(lambda: job.pk in viewer.jobs)
        move_team(world.teams["nlp"], None, world.now)
        viewer.until(lambda: viewer.answers[-1].get("ended"), SOON_S)
        nothing_more_of_nlp(viewer, world)


def test_a_new_member_may_subscribe_at_once(server, world):
    with listening(server, session=session_of(world.users["mallory"])) as mallory:
        assert "error" in mallory.ask({"subscribe": "team", "team": "nlp"})
        set_membership(world.users["mallory"], world.teams["nlp"], "viewer", world.now)
        nlp(mallory)


def test_nothing_reads_the_database_when_nobody_listens(server, world):
    from live.relay import relay

    with listening(server, session=session_of(world.users["bob"])) as bob:
        nlp(bob)
        assert not relay.is_idle
    wait_until(lambda: relay.is_idle)
