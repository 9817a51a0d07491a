"""What pools remember of the past: the same for a scheduler that runs, one that starts, and the pages."""

from __future__ import annotations

from datetime import timedelta

import pytest

from events.errors import Invalid
from events.models import Event
from inventory.models import Pool
from inventory.services import change_pool, create_engine, create_pool
from quotas.services import move_team
from scheduling import past_use
from scheduling.models import Allocation, Job, PastUse
from scheduling.past_use import memory_of, past_use_of
from scheduling.queue import standing_of
from scheduling.selectors import last_event, team_shares
from scheduling.services.cycle import Scheduler
from scheduling.services.picture import Picture
from scheduling.services.stop import cancel_jobs
from scheduling.services.teams import delete_team

HOUR_S = 3600


@pytest.fixture
def remembering(world):
    change_pool(world.pool, world.now, half_life_s=HOUR_S)
    world.pool.refresh_from_db()
    world.settle()
    return world


def seen_by(picture, world):
    """What a picture tells of the pool's past at the present moment."""
    picture.refresh(world.now)
    (pool,) = picture.snapshot(world.now).pools
    return dict(pool.past_use)


def scheduler_sees(world):
    return seen_by(world.clockwork.scheduler.picture, world)


def use(world, team, gpus, minutes, user="bob"):
    job = world.submit(user, team=team, gpus=gpus)
    world.settle()
    world.pass_time(minutes=minutes)
    cancel_jobs([job.pk], world.now)
    world.settle()


def busy(world):
    """Some past of two teams, and something that runs on."""
    use(world, "nlp", 4, 17)
    use(world, "ads", 0.5, 61, "mallory")
    use(world, "nlp", 1, 3)
    world.submit("mallory", team="ads", gpus=2)
    world.submit(gpus=1)
    world.settle()
    world.pass_time(minutes=13)


