"""The demo's workload: the same for the same seed, at the load that was asked for, and like what was measured."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from itertools import islice
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.units import check_fraction
from scheduling.workload import figures, mix
from scheduling.workload.accelerators import BY_NAME
from scheduling.workload.demo_teams import DEMO_DEPARTMENTS, DEMO_TEAMS, TeamProfile
from scheduling.workload.distributions import Amounts, Choice, Durations
from scheduling.workload.fleets import demo_fleet
from scheduling.workload.generator import DEFAULT_LOAD, GeneratedJob, Workload
from scheduling.workload.platforms import platforms_of
from scheduling.workload.records import TraceNode

FLEET = demo_fleet()
DAY = 86_400 // 60  # page seconds of a trace's day at speed 60
ALICE = TeamProfile("alice", appetite=1)


@pytest.fixture(scope="module")
def ten_days() -> list[GeneratedJob]:
    """All jobs of ten days of the trace."""
    return list(Workload(DEMO_TEAMS, FLEET, seed=7).jobs(0, until_s=10 * DAY))


def work(jobs: list[GeneratedJob]) -> float:
    """Milli-GPU × page seconds."""
    return sum(job.total_milli * float(job.duration_s) for job in jobs)


def test_the_same_seed_gives_the_same_jobs():
    first, again, other = (
        list(islice(Workload(DEMO_TEAMS, FLEET, seed=seed).jobs(1_700_000_000), 300)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_after_a_restart_numbers_go_on_and_no_name_comes_twice():
    workload = Workload(DEMO_TEAMS, FLEET)
    running = workload.already_running(0)
    before = list(islice(workload.jobs(0, first_number=1 + len(running)), 200))
    after = list(islice(workload.jobs(500, first_number=1 + len(running) + 200), 200))
    names = [job.name for job in [*running, *before, *after]]
    assert len(set(names)) == len(names)
    assert [job.kind for job in before] != [job.kind for job in after]


def test_jobs_come_in_order_of_time_and_within_bounds(ten_days: list[GeneratedJob]):
    times = [job.at_s for job in ten_days]
    assert times == sorted(times)
    assert 0 < times[0] <= times[-1] < 10 * DAY


def test_the_offered_work_is_the_load(ten_days: list[GeneratedJob]):
    offered = work(ten_days) / (10 * DAY) / Workload(DEMO_TEAMS, FLEET).capacity_milli
    assert offered == pytest.approx(DEFAULT_LOAD, rel=0.04)


@pytest.mark.parametrize(("load", "speed", "seed"), [(0.5, 60, 1), (1.05, 120, 2), (2.0, 30, 3), (1.0, 600, 4)])
def test_the_arrival_rate_follows_load_and_speed(load: float, speed: float, seed: int):
    workload = Workload(DEMO_TEAMS, FLEET, seed=seed, load=load, speed=speed)
    span = 8 * 86_400 / speed
    jobs = list(workload.jobs(0, until_s=span))
    assert len(jobs) == pytest.approx(workload.rate * span, rel=0.06)
    assert work(jobs) / span == pytest.approx(load * workload.capacity_milli, rel=0.10)


def test_the_arrival_rate_of_one_kind_of_job_by_hand():
    """Whole-device jobs only, cut to 100 s: on a node of one device each is one device for 100 s."""
    node = TraceNode("n", 8000, 65536, 1, "A100-80G", "nvidia", 81920)
    team = TeamProfile("a", inclination={"cpu": 0, "slice": 0})
    workload = Workload([team], [node], speed=1, shortest_s=100, longest_s=100)
    assert workload.mean_work() == pytest.approx(100 * 1000)
    assert workload.arrival_rate(8000, 0.5) == pytest.approx(0.04)


def test_the_page_moves_at_the_default_pace():
    """Several starts a minute, not more than a few a second."""
    assert 10 < Workload(DEMO_TEAMS, FLEET).rate * 60 < 120


def test_arrivals_follow_the_hours_of_the_trace(ten_days: list[GeneratedJob]):
    hours = Counter(int(job.at_s * 60 % 86_400 // 3600) for job in ten_days)
    total = sum(figures.ALIBABA_HOURS)
    for hour, count in enumerate(figures.ALIBABA_HOURS):
        assert hours[hour] / len(ten_days) == pytest.approx(count / total, abs=0.012)


def test_teams_offer_work_in_proportion_to_their_appetite():
    jobs = list(Workload(DEMO_TEAMS, FLEET, seed=3).jobs(0, until_s=40 * DAY))
    total = sum(team.appetite for team in DEMO_TEAMS)
    for team in DEMO_TEAMS:
        part = work([job for job in jobs if job.team == team.name]) / work(jobs)
        assert part == pytest.approx(team.appetite / total, rel=0.15)


def test_classes_fractions_gangs_and_failures_are_as_measured():
    jobs = list(islice(Workload([ALICE], nvidia_only(), seed=5).jobs(0), 12_000))
    cpu = [job for job in jobs if not job.devices]
    slices = [job for job in jobs if job.devices and job.gpus_milli < 1000]
    whole = [job for job in jobs if job.gpus_milli == 1000]
    classes = figures.ALIBABA_CLASSES
    assert len(cpu) / len(jobs) == pytest.approx(classes["cpu"] / sum(classes.values()), abs=0.01)
    assert len(slices) / len(jobs) == pytest.approx(classes["slice"] / sum(classes.values()), abs=0.015)
    same_share(Counter(job.gpus_milli for job in slices), figures.ALIBABA_FRACTIONS, 0.02)
    same_share(Counter(job.tasks * job.devices for job in whole), figures.PHILLY_GANG_SIZES, 0.02)
    failed = [job for job in jobs if job.devices and job.exit == "failed"]
    assert len(failed) / (len(jobs) - len(cpu)) == pytest.approx(mix.FAILED_OF_GPU_JOBS, abs=0.012)
    named = [job for job in whole if len(job.models) == 1 and job.devices <= 4]
    assert len(named) / sum(1 for job in whole if job.devices <= 4) == pytest.approx(mix.NAMES_ITS_MODEL, abs=0.02)


def nvidia_only() -> list[TraceNode]:
    return [node for node in FLEET if node.vendor == "nvidia" or not node.devices]


def same_share(seen: Counter[int], wanted: dict[int, int], within: float) -> None:
    for value in {*seen, *wanted}:
        assert seen[value] / seen.total() == pytest.approx(wanted.get(value, 0) / sum(wanted.values()), abs=within)


def test_every_job_is_a_legal_request_that_fits_the_empty_fleet(ten_days: list[GeneratedJob]):
    for job in ten_days:
        fits_somewhere(job)
        assert 1 <= job.min_tasks <= job.tasks
        assert job.duration_s >= 5
        assert job.priority_class in {"low", "normal", "high"}
        assert 0 <= job.utilization.compute <= 1
        assert 0 <= job.utilization.memory <= 1
        if job.devices:
            check_fraction(job.gpus_milli)
            assert job.models == tuple(sorted(set(job.models)))
            assert all(BY_NAME[model].fitting(job.gpus_milli) == job.gpus_milli for model in job.models)
            assert len({BY_NAME[model].vendor for model in job.models}) == 1
        else:
            assert (job.gpus_milli, job.models, job.framework) == (0, (), "")


def fits_somewhere(job: GeneratedJob) -> None:
    """Its tasks find room on nodes of its models, all at once, when the fleet is empty."""
    room = 0
    for node in FLEET:
        if job.devices and node.model not in job.models:
            continue
        slices = node.devices * (1000 // job.gpus_milli) // job.devices if job.devices else job.tasks
        if job.gpus_milli == 1000:
            slices = node.devices // job.devices
        room += min(slices, node.cpu_milli // job.cpu_milli, node.host_memory_mib // job.host_memory_mib)
    assert room >= job.tasks, job


def test_what_runs_already_fills_the_fleet_and_has_only_its_rest_to_go():
    workload = Workload(DEMO_TEAMS, FLEET, seed=1)
    found = workload.already_running(100, fill=0.9)
    assert 0.9 <= sum(job.total_milli for job in found) / workload.capacity_milli <= 1
    assert {job.at_s for job in found} == {Decimal(100)}
    assert fmean(float(job.duration_s) for job in found) > 2 * fmean(
        float(job.duration_s) for job in islice(workload.jobs(0), 1000)
    )
    assert workload.already_running(100, fill=0) == []
    assert found == Workload(DEMO_TEAMS, FLEET, seed=1).already_running(100, fill=0.9)


def test_a_fleet_of_one_device_is_filled_without_end_of_patience():
    node = TraceNode("n", 8000, 65536, 1, "A100-80G", "nvidia", 81920)
    for seed in range(5):
        found = Workload([ALICE], [node], seed=seed).already_running(0, fill=1)
        assert sum(job.total_milli for job in found) <= 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"teams": []}, "at least one team"),
        ({"nodes": [TraceNode("c", 8000, 65536, 0)]}, "one accelerator"),
        ({"load": 0}, "load 0"),
        ({"speed": -1}, "speed -1"),
        ({"shortest_s": 0}, "positive"),
        ({"teams": [TeamProfile("a", inclination={"slice": 0, "whole": 0})]}, "only asks for CPUs"),
    ],
)
def test_what_makes_no_workload_is_refused(change: dict, message: str):
    arguments = {"teams": [ALICE], "nodes": FLEET, **change}
    with pytest.raises(ValueError, match=message):
        Workload(arguments.pop("teams"), arguments.pop("nodes"), **arguments)


def test_a_fill_beyond_the_fleet_is_refused():
    with pytest.raises(ValueError, match="between 0 and 1"):
        Workload([ALICE], FLEET).already_running(0, fill=1.2)


@settings(max_examples=25)
@given(
    widths=st.lists(st.integers(1, 16), min_size=1, max_size=4),
    models=st.lists(
        st.sampled_from(["A100-80G", "Ascend-910B-64G", "MI300X-192G", "unheard-of"]), min_size=4, max_size=4
    ),
    seed=st.integers(0, 2**32),
)
def test_any_fleet_gets_jobs_that_it_can_hold(widths: list[int], models: list[str], seed: int):
    nodes = [
        TraceNode(
            f"n{index}",
            8000 * width,
            65536 * width,
            width,
            models[index],
            BY_NAME[models[index]].vendor if models[index] in BY_NAME else "other",
            1024,
        )
        for index, width in enumerate(widths)
    ]
    devices = Counter({node.model: 0 for node in nodes})
    for node in nodes:
        devices[node.model] += node.devices
    for job in islice(Workload([ALICE], nodes, seed=seed).jobs(0), 40):
        if job.gpus_milli == 1000 and job.kind == "batch":
            assert job.tasks * job.devices <= sum(devices[model] for model in job.models)
        assert all(model in devices for model in job.models)


def test_the_claims_of_the_demo_fit_into_each_other():
    by_department = Counter({department.name: 0 for department in DEMO_DEPARTMENTS})
    for team in DEMO_TEAMS:
        by_department[team.department] += team.claim.guaranteed
        assert set(team.stems) == {"batch", "interactive", "service", "cpu"}
    for department in DEMO_DEPARTMENTS:
        assert by_department[department.name] <= department.claim.guaranteed
    assert sum(department.claim.guaranteed for department in DEMO_DEPARTMENTS) <= 1000
    assert (len(DEMO_TEAMS), len(DEMO_DEPARTMENTS)) == (6, 2)


def test_a_team_without_stems_is_named_after_itself():
    job = next(Workload([replace(ALICE, stems={})], FLEET).jobs(0))
    assert job.name == f"alice-{job.kind}-0001"


def test_platforms_are_makers_and_ways_to_slice():
    platforms = {platform.vendor: platform for platform in platforms_of(FLEET)}
    assert sum(platform.devices for platform in platforms.values()) == 1000
    nvidia = platforms["nvidia"]
    assert [model.name for model in nvidia.models] == ["A100-80G", "H100-80G", "T4-16G", "V100-32G"]
    assert [model.name for model in nvidia.models_for(1, 8)] == ["A100-80G", "H100-80G", "V100-32G"]
    assert platforms["hygon"].holds(40)
    assert not platforms["hygon"].holds(48)
    assert [platforms["ascend"].fitting(milli) for milli in (50, 250, 300, 650)] == [250, 250, 500, 1000]
    assert platforms["amd"].fitting(50) == 1000


@pytest.mark.parametrize(("least", "most"), [(1, 10**9), (20, 4320), (5000, 6000), (300, 300)])
def test_the_mean_duration_is_the_mean_of_what_is_drawn(least: float, most: float):
    durations = Durations(figures.PHILLY_DURATIONS["1"], least, most)
    drawn = [durations.at((index + 0.5) / 200_000) for index in range(200_000)]
    assert durations.mean() == pytest.approx(fmean(drawn), rel=1e-3)
    assert least <= min(drawn) <= max(drawn) <= most
    assert drawn == sorted(drawn)


def test_durations_pass_through_the_measured_quantiles():
    durations = Durations(figures.PHILLY_DURATIONS["5-8"], 1, 10**9)
    for part, seconds in zip(figures.QUANTILES[:-1], figures.PHILLY_DURATIONS["5-8"], strict=False):
        assert durations.at(part / 1000) == pytest.approx(seconds)
    assert durations.at(1 - 1e-12) == pytest.approx(figures.PHILLY_DURATIONS["5-8"][-1])


def test_amounts_pass_through_the_measured_quantiles():
    amounts = Amounts(figures.ALIBABA_CPU["slice"])
    assert [amounts.at(part / 1000) for part in figures.QUANTILES] == list(figures.ALIBABA_CPU["slice"])


def test_a_choice_is_as_frequent_as_its_weight():
    choice = Choice({"a": 1, "never": 0, "b": 3})
    dice = random.Random(4)
    counts = Counter(choice.at(dice.random()) for _ in range(20_000))
    assert counts["b"] / 20_000 == pytest.approx(0.75, abs=0.01)
    assert set(counts) == {"a", "b"}
    assert choice.at(1.0) == "b"
    with pytest.raises(ValueError, match="nothing to choose"):
        Choice({"a": 0})
