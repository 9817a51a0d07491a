"""The loops of an installation: one process keeps the engines, and one engine's fault is only its own."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import override_settings

from config import processes
from config.processes import TROUBLE_S, EngineLoop, sampler_step
from inventory.models import EngineConnection
from inventory.services import create_engine, create_pool
from scheduling.engines.base import EngineError
from scheduling.engines.registry import make_engine
from scheduling.engines.simulated import SimulatedEngine
from scheduling.models import Job
from scheduling.services.lease import LEASE_TIME
from telemetry.models import PoolSample
from telemetry.sampler import Sampler


class Unreachable(SimulatedEngine):
    """Answers nothing at all."""

    def inventory(self, now):
        raise EngineError("no route to host")

    def observe(self, now):
        raise ConnectionResetError


@pytest.fixture
def loops(world):
    made = [EngineLoop("one"), EngineLoop("two")]
    yield made
    for loop in made:
        loop.end()


def started(world, **job):
    job = world.submit(gpus=1, **job)
    world.clockwork.scheduler.cycle(world.now)
    return job


def test_an_engine_out_of_reach_is_known_to_be_lost_and_keeps_no_other_waiting(world, loops, monkeypatch):
    create_pool("elsewhere", create_engine("beyond", "simulated"), world.now)
    make = make_engine
    monkeypatch.setattr(
        processes, "make_engine", lambda found, **more: Unreachable() if found.name == "beyond" else make(found, **more)
    )
    # Looked at first, whatever their order: the one out of reach must not be the last.
    EngineConnection.objects.filter(name="simulation").update(name="zz")
    job = started(world)
    loop = loops[0]
    loop.step(world.now)
    job.refresh_from_db()
    assert job.state == Job.State.RUNNING
    assert dict(EngineConnection.objects.values_list("name", "state")) == {"beyond": "lost", "zz": "ok"}
    loop.step(world.now + timedelta(seconds=TROUBLE_S))
    later = world.submit(gpus=1, name="later")
    world.clockwork.scheduler.cycle(world.now)
    loop.step(world.now + timedelta(seconds=2 * TROUBLE_S))
    later.refresh_from_db()
    assert later.state == Job.State.RUNNING


def test_a_failing_engine_does_not_hold_up_those_after_it(world, loops):
    loop = loops[0]
    loop.step(world.now)
    (key,) = loop.reconcilers
    good = loop.reconcilers.pop(key)
    bad = type(good)(good.connection, Unreachable(), resumed=True)
    loop.reconcilers.update({-1: bad, key: good})
    job = started(world)
    loop.step(world.now)
    job.refresh_from_db()
    assert job.state == Job.State.RUNNING


def test_one_process_keeps_the_engines_until_it_ends_or_is_not_heard_of(world, loops):
    first, second = loops
    now = world.now
    for _ in range(20):
        first.step(now)
        second.step(now)
        assert (list(first.reconcilers), list(second.reconcilers)) == ([world.pool.engine_id], [])
        now += LEASE_TIME / 5
    now += LEASE_TIME * 2  # the first one sleeps
    second.step(now)
    assert second.reconcilers
    first.step(now)
    assert (first.reconcilers, first.lease) == ({}, None)
    second.end()
    first.step(now)
    assert first.reconcilers


def test_only_who_keeps_the_engines_samples(world, loops):
    first, second = loops
    first.step(world.now)
    second.step(world.now)
    sampler_step(Sampler(), second)(world.now)
    assert not PoolSample.objects.exists()
    sampler_step(Sampler(), first)(world.now)
    assert PoolSample.objects.filter(team=None).count() == 1


@override_settings(LOCAL_ENGINE_ENABLED=False)
def test_an_engine_that_is_turned_off_is_lost_and_says_why(world, loops):
    create_pool("here", create_engine("this-machine", "local"), world.now)
    loops[0].step(world.now)
    found = EngineConnection.objects.get(name="this-machine")
    assert (found.state, "turned off" in found.state_message) == ("lost", True)
