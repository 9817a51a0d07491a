"""Celery inside one process: a worker and beat on the in-memory broker, for the embedded default."""

from __future__ import annotations

import logging
import threading

from celery.beat import Service
from celery.worker import WorkController

from config.celery_app import celery_app

log = logging.getLogger(__name__)


class EmbeddedCelery:
    """A worker with one thread and a beat; ``stop`` ends both. Signals and logging stay the caller's."""

    def __init__(self, schedule_file: str) -> None:
        celery_app.conf.update(worker_hijack_root_logger=False, beat_schedule_filename=schedule_file)
        self.worker = WorkController(app=celery_app, pool_cls="solo", concurrency=1, loglevel="WARNING", quiet=True)
        self.beat = Service(celery_app, max_interval=5, schedule_filename=schedule_file)
        self.threads = (
            threading.Thread(target=self._work, name="celery-worker", daemon=True),
            threading.Thread(
                target=self.beat.start, kwargs={"embedded_process": False}, name="celery-beat", daemon=True
            ),
        )

    def _work(self) -> None:
        try:
            self.worker.start()
        except Exception:
            log.exception("the worker of the chores ended")

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        self.beat.stop(wait=False)
        self.worker.stop(exitcode=0)
