"""The cited figures: consistent with one another, and what the traces say wherever these are at hand."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path

import pytest

from scheduling.workload import figures
from scheduling.workload.measure import differences, measure, quantiles, up_to_step
from scheduling.workload.traces import read_trace


@pytest.fixture
def traces() -> Path:
    """The folder of the public traces."""
    folder = os.environ.get("ALLOTMENT_TRACES", "")
    if not folder:
        pytest.skip("ALLOTMENT_TRACES names no folder: the figures are NOT compared with the traces")
    return Path(folder)


@pytest.mark.traces
def test_the_figures_are_what_the_traces_say(traces: Path):
    assert differences(measure(traces), figures.MEASURED) == []


@pytest.mark.traces
@pytest.mark.parametrize(
    ("folder", "workload", "jobs", "devices"),
    [
        ("alibaba-gpu-v2023", None, 8152, 6212),
        ("alibaba-gpu-v2023", "multigpu50", 9061, 6212),
        ("philly-per-vc-gavel", None, 15264, 2856),
        ("philly-per-vc-gavel", "longer", 16526, None),
        ("philly-chronus", None, 30940, 2816),
    ],
)
def test_the_whole_traces_are_read_without_a_fault(
    traces: Path, folder: str, workload: str | None, jobs: int, devices: int | None
):
    trace = read_trace(traces / folder, strict=True, workload=workload)
    assert len(trace.jobs) == jobs
    assert devices is None or trace.capacity_milli == devices * 1000
    assert len({job.name for job in trace.jobs}) == jobs


def test_the_figures_agree_with_one_another():
    assert sum(figures.PHILLY_GANG_SIZES.values()) == sum(figures.PHILLY_HOURS) == 15_264
    assert sum(figures.CHRONUS_GANG_SIZES.values()) == sum(figures.CHRONUS_HOURS) == 30_940
    assert sum(figures.ALIBABA_CLASSES.values()) == sum(figures.ALIBABA_HOURS) == 8_152
    assert sum(figures.ALIBABA_PHASES.values()) == 8_152
    assert sum(figures.ALIBABA_FRACTIONS.values()) == figures.ALIBABA_CLASSES["slice"]
    assert sum(nodes for nodes, _, _ in figures.ALIBABA_NODES.values()) == 1_523
    for outcomes in figures.HELIOS_OUTCOMES.values():
        assert sum(outcomes) in (999, 1000)
    for group in (figures.PHILLY_DURATIONS, figures.ALIBABA_DURATIONS, figures.ALIBABA_CPU, figures.ALIBABA_MEMORY):
        for points in group.values():
            assert len(points) == len(figures.QUANTILES)
            assert list(points) == sorted(points)


def test_quantiles_are_values_that_occur():
    assert quantiles(range(1, 101)) == (1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100)
    assert quantiles([7, Decimal(3)]) == (3, 3, 3, 3, 3, 3, 7, 7, 7, 7, 7)
    with pytest.raises(ValueError, match="no values"):
        quantiles([])


@pytest.mark.parametrize(("milli", "step"), [(10, 50), (50, 50), (51, 100), (810, 850), (999, 1000)])
def test_fractions_are_rounded_up_to_the_step(milli: int, step: int):
    assert up_to_step(milli) == step


def test_differences_name_what_differs():
    assert differences({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}) == [
        "b: measured 2, cited 3",
        "c: measured None, cited 4",
    ]
