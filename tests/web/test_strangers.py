"""What one may not see does not exist: every page, found from the resolver, tried as nobody and as a stranger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from scheduling.models import Job

OTHERS = ("admin", "healthz", "api/")
OPEN_TO_NOBODY = {"sign-in", "sign-out"}
# Pages about a team's own things, and about what everyone who is signed in may see.
OWN = {"team", "job", "job-row", "job-cancel", "job-hold", "job-release", "fleet"}
COMMON = {"home", "jobs", "jobs-stop", "job-new", "pools", "pool", "pool-map", "device", "quotas"}


def pages(patterns: Any = None, prefix: str = "") -> Iterator[URLPattern]:
    for entry in get_resolver().url_patterns if patterns is None else patterns:
        path = prefix + str(entry.pattern)
        if path.startswith(OTHERS):
            continue
        if isinstance(entry, URLResolver):
            yield from pages(entry.url_patterns, path)
        else:
            yield entry


NAMES = sorted(str(entry.name) for entry in pages() if entry.name not in OPEN_TO_NOBODY)


def address(name: str, world: Any, job: Any) -> str:
    """The page about the things of the team nlp."""
    given = {
        "team": {"slug": "nlp"},
        "pool": {"name": "train"},
        "pool-map": {"name": "train"},
        "device": {"name": "train", "device_id": world.pool.nodes.get(name="n-0").devices.get(index=0).pk},
    }
    return reverse(
        name, kwargs=given.get(name) or ({"job_id": job.pk} if name.startswith("job") and name in OWN else {})
    )


def ask(client: Client, name: str, where: str) -> Any:
    posts = {"job-cancel", "job-hold", "job-release", "jobs-stop"}
    return client.post(where) if name in posts else client.get(where)


def test_every_page_is_in_one_of_the_two_lists() -> None:
    assert set(NAMES) == OWN | COMMON


@pytest.mark.parametrize("name", NAMES)
def test_nobody_is_sent_to_the_sign_in(name: str, world: Any) -> None:
    where = address(name, world, world.submit(name="secret"))
    answer = ask(Client(), name, where)
    assert answer.status_code == 302
    assert answer.url.startswith("/sign-in?next=")


@pytest.mark.parametrize("name", sorted(OWN))
def test_a_stranger_finds_nothing_and_moves_nothing(name: str, world: Any, sign_in: Any) -> None:
    job = world.submit(name="secret-plan")
    version = job.version
    answer = ask(sign_in("mallory"), name, address(name, world, job))
    assert answer.status_code == 404
    assert b"secret-plan" not in answer.content
    job.refresh_from_db()
    assert (job.state, job.hold, job.version) == ("pending", "", version)


@pytest.mark.parametrize("name", sorted(OWN - {"fleet"}))
def test_what_is_not_there_looks_like_what_is_hidden(name: str, world: Any, sign_in: Any) -> None:
    job = world.submit(name="secret-plan")
    hidden = address(name, world, job)
    missing = hidden.replace("nlp", "nowhere").replace(str(job.pk), "987654")
    client = sign_in("mallory")
    answers = [ask(client, name, where) for where in (hidden, missing)]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].content.replace(b"\n", b"") == answers[1].content.replace(b"\n", b"")


@pytest.mark.parametrize("name", sorted(COMMON - {"jobs-stop"}))
def test_common_pages_tell_a_stranger_no_name(name: str, world: Any, sign_in: Any) -> None:
    waiting = world.submit(name="secret-wait", gpus=4, tasks=3)
    world.submit(name="secret-run", gpus=1)
    world.settle()
    where = address(name, world, waiting)
    answer = sign_in("mallory").get(where, follow=True)
    assert answer.status_code == 200
    for word in (b"secret", b"NLP", b"nlp", b"bob"):
        assert word not in answer.content, word


def test_a_strangers_jobs_are_not_stopped_with_own_ones(world: Any, sign_in: Any) -> None:
    own = world.submit("mallory", team="ads", name="own")
    other = world.submit(name="secret")
    answer = sign_in("mallory").post(reverse("jobs-stop"), {"job": [own.pk, other.pk]})
    assert answer.status_code == 400
    for job in (own, other):
        job.refresh_from_db()
        assert job.state == "pending"


def test_bob_sees_what_mallory_may_not(world: Any, sign_in: Any) -> None:
    job = world.submit(name="secret-plan", gpus=1)
    world.settle()
    client = sign_in("bob")
    for name in sorted((OWN - {"fleet", "job-cancel", "job-hold", "job-release"}) | COMMON - {"jobs-stop"}):
        answer = client.get(address(name, world, job), follow=True)
        assert answer.status_code == 200, name


def test_the_team_above_is_named_to_who_may_see_it_only(world: Any, sign_in: Any) -> None:
    where = reverse("team", args=["nlp"])
    assert "Research" in sign_in("root").get(where).content.decode()
    assert "Research" not in sign_in("bob").get(where).content.decode()


@pytest.mark.parametrize("user", ["root", "alice"])
def test_home_leads_to_where_one_belongs(user: str, world: Any, sign_in: Any) -> None:
    assert sign_in(user).get("/").url == {"root": "/fleet/", "alice": "/teams/nlp/"}[user]


@pytest.mark.parametrize(
    "where", ["/jobs/99999999999999999999/", "/pools/train/devices/99999999999999999999/", "/teams/%00/"]
)
def test_impossible_numbers_and_names_are_not_there(where: str, world: Any, sign_in: Any) -> None:
    assert sign_in("bob").get(where).status_code == 404


@pytest.mark.parametrize("where", ["/jobs/?name=%00", "/jobs/?state=a%00b", "/jobs/new/?clone=%00"])
def test_a_nul_in_a_query_or_a_form_is_a_bad_request(where: str, world: Any, sign_in: Any) -> None:
    client = sign_in("bob")
    assert client.get(where).status_code == 400
    before = Job.objects.count()
    assert client.post("/jobs/new/", {"name": "a\0b", "team": "nlp", "pool": "train", "gpus": "1"}).status_code == 400
    assert Job.objects.count() == before
