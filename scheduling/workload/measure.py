"""Measures the figures that the demo's generator is built on, on the public traces themselves.

``measure(folder)`` gives a mapping with the keys and the shapes of ``figures.MEASURED``; a test compares the two.
Everything is an integer and exact: counts, seconds, milli-cores, MiB and per mille; quantiles are nearest-rank (the
smallest recorded value that at least the asked part of all values does not exceed), so no interpolation is in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from scheduling.core.units import DEFAULT_STEP_MILLI
from scheduling.workload import alibaba
from scheduling.workload.faults import Columns, Faults, Row, records
from scheduling.workload.figures import QUANTILES
from scheduling.workload.records import Seconds, TraceError, TraceJob, TraceNode
from scheduling.workload.traces import read_trace

GANG_CLASSES = {"1": (1, 1), "2-4": (2, 4), "5-8": (5, 8), "9+": (9, 1 << 30)}
POD_CLASSES = ("cpu", "slice", "one", "several")
HELIOS_COLUMNS = Columns(
    (
        "id",
        *(f"{outcome}_rate{of}" for of in ("", "_cpu", "_gpu") for outcome in ("complete", "cancel", "fail")),
    ),
    (
        "gpu_num",
        *(f"{of}job_num" for of in ("", "cpu_", "gpu_")),
        *(f"{size}_{what}_time_{of}" for size in ("avg", "med") for what in ("run", "que") for of in ("cpu", "gpu")),
        "avg_gpu_num",
        "med_gpu_num",
        *(f"{outcome}_gpu_time" for outcome in ("complete", "cancel", "fail")),
    ),
)


def measure(folder: Path) -> dict[str, object]:
    """The figures of the traces under ``folder`` (their own folders, by the names in the README of each).

    Raises TraceError where one of them is not there or has a malformed line: a figure is of the whole trace.
    """
    folder = Path(folder)
    return {
        **measure_philly(folder / "philly-per-vc-gavel"),
        **measure_chronus(folder / "philly-chronus"),
        **measure_alibaba(folder / "alibaba-gpu-v2023"),
        **measure_helios(folder / "helios-summary" / "helios_cluster_summary.csv"),
    }


def measure_philly(folder: Path) -> dict[str, object]:
    """Gang sizes, durations by gang size, arrivals by hour and the vcs' parts of all GPU hours (first2000 list)."""
    jobs = read_trace(folder, strict=True, workload="first2000").jobs
    return {
        "philly_gang_sizes": _gang_sizes(jobs),
        "philly_durations": _durations_by_gang(jobs),
        "philly_hours": hours(job.submit_s for job in jobs),
        "philly_team_work": _team_work(jobs),
    }


def measure_chronus(folder: Path) -> dict[str, object]:
    """Gang sizes (0 = CPU-only), durations by gang size and arrivals by hour of the 14 days."""
    jobs = read_trace(folder, strict=True).jobs
    return {
        "chronus_gang_sizes": _gang_sizes(jobs),
        "chronus_durations": _durations_by_gang(jobs),
        "chronus_hours": hours(job.submit_s for job in jobs),
    }


def measure_alibaba(folder: Path) -> dict[str, object]:
    """Classes, fractions, durations, arrivals, CPU and memory of the pods, and the shapes of the nodes."""
    jobs = read_trace(folder, strict=True, workload="default").jobs
    by_class = {name: [job for job in jobs if pod_class(job) == name] for name in POD_CLASSES}
    path = folder / "csv" / "openb_pod_list_default.csv"
    return {
        "alibaba_classes": {name: len(by_class[name]) for name in POD_CLASSES},
        "alibaba_fractions": _fractions(by_class["slice"]),
        "alibaba_durations": _scheduled_durations(path),
        "alibaba_hours": hours(job.submit_s for job in jobs),
        "alibaba_cpu": {name: _per_device(pods, "cpu_milli") for name, pods in by_class.items()},
        "alibaba_memory": {name: _per_device(pods, "memory_mib") for name, pods in by_class.items()},
        "alibaba_constrained": _constrained(folder),
        "alibaba_phases": _phases(path),
        "alibaba_nodes": _node_shapes(folder),
    }


def measure_helios(path: Path) -> dict[str, object]:
    """Per mille of jobs that completed, were cancelled, failed: all, CPU-only and GPU jobs of the four clusters."""
    outcomes = {}
    for row in records(path, HELIOS_COLUMNS, Faults(strict=True), lambda row: row):
        if row.word("id") == "total":
            outcomes = {kind: _outcome(row, suffix) for kind, suffix in (("all", ""), ("cpu", "_cpu"), ("gpu", "_gpu"))}
    if not outcomes:
        raise TraceError(f"{path}: no row 'total'")
    return {"helios_outcomes": outcomes}


