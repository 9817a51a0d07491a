"""NVML's answers become ours: what it does not know is unknown, never 0. The driver alone is played."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from scheduling.engines.base import DeviceFound, DeviceUse
from scheduling.engines.local import LocalEngine
from scheduling.engines.local.machine import node_name
from scheduling.engines.local.nvidia import GpuUse, Nvidia, ProcessUse, mebibytes, milli, slug
from scheduling.engines.local.usage import Look, measured
from tests.engines.local_tasks import Told, now, nvidia_slice, order, shell

GIB = 1 << 30


class Driver:
    """Answers as pynvml does, from what a test sets; what is not set raises as NVML does."""

    NVMLError = pynvml.NVMLError
    NVML_ERROR_NOT_FOUND = pynvml.NVML_ERROR_NOT_FOUND
    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.missing: set[int] = set()
        self.mig = False
        self.gpu: Any = 37
        self.used: Any = 10 * GIB
        self.running: Any = []
        self.samples: Any = []
        self.asked_since: list[int] = []

    def nvmlInit(self) -> None:  # noqa: N802
        if self.count == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index in self.missing:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return "NVIDIA H200"

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:  # noqa: N802
        return [int(self.mig), int(self.mig)]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=141 * GIB, used=self.used)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=answered(self.gpu))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:  # noqa: N802
        return answered(self.running)

    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int) -> Any:  # noqa: N802
        self.asked_since.append(since)
        return answered(self.samples)


def answered(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


def refusal(code: int) -> Exception:
    return pynvml.NVMLError(code)


NOT_SUPPORTED = refusal(pynvml.NVML_ERROR_NOT_SUPPORTED)


def process(pid: int, memory: Any) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=memory)


def sample(pid: int, at: int, percent: int) -> Any:
    return SimpleNamespace(pid=pid, timeStamp=at, smUtil=percent)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -1, 101, 2**32 - 1, "5", True])
def test_a_share_that_cannot_be_is_unknown(value: Any) -> None:
    assert milli(value) is None


@pytest.mark.parametrize(("percent", "share"), [(0, 0), (37, 370), (100, 1000), (12.34, 123)])
def test_a_share_that_can_be(percent: float, share: int) -> None:
    assert milli(percent) == share


@pytest.mark.parametrize("value", [None, math.nan, -1, 81 * GIB, 2**64 - 1])
def test_memory_that_cannot_be_is_unknown(value: Any) -> None:
    assert mebibytes(value, 80 * 1024) is None


def test_memory_that_can_be() -> None:
    assert mebibytes(10 * GIB, 80 * 1024) == 10240


@pytest.mark.parametrize(
    ("name", "model"),
    [("NVIDIA H200", "NVIDIA-H200"), ("Tesla V100-SXM2-32GB", "Tesla-V100-SXM2-32GB"), ("?", "NVIDIA")],
)
def test_a_model_is_named_as_the_inventory_allows(name: str, model: str) -> None:
    assert slug(name) == model


def test_devices_are_found() -> None:
    assert Nvidia(Driver(2)).devices() == (
        DeviceFound(0, "GPU-0", "NVIDIA-H200", "nvidia", 144384),
        DeviceFound(1, "GPU-1", "NVIDIA-H200", "nvidia", 144384),
    )


def test_without_a_driver_there_are_none() -> None:
    nvidia = Nvidia(Driver(0))
    assert nvidia.devices() == ()
    nvidia.close()


def test_this_machine_answers_with_or_without_a_driver() -> None:
    nvidia = Nvidia()
    assert all(device.uuid.startswith("GPU-") for device in nvidia.devices())
    nvidia.close()


def test_a_device_that_no_longer_answers_stays_and_is_not_healthy() -> None:
    driver = Driver(2)
    nvidia = Nvidia(driver)
    nvidia.devices()
    driver.missing = {1}
    assert [device.healthy for device in nvidia.devices()] == [True, False]
    assert nvidia.use(1) == GpuUse(None, None, None)


def test_a_device_that_is_cut_up_is_not_offered_as_healthy() -> None:
    driver = Driver()
    driver.mig = True
    assert not Nvidia(driver).devices()[0].healthy


def test_what_is_used_of_a_device() -> None:
    driver = Driver()
    driver.running = [process(11, 2 * GIB), process(12, None), process(13, 2**64 - 1)]
    driver.samples = [sample(11, 5, 10), sample(11, 7, 20), sample(12, 6, 2**32 - 1)]
    nvidia = Nvidia(driver)
    nvidia.devices()
    expected = {11: ProcessUse(200, 2048), 12: ProcessUse(None, None), 13: ProcessUse(0, None)}
    assert nvidia.use(0) == GpuUse(370, 10240, expected)
    nvidia.use(0)
    assert driver.asked_since == [0, 7]


def test_what_nvml_refuses_is_unknown() -> None:
    driver = Driver()
    driver.gpu = driver.running = NOT_SUPPORTED
    driver.used = math.nan
    assert Nvidia(driver).use(0) == GpuUse(None, None, None)


@pytest.mark.parametrize(("answer", "compute"), [(NOT_SUPPORTED, None), (refusal(pynvml.NVML_ERROR_NOT_FOUND), 0)])
def test_no_samples_means_idle_and_no_sampling_means_unknown(answer: Exception, compute: int | None) -> None:
    driver = Driver()
    driver.running, driver.samples = [process(11, GIB)], answer
    assert Nvidia(driver).use(0).processes == {11: ProcessUse(compute, 1024)}


# From devices to tasks

GPUS = {0: GpuUse(800, 5000, {11: ProcessUse(300, 1000), 12: ProcessUse(500, None), 13: ProcessUse(0, 7)})}
AT = Look(now(), frozenset({1, 11, 12, 13}), {})


def shares(slice_compute: int, *pids: int, gpus: Any = GPUS, at: Look = AT) -> tuple[int | None, int | None]:
    (share,) = measured([nvidia_slice(0, slice_compute)], frozenset(pids), gpus, at)
    return share.compute_milli, share.memory_mib


def test_who_has_a_device_whole_uses_all_that_is_used_of_it() -> None:
    assert shares(1000) == (800, 5000)


def test_who_has_a_part_uses_what_its_processes_use() -> None:
    assert shares(500, 11, 13) == (300, 1007)
    assert shares(500, 12) == (500, None)
    assert shares(500, 1) == (0, 0)


def test_processes_that_only_the_host_can_name_leave_parts_unknown() -> None:
    elsewhere = {0: GpuUse(800, 5000, {4711: ProcessUse(300, 1000)})}
    assert shares(500, 11, gpus=elsewhere) == (None, None)
    assert shares(1000, 11, gpus=elsewhere) == (800, 5000)


def test_a_device_that_tells_nothing_leaves_everything_unknown() -> None:
    assert shares(500, 11, gpus={0: GpuUse(800, 5000, None)}) == (None, None)
    assert shares(1000, 11, gpus={}) == (None, None)


def test_an_engine_with_devices_pretends_none_and_hides_them_from_who_has_none(
    make_engine: Callable[..., LocalEngine],
) -> None:
    engine = make_engine(nvidia=Nvidia(Driver(2)), pretend_devices=4)
    told = Told(engine)
    (node,) = engine.inventory(now())
    assert [device.vendor for device in node.devices] == ["nvidia", "nvidia"]
    engine.launch(shell(1, 'echo "<$CUDA_VISIBLE_DEVICES>"'), now())
    engine.launch(order(2, "sleep", "600", slices=(nvidia_slice(1),)), now())
    told.end(1)
    told.start(2)
    assert engine.logs(1) == b"<>\n"
    use = engine.utilization(now())
    assert use.devices == (DeviceUse(node_name(), 0, 370, 10240), DeviceUse(node_name(), 1, 370, 10240))
    assert [(task.compute_milli, task.memory_mib) for task in use.tasks] == [(370, 10240)]
