"""Runs tasks as processes of this machine, each under a supervisor that outlives the server.

What is true is in each task's folder, see ``scheduling.engines.local.supervisor``: an engine only reads it, and may be
ended at any moment. Whether a supervisor is there is asked of the kernel, by the lock that it holds; so neither a pid
that was given to another process nor a machine that was started again is ever mistaken for a task that runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from scheduling.engines.base import EngineError, NodeFound, Order, Report, Utilization
from scheduling.engines.local import cgroups
from scheduling.engines.local.environment import task_environment
from scheduling.engines.local.folder import Record, TaskFolder, empty, microseconds, moment
from scheduling.engines.local.machine import Machine
from scheduling.engines.local.nvidia import Nvidia
from scheduling.engines.local.processes import ProcessEnds, kill_orphans, spawn_supervisor
from scheduling.engines.local.supervisor import records

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What bounds every task. ``log_bytes``: so much of its output is kept; ``grace_s``: from TERM to KILL at its time
    limit; ``nice``: how far it stands back behind the server."""

    log_bytes: int = 64 << 20
    grace_s: float = 10.0
    nice: int = 5
    max_files: int = 65_536
    max_processes: int = 16_384


@dataclass(slots=True)
class Watch:
    """An allocation that is followed. ``processes``: pidfds by pid, of its supervisor and of those that may become it.

    ``silent``: nobody asked for it here, its end is not reported. ``told``: the supervisor knows of the latest stop.
    """

    allocation_id: int
    folder: TaskFolder
    order: Order | None = None
    silent: bool = False
    launched: bool = False
    started: bool = False
    stopping: bool = False
    told: bool = False
    supervisor: int | None = None
    processes: dict[int, int] = field(default_factory=dict)

    @property
    def is_settled(self) -> bool:
        """Nothing will change before the supervisor ends, and of that we hear."""
        return self.started and self.supervisor in self.processes and (self.told or not self.stopping)


