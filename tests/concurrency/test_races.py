"""Two or more at the same moment, for real. Where it can be shown, the same race without its guard goes wrong first."""

from __future__ import annotations

from datetime import timedelta

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
from scheduling.engines.base import Report
from scheduling.models import Allocation, AllocationDevice, Job
from scheduling.services.cycle import change_accounts
from scheduling.services.reports import record_reports
from scheduling.services.stop import cancel_jobs
from scheduling.services.teams import delete_team
from tenants.models import Team
from tenants.services import create_team, move_team, set_membership
from tests.concurrency.accounts import faults_in_the_books, used
from tests.concurrency.racing import ROOT, at_once, raised

pytestmark = pytest.mark.django_db(transaction=True)


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
    folders = [ROOT / name for name in ("platform", "quotas", "scheduling", "tenants")]
    strangers = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if "select_for_update(" in line and "no_key=True" not in line
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
