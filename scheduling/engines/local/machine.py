"""This machine: what it has to share, and what of it is used."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from datetime import datetime

import psutil

from scheduling.engines.base import DeviceFound, DeviceUse, NodeFound, Slice, Utilization
from scheduling.engines.local import cgroups, usage
from scheduling.engines.local.environment import is_nvidia
from scheduling.engines.local.nvidia import Nvidia

PRETEND = "pretend"


def node_name() -> str:
    """The host's name as the inventory allows it."""
    return re.sub(r"[^a-z0-9.-]+", "-", platform.node().lower()).strip(".-")[:63] or "localhost"


class Machine:
    """One node. With no NVIDIA device ``pretend_devices`` stand in, and their vendor, model and UUID say so."""

    def __init__(self, nvidia: Nvidia, pretend_devices: int, pretend_memory_mib: int) -> None:
        self._nvidia = nvidia
        self._pretend_devices = pretend_devices
        self._pretend_memory_mib = pretend_memory_mib
        self._last_look: usage.Look | None = None

    @property
    def has_nvidia(self) -> bool:
        return bool(self._nvidia.devices())

    def node(self) -> NodeFound:
        """CPU and memory as far as the cgroups around the server leave them."""
        cpu_bound, memory_bound = cgroups.bounds()
        cpu_milli = len(os.sched_getaffinity(0)) * 1000
        memory_mib = psutil.virtual_memory().total >> 20
        return NodeFound(
            name=node_name(),
            cpu_milli=min(cpu_milli, cpu_bound or cpu_milli),
            host_memory_mib=min(memory_mib, memory_bound or memory_mib),
            devices=self._nvidia.devices() or self._pretended(),
        )

    def _pretended(self) -> tuple[DeviceFound, ...]:
        name = node_name()
        return tuple(
            DeviceFound(index, f"{PRETEND}-{name}-{index}", f"{PRETEND}-gpu", PRETEND, self._pretend_memory_mib)
            for index in range(self._pretend_devices)
        )

    def utilization(self, tasks: Mapping[int, tuple[int, Sequence[Slice]]], now: datetime) -> Utilization:
        """For each allocation the pid of its supervisor, and its slices. CPU is what was used since the last call."""
        found = usage.look({allocation_id: pid for allocation_id, (pid, _) in tasks.items()}, now)
        devices = self._nvidia.devices()
        gpus = {device.index: self._nvidia.use(device.index) for device in devices}
        shares: list[DeviceUse] = []
        uses = []
        for allocation_id, tree in sorted(found.trees.items()):
            _, slices = tasks[allocation_id]
            cpu = usage.cpu_milli(allocation_id, self._last_look, found)
            if is_nvidia(slices):
                own = usage.measured(slices, tree.pids, gpus, found)
            else:
                own = usage.pretended(slices, cpu, tree.host_memory_mib)
            shares.extend(own)
            uses.append(usage.task_use(allocation_id, own, cpu, tree.host_memory_mib))
        self._last_look = found
        name = node_name()
        measured = [DeviceUse(name, index, gpu.compute_milli, gpu.memory_mib) for index, gpu in sorted(gpus.items())]
        played = [] if devices else [usage.sum_of(shares, name, device.index) for device in self._pretended()]
        return Utilization(tuple(measured or played), tuple(uses))

    def close(self) -> None:
        self._nvidia.close()
