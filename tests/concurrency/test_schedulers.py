"""Several front ends and several schedulers at the same moment, for real: one truth, each job once, no limit passed."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.db import IntegrityError

from billing.models import UsageRecord
from events.errors import Conflict, Refusal
from events.models import Event
from inventory.models import Device
from quotas.services import set_quota
from scheduling.core.decide import decide
from scheduling.models import Allocation, Job, SubmissionKey
from scheduling.services.cycle import Scheduler
from scheduling.services.lease import LEASE_TIME, LostLease
from scheduling.services.stop import cancel_jobs
from scheduling.services.submit import submit_payload
from tests.concurrency.accounts import faults_in_the_books, used
from tests.concurrency.racing import Worker, at_once, raised

pytestmark = pytest.mark.django_db(transaction=True)


# ---- several front ends, several schedulers --------------------------------------------------------------------------


@pytest.mark.slow
def test_two_front_ends_never_admit_past_the_limit(world):
    set_quota(world.teams["nlp"], world.pool, world.now, limit=5000)
    world.submit(gpus=4)
    world.settle()
    workers = [Worker("submitter", user) for user in ("bob", "alice")]
    assert [worker.answer() for worker in workers] == ["ready", "ready"]
    for _ in range(100):
        ask = json.dumps({"job": {"team": "nlp", "pool": "train", "gpus": 1}, "now": world.now.isoformat()})
        for worker in workers:
            worker.send(ask)
        ids = [int(worker.answer()) for worker in workers]
        world.settle()
        assert used() == 5000
        states = dict(Job.objects.filter(pk__in=ids).values_list("state", "reasons"))
        assert set(states) == {Job.State.RUNNING, Job.State.PENDING}
        assert [reason["code"] for reason in states[Job.State.PENDING]] == ["over_limit"]
        cancel_jobs(ids, world.now)
        world.settle()
        assert used() == 4000
    assert [worker.end() for worker in workers] == [0, 0]
    assert faults_in_the_books() == []


def under_a_limit_with_two_jobs_that_fit_alone(world) -> tuple[Scheduler, Scheduler, Job, Job]:
    """Limit 4.5, used 4, two jobs of half a GPU, and two schedulers that each have seen one of them."""
    set_quota(world.teams["nlp"], world.pool, world.now, limit=4500)
    world.submit(gpus=4)
    world.settle()
    world.clockwork.scheduler.stand_down()
    first, second = Scheduler("first"), Scheduler("second")
    assert first.lead(world.now)
    jobs = [world.submit(gpus=0.5) for _ in range(2)]
    for scheduler, unseen in ((first, jobs[1]), (second, jobs[0])):
        scheduler.picture.load(world.now)
        del scheduler.picture.pending[unseen.pk]
    return first, second, *jobs


def test_without_the_lease_two_schedulers_pass_the_limit(world):
    first, second, *_ = under_a_limit_with_two_jobs_that_fit_alone(world)
    second.lease = first.lease  # the guard taken away: both believe to lead
    for scheduler in (first, second):
        scheduler._commit(decide(scheduler.picture.snapshot(world.now)), world.now, 0.0)
    assert used() == 5000


def test_with_the_lease_the_one_who_lost_it_commits_nothing(world):
    first, second, *_ = under_a_limit_with_two_jobs_that_fit_alone(world)
    plan = decide(first.picture.snapshot(world.now))
    later = world.now + LEASE_TIME + timedelta(seconds=1)
    assert second.lead(later)
    second.cycle(later, force=True)
    assert used() == 4500
    with pytest.raises(LostLease):
        first._commit(plan, later, 0.0)
    with pytest.raises(LostLease):
        first.cycle(later, force=True)
    assert used() == 4500
    assert faults_in_the_books() == []


@pytest.mark.parametrize("round_number", range(3))
def test_four_schedulers_in_one_moment_start_each_job_once(world, round_number):
    world.clockwork.scheduler.stand_down()
    jobs, _ = submit_payload(
        world.users["bob"], [{"team": "nlp", "pool": "train", "gpus": 1} for _ in range(8)], world.now
    )
    schedulers = [Scheduler(f"scheduler-{index}") for index in range(4)]

    def run(scheduler: Scheduler) -> int:
        if not scheduler.lead(world.now):
            return 0
        return scheduler.cycle(world.now, force=True).started

    results = at_once([lambda scheduler=each: run(scheduler) for each in schedulers])
    assert sorted(results) == [0, 0, 0, 8]
    expect_each_started_once(jobs)


def test_four_leaders_one_after_another_start_each_job_once(world):
    """Each takes over from one that does not know it yet, then all run a pass at the same moment."""
    world.clockwork.scheduler.stand_down()
    jobs, _ = submit_payload(
        world.users["bob"], [{"team": "nlp", "pool": "train", "gpus": 1} for _ in range(8)], world.now
    )
    schedulers = [Scheduler(f"scheduler-{index}") for index in range(4)]
    now = world.now
    for scheduler in schedulers:
        now += LEASE_TIME + timedelta(seconds=1)
        assert scheduler.lead(now)
    results = at_once([lambda scheduler=each: scheduler.cycle(now, force=True).started for each in schedulers])
    # A former leader learns that it is none when it commits; one that looks after the new one's commit has nothing to.
    assert all(isinstance(result, LostLease) or result == 0 for result in results[:3])
    assert results[3] == 8
    expect_each_started_once(jobs)


@pytest.mark.parametrize("same_jobs", [True, False], ids=["same jobs", "other jobs"])
def test_even_two_who_believe_to_lead_bind_no_device_twice(world, same_jobs):
    """With the lease taken away: a job that was started is not started again, and other jobs' claim to the same
    devices is refused by the database itself."""
    jobs, others = (
        submit_payload(world.users["bob"], [{"team": "nlp", "pool": "train", "gpus": 1}] * 8, world.now)[0]
        for _ in range(2)
    )
    schedulers = [world.clockwork.scheduler, Scheduler("copy", lease=world.clockwork.scheduler.lease)]
    for scheduler, unseen in zip(schedulers, (others, others if same_jobs else jobs), strict=True):
        scheduler.picture.load(world.now)
        for job in unseen:
            del scheduler.picture.pending[job.pk]
    plans = [decide(scheduler.picture.snapshot(world.now)) for scheduler in schedulers]
    assert schedulers[0]._commit(plans[0], world.now, 0.0) == (8, 0, 0, 0)
    if same_jobs:
        assert schedulers[1]._commit(plans[1], world.now, 0.0) == (0, 0, 8, 0)
    else:
        with pytest.raises(IntegrityError):
            schedulers[1]._commit(plans[1], world.now, 0.0)
    expect_each_started_once(jobs)


def expect_each_started_once(jobs: list[Job]) -> None:
    ids = [job.pk for job in jobs]
    assert sorted(Allocation.objects.values_list("job_id", flat=True)) == sorted(ids)
    starts = Event.objects.filter(kind="job.state", data__state="starting").values_list("job_id", flat=True)
    assert sorted(filter(None, starts)) == sorted(ids)
    assert UsageRecord.objects.filter(ended_at__isnull=True).count() == len(ids)
    assert used() == 1000 * len(ids)
    assert faults_in_the_books() == []


@pytest.mark.parametrize("round_number", range(10))
def test_a_cancellation_and_a_start_at_the_same_moment_leave_one_truth(world, round_number):
    jobs = [world.submit(gpus=1) for _ in range(8)]
    ids = [job.pk for job in jobs]
    scheduler = world.clockwork.scheduler
    results = at_once([lambda: scheduler.cycle(world.now), lambda: cancel_jobs(ids, world.now)])
    assert raised(results, Refusal) == 0
    stopped = set(results[1].at_once)
    assert not Allocation.objects.filter(job_id__in=stopped).exists()
    assert faults_in_the_books() == []
    world.settle()
    world.pass_time(seconds=1)
    assert set(Job.objects.values_list("state", flat=True)) == {Job.State.CANCELLED}
    assert used() == 0
    assert faults_in_the_books() == []


def test_a_pass_that_the_database_refused_is_decided_again(world):
    """Something is bound behind the scheduler's back: it notices, and starts what still fits without any news."""
    job = world.submit(gpus=1, tasks=8, min_tasks=1)
    scheduler = world.clockwork.scheduler
    scheduler.picture.refresh(world.now)
    device = Device.objects.order_by("id").first()
    Device.objects.filter(pk=device.pk).update(health=Device.Health.FAILED)
    result = scheduler.cycle(world.now, force=True)
    assert (result.started, result.conflicts) == (0, 1)
    world.settle()
    assert Allocation.objects.filter(job=job).count() == 7
    assert faults_in_the_books() == []


