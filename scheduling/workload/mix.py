"""What the generated jobs are made of: how often which class, kind, priority, framework, end and use of devices.

The first part is measured (``figures``), the second is chosen for the demo because no public trace says it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scheduling.workload import figures

Kind = Literal["batch", "interactive", "service"]
JobClass = Literal["cpu", "slice", "whole"]

# Measured: a pod of several devices is a whole-device job too.
CLASS_WEIGHTS: dict[JobClass, float] = {
    "cpu": figures.ALIBABA_CLASSES["cpu"],
    "slice": figures.ALIBABA_CLASSES["slice"],
    "whole": figures.ALIBABA_CLASSES["one"] + figures.ALIBABA_CLASSES["several"],
}
FAILED_OF_GPU_JOBS = figures.HELIOS_OUTCOMES["gpu"][2] / 1000
FAILED_OF_CPU_JOBS = figures.HELIOS_OUTCOMES["cpu"][2] / 1000
NAMES_ITS_MODEL = figures.ALIBABA_CONSTRAINED / 1000

# Chosen for the demo.
KINDS_OF_SLICE: dict[Kind, float] = {"interactive": 45, "service": 35, "batch": 20}
REPLICAS: dict[int, float] = {1: 60, 2: 30, 4: 10}
ELASTIC_GANGS = 0.3
NOT_PREEMPTIBLE: dict[Kind, float] = {"batch": 0, "interactive": 0.3, "service": 0.5}
PRIORITIES: dict[Kind, dict[str, float]] = {
    "batch": {"low": 30, "normal": 60, "high": 10},
    "interactive": {"normal": 100},
    "service": {"high": 70, "normal": 30},
}
FRAMEWORKS: dict[str, dict[str, float]] = {
    "nvidia": {"pytorch": 70, "tensorflow": 14, "jax": 8, "paddlepaddle": 5, "mxnet": 2, "caffe": 1},
    "amd": {"pytorch": 80, "jax": 20},
    "ascend": {"mindspore": 60, "pytorch": 40},
    "kunlun": {"paddlepaddle": 75, "pytorch": 25},
    "hygon": {"pytorch": 80, "paddlepaddle": 20},
}
ANY_FRAMEWORK = {"pytorch": 1.0}


@dataclass(frozen=True, slots=True)
class Utilization:
    """What a job's devices report while it runs: mean and standard deviation over time, of 1, compute and memory."""

    compute: float
    compute_deviation: float
    memory: float
    memory_deviation: float


# Mean over the jobs of a kind, spread from job to job, deviation in time; then memory's mean. In use, GPUs of Philly
# are about half busy on average (Jeon et al., ATC 2019); the rest is chosen.
USE: dict[Kind, tuple[float, float, float, float]] = {
    "batch": (0.60, 0.20, 0.06, 0.65),
    "interactive": (0.18, 0.12, 0.12, 0.35),
    "service": (0.42, 0.18, 0.10, 0.55),
}
FORGOTTEN = 0.04  # jobs that hold devices and use next to nothing
FORGOTTEN_USE = Utilization(0.01, 0.005, 0.10, 0.01)
CPU_ONLY_USE = Utilization(0, 0, 0, 0)