class LocalEngine:
    """Linux only. ``root`` has a folder per allocation; ``python`` runs supervisors, never tasks.

    Where there is no NVIDIA device ``pretend_devices`` are offered, labelled as such. ``cgroup`` is where cgroups of
    tasks are made; None: where the server's own place allows it, else CPU and memory of tasks are not bounded.
    An order's ``image`` means nothing here. ``root`` belongs to one connection: ``resume`` stops all that it did not
    order. ``logs``, ``utilization`` and ``prune`` may be asked from other
    threads than the rest.
    """

    def __init__(
        self,
        root: Path,
        *,
        pretend_devices: int = 0,
        pretend_memory_mib: int = 16_384,
        bounds: Bounds | None = None,
        python: str = sys.executable,
        cgroup: Path | None = None,
        nvidia: Nvidia | None = None,
    ) -> None:
        if not hasattr(os, "pidfd_open"):
            raise EngineError("the local engine needs Linux 5.3 or newer")
        self._tasks = root.resolve() / "tasks"
        self._trash = root.resolve() / "trash"
        self._bounds = bounds or Bounds()
        self._python = python
        self._cgroup = cgroup or cgroups.place_for_tasks()
        self._machine = Machine(nvidia or Nvidia(), pretend_devices, pretend_memory_mib)
        self._ends = ProcessEnds()
        self._watches: dict[int, Watch] = {}
        self._unsettled: set[int] = set()
        self._reports: list[Report] = []

    # What is ordered

    def resume(self, orders: Sequence[Order], now: datetime) -> None:
        """Orders that began are followed again or reported; what runs here and nobody ordered is stopped in silence."""
        ordered = {}
        for order in orders:
            folder = self._folder(order.allocation_id)
            if folder.is_of(order.bound_at):
                ordered[order.allocation_id] = order
                if folder.claim_holder() is not None or folder.begun() or folder.ended():
                    self._watch(order.allocation_id, order=order, started=order.running_at is not None)
                    continue
            if order.running_at is not None:
                self._reports.append(
                    Report(order.allocation_id, "ended", now, None, records.LOST, "Its folder is gone.")
                )
        for allocation_id, folder in self._folders():
            if allocation_id not in ordered and folder.ended() is None:
                logger.warning("stopping the task of allocation %d, which nobody ordered", allocation_id)
                with contextlib.suppress(OSError):  # a full disk: the next resume tries again
                    self._stop(self._watch(allocation_id, silent=True), self._bounds.grace_s)
        self._look_at_unsettled(now)

    def launch(self, order: Order, now: datetime) -> None:
        """A supervisor is on its way, unless one was before. EngineError: it may not be, ask again."""
        folder = self._folder(order.allocation_id)
        try:
            if folder.order() is not None and not folder.is_of(order.bound_at):
                self._clear(order.allocation_id, now)
            if watch := self._watches.get(order.allocation_id):
                watch.silent = False
                return
            if self._is_about_to_tell_the_end(order.allocation_id):
                return
            if folder.order() is None:
                folder.record_order(self._order_record(order))
            watch = self._watch(order.allocation_id, order=order)
            if folder.begun() is None and folder.ended() is None:
                self._launch(watch)
        except OSError as problem:
            self._watches.pop(order.allocation_id, None)
            raise EngineError(f"allocation {order.allocation_id} could not be started: {problem}") from problem

    def stop(self, allocation_id: int, grace_s: float, now: datetime) -> None:
        """The task lives ``grace_s`` from now at most. EngineError: it does not know, ask again."""
        if self._is_about_to_tell_the_end(allocation_id):
            return
        watch = self._watches.get(allocation_id)
        if watch is None and self._folder(allocation_id).order() is None:
            self._reports.append(Report(allocation_id, "ended", now, None, records.STOPPED, "It was not here."))
            return
        watch = watch or self._watch(allocation_id, started=True)
        watch.silent = False
        try:
            self._stop(watch, grace_s)
            self._look(watch, now)
        except OSError as problem:
            raise EngineError(f"allocation {allocation_id} could not be stopped: {problem}") from problem

    # What is true

    def observe(self, now: datetime) -> list[Report]:
        """Tasks that just run cost nothing. Those that ended are forgotten; ``launch`` or ``stop`` tell it again."""
        for pidfd, allocation_id in self._ends.heard():
            self._forget_process(allocation_id, pidfd)
        self._look_at_unsettled(now)
        reports, self._reports = self._reports, []
        return sorted(reports, key=lambda report: (report.at, report.allocation_id, report.kind == "ended"))

    def next_change(self) -> datetime | None:
        """Processes end when they end; only what is known already has a time."""
        return min((report.at for report in self._reports), default=None)

    def inventory(self, now: datetime) -> list[NodeFound]:
        return [self._machine.node()]

    def logs(self, allocation_id: int, offset: int = 0, limit: int = 1_000_000) -> bytes:
        """Of any allocation whose folder is kept, followed here or not."""
        return self._folder(allocation_id).output(offset, limit)

    def utilization(self, now: datetime) -> Utilization:
        """CPU is what was used since the last call. Pretend devices are played, see ``usage.pretended``."""
        running = {
            allocation_id: (watch.supervisor, watch.order.slices)
            for allocation_id, watch in list(self._watches.items())
            if watch.supervisor and watch.order
        }
        return self._machine.utilization(running, now)

    def prune(self, before: datetime) -> int:
        """Folders of tasks that ended before then are gone, their logs with them. Answers how many.

        The ends of those must be on record: what is pruned before it was reported will be reported lost.
        """
        pruned = 0
        for allocation_id, folder in self._folders():
            end = folder.ended()
            if end is not None and moment(end) < before and allocation_id not in self._watches:
                folder.move_away(self._trash)
                pruned += 1
        empty(self._trash)
        return pruned

    def close(self) -> None:
        self._watches.clear()
        self._unsettled.clear()
        self._ends.close()
        self._machine.close()

    # How

    def _folder(self, allocation_id: int) -> TaskFolder:
        return TaskFolder(self._tasks / str(int(allocation_id)))

    def _folders(self) -> Iterator[tuple[int, TaskFolder]]:
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(filter(str.isdigit, os.listdir(self._tasks)), key=int):
                yield int(name), self._folder(int(name))

    def _order_record(self, order: Order) -> Record:
        """All that a supervisor needs to know."""
        path = os.fspath(self._folder(order.allocation_id).path)
        home = os.path.join(path, records.WORK)
        bound_at = microseconds(order.bound_at)
        return {
            "bound_at": bound_at,
            "job_id": order.job_id,
            "command": list(order.command),
            "environment": task_environment(order, path, home, os.environ, has_nvidia=self._machine.has_nvidia),
            "time_limit_s": order.time_limit_s,
            "grace_s": self._bounds.grace_s,
            "cpu_milli": order.cpu_milli,
            "host_memory_mib": order.host_memory_mib,
            "cgroup": os.fspath(self._cgroup / f"allotment-{order.allocation_id}-{bound_at}") if self._cgroup else "",
            "log_bytes": self._bounds.log_bytes,
            "nice": self._bounds.nice,
            "max_files": self._bounds.max_files,
            "max_processes": self._bounds.max_processes,
        }

    def _is_about_to_tell_the_end(self, allocation_id: int) -> bool:
        return any(report.allocation_id == allocation_id and report.kind == "ended" for report in self._reports)

    def _watch(
        self, allocation_id: int, *, order: Order | None = None, silent: bool = False, started: bool = False
    ) -> Watch:
        watch = Watch(allocation_id, self._folder(allocation_id), order, silent=silent, started=started)
        self._watches[allocation_id] = watch
        self._unsettled.add(allocation_id)
        return watch

    def _launch(self, watch: Watch) -> None:
        """A child is on its way to take the claim; should it be too late for that, it leaves again."""
        pid = spawn_supervisor(self._python, watch.folder)
        watch.launched = True
        pidfd = self._ends.follow(pid, watch.allocation_id)
        if pidfd is not None:
            watch.processes[pid] = pidfd

    def _stop(self, watch: Watch, grace_s: float) -> None:
        watch.folder.ask_to_stop(grace_s)
        watch.stopping, watch.told = True, False
        self._unsettled.add(watch.allocation_id)

    def _clear(self, allocation_id: int, now: datetime) -> None:
        """The folder's place is free: it had been an allocation of the same number in another database."""
        watch = self._watches.get(allocation_id) or self._watch(allocation_id, silent=True)
        if watch.folder.ended() is None:
            self._stop(watch, 0.0)
            self._look(watch, now)
        if watch.folder.ended() is None:
            raise EngineError(f"what had the number {allocation_id} before is not gone yet")
        self._watches.pop(allocation_id, None)
        watch.folder.move_away(self._trash)

    def _forget_process(self, allocation_id: int, pidfd: int) -> None:
        """The process with this pidfd ended; what that means for the allocation is to be looked at."""
        watch = self._watches.get(allocation_id)
        pid = next((pid for pid, own in watch.processes.items() if own == pidfd), None) if watch else None
        if watch is not None and pid is not None:
            del watch.processes[pid]
            watch.supervisor = None if watch.supervisor == pid else watch.supervisor
            self._unsettled.add(allocation_id)

    def _look_at_unsettled(self, now: datetime) -> None:
        for allocation_id in sorted(self._unsettled):
            watch = self._watches.get(allocation_id)
            if watch is None:
                self._unsettled.discard(allocation_id)
                continue
            try:
                self._look(watch, now)
            except OSError:
                logger.exception("allocation %d could not be looked at", allocation_id)

    def _look(self, watch: Watch, now: datetime) -> None:
        """What is true of this allocation is reported; it is settled, or looked at again, or has ended."""
        holder = watch.folder.claim_holder()
        end = watch.folder.ended()
        if end is None and holder is None:
            end = self._end_without_supervisor(watch)
        if end is not None:
            self._report_end(watch, end, now)
            return
        if holder:
            self._meet(watch, holder)
        self._report_start(watch, now)
        if watch.is_settled:
            self._unsettled.discard(watch.allocation_id)

    def _meet(self, watch: Watch, holder: int) -> None:
        """The supervisor is followed, and knows if it is to stop."""
        if holder not in watch.processes:
            pidfd = self._ends.follow(holder, watch.allocation_id)
            if pidfd is None:
                return
            if watch.folder.claim_holder() != holder:
                self._ends.let_go(pidfd)  # it ended before it was followed: this may be another process
                return
            watch.processes[holder] = pidfd
        watch.supervisor = holder
        # It hears signals from when it has begun; before that it will find the request by itself.
        if watch.stopping and not watch.told and watch.folder.begun() is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(watch.processes[holder], signal.SIGTERM)
            watch.told = True

    def _end_without_supervisor(self, watch: Watch) -> Record | None:
        """The end of a task that nobody watches over, put on record; None: not yet, or not for us to say."""
        began = watch.folder.begun() is not None
        if not began and (watch.processes or not (watch.stopping or watch.launched)):
            return None  # a supervisor is on its way, or was never sent
        with watch.folder.claimed() as mine:
            if not mine or watch.folder.ended() is not None:
                return watch.folder.ended()
            if watch.folder.begun() is not None:
                if kill_orphans(watch.folder):
                    return None
                return watch.folder.end(None, records.LOST, "Its supervisor is gone and left no exit code.")
            if watch.stopping:
                return watch.folder.end(None, records.STOPPED, "Stopped before it began.")
            said = watch.folder.errors() or "it said nothing"
            return watch.folder.end(None, records.FAILED_TO_START, f"Its supervisor did not start: {said}.")

    def _report_start(self, watch: Watch, now: datetime) -> None:
        if not watch.started and (start := watch.folder.started()) is not None:
            watch.started = True
            self._report(watch, Report(watch.allocation_id, "started", moment(start)), now)

    def _report_end(self, watch: Watch, end: Record, now: datetime) -> None:
        self._report_start(watch, now)
        report = Report(watch.allocation_id, "ended", moment(end), end["exit_code"], end["reason"], end["message"])
        self._report(watch, report, now)
        del self._watches[watch.allocation_id]

    def _report(self, watch: Watch, report: Report, now: datetime) -> None:
        """Queued for ``observe``, dated by the supervisor's clock, but not after now and not before the binding."""
        if not watch.silent:
            at = min(report.at, now)
            self._reports.append(replace(report, at=max(at, watch.order.bound_at) if watch.order else at))
