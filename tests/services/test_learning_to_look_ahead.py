"""A pool that looks ahead is placed by fragmentation until enough jobs were seen, and look-ahead is compiled."""

from __future__ import annotations

import threading

import pytest

from config.processes import LookAheadLoop
from inventory.models import Pool
from scheduling.services import picture
from scheduling.services.cycle import Scheduler
from scheduling.services.picture import Picture, looks_ahead_soon


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch):
    """Six jobs are enough to look ahead, three to learn from at all."""
    monkeypatch.setattr(picture, "MIN_SEEN", 6)
    monkeypatch.setattr(picture, "FIRST_LEARN", 3)


def run_jobs(world, count: int) -> None:
    for _ in range(count):
        world.submit(gpus=0.25)
        world.settle()


def in_use(scheduler: Scheduler, world) -> tuple[str, int]:
    """The score that the pool is placed by, and from how many jobs it was learned."""
    pool = scheduler.picture.pools[world.pool.pk]
    return pool.fleet.score, pool.learned_from


def test_new_pools_look_ahead(world):
    assert world.pool.placement == Pool.Placement.LOOKAHEAD


def test_fragmentation_stands_in_until_enough_jobs_were_seen(world):
    scheduler = world.clockwork.scheduler
    run_jobs(world, 4)
    score, learned_from = in_use(scheduler, world)
    assert score == "fragmentation"
    assert learned_from < 6
    run_jobs(world, 4)
    assert in_use(scheduler, world)[0] == "lookahead"
    assert in_use(scheduler, world)[1] >= 6
    assert scheduler.picture.check() == []


def test_a_pool_that_has_seen_enough_looks_ahead_from_the_first_cycle_on(world):
    run_jobs(world, 7)
    fresh = Picture()
    fresh.load(world.now)
    assert fresh.pools[world.pool.pk].fleet.score == "lookahead"


def test_a_pool_that_asks_for_fragmentation_never_looks_ahead(world):
    Pool.objects.filter(pk=world.pool.pk).update(placement="fragmentation")
    run_jobs(world, 8)
    assert in_use(world.clockwork.scheduler, world)[0] == "fragmentation"


def test_a_scheduler_looks_ahead_once_that_is_compiled(world):
    run_jobs(world, 7)
    world.clockwork.scheduler.stand_down()
    compiled = threading.Event()
    world.clockwork.scheduler = scheduler = Scheduler("another", looks_ahead=compiled.is_set)
    assert scheduler.lead(world.now)
    run_jobs(world, 1)
    assert in_use(scheduler, world)[0] == "fragmentation"
    compiled.set()
    run_jobs(world, 1)
    assert in_use(scheduler, world)[0] == "lookahead"
    assert scheduler.picture.check() == []


def test_look_ahead_is_compiled_once_a_pool_will_soon_need_it(world):
    loop = LookAheadLoop()
    run_jobs(world, 2)
    loop.step(world.now)
    assert not looks_ahead_soon()
    assert not loop.compiled.is_set()
    run_jobs(world, 1)
    loop.step(world.now)
    assert looks_ahead_soon()
    assert loop.compiled.is_set()
