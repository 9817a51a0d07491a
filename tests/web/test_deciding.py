"""Pages that tell what the scheduler decided, and what it would decide."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from events.models import Event
from quotas.services import set_quota
from scheduling.models import Decision, Job
from tests.web.test_pages import text

FORM = {"team": "nlp", "pool": "train", "name": "tried", "gpus": "0.5", "kind": "batch", "priority": "normal"}
HTMX = {"HX-Request": "true"}
CHECK = "/jobs/new/?part=check"


def rows() -> tuple[int, int, int]:
    return Job.objects.count(), Event.objects.count(), Decision.objects.count()


@pytest.mark.parametrize("headers", [HTMX, {}], ids=["htmx", "plain"])
def test_a_job_is_checked_before_it_is_submitted(headers: Any, world: Any, sign_in: Any) -> None:
    before = rows()
    answer = sign_in("bob").post(CHECK, FORM, headers=headers)
    seen = text(answer)
    assert answer.status_code == 200
    assert "It would start at once." in seen
    assert "n-0 A100-80G · device 0 · 0.5 GPU · 40 GiB" in seen
    assert "€1.20 an hour" in seen
    assert "Estimated start now" in seen
    assert rows() == before
    whole = 'id="new-job"' in answer.content.decode()
    assert whole == (not headers)
    if whole:
        assert 'value="tried"' in answer.content.decode()  # what was typed is still there


def test_what_would_wait_says_why_and_for_how_many_but_not_for_whom(world: Any, sign_in: Any) -> None:
    for team in ("nlp", "ads"):
        set_quota(world.teams[team], world.pool, world.now, guaranteed=4000)
    for number in range(8):
        world.submit("mallory", team="ads", name=f"secret-{number}", gpus=1)
    world.settle()
    before = rows()
    seen = text(sign_in("bob").post(CHECK, {**FORM, "gpus": "2"}, headers=HTMX))
    assert "It would start once 2 running jobs have given way." in seen
    assert "one of another team" in seen
    assert "secret" not in seen
    assert "not known" in seen
    assert rows() == before
    seen = text(sign_in("bob").post(CHECK, {**FORM, "gpus": "8", "tasks": "2"}, headers=HTMX))
    assert "It would wait." in seen
    assert "€38.40 an hour" in seen


@pytest.mark.parametrize("headers", [HTMX, {}], ids=["htmx", "plain"])
def test_what_is_wrong_is_said_as_by_a_submission(headers: Any, world: Any, sign_in: Any) -> None:
    before = rows()
    answer = sign_in("bob").post(CHECK, {**FORM, "gpus": "0.123"}, headers=headers)
    assert answer.status_code == (200 if headers else 422)
    assert "0.1" in text(answer)
    assert "It would" not in text(answer)
    answer = sign_in("mallory").post(CHECK, FORM, headers=HTMX)
    assert "is not a team that you belong to" in text(answer).lower()
    assert rows() == before


def test_the_job_tells_what_was_decided_and_names_no_strangers(world: Any, sign_in: Any) -> None:
    for team in ("nlp", "ads"):
        set_quota(world.teams[team], world.pool, world.now, guaranteed=4000)
    borrower = world.submit(name="borrower", gpus=1, tasks=8, min_tasks=4)
    world.settle()
    owner = world.submit("mallory", team="ads", name="owner-of-it", gpus=2)
    world.clockwork.scheduler.cycle(world.now)
    seen = text(sign_in("bob").get(reverse("job", args=[borrower.pk])))
    assert "What the scheduler decided" in seen
    assert "Told to give back 2 GPUs to a job of another team, which needs 2 GPUs" in seen
    assert "Started inside the guarantee: nlp held 0 GPUs of 4 GPUs guaranteed" in seen
    cycle = Decision.objects.filter(kind="evict").get().cycle
    assert f"cycle {cycle}" in seen
    assert f"job {owner.pk}" not in seen
    assert f"to job {owner.pk}, which needs" in text(sign_in("root").get(reverse("job", args=[borrower.pk])))
    # And the one that waits for it: how many, not whose.
    seen = text(sign_in("mallory").get(reverse("job", args=[owner.pk])))
    assert "waits until 1 job that gives way has stopped: one of another team" in seen.lower()
    part = sign_in("bob").get(f"{reverse('job', args=[borrower.pk])}?part=live", headers=HTMX).content.decode()
    assert 'id="job-decisions"' in part


def test_a_job_that_nobody_gives_way_to_is_told_why(world: Any, sign_in: Any) -> None:
    for team in ("nlp", "ads"):
        set_quota(world.teams[team], world.pool, world.now, guaranteed=4000)
    world.submit("mallory", team="ads", name="secret", gpus=4, tasks=2, min_runtime="1h")
    world.settle()
    waits = world.submit(gpus=4)
    world.settle()
    seen = text(sign_in("bob").get(reverse("job", args=[waits.pk])))
    assert "Nobody gives way: other teams hold 4 GPUs above their shares" in seen
    assert "secret" not in seen