def test_what_is_released_and_what_runs_counts_by_its_seconds(remembering):
    world = remembering
    use(world, "nlp", 2, 60)
    team = world.teams["nlp"].pk
    # 2000 milli for one half-life: 2000 · 3600 / (2 ln 2)
    assert scheduler_sees(world) == {team: 5_193_702}
    world.submit(gpus=2)
    world.settle()
    world.pass_time(minutes=60)
    assert scheduler_sees(world) == {team: 5_193_702 + 5_193_702 // 2}


def test_a_scheduler_that_starts_remembers_the_same(remembering):
    world = remembering
    busy(world)
    running = scheduler_sees(world)
    assert set(running) == {world.teams["nlp"].pk, world.teams["ads"].pk}
    assert seen_by(Picture(), world) == running
    PastUse.objects.all().delete()
    assert seen_by(Picture(), world) == running, "read anew from the rows"


def test_what_was_stored_half_way_and_caught_up_with_is_the_same(remembering, monkeypatch):
    world = remembering
    monkeypatch.setattr(past_use, "WORTH_STORING", 1)
    use(world, "nlp", 4, 17)
    before = PastUse.objects.get(pool=world.pool)
    assert before.sums
    monkeypatch.setattr(past_use, "WORTH_STORING", 10**9)
    busy(world)
    assert PastUse.objects.get(pool=world.pool).seq == before.seq
    running = scheduler_sees(world)
    assert seen_by(Picture(), world) == running
    Event.objects.filter(seq__lte=before.seq + 3).delete()  # a gap: what came then cannot be caught up with
    assert seen_by(Picture(), world) == running


def test_a_picture_that_is_outdated_counts_nothing_twice(remembering):
    world = remembering
    busy(world)
    running = scheduler_sees(world)
    picture = world.clockwork.scheduler.picture
    picture.outdate()
    assert seen_by(picture, world) == running
    change_pool(world.pool, world.now, grace_s=5)  # the pool is read anew, its memory goes on
    assert seen_by(picture, world) == running


def test_what_is_released_while_the_rows_are_read_counts_once(remembering):
    world = remembering
    busy(world)
    early = last_event()
    held = Allocation.objects.filter(released_at=None, team=world.teams["nlp"]).get()
    cancel_jobs([held.job_id], world.now)
    world.settle()
    PastUse.objects.all().delete()
    memory = memory_of(world.pool, early, world.now)  # as of an event before the release that the rows show already
    late = memory_of(world.pool, last_event(), world.now)
    assert memory.released.rows() != late.released.rows()
    memory.catch_up(last_event())
    assert memory.released.rows() == late.released.rows()


def test_a_memory_stored_by_one_that_fell_behind_changes_nothing(remembering):
    world = remembering
    busy(world)
    behind = memory_of(world.pool, Event.objects.order_by("seq").values_list("seq", flat=True)[3], world.now)
    PastUse.objects.all().delete()
    from scheduling.services.past_use import store

    ahead = memory_of(world.pool, last_event(), world.now)
    assert ahead is not None
    assert behind is not None
    assert store([ahead], world.now) == 1
    want = PastUse.objects.values().get()
    behind.new = 10**9
    assert store([behind], world.now) == 0
    assert PastUse.objects.values().get() == want


def test_pages_and_the_scheduler_agree(remembering):
    world = remembering
    busy(world)
    world.submit(gpus=8)
    world.submit("mallory", team="ads", gpus=8)
    world.settle()
    world.pass_time(minutes=7)
    plan = world.clockwork.scheduler.cycle(world.now, force=True).plan
    pages = team_shares(world.now)[world.pool.pk]
    in_core = plan.shares[world.pool.pk]
    assert {team: pages[team].deserved for team in in_core} == {team: in_core[team].deserved for team in in_core}
    assert in_core[world.teams["ads"].pk].deserved != 4000, "the past makes a difference here"
    in_queue = standing_of(world.pool, world.now)
    assert in_queue.deserved[in_queue.tree.position_of[world.teams["ads"].pk]] == (
        in_core[world.teams["ads"].pk].deserved
    )


def test_the_past_on_record_counts_when_a_half_life_is_set_later(world):
    busy(world)
    assert scheduler_sees(world) == {}
    assert past_use_of([world.pool], world.now) == {}
    change_pool(world.pool, world.now, half_life_s=HOUR_S)
    late = scheduler_sees(world)
    assert set(late) == {world.teams["nlp"].pk, world.teams["ads"].pk}
    change_pool(world.pool, world.now, half_life_s=10 * HOUR_S)
    longer = scheduler_sees(world)
    assert all(longer[team] > late[team] for team in late), "what is older counts for more"
    change_pool(world.pool, world.now, half_life_s=None)
    assert scheduler_sees(world) == {}
    change_pool(world.pool, world.now, half_life_s=HOUR_S)
    assert scheduler_sees(world) == late


def test_cpu_pools_remember_cores(remembering):
    world = remembering
    from inventory.services import NodeEntry, add_nodes

    pool = create_pool("cores", world.pool.engine, world.now, unit="cpu", grace_s=0, half_life_s=HOUR_S)
    add_nodes(pool, [NodeEntry("c-0", 16_000, 65_536, ())], world.now)
    job = world.submit(pool="cores", cpu=4)
    world.settle()
    world.pass_time(minutes=60)
    cancel_jobs([job.pk], world.now)
    world.settle()
    picture = world.clockwork.scheduler.picture
    picture.refresh(world.now)
    past = {each.name: dict(each.past_use) for each in picture.snapshot(world.now).pools}
    assert past == {"cores": {world.teams["nlp"].pk: 10_387_404}, "train": {}}  # 4000 · 3600 / (2 ln 2)


def test_a_team_takes_its_past_along_and_a_deleted_one_none(remembering):
    world = remembering
    use(world, "nlp", 4, 60)
    for user, team in (("bob", "nlp"), ("mallory", "ads")):
        world.submit(user, team=team, gpus=1, tasks=8, min_tasks=1)
    world.settle()
    nlp, ads = world.teams["nlp"], world.teams["ads"]
    # research, through nlp, used all: U/S = 2, a quarter against ads; 8 GPUs by 1/4 : 1
    assert team_shares(world.now)[world.pool.pk][ads.pk].deserved == 6400
    move_team(nlp, None, world.now)
    # three at the top, nlp used all: U/S = 3, 1/8 : 1
    assert team_shares(world.now)[world.pool.pk][ads.pk].deserved == 7111
    assert scheduler_sees(world)[nlp.pk] > 0
    cancel_jobs(list(Allocation.objects.filter(released_at=None, team=nlp).values_list("job_id", flat=True)), world.now)
    world.settle()
    delete_team(nlp, world.now)
    world.settle()
    shares = team_shares(world.now)[world.pool.pk]
    assert nlp.pk not in shares
    assert shares[ads.pk].deserved == 8000


def test_time_alone_brings_a_new_decision_where_shares_move(remembering):
    world = remembering
    use(world, "nlp", 4, 60)
    for user, team in (("bob", "nlp"), ("mallory", "ads")):
        for _ in range(8):
            world.submit(user, team=team, gpus=1)
    world.settle()
    picture = world.clockwork.scheduler.picture
    assert picture.shares_move_at == world.now + timedelta(seconds=HOUR_S / 32)
    before = team_shares(world.now)[world.pool.pk][world.teams["nlp"].pk]
    world.pass_time(hours=3)
    after = team_shares(world.now)[world.pool.pk][world.teams["nlp"].pk]
    assert (before.allocated, before.deserved) == (2000, 1600)
    assert after.allocated >= 3000
    assert after.deserved > 3000


def test_where_nothing_waits_or_nothing_is_remembered_time_brings_none(world):
    world.submit(gpus=1)
    world.submit(gpus=8)
    world.settle()

    def moves():
        return world.clockwork.scheduler.picture.shares_move_at is not None

    assert not moves()
    change_pool(world.pool, world.now, half_life_s=HOUR_S)
    world.settle()
    assert moves()
    cancel_jobs(list(Job.objects.values_list("pk", flat=True)), world.now)
    world.settle()
    assert not moves()


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1h", 10**12])
def test_a_half_life_that_is_none_is_refused(world, value):
    before = Pool.objects.values().get(pk=world.pool.pk), last_event()
    with pytest.raises(Invalid) as refusal:
        change_pool(world.pool, world.now, half_life_s=value)
    assert refusal.value.faults[0].field == "half_life_s"
    with pytest.raises(Invalid):
        create_pool("other", create_engine("other", "simulated"), world.now, half_life_s=value)
    assert (Pool.objects.values().get(pk=world.pool.pk), last_event()) == before
    assert Pool.objects.count() == 1


def test_another_scheduler_takes_over_with_the_same_memory(remembering):
    world = remembering
    busy(world)
    running = scheduler_sees(world)
    world.clockwork.scheduler.stand_down()
    other = Scheduler("other")
    assert other.lead(world.now)
    other.cycle(world.now)
    assert seen_by(other.picture, world) == running
