"""Processes that are followed, children or not; and those that a supervisor left behind when it was killed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path

from scheduling.engines.local.folder import TaskFolder
from scheduling.engines.local.supervisor.confinement import Cgroup
from scheduling.engines.local.supervisor.records import ERRORS, is_alive

SUPERVISOR = Path(__file__).with_name("supervisor") / "__main__.py"


class ProcessEnds:
    """Hears of the end of any number of processes for the price of those that ended. Reaps those that are ours.

    A pidfd keeps meaning the process for which it was opened, whoever gets the pid afterwards.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._keys: dict[int, int] = {}

    def follow(self, pid: int, key: int) -> int | None:
        """An open pidfd, whose end ``heard`` tells together with ``key``; None: there is no such process."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        self._keys[pidfd] = key
        self._epoll.register(pidfd, select.EPOLLIN)
        return pidfd

    def heard(self) -> list[tuple[int, int]]:
        """(pidfd, key) of each process that ended since the last call. The pidfds are closed."""
        ended = []
        for pidfd, _ in self._epoll.poll(0):
            with contextlib.suppress(ChildProcessError):  # not our child: someone else reaps it
                os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
            ended.append((pidfd, self._keys[pidfd]))
            self.let_go(pidfd)
        return ended

    def let_go(self, pidfd: int) -> None:
        del self._keys[pidfd]
        self._epoll.unregister(pidfd)
        os.close(pidfd)

    def close(self) -> None:
        for pidfd in self._keys:
            os.close(pidfd)
        self._keys.clear()
        self._epoll.close()


def spawn_supervisor(python: str, folder: TaskFolder) -> int:
    """The pid of a supervisor in a session of its own: what ends the server, or its terminal, does not end it."""
    errors = os.fspath(folder.path / ERRORS)
    return os.posix_spawn(
        python,
        [python, "-I", "-S", os.fspath(SUPERVISOR), os.fspath(folder.path)],
        {"LANG": "C.UTF-8"},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
    )


def kill_orphans(folder: TaskFolder) -> int:
    """How many processes of a task without supervisor were still there; each has its KILL. 0: it is all gone.

    They are the main process, and whatever was born with this folder in its environment. The kernel kills the main
    process with its supervisor; this is for those that it started, and for a main process that gained privileges.
    """
    order, started = folder.order(), folder.started()
    if order is not None:
        cgroup = Cgroup(order)
        cgroup.kill()
        cgroup.remove()
    mark = b"ALLOTMENT_TASK_FOLDER=" + os.fsencode(folder.path)
    killed = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        pid = int(name)
        is_main = started is not None and started["pid"] == pid
        with contextlib.suppress(ProcessLookupError, PermissionError):
            pidfd = os.pidfd_open(pid)
            try:
                if (is_main and started is not None and is_alive(started)) or _is_marked(pid, mark):
                    killed += 1
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)
    return killed


def _is_marked(pid: int, mark: bytes) -> bool:
    try:
        return pid != os.getpid() and mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
