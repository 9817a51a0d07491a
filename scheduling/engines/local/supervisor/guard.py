"""One task from its start until nothing of it is left."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import select
import signal
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from .confinement import Cgroup, confine
from .records import (
    BEGUN,
    CLAIM,
    ENDED,
    FAILED_TO_START,
    LOG,
    LOST,
    ORDER,
    STARTED,
    STOP,
    STOPPED,
    TIME_LIMIT,
    WORK,
    end_record,
    identity,
    now_us,
    process_fields,
    read_record,
    take_claim,
    write_record,
)

# What a shell answers for a command that it cannot find, or finds and cannot run.
NOT_FOUND, NOT_RUNNABLE = 127, 126
# How long what the main process left behind (a `tee`, say) may take to end by itself before it is killed.
STRAGGLERS_S = 1.0
# How often killing is repeated while something is left: a tree dies level by level, each level becoming ours.
KILL_AGAIN_S = 0.05
CHUNK_BYTES = 64 * 1024
# Of a log that is full the end is worth as much as the beginning: it holds the traceback.
TAIL_BYTES = 64 * 1024
# A full disk is waited for this long: without its last record the exit code is lost.
PATIENCE_WITH_DISK_S = 60

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


class Log:
    """The task's output in ``log``: its first bytes, and of what is beyond ``limit`` the last ones, with a note."""

    def __init__(self, limit: int) -> None:
        self._file = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._tail_bytes = min(TAIL_BYTES, limit // 2)
        self._room = limit - self._tail_bytes
        self._tail = b""
        self._beyond = 0

    def take(self, data: bytes) -> None:
        kept, rest = data[: self._room], data[self._room :]
        self._room -= len(kept)
        self._write(kept)
        if rest:
            if not self._beyond:
                self._write(b"\n[allotment] The log is full. Its end will follow when the task has ended.\n")
            self._tail = (self._tail + rest)[-self._tail_bytes :]
            self._beyond += len(rest)

    def finish(self) -> None:
        left_out = self._beyond - len(self._tail)
        if left_out:
            self._write(b"[allotment] %d bytes are left out here.\n" % left_out)
        self._write(self._tail)
        os.close(self._file)

    def _write(self, data: bytes) -> None:
        """A full disk costs output, never the task."""
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._file, data) :]


