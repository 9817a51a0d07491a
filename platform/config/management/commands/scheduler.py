"""``manage.py scheduler``: the scheduler, the engines and the sampler in a process of their own."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand

from config.processes import core_loops


class Command(BaseCommand):
    help = "Run the scheduler, the engines and the sampler. Several may run: one leads, the others stand by."

    def handle(self, *args: Any, **options: Any) -> None:
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        threads = [loop.start() for loop in core_loops(stop)]
        self.stdout.write("The scheduler runs. Ctrl-C stops it.")
        stop.wait()
        for thread in threads:
            thread.join(timeout=20)
