"""The writer is another process, or the socket was away: the browser sees the last state of everything all the same."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from django.db import connection

from live import selectors
from scheduling.models import Job
from tests.live.server import Server, listening, session_of

pytestmark = pytest.mark.django_db(transaction=True)

SCRIPT = Path(__file__).with_name("other_process.py")


@contextlib.contextmanager
def played_elsewhere(world, minutes):
    """Another process takes over the scheduling and plays so many minutes; it has ended, well, at the end."""
    world.clockwork.scheduler.stand_down()
    command = [sys.executable, str(SCRIPT), str(connection.settings_dict["NAME"]), world.now.isoformat(), str(minutes)]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "config.settings.test"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
        finally:
            process.kill()


@contextlib.contextmanager
def moment_of(true):
    """A list with the moment (monotonic) at which this process could first see in the database that it is true."""
    seen: list[float] = []
    over = threading.Event()

    def watch():
        try:
            while not true():
                if over.wait(0.005):
                    return
            seen.append(time.monotonic())
        finally:
            connection.close()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join(timeout=10)


def test_a_hundred_jobs_that_another_process_brings_to_their_end_are_seen_within_five_seconds(server, world):
    jobs = [world.submit(gpus=0.05, duration="30s", name=f"job-{number}") for number in range(100)]
    with listening(server, session=session_of(world.users["bob"])) as bob:
        bob.ask({"subscribe": "team", "team": "nlp", "after": selectors.position()})
        with (
            moment_of(lambda: Job.objects.filter(state="succeeded").count() == 100) as committed,
            played_elsewhere(world, minutes=5),
        ):
            bob.until(lambda: bob.states() == {"succeeded"} and len(bob.jobs) == 100, patience=60)
            seen = time.monotonic()
        assert seen - committed[0] < 5.0
        assert bob.jobs.keys() == {job.pk for job in jobs}
        assert bob.resyncs == 0


def test_a_change_made_by_another_process_is_seen_within_a_second_of_its_commit(server, world):
    job = world.submit(gpus=0.5, duration="30s")
    with listening(server, session=session_of(world.users["bob"])) as bob:
        bob.ask({"subscribe": "team", "team": "nlp"})
        with (
            moment_of(lambda: Job.objects.filter(pk=job.pk, state="succeeded").exists()) as committed,
            played_elsewhere(world, minutes=2),
        ):
            bob.until(lambda: bob.jobs.get(job.pk, {}).get("state") == "succeeded", patience=60)
            seen = time.monotonic()
        assert seen - committed[0] < 1.0


def test_a_server_that_restarts_loses_nothing_of_what_happened_meanwhile(world):
    session = session_of(world.users["bob"])
    job = world.submit(gpus=1, duration="30s")
    server = Server()
    try:
        with listening(server, session=session) as bob:
            bob.ask({"subscribe": "team", "team": "nlp"})
            world.settle()
            bob.until(lambda: bob.jobs.get(job.pk, {}).get("state") == "running")
            known = bob.seq
    finally:
        server.stop()
    world.pass_time(minutes=5)
    server = Server()
    try:
        with listening(server, session=session) as bob:
            bob.ask({"subscribe": "team", "team": "nlp", "after": known})
            bob.until(lambda: bob.jobs.get(job.pk, {}).get("state") == "succeeded")
    finally:
        server.stop()


def test_a_reader_that_does_not_read_costs_nothing_but_its_place(server, world):
    """One client stops reading in the middle; the other goes on to hear everything in time."""
    with (
        listening(server, session=session_of(world.users["bob"])) as asleep,
        listening(server, session=session_of(world.users["bob"])) as awake,
    ):
        for listener in (asleep, awake):
            listener.ask({"subscribe": "team", "team": "nlp"})
        for number in range(5):
            jobs = [world.submit(gpus=0.05, duration="1s", name=f"{'x' * 150}-{number}-{each}") for each in range(40)]
            world.settle()
            world.pass_time(seconds=2)
            wanted = {job.pk for job in jobs}
            awake.until(lambda wanted=wanted: wanted <= awake.jobs.keys() and awake.states() == {"succeeded"})
        asleep.until(lambda: len(asleep.jobs) == 200 and asleep.states() == {"succeeded"})
        assert asleep.resyncs == 0
