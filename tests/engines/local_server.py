"""A server that tests can kill: ``python -m tests.engines.local_server ROOT COUNT SCRIPT`` launches COUNT tasks.

It says ``ready`` and waits for a line before it launches, says ``launched`` after, and then follows its tasks until it
is killed, saying what is reported.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from scheduling.engines.local import LocalEngine
from tests.engines.local_tasks import now, shell


class Server:
    """Such a server as a child process of the test."""

    def __init__(self, root: Path, count: int, script: str) -> None:
        command = [sys.executable, "-m", __name__, str(root), str(count), script]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.expect("ready")

    def expect(self, line: str) -> None:
        assert self._child.stdout is not None
        assert self._child.stdout.readline() == f"{line}\n"

    def go(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()

    def kill(self) -> None:
        """As by kill -9: no handler, no farewell."""
        with self._child:
            self._child.kill()


def main(root: Path, count: int, script: str) -> None:
    engine = LocalEngine(root)
    say("ready")
    sys.stdin.readline()
    for allocation_id in range(1, count + 1):
        engine.launch(shell(allocation_id, script), now())
    say("launched")
    while True:
        for report in engine.observe(now()):
            say(f"{report.kind} {report.allocation_id}")
        time.sleep(0.004)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
