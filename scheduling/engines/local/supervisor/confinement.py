"""What bounds a task: a cgroup v2 of its own where one may be made, rlimits and a lower priority everywhere."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Mapping
from typing import Any

CPU_PERIOD_US = 100_000
# The kernel takes no smaller quota of a period.
LEAST_QUOTA_US = 1_000


class Cgroup:
    """The cgroup that an order names; where it names none, or none can be made, nothing happens here."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._path: str = order["cgroup"]
        self._cpu_milli: int = order["cpu_milli"]
        self._memory_mib: int = order["host_memory_mib"]

    def make(self) -> None:
        if not self._path:
            return
        try:
            os.makedirs(self._path, exist_ok=True)
            if self._cpu_milli:
                quota = max(LEAST_QUOTA_US, self._cpu_milli * CPU_PERIOD_US // 1000)
                self._set("cpu.max", f"{quota} {CPU_PERIOD_US}")
            if self._memory_mib:
                self._set("memory.max", str(self._memory_mib << 20))
        except OSError as problem:
            sys.stderr.write(f"no cgroup for this task: {problem}\n")
            sys.stderr.flush()
            self.remove()
            self._path = ""

    def join(self) -> None:
        if self._path:
            self._set("cgroup.procs", "0")

    def kill(self) -> None:
        if self._path:
            with contextlib.suppress(OSError):
                self._set("cgroup.kill", "1")

    def remove(self) -> None:
        if self._path:
            with contextlib.suppress(OSError):
                os.rmdir(self._path)

    def ran_out_of_memory(self) -> str:
        """What to say if the kernel killed something in here for its memory, else nothing."""
        with contextlib.suppress(OSError, ValueError), open(f"{self._path}/memory.events", encoding="ascii") as file:
            counts = dict(line.split() for line in file)
            if int(counts.get("oom_kill", 0)):
                return f"Out of memory: it took more than its {self._memory_mib} MiB."
        return ""

    def _set(self, name: str, value: str) -> None:
        with open(f"{self._path}/{name}", "w", encoding="ascii") as file:
            file.write(value)


def confine(order: Mapping[str, Any], cgroup: Cgroup) -> None:
    """This process and all that it starts are bounded.

    No RLIMIT_AS: CUDA and many runtimes reserve far more address space than they use. RLIMIT_NPROC counts all that the
    user runs, so it only stops what multiplies without end.
    """
    cgroup.join()
    for kind, wanted in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, order["max_files"]),
        (resource.RLIMIT_NPROC, order["max_processes"]),
    ):
        hard = resource.getrlimit(kind)[1]
        bound = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (bound, bound))
    os.nice(order["nice"])
    # When the machine runs out of memory, the kernel takes the task, not its supervisor or the server.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("500")
