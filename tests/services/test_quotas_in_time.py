"""Temporary quotas: which row counts to the second, which one where two overlap, and sums that always hold."""

from __future__ import annotations

from datetime import timedelta

import pytest

from events.errors import Invalid
from events.models import Event
from quotas.models import Quota
from quotas.selectors import changes_between, next_change, quotas_in_force
from quotas.services import expire_quotas, move_team, set_quota

HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)


def limit_at(world, moment):
    row = quotas_in_force(moment, world.pool.pk).get((world.pool.pk, world.teams["nlp"].pk))
    return row and row.limit


def give(world, team="nlp", **values):
    return set_quota(world.teams[team], world.pool, world.now, **values)


def test_from_is_in_and_until_is_out(world):
    start, end = world.now + HOUR, world.now + 3 * HOUR
    give(world, limit=2000)
    give(world, limit=4000, valid_from=start, valid_until=end)
    seen = [limit_at(world, moment) for moment in (start - SECOND, start, end - SECOND, end, end + SECOND)]
    assert seen == [2000, 4000, 4000, 2000, 2000]
    assert next_change(world.now) == start
    assert next_change(start) == end
    assert next_change(end) is None


def test_open_ends(world):
    give(world, limit=4000, valid_from=world.now + HOUR)
    assert [limit_at(world, world.now), limit_at(world, world.now + 10_000 * HOUR)] == [None, 4000]
    Quota.objects.all().delete()
    give(world, limit=4000, valid_until=world.now + HOUR)
    assert [limit_at(world, world.now), limit_at(world, world.now + HOUR)] == [4000, None]


def test_where_two_overlap_the_one_entered_last_counts(world):
    give(world, limit=2000)
    give(world, limit=5000, valid_until=world.now + 4 * HOUR)
    give(world, limit=3000, valid_from=world.now + HOUR, valid_until=world.now + 2 * HOUR)
    assert [limit_at(world, world.now + n * HOUR) for n in range(5)] == [5000, 3000, 5000, 5000, 2000]


def test_a_scheduler_counts_it_to_the_second(world):
    give(world, limit=2000)
    give(world, limit=4000, valid_from=world.now + HOUR, valid_until=world.now + 2 * HOUR)
    jobs = [world.submit(gpus=1) for _ in range(4)]
    world.pass_time(seconds=3599)
    assert world.pool.allocations.filter(released_at=None).count() == 2
    world.pass_time(seconds=1)
    assert world.pool.allocations.filter(released_at=None).count() == 4
    started = sorted(row.bound_at for row in world.pool.allocations.filter(job__in=jobs))
    assert started[2:] == [world.now, world.now]
    world.pass_time(hours=1)
    assert expire_quotas(world.now) == 1
    assert limit_at(world, world.now) == 2000


def refused(world, says, **values):
    before = list(Quota.objects.order_by("id").values()), Event.objects.count()
    with pytest.raises(Invalid) as refusal:
        give(world, **values)
    assert says in refusal.value.faults[0].message
    assert (list(Quota.objects.order_by("id").values()), Event.objects.count()) == before


def test_sums_hold_when_a_later_quota_of_a_sibling_begins(world):
    give(world, "research", guaranteed=4000)
    give(world, "vision", guaranteed=3000, valid_from=world.now + HOUR, valid_until=world.now + 2 * HOUR)
    refused(
        world,
        f"add up to 5 (nlp 2 + vision 3), which is more than its own 4, from {world.now + HOUR:%Y}",
        guaranteed=2000,
    )
    give(world, guaranteed=2000, valid_until=world.now + HOUR)  # gone by then
    give(world, guaranteed=1000)


def test_sums_hold_when_a_parent_s_raise_ends(world):
    give(world, "research", guaranteed=2000)
    give(world, "research", guaranteed=6000, valid_until=world.now + HOUR)
    refused(world, "which is more than its own 2, from", guaranteed=5000)
    give(world, guaranteed=5000, valid_until=world.now + HOUR)


def test_the_pool_s_capacity_holds_later_too(world):
    give(world, "ads", guaranteed=6000, valid_from=world.now + HOUR)
    refused(world, "more than the pool's capacity 8", guaranteed=3000)
    give(world, guaranteed=3000, override_capacity=True)


def test_a_team_is_not_moved_under_a_guarantee_that_it_will_break(world):
    give(world, "ads", guaranteed=2000, valid_from=world.now + HOUR)
    give(world, "research", guaranteed=1000)
    before = Event.objects.count()
    with pytest.raises(Invalid, match="more than its own 1"):
        move_team(world.teams["ads"], world.teams["research"], world.now)
    world.teams["ads"].refresh_from_db()
    assert (world.teams["ads"].parent_id, Event.objects.count()) == (None, before)


def test_what_changes_between_two_moments(world):
    give(world, limit=1000, valid_from=world.now + HOUR, valid_until=world.now + 3 * HOUR)
    give(world, "ads", limit=1000, valid_until=world.now + 2 * HOUR)
    found = changes_between(world.pool.pk, world.now, None)
    assert [(moment - world.now) / HOUR for moment in found] == [1, 2, 3]
    assert changes_between(world.pool.pk, world.now + HOUR, world.now + 3 * HOUR) == [world.now + 2 * HOUR]
