"""NVIDIA devices of this machine, through NVML. Without a driver there are simply none.

NVML answers what it does not know in many ways: an error, a number beyond all bounds, not-a-number. All of them are
None here, never 0. A device in MIG mode is shown as the whole device that it no longer is, and as not healthy.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import pynvml

from scheduling.engines.base import DeviceFound

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What one process has of one device: ``compute_milli`` of 1000, ``memory_mib``; None is unknown."""

    compute_milli: int | None
    memory_mib: int | None


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One device now. ``processes`` is None where NVML does not tell who uses it."""

    compute_milli: int | None
    memory_mib: int | None
    processes: Mapping[int, ProcessUse] | None = field(default_factory=dict)


def milli(percent: Any) -> int | None:
    """Thousandths of a device for NVML's per cent; None for anything that is not between 0 and 100."""
    return round(percent * 10) if _is_number(percent) and 0 <= percent <= 100 else None


def mebibytes(size: Any, most: int) -> int | None:
    """MiB for NVML's bytes; None for anything that is not between 0 and ``most`` MiB."""
    return int(size) >> 20 if _is_number(size) and 0 <= size <= most << 20 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def slug(name: str) -> str:
    """The name of a model as the inventory allows it: ``NVIDIA H200`` becomes ``NVIDIA-H200``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:63] or "NVIDIA"


class Nvidia:
    """``nvml`` is the module pynvml or one that answers like it."""

    def __init__(self, nvml: Any = pynvml) -> None:
        self._nvml = nvml
        self._ready = False
        self._known: dict[int, DeviceFound] = {}
        self._sampled: dict[int, int] = {}

    def devices(self) -> tuple[DeviceFound, ...]:
        """All devices by index. One that was there and no longer answers stays, not healthy."""
        for index in range(self._count()):
            device = self._ask(partial(self._describe, index))
            if device is not None:
                self._known[index] = device
            elif index in self._known:
                self._known[index] = replace(self._known[index], healthy=False)
        return tuple(self._known[index] for index in sorted(self._known))

    def use(self, index: int) -> GpuUse:
        """What is used of the device with this index now."""
        most = self._known[index].memory_mib if index in self._known else 1 << 40
        handle = self._ask(lambda: self._nvml.nvmlDeviceGetHandleByIndex(index))
        if handle is None:
            return GpuUse(None, None, None)
        rates = self._ask(lambda: self._nvml.nvmlDeviceGetUtilizationRates(handle))
        memory = self._ask(lambda: self._nvml.nvmlDeviceGetMemoryInfo(handle))
        return GpuUse(
            milli(getattr(rates, "gpu", None)),
            mebibytes(getattr(memory, "used", None), most),
            self._processes(index, handle, most),
        )

    def close(self) -> None:
        if self._ready:
            self._ready = False
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _count(self) -> int:
        if not self._ready:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlInit()
                self._ready = True
        return self._ask(self._nvml.nvmlDeviceGetCount) or 0 if self._ready else 0

    def _describe(self, index: int) -> DeviceFound:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        return DeviceFound(
            index=index,
            uuid=nvml.nvmlDeviceGetUUID(handle),
            model=slug(nvml.nvmlDeviceGetName(handle)),
            vendor="nvidia",
            memory_mib=int(nvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20,
            healthy=not self._is_cut_up(handle),
        )

    def _is_cut_up(self, handle: Any) -> bool:
        """MIG is on: a process sees its instances, never the device."""
        mode = self._ask(lambda: self._nvml.nvmlDeviceGetMigMode(handle))
        return mode is not None and mode[0] == self._nvml.NVML_DEVICE_MIG_ENABLE

    def _processes(self, index: int, handle: Any, most: int) -> dict[int, ProcessUse] | None:
        running = self._ask(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        if running is None:
            return None
        compute = self._compute_of_processes(index, handle)
        return {
            process.pid: ProcessUse(
                None if compute is None else compute.get(process.pid, 0), mebibytes(process.usedGpuMemory, most)
            )
            for process in running
        }

    def _compute_of_processes(self, index: int, handle: Any) -> dict[int, int | None] | None:
        """The newest sample of each process since the last question. NVML names only those that were busy."""
        since = self._sampled.get(index, 0)
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(handle, since)
        except self._nvml.NVMLError as problem:
            return {} if problem.value == self._nvml.NVML_ERROR_NOT_FOUND else None
        newest: dict[int, int | None] = {}
        for sample in sorted(samples, key=lambda sample: sample.timeStamp):
            newest[sample.pid] = milli(sample.smUtil)
            self._sampled[index] = max(since, sample.timeStamp)
        return newest

    def _ask(self, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except self._nvml.NVMLError:
            return None
