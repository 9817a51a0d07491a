"""Where a cgroup v2 for tasks may be made, and what the server's own cgroup leaves of this machine.

A place is offered to the server by delegation. With systemd: ``Delegate=cpu memory`` and ``DelegateSubgroup=server``
(and ``KillMode=process``, so that tasks outlive a restart of the service).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

NEEDED = {"cpu", "memory"}


def own_cgroup() -> tuple[Path, Path] | None:
    """Where cgroup v2 is mounted, and this process's cgroup in it; None without cgroup v2."""
    mount = _mount()
    if mount is None:
        return None
    place, root = mount
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, _, path = line.partition("::")
            if number == "0":
                inside = os.path.relpath(path, root) if path.startswith(root) else "."
                return place, place / inside
    return None


def _mount() -> tuple[Path, str] | None:
    """The mount point of cgroup v2 and the cgroup that it shows as its root, see proc_pid_mountinfo(5)."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            if after.startswith("cgroup2 "):
                fields = before.split()
                return Path(fields[4]), fields[3]
    return None


def place_for_tasks() -> Path | None:
    """A cgroup below which this process may make one per task, with cpu and memory counted; None where it may not.

    Its own cgroup, or the one above where that is a delegated service: never one of systemd's slices.
    """
    found = own_cgroup()
    if found is None:
        return None
    mount, own = found
    candidates = [own]
    if own != mount and own.parent != mount and own.parent.suffix in (".service", ".scope"):
        candidates.append(own.parent)
    return next((place for place in candidates if _may_divide(place)), None)


def _may_divide(place: Path) -> bool:
    """Children of ``place`` are bounded in cpu and memory, and one could be made. Writes only what that needs."""
    try:
        if not NEEDED.issubset((place / "cgroup.controllers").read_text().split()):
            return False
        control = place / "cgroup.subtree_control"
        if not NEEDED.issubset(control.read_text().split()):
            control.write_text(" ".join(f"+{name}" for name in sorted(NEEDED)))
        probe = place / f"allotment-probe-{os.getpid()}"
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def bounds() -> tuple[int | None, int | None]:
    """CPU in milli-cores and memory in MiB that the cgroups around this process allow it; None: not bounded."""
    cpu: list[int] = []
    memory: list[int] = []
    found = own_cgroup()
    if found is not None:
        mount, place = found
        while True:
            quota = _read(place / "cpu.max").split()
            if len(quota) == 2 and quota[0].isdigit() and int(quota[1]):
                cpu.append(int(quota[0]) * 1000 // int(quota[1]))
            most = _read(place / "memory.max").strip()
            if most.isdigit():
                memory.append(int(most) >> 20)
            if place == mount or place == place.parent:
                break
            place = place.parent
    return min(cpu, default=None), min(memory, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
