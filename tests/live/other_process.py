"""A scheduler and engine in a process of its own, on the database of the test: ``python other_process.py DATABASE``.

Reads the world's jobs, plays them to their ends on a virtual clock that starts at the moment given, and leaves.
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(database: str, start: str, minutes: str) -> None:
    sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]
    import django
    from django.conf import settings

    settings.DATABASES["default"]["NAME"] = database
    django.setup()
    from inventory.models import EngineConnection
    from scheduling.engines.simulated import SimulatedEngine
    from scheduling.services.cycle import Scheduler
    from scheduling.services.reconcile import Reconciler
    from scheduling.simulation.clockwork import Clockwork

    now = datetime.fromisoformat(start)
    scheduler = Scheduler("another process")
    if not scheduler.lead(now):
        sys.exit("somebody else leads")
    clockwork = Clockwork(now, scheduler, [Reconciler(EngineConnection.objects.get(), SimulatedEngine())])
    clockwork.settle()
    clockwork.run_until(now + timedelta(minutes=float(minutes)))
    clockwork.settle()


if __name__ == "__main__":
    main(*sys.argv[1:])