def quantiles(values: Iterable[Seconds]) -> tuple[int, ...]:
    """The nearest-rank quantiles at QUANTILES, in whole numbers. Raises ValueError where there are no values."""
    ordered = sorted(int(value) for value in values)
    if not ordered:
        raise ValueError("no values to take quantiles of")
    return tuple(ordered[max(0, -(-len(ordered) * part // 1000) - 1)] for part in QUANTILES)


def hours(seconds: Iterable[Seconds]) -> tuple[int, ...]:
    """How many of the moments lie in each of the 24 hours counted from the start of the trace, days laid on another."""
    counts = Counter(int(second) % 86400 // 3600 for second in seconds)
    return tuple(counts[hour] for hour in range(24))


def pod_class(job: TraceJob) -> str:
    """``cpu``, ``slice`` (part of one device), ``one`` (a whole device) or ``several``."""
    if job.devices == 0:
        return "cpu"
    if job.devices > 1:
        return "several"
    return "slice" if job.gpu_milli < 1000 else "one"


def up_to_step(milli: int, step: int = DEFAULT_STEP_MILLI) -> int:
    """The least multiple of ``step`` that gives at least ``milli``: a job never gets less than it asked for."""
    return -(-milli // step) * step


def _per_device(jobs: Iterable[TraceJob], quantity: str) -> tuple[int, ...]:
    """Quantiles of what a job asks for per device; per job where it asks for none or for part of one."""
    return quantiles(getattr(job, quantity) // max(1, job.devices) for job in jobs)


def _gang_sizes(jobs: Iterable[TraceJob]) -> dict[int, int]:
    counts = Counter(job.tasks * job.devices for job in jobs)
    return dict(sorted(counts.items()))


def _durations_by_gang(jobs: Iterable[TraceJob]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[Seconds]] = {name: [] for name in GANG_CLASSES}
    for job in jobs:
        gpus = job.tasks * job.devices
        for name, (least, most) in GANG_CLASSES.items():
            if least <= gpus <= most and job.duration_s is not None:
                found[name].append(job.duration_s)
    return {name: quantiles(values) for name, values in found.items()}


def _team_work(jobs: Iterable[TraceJob]) -> tuple[int, ...]:
    """Each vc's part of all GPU-seconds in per mille, rounded down, the largest first."""
    work: Counter[str] = Counter()
    for job in jobs:
        work[job.team] += job.tasks * job.devices * int(job.duration_s or 0)
    total = sum(work.values())
    return tuple(sorted((part * 1000 // total for part in work.values()), reverse=True))


def _fractions(jobs: Iterable[TraceJob]) -> dict[int, int]:
    counts = Counter(up_to_step(job.gpu_milli) for job in jobs)
    return dict(sorted(counts.items()))


def _scheduled_durations(path: Path) -> dict[str, tuple[int, ...]]:
    """Durations by class of the pods that were scheduled: the others never ran."""

    def parse(row: Row) -> tuple[bool, str]:
        return bool(row.values["scheduled_time"].strip()), row.word("name")

    ran = {name for scheduled, name in records(path, alibaba.POD_COLUMNS, Faults(strict=True), parse) if scheduled}
    found: dict[str, list[Seconds]] = {name: [] for name in POD_CLASSES}
    for job in alibaba.read_jobs(path, Faults(strict=True)):
        if job.name in ran and job.duration_s is not None:
            found[pod_class(job)].append(job.duration_s)
    return {name: quantiles(values) for name, values in found.items()}


def _phases(path: Path) -> dict[str, int]:
    counts = Counter(records(path, alibaba.POD_COLUMNS, Faults(strict=True), lambda row: row.word("pod_phase")))
    return dict(sorted(counts.items()))


def _constrained(folder: Path) -> int:
    """Per mille of the GPU pods that name models in the list that keeps all such constraints, rounded down."""
    pods = [job for job in read_trace(folder, strict=True, workload="gpuspec33").jobs if job.devices]
    return sum(1 for job in pods if job.models) * 1000 // len(pods)


def _node_shapes(folder: Path) -> dict[str, tuple[int, int, int]]:
    """By ``model x devices``: nodes, milli-cores and MiB per device (per node where there is none), rounded down."""
    nodes = alibaba.read_nodes(folder / "csv" / "openb_node_list_all_node.csv", Faults(strict=True))
    groups: dict[str, list[TraceNode]] = {}
    for node in nodes:
        groups.setdefault(f"{node.model} x {node.devices}" if node.devices else "CPU", []).append(node)
    return {name: _shape(groups[name]) for name in sorted(groups)}


def _shape(nodes: list[TraceNode]) -> tuple[int, int, int]:
    parts = sum(max(1, node.devices) for node in nodes)
    return (
        len(nodes),
        sum(node.cpu_milli for node in nodes) // parts,
        sum(node.host_memory_mib for node in nodes) // parts,
    )


def _outcome(row: Row, suffix: str) -> tuple[int, int, int]:
    complete, cancel, fail = (int(row.number(f"{name}_rate{suffix}") * 1000) for name in ("complete", "cancel", "fail"))
    return complete, cancel, fail


def differences(measured: Mapping[str, object], cited: Mapping[str, object]) -> list[str]:
    """What differs between two sets of figures, one line each; empty where they are the same."""
    return [
        f"{key}: measured {measured.get(key)!r}, cited {cited.get(key)!r}"
        for key in sorted({*measured, *cited})
        if measured.get(key) != cited.get(key)
    ]
