"""Submitting: all or nothing, names that repeat, cards that differ, requests that cannot be meant."""

from __future__ import annotations

import pytest

from events.errors import Forbidden, Invalid, Refusal
from events.models import Event
from events.services import unit_of_work
from inventory.services import NodeEntry, add_nodes, set_accelerator_model
from quotas.selectors import quotas_in_force
from scheduling.models import Allocation, AllocationDevice, Job, Task
from scheduling.services.submit import submit_payload


def rows() -> tuple[int, ...]:
    return (Job.objects.count(), Task.objects.count(), Allocation.objects.count(), Event.objects.count())


BAD = [
    ({"gpus": 0.07}, "gpus"),
    ({"gpus": 1.5}, "gpus"),
    ({"gpus": -1}, "gpus"),
    ({"gpus": 10**9}, "gpus"),
    ({"gpus": "NaN"}, "gpus"),
    ({"gpus": float("inf")}, "gpus"),
    ({"gpus": True}, "gpus"),
    ({"gpus": [1]}, "gpus"),
    ({"pool": "nowhere"}, "pool"),
    ({"team": "ads"}, "team"),
    ({"team": "no-such-team"}, "team"),
    ({"team": None}, "team"),
    ({"name": "x" * 1_000_000}, "name"),
    ({"name": ""}, "name"),
    ({"name": "a\0b"}, "name"),
    ({"gpu_memory_mib": -1}, "gpu_memory_mib"),
    ({"tasks": 0}, "tasks"),
    ({"tasks": 2, "min_tasks": 3}, "min_tasks"),
    ({"colour": "red"}, "colour"),
    ({"topology": {"level": "row"}}, "topology.level"),
    ({"topology": {"required": True}}, "topology.level"),
    ({"topology": {"level": ["rack"]}}, "topology.level"),
    ({"topology": {"level": "rack", "required": "yes"}}, "topology.required"),
    ({"topology": {"level": "rack", "kept": True}}, "topology.kept"),
    ({"topology": "rack"}, "topology"),
    ({"apart": "row"}, "apart"),
    ({"apart": ["host"]}, "apart"),
    ({"tasks": 2, "topology": {"level": "rack"}, "apart": "rack"}, "apart"),
    ({"tasks": 2, "topology": {"level": "host"}, "apart": "host"}, "apart"),
    ({"tolerations": ["dedicated"]}, "tolerations"),
    ({"tolerations": {"dedicated": 1}}, "tolerations"),
    ({"after": ["x"]}, "after"),
    ({"priority": "royal"}, "priority"),
    ({"kind": "magic"}, "kind"),
    ({"kind": "service", "retries": 1}, "retries"),
    ({"max_evictions": -1}, "max_evictions"),
    ({"max_evictions": 1.5}, "max_evictions"),
    ({"time_limit": "0s"}, "time_limit"),
    ({"duration": "soon"}, "duration"),
]


@pytest.mark.parametrize(("wrong", "field"), BAD, ids=lambda value: str(value)[:40])
def test_what_cannot_be_meant_is_refused_by_field_and_leaves_nothing(world, wrong, field):
    before = rows()
    payload = {"team": "nlp", "pool": "train", "name": "job", "gpus": 1, **wrong}
    with pytest.raises(Invalid) as refused:
        submit_payload(world.users["bob"], payload, world.now)
    assert [fault.field for fault in refused.value.faults] == [field]
    assert rows() == before


def test_one_bad_job_in_a_list_leaves_none(world):
    before = rows()
    payload = [{"team": "nlp", "gpus": 1}, {"team": "nlp", "gpus": 0.07}, {"team": "nlp", "gpus": 1, "x": 1}]
    with pytest.raises(Invalid) as refused:
        submit_payload(world.users["bob"], payload, world.now)
    assert [fault.field for fault in refused.value.faults] == ["[1].gpus", "[2].x"]
    assert rows() == before


def test_a_viewer_may_not_submit(world):
    from tenants.services import set_membership

    set_membership(world.users["mallory"], world.teams["nlp"], "viewer", world.now)
    before = rows()
    with pytest.raises(Forbidden):
        world.submit("mallory", gpus=1)
    assert rows() == before


