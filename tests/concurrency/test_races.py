"""Two or more at the same moment, for real. Where it can be shown, the same race without its guard goes wrong first."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models import Sum

from billing.models import UsageRecord
from billing.services import close_month
from events.errors import Conflict, Invalid, Refusal
from events.models import Event
from events.services import unit_of_work
from inventory.models import Device, Node, Pool
from inventory.services import import_nodes
from quotas.models import Quota
from quotas.services import set_quota
from scheduling.core.decide import decide
from scheduling.engines.base import Report
from scheduling.models import Allocation, AllocationDevice, Job, SubmissionKey
from scheduling.services.cycle import Scheduler, change_accounts
from scheduling.services.lease import LEASE_TIME, LostLease
from scheduling.services.reports import record_reports
from scheduling.services.stop import cancel_jobs
from scheduling.services.submit import submit_payload
from scheduling.services.teams import delete_team
from tenants.models import Team
from tenants.services import create_team, move_team, set_membership
from tests.concurrency.accounts import faults_in_the_books
from tests.concurrency.racing import ROOT, Worker, at_once

pytestmark = pytest.mark.django_db(transaction=True)


def used(team: Team | None = None) -> int:
    live = Allocation.objects.filter(released_at__isnull=True)
    live = live.filter(team=team) if team is not None else live
    return live.aggregate(sum=Sum("milli"))["sum"] or 0


def raised(results: list[Any], kind: type[Exception]) -> int:
    """How many raised ``kind``; fails the test where something else was raised."""
    others = [each for each in results if isinstance(each, Exception) and not isinstance(each, kind)]
    assert others == []
    return sum(isinstance(each, kind) for each in results)


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
    assert raised(results, LostLease) == 3
    assert results[3] == 8
    expect_each_started_once(jobs)


def test_even_two_who_believe_to_lead_bind_no_device_twice(world):
    """The last guard: with the lease taken away, the database refuses the second binding."""
    submit_payload(world.users["bob"], [{"team": "nlp", "pool": "train", "gpus": 1} for _ in range(8)], world.now)
    schedulers = [world.clockwork.scheduler, Scheduler("copy", lease=world.clockwork.scheduler.lease)]
    for scheduler in schedulers:
        scheduler.picture.load(world.now)
    plans = [decide(scheduler.picture.snapshot(world.now)) for scheduler in schedulers]
    schedulers[0]._commit(plans[0], world.now, 0.0)
    with pytest.raises(IntegrityError):
        schedulers[1]._commit(plans[1], world.now, 0.0)
    expect_each_started_once(list(Job.objects.all()))


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


# ---- ends ------------------------------------------------------------------------------------------------------------


def two_on_one_card(world) -> Allocation:
    world.submit(gpus=0.6, name="stays")
    ends = world.submit(gpus=0.3, name="ends")
    world.settle()
    assert Device.objects.filter(compute_allocated_milli=900).count() == 1
    return Allocation.objects.get(job=ends)


def test_without_the_lock_an_end_that_is_told_twice_frees_twice(world):
    allocation = two_on_one_card(world)
    held = AllocationDevice.objects.get(allocation=allocation)
    read = [Allocation.objects.get(pk=allocation.pk).state for _ in range(2)]  # both look before either writes

    def free(state: str) -> None:
        if state != Allocation.State.RELEASED:
            with transaction.atomic():
                change_accounts({held.device_id: [-held.compute_milli, -held.memory_mib]}, {})
                Allocation.objects.filter(pk=allocation.pk).update(state="released", released_at=world.now)

    at_once([lambda state=state: free(state) for state in read])
    assert Device.objects.get(pk=held.device_id).compute_allocated_milli == 300  # of which 600 are held


@pytest.mark.parametrize("round_number", range(10))
def test_an_end_that_is_told_by_many_at_once_frees_once(world, round_number):
    allocation = two_on_one_card(world)
    reports = [
        Report(allocation.pk, "ended", world.now, 0),
        Report(allocation.pk, "ended", world.now, None, "lost"),
        Report(allocation.pk, "ended", world.now, 0),
        Report(allocation.pk, "started", world.now),
    ]
    results = at_once([lambda report=report: record_reports([report], world.now) for report in reports])
    assert raised(results, Refusal) == 0
    assert sum(results) == 1
    assert used() == 600
    assert UsageRecord.objects.filter(allocation=allocation).count() == 1
    assert faults_in_the_books() == []


@pytest.mark.parametrize("round_number", range(5))
def test_members_of_a_gang_that_end_at_the_same_moment_end_it_once(world, round_number):
    job = world.submit(gpus=1, tasks=8)
    world.settle()
    ids = list(Allocation.objects.filter(job=job).values_list("pk", flat=True))
    acts = [lambda pk=pk: record_reports([Report(pk, "ended", world.now, 0)], world.now) for pk in ids]
    assert raised(at_once(acts), Refusal) == 0
    job.refresh_from_db()
    assert (job.state, used()) == (Job.State.SUCCEEDED, 0)
    assert faults_in_the_books() == []


def test_a_month_that_two_close_at_once_is_closed_once(world):
    world.submit(gpus=4)
    world.settle()
    world.now += timedelta(days=40)
    results = at_once([lambda: close_month(world.now)] * 4)
    assert raised(results, Refusal) == 0
    assert sum(results) == 1
    assert UsageRecord.objects.count() == 2


# ---- quotas, teams, inventory ----------------------------------------------------------------------------------------


def test_without_the_lock_two_guarantees_that_fit_alone_pass_the_parents(world):
    """Each looks before the other writes: both see 0 of 4 handed out."""
    set_quota(world.teams["research"], world.pool, world.now, guaranteed=4000)

    def handed_out() -> int:
        children = Quota.objects.filter(team__parent=world.teams["research"])
        return children.aggregate(sum=Sum("guaranteed"))["sum"] or 0

    seen = [handed_out() for _ in range(2)]

    def give(team: Team, before: int) -> None:
        if before + 3000 <= 4000:
            Quota.objects.create(team=team, pool=world.pool, guaranteed=3000, updated_at=world.now)

    teams = (world.teams["nlp"], world.teams["vision"])
    at_once([lambda team=team, before=before: give(team, before) for team, before in zip(teams, seen, strict=True)])
    assert handed_out() == 6000


@pytest.mark.parametrize("round_number", range(5))
def test_two_guarantees_at_once_never_pass_the_parents(world, round_number):
    set_quota(world.teams["research"], world.pool, world.now, guaranteed=4000)
    teams = (world.teams["nlp"], world.teams["vision"])
    results = at_once([lambda team=team: set_quota(team, world.pool, world.now, guaranteed=3000) for team in teams])
    assert raised(results, Invalid) == 1
    assert Quota.objects.filter(team__in=teams).aggregate(sum=Sum("guaranteed"))["sum"] == 3000


@pytest.mark.parametrize("round_number", range(5))
def test_a_team_is_deleted_or_takes_the_job_never_both(world, round_number):
    team = create_team("Brief", world.now)
    set_membership(world.users["bob"], team, "member", world.now)
    results = at_once([lambda: world.submit(team="brief", gpus=1), lambda: delete_team(team, world.now)])
    assert raised(results, Refusal) == 1
    team.refresh_from_db()
    assert Job.objects.filter(team=team).exists() == (team.state == Team.State.ACTIVE)


@pytest.mark.parametrize("round_number", range(5))
def test_a_team_is_deleted_or_takes_the_quota_never_both(world, round_number):
    team = create_team("Brief", world.now)
    results = at_once(
        [lambda: set_quota(team, world.pool, world.now, guaranteed=1000), lambda: delete_team(team, world.now)]
    )
    assert raised(results, Refusal) <= 1
    team.refresh_from_db()
    assert team.state == Team.State.DELETED
    assert not Quota.objects.filter(team=team).exists()


@pytest.mark.parametrize("round_number", range(5))
def test_two_moves_that_are_fine_alone_never_make_a_circle(world, round_number):
    nlp, ads = world.teams["nlp"], world.teams["ads"]
    results = at_once([lambda: move_team(nlp, ads, world.now), lambda: move_team(ads, nlp, world.now)])
    assert raised(results, Refusal) == 1
    parents = dict(Team.objects.values_list("pk", "parent_id"))
    assert (parents[nlp.pk] == ads.pk) != (parents[ads.pk] == nlp.pk)


@pytest.mark.parametrize("round_number", range(5))
def test_two_moves_past_the_service_never_make_a_circle_either(world, round_number):
    """Written straight to the rows, it is the database that refuses."""
    nlp, ads = world.teams["nlp"], world.teams["ads"]
    acts = [
        lambda: Team.objects.filter(pk=nlp.pk).update(parent=ads),
        lambda: Team.objects.filter(pk=ads.pk).update(parent=nlp),
    ]
    assert raised(at_once(acts), IntegrityError) == 1


def test_two_imports_of_the_same_file_enter_it_once(world):
    text = "name,pool,model,accelerators\n" + "".join(f"x{index},train,A100-80G,8\n" for index in range(4))
    results = at_once([lambda: import_nodes(text, world.now)] * 3)
    assert raised(results, Refusal) == 0
    assert sorted(len(each.created) for each in results) == [0, 0, 4]
    assert (Node.objects.count(), Device.objects.count()) == (6, 40)


def test_a_teams_name_is_given_once(world):
    results = at_once([lambda: create_team("Twins", world.now)] * 4)
    assert raised(results, Conflict) == 3


def test_quotas_are_set_while_jobs_start_and_end_and_nobody_is_thrown_out(world):
    """Rows that are locked here are named by rows that are inserted there: neither waits for the other in a circle."""
    done: list[int] = []

    def set_quotas() -> None:
        for number in range(60):
            set_quota(world.teams["nlp"], world.pool, world.now, limit=4000 + 1000 * (number % 4))
            import_nodes(f"name,pool,cpu\nspare,train,{1 + number % 2}\n", world.now)
        done.append(1)

    def work() -> None:
        while not done:
            ids = [world.submit(gpus=0.5).pk for _ in range(4)]
            world.clockwork.settle()
            cancel_jobs(ids, world.now)
            world.clockwork.settle()

    assert raised(at_once([set_quotas, work]), Refusal) == 0
    assert faults_in_the_books() == []


def test_row_locks_leave_keys_readable():
    """PostgreSQL checks foreign keys at the commit, when the order of events is locked already: a row lock that keeps
    its key from being read would close a circle with whoever holds the row and waits to write its events."""
    keys_too = re.compile(r"select_for_update\((?![^)]*no_key=True)")
    folders = [ROOT / name for name in ("platform", "quotas", "scheduling", "tenants")]
    strangers = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if keys_too.search(line)
    ]
    assert strangers == []


# ---- events ----------------------------------------------------------------------------------------------------------


def test_a_reader_that_follows_the_sequence_misses_nothing(world):
    """Eight write while one reads from where it was: it has read everything, in order, by the end."""
    pool = Pool.objects.get()
    done: list[int] = []

    def write() -> None:
        for number in range(25):
            with unit_of_work() as journal:
                journal.record("test.written", world.now, pool_id=pool.pk, number=number)
                journal.record("test.written", world.now, pool_id=pool.pk, number=number)
        done.append(1)

    def read() -> list[int]:
        seen: list[int] = []
        while True:
            last_look = len(done) == 8
            after = seen[-1] if seen else 0
            rows = Event.objects.filter(seq__gt=after, kind="test.written").order_by("seq")
            seen += rows.values_list("seq", flat=True)
            if last_look:
                return seen

    *_, seen = at_once([write] * 8 + [read])
    assert seen == list(Event.objects.filter(kind="test.written").order_by("seq").values_list("seq", flat=True))
    assert len(seen) == 400
