"""What pages show and do, asked for as a browser would, without one."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse

from scheduling.models import Job

ROOT = Path(settings.ROOT)
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))


def text(answer: Any) -> str:
    """What a reader of the page sees, in one line."""
    body = re.sub(r"<(script|template|style)\b.*?</\1>", " ", answer.content.decode(), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


# ---- what holds on every page ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_inline(path: Path) -> None:
    """The content policy forbids it, and a browser would only say so in its console."""
    source = path.read_text(encoding="utf-8")
    assert not re.search(r"\sstyle=", source)
    assert not re.search(r"\son[a-z]+=", source)
    assert not re.search(r"<style\b", source)
    assert not re.search(r"<script(?![^>]*\bsrc=)", source)


def test_every_icon_that_a_page_names_is_in_the_sprite() -> None:
    sprite = (ROOT / "static" / "vendor" / "tabler-icons-3.52.0" / "sprite.svg").read_text(encoding="utf-8")
    known = set(re.findall(r'<symbol id="([^"]+)"', sprite))
    sources = [path.read_text(encoding="utf-8") for path in TEMPLATES]
    named = {name for source in sources for name in re.findall(r'{% icon "([^"]+)"', source)}
    named |= {name for source in sources for name in re.findall(r'(?:with name|icon_name)="([a-z0-9-]+)"', source)}
    from config.statuses import KINDS
    from scheduling.job_templates import TEMPLATES as JOB_TEMPLATES

    named |= {status.icon for kind in KINDS.values() for status in kind.values()}
    named |= {template.icon for template in JOB_TEMPLATES}
    assert named - known == set()


def test_every_state_of_a_job_has_a_status() -> None:
    from config.statuses import JOB

    assert set(Job.State.values) <= set(JOB)


def test_pages_run_under_a_strict_policy(world: Any, sign_in: Any) -> None:
    policy = sign_in("bob").get(reverse("jobs")).headers["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_pages_are_kept_in_no_cache(world: Any, sign_in: Any) -> None:
    assert "no-store" in sign_in("bob").get(reverse("jobs")).headers["Cache-Control"]


# ---- signing in and out ----------------------------------------------------------------------------------------------


def test_signing_in_leads_to_the_page_that_was_asked_for(world: Any) -> None:
    client = Client()
    answer: Any = client.post(
        "/sign-in?next=/quotas/", {"username": "BOB", "password": "correct horse battery", "next": "/quotas/"}
    )
    assert answer.url == "/quotas/"


def test_signing_in_leads_nowhere_else(world: Any) -> None:
    form = {"username": "bob", "password": "correct horse battery", "next": "https://elsewhere.example/"}
    answer: Any = Client().post("/sign-in", form)
    assert answer.url == "/"


def test_a_wrong_password_keeps_the_name_and_tells_nothing_more(world: Any) -> None:
    answers = [Client().post("/sign-in", {"username": name, "password": "wrong"}) for name in ("bob", "nobody")]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert 'value="bob"' in answers[0].content.decode()
    assert all("do not belong together" in text(answer) for answer in answers)


def test_signing_out_takes_a_post_and_tells_the_sockets(world: Any, sign_in: Any) -> None:
    from events.models import Event

    client = sign_in("bob")
    assert client.get("/sign-out").status_code == 405
    assert client.post("/sign-out").url == "/sign-in"
    assert Event.objects.filter(kind="session.ended", actor_id=world.users["bob"].pk).count() == 1
    assert client.get("/jobs/").status_code == 302


def test_a_form_without_its_token_gets_a_page_that_says_so(world: Any) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(world.users["bob"])
    answer = client.post("/jobs/new/", {"name": "x"})
    assert answer.status_code == 403
    assert "expired" in text(answer)


# ---- overview --------------------------------------------------------------------------------------------------------


def test_the_overview_shows_share_jobs_and_spend_exactly(world: Any, sign_in: Any) -> None:
    from quotas.services import set_quota

    set_quota(world.teams["nlp"], world.pool, world.now, guaranteed=2000, limit=6000)
    world.submit(name="runs", gpus=4)
    world.submit(name="waits", gpus=4)
    world.settle()
    world.pass_time(hours=1)
    answer = sign_in("bob").get(reverse("team", args=["nlp"]))
    seen = text(answer)
    assert "Allocated 4" in seen
    assert "Guaranteed 2" in seen
    assert "Limit 6" in seen
    assert "runs" in seen
    assert "waits" in seen
    assert answer.context["counts"] == {"waiting": 1, "running": 1}


def test_the_overview_takes_few_queries_however_many_jobs(
    world: Any, sign_in: Any, django_assert_max_num_queries: Any
) -> None:
    for number in range(12):
        world.submit(name=f"job-{number}", gpus=1)
    world.settle()
    client = sign_in("bob")
    client.get(reverse("team", args=["nlp"]))
    with django_assert_max_num_queries(46):
        client.get(reverse("team", args=["nlp"]))


def test_a_part_is_asked_for_by_htmx_and_the_whole_otherwise(world: Any, sign_in: Any) -> None:
    client = sign_in("bob")
    whole = client.get("/teams/nlp/?part=live")
    part = client.get("/teams/nlp/?part=live", headers={"HX-Request": "true"})
    assert b"<html" in whole.content
    assert b"<html" not in part.content
    assert "Spent this month" in text(part)


# ---- jobs ------------------------------------------------------------------------------------------------------------


def names(answer: Any) -> list[str]:
    return [row.job.name for row in answer.context["page"].rows]


def test_pages_of_jobs_are_complete_and_stable_while_jobs_come_in(world: Any, sign_in: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("scheduling.views.jobs.job_page", _by_three)
    submitted = [world.submit(name=f"job-{number}").name for number in range(8)]
    client = sign_in("bob")
    seen, where = [], "/jobs/"
    for _ in range(3):
        answer = client.get(where)
        seen += names(answer)
        world.submit(name="late")
        where = f"/jobs/?after={answer.context['page'].after}".replace("+", "%2B")
    assert seen == submitted[::-1]
    assert answer.context["page"].after == ""
    back = client.get(f"/jobs/?before={answer.context['page'].before}".replace("+", "%2B"))
    assert names(back) == submitted[2:5][::-1]


def _by_three(user: Any, wanted: Any, now: Any) -> Any:
    from scheduling.browsing import job_page

    return job_page(user, wanted, now, size=3)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("state=waiting", {"c"}),
        ("state=running", {"a", "b"}),
        ("state=finished", set()),
        ("q=B", {"b"}),
        ("team=nlp", {"a", "b", "c"}),
        ("team=research", {"a", "b", "c"}),
        ("team=ads", set()),
        ("pool=train&user=bob", {"a", "b", "c"}),
        ("pool=elsewhere", set()),
        ("state=nonsense&sort=nonsense&after=nonsense", {"a", "b", "c"}),
        ("after=x~1&sort=gpus", {"a", "b", "c"}),
    ],
)
def test_filters(query: str, found: set[str], world: Any, sign_in: Any) -> None:
    for name, gpus in (("a", 4), ("b", 4), ("c", 4)):
        world.submit(name=name, gpus=gpus)
    world.settle()
    assert set(names(sign_in("bob").get(f"/jobs/?{query}"))) == found


@pytest.mark.parametrize(("sort", "order"), [("name", "abc"), ("-name", "cba"), ("gpus", "bca"), ("-submitted", "bca")])
def test_order(sort: str, order: str, world: Any, sign_in: Any) -> None:
    for name, gpus in (("b", 4), ("c", 2), ("a", 1)):
        world.submit(name=name, gpus=gpus)
        world.pass_time(seconds=1)
    assert "".join(names(sign_in("bob").get(f"/jobs/?sort={sort}"))) == order


def test_a_job_that_waits_says_why_with_numbers(world: Any, sign_in: Any) -> None:
    from quotas.services import set_quota

    set_quota(world.teams["nlp"], world.pool, world.now, limit=2000)
    job = world.submit(name="large", gpus=4)
    world.settle()
    seen = text(sign_in("bob").get(reverse("job", args=[job.pk])))
    assert "would pass its limit in train: 0 of 2 GPUs in use, this job needs 4" in seen
    assert "a limit of 4 GPUs for nlp, 2 more than now" in seen


def test_a_job_that_waits_says_when_it_starts_if_that_can_be_told(world: Any, sign_in: Any) -> None:
    world.submit(name="endless", gpus=4)
    blocker = world.submit(name="blocker", gpus=4, time_limit="2h")
    job = world.submit(name="next", gpus=4)
    after = world.submit(name="after-it", gpus=4)
    world.settle()
    job.refresh_from_db()
    blocker.refresh_from_db()
    assert job.estimated_start == blocker.started_at + timedelta(hours=2)
    client = sign_in("bob")
    assert "It starts about" in text(client.get(reverse("job", args=[job.pk])))
    assert "Nobody can tell yet when it starts" in text(client.get(reverse("job", args=[after.pk])))


def test_a_job_shows_where_it_runs_and_what_it_costs(world: Any, sign_in: Any) -> None:
    job = world.submit(name="quarter", gpus=0.25, duration="90s")
    world.settle()
    client = sign_in("bob")
    assert "n-0" in text(client.get(reverse("job", args=[job.pk])))
    world.pass_time(seconds=90)
    answer = client.get(reverse("job", args=[job.pk]))
    assert answer.context["cost"].amount == Decimal("0.015")
    assert "€0.0150" in text(answer)
    assert "Succeeded" in text(answer)


def test_actions_go_through_and_lead_back(world: Any, sign_in: Any) -> None:
    job = world.submit(name="one", gpus=1)
    client = sign_in("bob")
    for action, wanted in (("hold", ("pending", "owner")), ("release", ("pending", "")), ("cancel", ("cancelled", ""))):
        answer = client.post(reverse(f"job-{action}", args=[job.pk]))
        assert answer.url == reverse("job", args=[job.pk])
        job.refresh_from_db()
        assert (job.state, job.hold) == wanted


def test_what_cannot_be_done_now_is_a_page_that_says_so(world: Any, sign_in: Any) -> None:
    job = world.submit(name="one", gpus=1)
    world.settle()
    answer = sign_in("bob").post(reverse("job-hold", args=[job.pk]))
    assert answer.status_code == 409
    assert "Only a job that waits can be held" in text(answer)


def test_many_jobs_are_stopped_at_once(world: Any, sign_in: Any) -> None:
    jobs = [world.submit(name=f"job-{number}", gpus=4) for number in range(3)]
    world.settle()
    sign_in("bob").post(reverse("jobs-stop"), {"job": [job.pk for job in jobs], "next": "/jobs/?state=waiting"})
    world.settle()
    assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}


# ---- new job ---------------------------------------------------------------------------------------------------------

FORM = {"team": "nlp", "pool": "train", "name": "hello", "command": "python3 -c \"print('hello')\"", "gpus": "0.5"}


def test_the_form_submits_what_the_api_would(world: Any, sign_in: Any) -> None:
    answer = sign_in("bob").post(
        "/jobs/new/", {**FORM, "environment": "A=1\nB=x=y", "memory_gib": "1.5", "preemptible": "no"}
    )
    job = Job.objects.get()
    assert answer.url == reverse("job", args=[job.pk])
    assert job.command == ["python3", "-c", "print('hello')"]
    assert job.environment == {"A": "1", "B": "x=y"}
    assert (job.milli_wanted, job.preemptible, job.user.username) == (500, False, "bob")
    assert job.groups.get().host_memory_mib == 1536


@pytest.mark.parametrize(
    ("together", "topology", "shown"),
    [
        ("rack", {"level": "rack", "required": True}, "in one rack"),
        ("host-if-possible", {"level": "host", "required": False}, "if possible"),
        ("", None, ""),
    ],
)
def test_the_form_asks_for_tasks_together_and_apart(world: Any, sign_in: Any, together: str, topology: Any, shown: str):
    client = sign_in("bob")
    client.post("/jobs/new/", {**FORM, "together": together, "apart": "host"})
    job = Job.objects.get()
    assert (job.topology, job.apart) == (topology, "host")
    text = client.get(reverse("job", args=[job.pk])).content.decode()
    assert shown in text
    assert "each task on a node of its own" in text
    again = client.get(f"/jobs/new/?clone={job.pk}").context["values"]
    assert (again["together"], again["apart"]) == (together, "host")


def test_a_form_whose_tasks_have_no_place_is_told_at_its_field(world: Any, sign_in: Any) -> None:
    answer = sign_in("bob").post("/jobs/new/", {**FORM, "tasks": "2", "together": "rack", "apart": "zone"})
    assert answer.status_code == 422
    assert "leaves no place for 2 tasks" in answer.content.decode()
    assert Job.objects.count() == 0


def test_a_form_that_is_sent_twice_submits_once(world: Any, sign_in: Any) -> None:
    client = sign_in("bob")
    first, again = (client.post("/jobs/new/", {**FORM, "form_key": "k1"}) for _ in range(2))
    assert first.url == again.url
    assert Job.objects.count() == 1
    client.post("/jobs/new/", {**FORM, "form_key": "k1", "name": "another"})
    assert Job.objects.count() == 2


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("gpus", "0.07", "nearest are 0.05 and 0.1"),
        ("gpus", "1.5", "nearest are 1 and 2"),
        ("gpus", "1000000000", "one task can have at most 256 GPUs"),
        ("gpus", "a few", "is not a number"),
        ("gpus", "nan", "is not a finite number"),
        ("pool", "nowhere", "there is no such pool"),
        ("team", "ads", "is not a team that you belong to"),
        ("memory_gib", "-1", "must be from 0"),
        ("tasks", "2.5", "must be a whole number"),
        ("name", "x" * 300, "must have 1 to 200 characters"),
        ("command", "python3 'open", "cannot be split into words"),
        ("environment", "no equals sign", "write one NAME=value a line"),
        ("time_limit", "soon", "is not a duration"),
        ("priority", "urgent", "is not a priority class open to you"),
    ],
)
def test_a_wrong_value_is_told_at_its_field_and_everything_typed_is_kept(
    field: str, value: str, message: str, world: Any, sign_in: Any
) -> None:
    answer = sign_in("bob").post("/jobs/new/", {**FORM, field: value})
    assert answer.status_code == 422
    assert message in " ".join(fault["message"] for fault in answer.context["faults"][field])
    page = answer.content.decode()
    assert f'aria-describedby="field-{field}-fault"' in page
    if field not in ("pool", "team", "priority"):
        assert value in page.replace("&#x27;", "'")
    assert 'value="hello"' in page or field == "name"
    assert Job.objects.count() == 0


def test_the_preview_shows_the_price_and_the_same_request_for_the_api(world: Any, sign_in: Any) -> None:
    answer = sign_in("bob").post("/jobs/new/?part=preview", FORM, headers={"HX-Request": "true"})
    assert "€1.20" in text(answer)
    request = answer.context["curl"].partition("--data-binary ")[2]
    import shlex

    assert json.loads(shlex.split(request)[0]) == {**FORM, "gpus": 0.5}
    assert Job.objects.count() == 0


@pytest.mark.parametrize(
    "template", [template.key for template in __import__("scheduling.job_templates", fromlist=["x"]).TEMPLATES]
)
def test_every_template_is_a_request_that_can_be_read(template: str, world: Any, sign_in: Any) -> None:
    from scheduling.job_form import payload_of
    from scheduling.services.submit import read_payload

    values = sign_in("bob").get(f"/jobs/new/?template={template}&team=nlp&pool=train").context["values"]
    payload, unread = payload_of(values)
    assert unread == []
    assert len(read_payload(payload)) == 1


def test_a_clone_asks_for_the_same(world: Any, sign_in: Any) -> None:
    from scheduling.job_form import payload_of
    from scheduling.services.submit import read_payload

    asked = {"gpus": 0.5, "devices": 2, "tasks": 3, "min_tasks": 2, "cpu": 1.5, "memory_gib": 2, "time_limit": "2h"}
    job = world.submit(name="first", command=["echo", "a b"], environment={"A": "1"}, preemptible=False, **asked)
    values = sign_in("bob").get(f"/jobs/new/?clone={job.pk}").context["values"]
    (again,) = read_payload(payload_of(values)[0])
    (first,) = read_payload(
        {
            "team": "nlp",
            "pool": "train",
            "name": "first",
            "command": ["echo", "a b"],
            "environment": {"A": "1"},
            "preemptible": False,
            **asked,
        }
    )
    assert again == first


# ---- pools and quotas ------------------------------------------------------------------------------------------------


def test_the_map_holds_every_device_and_names_only_own_slices(world: Any, sign_in: Any) -> None:
    world.submit(name="nlp-job", gpus=0.5)
    world.submit("mallory", team="ads", name="ads-job", gpus=0.25)
    world.settle()
    maps = {name: json.loads(sign_in(name).get("/pools/train/map.json").content) for name in ("bob", "mallory", "root")}
    assert [len(node["devices"]) for node in maps["bob"]["nodes"]] == [4, 4]
    slices = {
        name: sorted(each[1] for node in found["nodes"] for device in node["devices"] for each in device[5])
        for name, found in maps.items()
    }
    assert slices == {"bob": ["nlp"], "mallory": ["ads"], "root": ["ads", "nlp"]}
    held = [sum(device[3] for node in found["nodes"] for device in node["devices"]) for found in maps.values()]
    assert held == [750, 750, 750]


def test_a_device_names_own_slices_and_sums_up_the_others(world: Any, sign_in: Any) -> None:
    from inventory.services import change_pool

    change_pool(world.pool, world.now, placement="binpack")
    world.submit(name="nlp-job", gpus=0.5)
    world.submit("mallory", team="ads", name="ads-job", gpus=0.25)
    world.settle()
    from inventory.models import Device

    device = Device.objects.get(compute_allocated_milli=750)
    seen = text(sign_in("bob").get(reverse("device", args=["train", device.pk])))
    assert "nlp-job" in seen
    assert "0.25 other teams" in seen
    assert "ads" not in seen


def test_the_queue_is_in_the_schedulers_order(world: Any) -> None:
    from inventory.services import change_pool
    from quotas.services import set_quota
    from scheduling.queue import queue

    set_quota(world.teams["ads"], world.pool, world.now, guaranteed=4000)
    # Long enough to be left alone: what is asked here is the order of those who wait.
    change_pool(world.pool, world.now, min_runtime_s=3600)
    blocker = world.submit(name="blocker", gpus=4, tasks=2)
    world.settle()
    for name, team, user, priority in (
        ("n1", "nlp", "bob", "low"),
        ("n2", "nlp", "bob", "high"),
        ("a1", "ads", "mallory", "normal"),
    ):
        world.submit(user, team=team, name=name, gpus=2, priority=priority)
        world.pass_time(seconds=1)
    blocker.refresh_from_db()
    assert blocker.state == "running"
    assert [each.job.name for each in queue(world.pool, world.now, 10)] == ["a1", "n2", "n1"]


def test_a_job_that_gave_way_says_so(world: Any, sign_in: Any) -> None:
    from quotas.services import set_quota

    set_quota(world.teams["ads"], world.pool, world.now, guaranteed=4000)
    borrower = world.submit(name="borrower", gpus=4, tasks=2, min_tasks=1)
    world.settle()
    world.submit("mallory", team="ads", name="owner-of-it", gpus=4)
    world.settle()
    world.pass_time(seconds=1)
    seen = text(sign_in("bob").get(reverse("job", args=[borrower.pk])))
    assert "One task gives way" in seen
    assert "its owner wants it back" in seen
    assert "owner-of-it" not in seen


def test_quotas_show_the_tree_as_far_as_one_may_see(world: Any, sign_in: Any) -> None:
    answers = {name: sign_in(name).get("/quotas/").context["rows"] for name in ("bob", "root")}
    assert [row["team"].slug for row in answers["bob"]] == ["nlp"]
    assert [(row["team"].slug, row["depth"]) for row in answers["root"]] == [
        ("ads", 0),
        ("research", 0),
        ("nlp", 1),
        ("vision", 1),
    ]


def test_errors_have_pages(world: Any, sign_in: Any) -> None:
    answer = sign_in("bob").get("/no/such/page")
    assert answer.status_code == 404
    assert "Not found" in text(answer)
    quiet = sign_in("bob").get("/teams/ads/", headers={"HX-Request": "true"})
    assert quiet.status_code == 404
    assert quiet.headers["X-Refusal"] == "1"
    assert b"<" not in quiet.content


def test_our_own_fault_has_a_page_too(world: Any, sign_in: Any, monkeypatch: Any) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr("config.views.pools.pool_cards", broken)
    client = sign_in("bob")
    client.raise_request_exception = False
    answer = client.get("/pools/")
    assert answer.status_code == 500
    assert "on our side" in text(answer)
    assert b"broken on purpose" not in answer.content
