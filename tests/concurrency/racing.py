"""Several threads or processes at the same point at the same moment, each with a database connection of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from django.db import connection, connections

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0


def at_once(acts: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each act returned or raised, all begun together, each in a thread of its own."""
    start = threading.Barrier(len(acts))
    results: list[Any] = [None] * len(acts)

    def run(position: int, act: Callable[[], Any]) -> None:
        try:
            connection.ensure_connection()
            start.wait(PATIENCE_S)
            results[position] = act()
        except Exception as error:
            results[position] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(position, act), daemon=True) for position, act in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    return results


def raised(results: list[Any], kind: type[Exception]) -> int:
    """How many raised ``kind``; fails the test where something else was raised."""
    others = [each for each in results if isinstance(each, Exception) and not isinstance(each, kind)]
    assert others == []
    return sum(isinstance(each, kind) for each in results)


class Worker:
    """A process of its own on the same test database: ``tests/concurrency/worker.py`` in the role ``role``."""

    def __init__(self, role: str, *arguments: str):
        database = {key: str(value) for key, value in connection.settings_dict.items() if key in ("NAME", "ENGINE")}
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "config.settings.test",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "platform")]),
            "TEST_DATABASE": json.dumps(database),
        }
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py")), role, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )

    def send(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """The next line that the worker says; fails the test where it died instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the worker ended with {self.process.wait(PATIENCE_S)}"
        return line.strip()

    def kill(self) -> None:
        """Ends it at once, whatever it is doing, as a power cut would."""
        self.process.kill()
        self._reap()

    def end(self) -> int:
        """Lets it end by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self._reap()

    def _reap(self) -> int:
        code = self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        return code
