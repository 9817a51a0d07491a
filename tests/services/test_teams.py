"""Deleting and moving teams: nothing that runs is forgotten, nothing that was paid is lost, sums hold."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from django.db.models import Q

from billing.models import UsageRecord
from billing.usage import used
from events.errors import Conflict, Invalid
from events.models import Event
from quotas.models import Quota
from quotas.services import move_team, set_quota
from scheduling import ports
from scheduling.models import Job
from scheduling.selectors import team_shares
from scheduling.services.stop import cancel_jobs
from scheduling.services.teams import delete_team
from tenants.models import Team
from tenants.policy import visible_team_ids
from tenants.services import create_team, set_membership


def cost_of(team: Team, now) -> Decimal:
    ids = Job.objects.filter(team=team).values_list("pk", flat=True)
    return sum((each.amount for each in ports.meter.job_costs(ids, now).values()), Decimal(0))


def test_a_team_made_again_under_its_old_name_has_its_own_history(world):
    old = create_team("Lab", world.now)
    set_membership(world.users["alice"], old, "member", world.now)
    world.submit("alice", team="lab", gpus=1, duration="10h")
    world.settle()
    world.pass_time(hours=10)
    delete_team(old, world.now)
    new = create_team("Lab", world.now)
    assert (new.slug, new.pk != old.pk) == ("lab", True)
    set_membership(world.users["mallory"], new, "member", world.now)
    world.submit("mallory", team="lab", gpus=1, duration="1h")
    world.settle()
    world.pass_time(hours=2)
    assert (cost_of(old, world.now), cost_of(new, world.now)) == (Decimal("24.00"), Decimal("2.40"))
    old.refresh_from_db()
    assert (old.state, old.deleted_at is not None) == (Team.State.DELETED, True)
    seen = visible_team_ids(world.users["mallory"]) or set()
    assert new.pk in seen
    assert old.pk not in seen
    assert UsageRecord.objects.filter(team=old).count() == 1
    month = used(Q(), world.now - timedelta(days=1), world.now, world.now, "team")
    assert {key: each.amount for (key, _), each in month.items()} == {old.pk: Decimal(24), new.pk: Decimal("2.40")}


@pytest.mark.parametrize("what", ["waiting", "running", "stopping", "held"])
def test_a_team_with_an_unfinished_job_stays_and_nothing_moves(world, what):
    world.pool.grace_s = 60
    world.pool.save()
    job = world.submit(gpus=8 if what in ("waiting", "held") else 1)
    world.settle()
    if what == "stopping":
        cancel_jobs([job.pk], world.now)
        world.settle()
    if what == "held":
        from scheduling.services.holding import hold_job

        hold_job(job, world.now)
    before = Event.objects.count()
    state = "pending" if what in ("waiting", "held") else "running"
    with pytest.raises(Conflict, match=f"1 {state}"):
        delete_team(world.teams["nlp"], world.now)
    world.teams["nlp"].refresh_from_db()
    assert world.teams["nlp"].state == Team.State.ACTIVE
    assert Event.objects.count() == before


def test_a_team_with_teams_below_it_stays(world):
    with pytest.raises(Conflict, match="nlp, vision"):
        delete_team(world.teams["research"], world.now)


def test_a_deleted_team_takes_no_quota_and_no_team_below_it(world):
    team = create_team("Gone", world.now)
    set_quota(team, world.pool, world.now, guaranteed=1000)
    delete_team(team, world.now)
    assert not Quota.objects.filter(team=team).exists()
    with pytest.raises(Invalid, match="deleted"):
        set_quota(team, world.pool, world.now, guaranteed=1000)
    with pytest.raises(Invalid, match="deleted"):
        create_team("Child", world.now, parent=team)
    with pytest.raises(Invalid, match="deleted"):
        move_team(world.teams["ads"], team, world.now)
    with pytest.raises(Conflict, match="deleted already"):
        delete_team(team, world.now)


def test_the_scheduler_hands_on_what_a_deleted_team_was_guaranteed(world):
    team = create_team("Gone", world.now)
    set_quota(team, world.pool, world.now, guaranteed=8000, reserved=8000)
    job = world.submit(gpus=4)
    world.settle()
    job.refresh_from_db()
    assert job.state == Job.State.PENDING
    delete_team(team, world.now)
    world.settle()
    job.refresh_from_db()
    assert job.state == Job.State.RUNNING


def test_moving_a_team_is_refused_where_its_guarantee_does_not_fit(world):
    ads, research = world.teams["ads"], world.teams["research"]
    set_quota(research, world.pool, world.now, guaranteed=4000)
    set_quota(world.teams["nlp"], world.pool, world.now, guaranteed=3000)
    set_quota(ads, world.pool, world.now, guaranteed=2000)
    before = Event.objects.count()
    with pytest.raises(Invalid, match="add up to 5"):
        move_team(ads, research, world.now)
    assert Team.objects.get(pk=ads.pk).parent_id is None
    assert Event.objects.count() == before
    set_quota(ads, world.pool, world.now, guaranteed=1000)
    move_team(ads, research, world.now)
    assert Team.objects.get(pk=ads.pk).parent_id == research.pk


def test_a_deleted_team_that_never_held_anything_has_no_share(world):
    ids = {team.pk for team in world.teams.values()}
    assert set(team_shares(world.now)[world.pool.pk]) == ids
    delete_team(world.teams["vision"], world.now)
    assert set(team_shares(world.now)[world.pool.pk]) == ids - {world.teams["vision"].pk}