# ---- submissions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("round_number", range(10))
def test_the_same_submission_twice_is_one_job(world, round_number):
    payload = {"team": "nlp", "pool": "train", "gpus": 2, "duration": "1h"}

    def submit() -> tuple[list[Job], bool]:
        return submit_payload(world.users["bob"], payload, world.now, idempotency_key="once")

    results = at_once([submit] * 4)
    assert raised(results, Refusal) == 0
    assert len({jobs[0].pk for jobs, _ in results}) == 1
    assert sorted(new for _, new in results) == [False, False, False, True]
    world.settle()
    assert submit()[1] is False
    world.settle()
    assert used() == 2000
    assert (Job.objects.count(), SubmissionKey.objects.count()) == (1, 1)
    world.pass_time(hours=1)
    assert Job.objects.get().state == Job.State.SUCCEEDED


def test_a_key_with_another_request_is_a_conflict(world):
    payload = {"team": "nlp", "pool": "train", "gpus": 2}
    submit_payload(world.users["bob"], payload, world.now, idempotency_key="once")
    with pytest.raises(Conflict):
        submit_payload(world.users["bob"], {**payload, "gpus": 1}, world.now, idempotency_key="once")
    submit_payload(world.users["alice"], payload, world.now, idempotency_key="once")  # another's key is another key
    assert Job.objects.count() == 2


def test_a_worker_that_hears_of_a_commit_finds_the_row(world):
    """200 submissions while a scheduler looks all the time: what it sees is always whole, and nothing stays behind."""
    done: list[int] = []

    def submit() -> None:
        for _ in range(200):
            world.submit(gpus=0.05, duration="1h")
        done.append(1)

    def schedule() -> None:
        while not done:
            world.clockwork.settle()

    assert raised(at_once([submit, schedule]), Refusal) == 0
    world.settle()
    assert Job.objects.filter(state=Job.State.PENDING).count() == 40  # 160 slices of 5 % are all there is
    assert used() == 8000
    assert faults_in_the_books() == []
