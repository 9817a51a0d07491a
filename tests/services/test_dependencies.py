"""Jobs that come after others: how they are named, what is refused, and what becomes of them when something ends."""

from __future__ import annotations

import pytest

from events.errors import Invalid
from events.models import Event
from scheduling.models import Job
from scheduling.services.dependencies import MAX_LINKS
from scheduling.services.holding import release_job
from scheduling.services.reconcile import lose_node
from scheduling.services.stop import cancel_jobs
from scheduling.services.submit import submit_payload
from tests.api.client import make_api


def payload(name="j", **more):
    return {"team": "nlp", "pool": "train", "name": name, "gpus": 1, **more}


def state_of(job):
    found = Job.objects.get(pk=job.pk)
    return (found.state, found.hold)


def message_of(job):
    return Job.objects.get(pk=job.pk).reasons[0]["message"]


def rows():
    return Job.objects.count(), Job.after.through.objects.count(), Event.objects.count()


def test_a_list_may_name_its_earlier_jobs(world):
    first, second, third = submit_payload(
        world.users["bob"],
        [
            payload("prepare", duration="10m"),
            payload("train", duration="10m", after=["prepare"]),
            payload("report", after=["prepare", "train"]),
        ],
        world.now,
    )[0]
    world.settle()
    assert [state_of(job) for job in (first, second, third)] == [
        ("running", ""),
        ("pending", "dependency"),
        ("pending", "dependency"),
    ]
    assert message_of(third) == f"waits for 2 jobs to succeed: prepare ({first.pk}) and train ({second.pk})"
    world.pass_time(minutes=10)
    assert (state_of(second), message_of(third)) == (
        ("running", ""),
        f"waits for 1 job to succeed: train ({second.pk})",
    )
    world.pass_time(minutes=10)
    assert state_of(third) == ("running", "")


BAD = [
    ([0], "must name jobs"),
    ([-1], "must name jobs"),
    ([True], "must name jobs"),
    ([1.5], "must name jobs"),
    ([""], "must name jobs"),
    ({"a": 1}, "must name jobs"),
    ([987654], "there is no job 987654, or you may not see it"),
    ([10**30], "there is no job"),
    ("j", "no earlier job of this list is named 'j'"),
    (["later"], "no earlier job of this list is named 'later'"),
    (["twin"], "several earlier jobs of this list are named 'twin'"),
    ([5, 5], "names a job twice"),
    (list(range(1, 1002)), "must name at most 1000 jobs"),
]


@pytest.mark.parametrize(("after", "message"), BAD, ids=lambda value: str(value)[:30])
def test_what_cannot_be_come_after_is_refused_and_leaves_nothing(world, after, message):
    before = rows()
    jobs = [payload("twin"), payload("twin"), payload("j", after=after), payload("later")]
    with pytest.raises(Invalid) as refused:
        submit_payload(world.users["bob"], jobs, world.now)
    (fault,) = refused.value.faults
    assert fault.field == "[2].after"
    assert message in fault.message
    assert rows() == before


