"""What a measurement was made on, for its report."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """The processor, how many of them this process may use, the load before, the memory, the versions."""
    return {
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": [round(each, 1) for each in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def _processor() -> str:
    names = _lines("/proc/cpuinfo", "model name")
    return names[0] if names else platform.processor()


def _memory_gib() -> int | None:
    found = _lines("/proc/meminfo", "MemTotal")
    return round(int(found[0].split()[0]) / 1024 / 1024) if found else None


def _lines(path: str, key: str) -> list[str]:
    try:
        text = Path(path).read_text()
    except OSError:  # not Linux
        return []
    return [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(key)]


def resident_mib(*, most: bool = False) -> int | None:
    """What this process has resident, or the most that it ever had; None where the system does not tell."""
    found = _lines("/proc/self/status", "VmHWM" if most else "VmRSS")
    return int(found[0].split()[0]) // 1024 if found else None