def test_refused_posts_are_not_charged_and_a_big_job_still_fits(world):
    from quotas.services import set_quota

    set_quota(world.teams["nlp"], world.pool, world.now, limit=8000)
    world.submit(name="train", gpus=1)
    world.settle()
    for _ in range(5):
        with pytest.raises(Refusal):
            world.submit(name="train", gpus=1, image="\x00")
        assert sum(Allocation.objects.values_list("milli", flat=True)) == 1000
    big = world.submit(name="big", gpus=1, tasks=7)
    world.settle()
    big.refresh_from_db()
    assert big.state == Job.State.RUNNING


def test_a_name_may_repeat_in_and_across_teams_and_never_replaces_a_job(world):
    first = world.submit("bob", name="resnet", gpus=1)
    second = world.submit("mallory", team="ads", name="resnet", gpus=1)
    world.settle()
    third = world.submit("bob", name="resnet", gpus=1)
    world.settle()
    assert len({first.pk, second.pk, third.pk}) == 3
    for job in (first, second, third):
        job.refresh_from_db()
        assert job.state == Job.State.RUNNING
    assert Allocation.objects.filter(job=first).count() == 1


def test_two_long_names_that_differ_in_the_last_letter_both_run(world):
    jobs = [world.submit(name="n" * 79 + letter, gpus=1) for letter in "ab"]
    world.settle()
    assert [Job.objects.get(pk=job.pk).state for job in jobs] == ["running", "running"]
    assert {Job.objects.get(pk=job.pk).name for job in jobs} == {"n" * 79 + "a", "n" * 79 + "b"}


@pytest.mark.parametrize("what", [{"gpus": 8}, {"gpus": 1, "tasks": 8}], ids=["one task", "eight tasks"])
def test_whole_devices_take_each_cards_own_memory(world, what):
    model = set_accelerator_model("RTX", "nvidia", 24576)
    devices = tuple((model, memory, "") for memory in [24576] * 7 + [24000])
    add_nodes(world.pool, [NodeEntry("mixed", 64_000, 524_288, devices)], world.now)
    job = world.submit(model="RTX", **what)
    world.settle()
    job.refresh_from_db()
    assert job.state == Job.State.RUNNING
    memories = list(AllocationDevice.objects.filter(allocation__job=job).values_list("memory_mib", flat=True))
    assert sorted(memories) == [24000] + [24576] * 7
    assert sum(memories) == 196032
    assert sum(Allocation.objects.filter(job=job).values_list("milli", flat=True)) == 8000


class Forced(Exception):
    pass


def submit_and_fail(world, **payload) -> None:
    with unit_of_work():
        world.submit(**payload)
        raise Forced


def test_a_submission_that_is_rolled_back_leaves_no_job_no_work_and_no_bell(world, django_capture_on_commit_callbacks):
    before = rows()
    with django_capture_on_commit_callbacks() as callbacks:
        for _ in range(20):
            with pytest.raises(Forced):
                submit_and_fail(world, gpus=1)
    assert callbacks == []
    assert rows() == before
    world.settle()
    assert rows() == before


def test_a_refusal_inside_a_larger_unit_takes_only_its_own_part_back(world):
    with unit_of_work():
        world.submit(name="kept", gpus=1)
        with pytest.raises(Forced):
            submit_and_fail(world, name="lost", gpus=1)
    assert list(Job.objects.values_list("name", flat=True)) == ["kept"]
    assert Event.objects.filter(kind="job.submitted").count() == 1


def test_quotas_are_untouched_by_what_is_refused(world):
    before = quotas_in_force(world.now)
    with pytest.raises(Refusal):
        world.submit(gpus=0.07)
    assert quotas_in_force(world.now) == before


def test_cancelling_a_thousand_takes_a_few_queries(world, django_assert_max_num_queries):
    from scheduling.services.stop import cancel_jobs

    payload = [{"team": "nlp", "pool": "train", "gpus": 1} for _ in range(1000)]
    jobs, _ = submit_payload(world.users["bob"], payload, world.now)
    ids = [job.pk for job in jobs]
    with django_assert_max_num_queries(40):
        assert len(cancel_jobs(ids, world.now).at_once) == 1000
    assert len(cancel_jobs(ids, world.now).ended_before) == 1000
    assert Event.objects.filter(kind="job.state", data__state="cancelled").count() == 1000
    world.settle()
    assert not Allocation.objects.exists()