class Guard:
    """Starts what ``order`` says and stays until it is all gone. Once: ``run``."""

    def __init__(self, order: Mapping[str, Any], wake: int) -> None:
        self._order = order
        self._wake = wake
        self._cgroup = Cgroup(order)
        self._log = Log(order["log_bytes"])
        self._poll = select.poll()
        self._poll.register(wake, select.POLLIN)
        self._output = -1
        self._main = 0
        self._status: int | None = None
        self._reason = ""
        self._limit_at: float | None = None
        self._kill_at: float | None = None
        self.asked = False

    def run(self) -> dict[str, Any]:
        """The task has run, and nothing of it is left; answers what ``ended.json`` is to say."""
        self._cgroup.make()
        failure = self._start()
        if failure is None:
            while not self._reap():
                self._act(time.monotonic())
                self._wait()
            self._drain()
        end = failure or self._end()
        self._log.finish()
        self._cgroup.remove()
        return end

    def _start(self) -> dict[str, Any] | None:
        """The command runs, or the answer says why it cannot."""
        command = self._order["command"]
        if not command or not command[0]:
            return end_record(NOT_FOUND, FAILED_TO_START, "The command is empty.")
        self._output, output = os.pipe()
        failed, failure = os.pipe()
        supervisor = os.getpid()
        at = now_us()
        self._main = os.fork()
        if self._main == 0:
            self._become_the_task(supervisor, output, failure)
        os.close(output)
        os.close(failure)
        with open(failed, "rb") as pipe:
            problem = pipe.read()  # ends when the command takes the child's place
        if problem:
            os.waitpid(self._main, 0)
            number, _, message = problem.decode(errors="replace").partition(" ")
            code = NOT_FOUND if int(number) in (errno.ENOENT, errno.ENOTDIR) else NOT_RUNNABLE
            return end_record(code, FAILED_TO_START, f"{command[0]}: {message}.")
        write_record(STARTED, {"at": at, **identity(self._main)})
        os.set_blocking(self._output, False)
        self._poll.register(self._output, select.POLLIN)
        if self._order["time_limit_s"] is not None:
            self._limit_at = time.monotonic() + self._order["time_limit_s"]
        return None

    def _become_the_task(self, supervisor: int, output: int, failure: int) -> NoReturn:
        try:
            os.setsid()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != supervisor:  # it died before it could be bound to us
                os._exit(NOT_RUNNABLE)
            confine(self._order, self._cgroup)
            os.umask(0o022)
            os.chdir(WORK)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            signal.set_wakeup_fd(-1)
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)
            command = self._order["command"]
            os.execvpe(command[0], command, self._order["environment"])
        except BaseException as problem:
            number = getattr(problem, "errno", None) or errno.EINVAL
            text = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
            os.write(failure, f"{number} {text}".encode(errors="replace"))
        os._exit(NOT_FOUND)

    def _reap(self) -> bool:
        """Every child that ended is taken in, orphans of the task too: they come to us. True: none is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self._main:
                self._status = status
                if self._kill_at is None:
                    self._kill_by(STRAGGLERS_S)

    def _act(self, now: float) -> None:
        if self.asked:
            self.asked = False
            stop = read_record(STOP)
            self._ask_to_end(STOPPED if stop else LOST, stop["grace_s"] if stop else self._order["grace_s"])
        if self._limit_at is not None and now >= self._limit_at:
            self._limit_at = None
            self._ask_to_end(TIME_LIMIT, self._order["grace_s"])
        if self._kill_at is not None and now >= self._kill_at:
            self._kill()
            self._kill_at = now + KILL_AGAIN_S

    def _ask_to_end(self, reason: str, grace_s: float) -> None:
        """The group has its TERM, and lives ``grace_s`` from now at most."""
        if self._status is None:
            self._reason = self._reason or reason
            # Refused where the command became another user; that one is waited for.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._main, signal.SIGTERM)
                os.killpg(self._main, signal.SIGCONT)  # what was stopped hears the TERM too
        self._kill_by(grace_s)

    def _kill_by(self, seconds: float) -> None:
        at = time.monotonic() + seconds
        self._kill_at = at if self._kill_at is None else min(self._kill_at, at)

    def _kill(self) -> None:
        self._cgroup.kill()
        if self._status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._main, signal.SIGKILL)
        # Children only: their pids stay theirs until they are reaped here. What they leave comes to us next.
        me = str(os.getpid()).encode()
        for name in filter(str.isdigit, os.listdir("/proc")):
            fields = process_fields(name)
            if fields is not None and fields[1] == me and fields[0] != b"Z":
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(int(name), signal.SIGKILL)

    def _wait(self) -> None:
        """Until something happens or is due; output that came meanwhile is in the log."""
        due = min((at for at in (self._limit_at, self._kill_at) if at is not None), default=None)
        patience_ms = None if due is None else max(0.0, due - time.monotonic()) * 1000
        for file, _ in self._poll.poll(patience_ms):
            if file == self._wake:
                os.read(self._wake, CHUNK_BYTES)
            elif not self._pump():
                self._poll.unregister(self._output)

    def _pump(self) -> bool:
        """At most one chunk of output is moved into the log; False at the end of it all."""
        try:
            data = os.read(self._output, CHUNK_BYTES)
        except BlockingIOError:
            return True
        self._log.take(data)
        return bool(data)

    def _drain(self) -> None:
        """All that was written is in the log: those who could write are gone."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._output, CHUNK_BYTES):
                self._log.take(data)

    def _end(self) -> dict[str, Any]:
        assert self._status is not None
        code = os.waitstatus_to_exitcode(self._status)
        how = f"exit code {code}" if code >= 0 else f"killed by {signal_name(-code)}"
        if self._reason == TIME_LIMIT:
            limit = self._order["time_limit_s"]
            return end_record(None, TIME_LIMIT, f"The time limit of {limit} s was reached ({how}).")
        if self._reason == STOPPED:
            return end_record(None, STOPPED, f"Stopped ({how}).")
        if self._reason == LOST:
            return end_record(None, LOST, f"Its supervisor was told to end from outside ({how}).")
        if code >= 0:
            return end_record(code, "", "")
        return end_record(128 - code, "", self._cgroup.ran_out_of_memory() or f"Killed by {signal_name(-code)}.")


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def write_end(end: Mapping[str, Any]) -> None:
    """The end is on the disk, once there is room for it."""
    deadline = time.monotonic() + PATIENCE_WITH_DISK_S
    while True:
        try:
            return write_record(ENDED, end, durable=True)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def main(folder: str) -> None:
    """The task in ``folder`` has run and ended, unless another supervisor has it or had it."""
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])  # a listening socket of the server, say
    os.chdir(folder)
    claim = take_claim(CLAIM)
    if claim is None or os.path.exists(BEGUN) or os.path.exists(ENDED):
        return
    order = read_record(ORDER)
    if order is None:
        raise SystemExit("there is no order in this folder")
    os.makedirs(WORK, exist_ok=True)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    guard = Guard(order, wake)

    def ask(*_: object) -> None:
        guard.asked = True

    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, ask)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    # From here on SIGTERM is heard. An engine that saw no begun.json has left stop.json only: it is looked for after.
    write_record(BEGUN, {"at": now_us(), **identity(os.getpid())}, durable=True)
    if os.path.exists(STOP):
        write_end(end_record(None, STOPPED, "Stopped before it began."))
    else:
        write_end(guard.run())
