"""Lifecycles are tables: every pair of states is either a move of theirs or refused, and nothing else ever happens."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from events.models import Event
from scheduling.engines.base import Report
from scheduling.models import Allocation, Job
from scheduling.services.reports import record_reports
from scheduling.services.stop import cancel_jobs
from scheduling.states import ALLOCATION_MOVES, JOB_ENDED, JOB_MOVES, IllegalMove, check_move

TABLES: dict[str, tuple[Any, Any]] = {"job": (JOB_MOVES, Job.State), "allocation": (ALLOCATION_MOVES, Allocation.State)}


@pytest.mark.parametrize("name", TABLES)
def test_every_pair_is_a_move_or_refused(name):
    moves, states = TABLES[name]
    assert set(moves) == set(states)
    for before, after in product(states, states):
        if after in moves[before]:
            check_move(moves, before, after)
        else:
            with pytest.raises(IllegalMove, match=f"{before} → {after}"):
                check_move(moves, before, after)


@pytest.mark.parametrize("name", TABLES)
def test_every_state_is_reached_and_none_is_left_for_itself(name):
    moves, states = TABLES[name]
    first = next(iter(states))
    assert {after for onward in moves.values() for after in onward} | {first} == set(states)
    assert all(state not in onward for state, onward in moves.items())


def test_an_end_is_an_end():
    assert {Job.State.SUCCEEDED, Job.State.FAILED, Job.State.CANCELLED} == JOB_ENDED


def test_whatever_happens_to_jobs_is_a_move_of_the_table(world):
    world.submit(gpus=1, duration="60s")
    world.submit(gpus=1, duration="60s", exit="failed", retries=1)
    world.submit(gpus=8, name="never fits")
    lost, stopped = world.submit(gpus=1), world.submit(gpus=1)
    world.settle()
    record_reports(
        [Report(each.pk, "ended", world.now, None, "node_lost") for each in Allocation.objects.filter(job=lost)],
        world.now,
    )
    cancel_jobs(list(Job.objects.filter(name="never fits").values_list("pk", flat=True)), world.now)
    cancel_jobs([stopped.pk], world.now)
    world.pass_time(minutes=5)
    told = {(event.data["before"], event.data["state"]) for event in Event.objects.filter(kind="job.state")}
    assert {after for _, after in told} == set(Job.State)
    for before, after in told:
        check_move(JOB_MOVES, before, after)


def test_reports_that_cannot_be_recorded_keep_only_themselves_waiting(world):
    """A report that stumbles over a fault is tried again; the others of its batch are recorded meanwhile."""
    first, second = world.submit(gpus=1), world.submit(gpus=1)
    world.settle()
    reconciler = world.clockwork.reconcilers[0]
    for job in (first, second):
        world.engine.lose(Allocation.objects.get(job=job).pk, world.now)
    # The faulty one: its account on the device is gone, so giving it back would leave less than nothing.
    held = Allocation.objects.get(job=first)
    slice_ = held.slices.get()
    type(slice_.device).objects.filter(pk=slice_.device_id).update(compute_allocated_milli=0)
    reconciler.step(world.now)
    assert Allocation.objects.get(job=second).state == Allocation.State.RELEASED
    assert Allocation.objects.get(job=first).state != Allocation.State.RELEASED
    type(slice_.device).objects.filter(pk=slice_.device_id).update(compute_allocated_milli=1000)
    reconciler.step(world.now)
    assert Allocation.objects.get(job=first).state == Allocation.State.RELEASED