def test_so_many_links_that_nobody_can_mean_them_are_refused(world):
    names = [f"p{i}" for i in range(600)]
    jobs = [payload(name) for name in names] + [payload(f"f{i}", after=names) for i in range(MAX_LINKS // 600 + 1)]
    before = rows()
    with pytest.raises(Invalid, match="names at most 10000 predecessors"):
        submit_payload(world.users["bob"], jobs, world.now)
    assert rows() == before


def test_nobody_comes_after_what_he_may_not_see(world):
    theirs = world.submit("mallory", team="ads", gpus=1, name="secret")
    before = rows()
    with pytest.raises(Invalid, match="or you may not see it"):
        world.submit(after=[theirs.pk])
    assert rows() == before
    # An operator may; those who see only the one team are told the number that stands in its request, no name.
    both = world.submit("root", after=[theirs.pk], gpus=1)
    world.settle()
    assert message_of(both) == f"waits for 1 job to succeed: {theirs.pk}"


def test_rest_tells_both_sides_to_those_who_see_them(world):
    root, bob = make_api(world.users["root"]), make_api(world.users["bob"])
    theirs = world.submit("mallory", team="ads", gpus=1)
    first = bob.post("/jobs", payload("first"))
    second = root.post("/jobs", payload("second", after=[first["id"], theirs.pk]))
    assert (second["hold"], second["after"], second["followers"]) == (
        "dependency",
        sorted([first["id"], theirs.pk]),
        [],
    )
    assert bob.get(f"/jobs/{second['id']}")["after"] == [first["id"]]
    assert bob.get(f"/jobs/{first['id']}")["followers"] == [second["id"]]
    listed = {job["id"]: job for job in bob.get("/jobs")["results"]}
    assert listed[first["id"]]["followers"] == [second["id"]]
    assert make_api(world.users["mallory"]).get(f"/jobs/{theirs.pk}")["followers"] == []
    problem = bob.post("/jobs", payload(after=[theirs.pk]), 404)
    assert problem["field"] == "after"


def test_a_token_that_submits_but_does_not_read_names_its_own_jobs(world):
    pipeline = make_api(world.users["bob"], scopes=["submit"])
    first = pipeline.post("/jobs", payload("first"))
    others = world.submit("alice", gpus=1)
    assert pipeline.post("/jobs", payload("second", after=[first["id"]]))["hold"] == "dependency"
    pipeline.post("/jobs", payload("third", after=[others.pk]), 404)


@pytest.mark.parametrize("how", ["fails", "is cancelled while it waits", "is cancelled while it runs"])
def test_what_comes_after_an_end_without_success_says_so_and_is_its_owners_to_start(world, how):
    blocker = world.submit(gpus=4, tasks=2) if how == "is cancelled while it waits" else None
    world.settle()
    first = world.submit(gpus=1, duration="10m", exit="failed", name="first")
    follower = world.submit(gpus=1, after=[first.pk])
    behind = world.submit(gpus=1, after=[follower.pk])
    world.settle()
    if how == "fails":
        world.pass_time(minutes=10)
    else:
        cancel_jobs([first.pk], world.now)
    world.settle()
    told = "failed" if how == "fails" else "was cancelled"
    assert message_of(follower) == (
        f"waits for 1 job to succeed: first ({first.pk}), which {told}: it never starts by itself, release it to start "
        "it all the same, or cancel it"
    )
    release_job(follower, world.now)
    event = Event.objects.filter(job_id=follower.pk, kind="job.released").get()
    assert (event.data["waived"], event.data["hold"]) == ([first.pk], "")
    if blocker:
        cancel_jobs([blocker.pk], world.now)
    world.settle()
    assert state_of(follower) == ("running", "")
    assert state_of(behind) == ("pending", "dependency")


def test_a_follower_that_was_submitted_after_the_failure_waits_as_one_that_was_before(world):
    first = world.submit(gpus=1, duration="1m", exit="failed")
    world.settle()
    world.pass_time(minutes=1)
    late = world.submit(gpus=1, after=[first.pk])
    world.settle()
    assert state_of(late) == ("pending", "dependency")
    assert "which failed" in message_of(late)


def test_losing_a_node_and_trying_again_are_no_ends(world):
    first = world.submit(gpus=4, duration="10m", exit="failed", retries=2)
    follower = world.submit(gpus=1, after=[first.pk])
    world.settle()
    node = first.allocations.get().node
    lose_node(node, world.clockwork.reconcilers[0].engine, world.now)
    world.settle()
    assert Job.objects.get(pk=first.pk).retries_used == 0
    world.pass_time(minutes=20)
    assert Job.objects.get(pk=first.pk).retries_used == 2
    assert not Event.objects.filter(kind="job.dependency").exists()
    world.pass_time(minutes=10)
    assert state_of(first) == ("failed", "")
    assert Event.objects.filter(kind="job.dependency", job_id=follower.pk).get().data["ended"] == "failed"


def test_a_time_limit_is_not_tried_again(world):
    job = world.submit(gpus=1, time_limit="10m", retries=3)
    world.settle()
    world.pass_time(minutes=10)
    found = Job.objects.get(pk=job.pk)
    assert (found.state, found.retries_used, found.ending_reason) == ("failed", 0, "time_limit")


def test_many_come_after_many_and_all_are_let_go_together(world):
    names = [f"p{i}" for i in range(8)]
    jobs = [payload(name, duration="5m") for name in names]
    jobs += [payload(f"f{i}", gpus=0.05, after=names) for i in range(40)]
    submitted = submit_payload(world.users["bob"], jobs, world.now)[0]
    world.settle()
    assert Job.objects.filter(hold="dependency").count() == 40
    world.pass_time(minutes=5)
    assert {state_of(job) for job in submitted[8:]} == {("running", "")}
    released = Event.objects.filter(kind="job.released").order_by("job_id").values_list("job_id", flat=True)
    assert list(released) == [job.pk for job in submitted[8:]]


def test_cancelling_a_whole_chain_ends_each_once(world):
    jobs = submit_payload(
        world.users["bob"], [payload("a"), payload("b", after=["a"]), payload("c", after=["b"])], world.now
    )[0]
    world.settle()
    cancel_jobs([job.pk for job in jobs], world.now)
    world.settle()
    assert [state_of(job) for job in jobs] == [("cancelled", "")] * 3
    for job in jobs:
        assert Event.objects.filter(job_id=job.pk, kind="job.state", data__state="cancelled").count() == 1
