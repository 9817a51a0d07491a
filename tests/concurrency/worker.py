"""A process on the test database, started by ``tests.concurrency.racing.Worker`` in one of its roles."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime

import django
from django.conf import settings


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def submitter(user: str) -> None:
    """Submits one job a line, and says its id."""
    from scheduling.services.submit import submit_payload
    from tenants.models import User

    say("ready")
    for line in sys.stdin:
        asked = json.loads(line)
        jobs, _ = submit_payload(User.objects.get(username=user), asked["job"], datetime.fromisoformat(asked["now"]))
        say(str(jobs[0].pk))


def scheduler(holder: str) -> None:
    """Leads and works until it is killed or the line ends: one pass after another, on the clock of the wall."""
    import threading

    from inventory.models import EngineConnection
    from scheduling.engines.simulated import SimulatedEngine
    from scheduling.services.cycle import Scheduler
    from scheduling.services.reconcile import Reconciler

    ended = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    works = Scheduler(holder)
    assert works.lead(datetime.now(UTC))
    reconciler = Reconciler(EngineConnection.objects.get(), SimulatedEngine())
    passes = 0
    while not ended.is_set():
        reconciler.step(datetime.now(UTC))
        works.cycle(datetime.now(UTC))
        passes += 1
        if passes == 2:
            say("works")
        time.sleep(0.002)


if __name__ == "__main__":
    settings.DATABASES["default"].update(json.loads(os.environ["TEST_DATABASE"]))
    django.setup()
    {"submitter": submitter, "scheduler": scheduler}[sys.argv[1]](*sys.argv[2:])
