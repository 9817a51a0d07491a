"""The benchmarks work, and what they say of themselves is so. Nothing here is timed: a busy machine fails no test."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.core.management import CommandError, call_command

from scheduling.benchmarks import cycle, fairness, fragmentation, memory, pipeline, placement
from scheduling.core.decide import decide
from scheduling.workload.crowded import Size, copied, crowd
from scheduling.workload.fleets import demo_fleet
from scheduling.workload.postgres import NoPostgres, own_postgres

NODES = copied([node for node in demo_fleet() if node.devices], 30)
SMALL = Size(jobs=120, teams=10, members=3, shapes=12, running=90)


def bench(*words: str) -> dict:
    out = io.StringIO()
    call_command("bench", *words, "--json", stdout=out)
    return json.loads(out.getvalue())


# ---- cycle -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["binpack", "fragmentation"])
@pytest.mark.parametrize("size", [SMALL, replace(SMALL, depth=5), replace(SMALL, shapes=80)])
def test_one_job_of_a_crowd_can_start_and_does(score, size):
    made = crowd(NODES, size, score=score)
    plan = decide(made.snapshot)
    assert [start.job_id for start in plan.starts] == [made.startable]
    assert len(plan.reasons) == size.jobs - 1
    assert not plan.evictions
    (pool,) = made.snapshot.pools
    assert pool.fleet.free_milli() == 1000
    assert sum(pool.usage.values()) == pool.fleet.allocated_milli()


def test_who_was_lent_to_gives_way_in_a_crowd():
    plan = decide(crowd(NODES, SMALL, borrowing=True).snapshot)
    assert plan.evictions
    assert {eviction.rule for eviction in plan.evictions} == {"reclaim"}


def test_the_same_crowd_every_time():
    first, again = crowd(NODES, SMALL), crowd(NODES, SMALL)
    assert first.snapshot.pending == again.snapshot.pending
    assert first.snapshot.running == again.snapshot.running


def test_bench_cycle_has_every_variant():
    result = bench("cycle", "--quick")
    assert [row["variant"] for row in result["rows"]] == [variant.name for variant in cycle.VARIANTS]
    assert all(row["started"] == 1 for row in result["rows"])
    assert "others must give way" in cycle.text(result)


def test_bench_cycle_refuses_no_runs():
    with pytest.raises(CommandError, match="--runs must be 1 or more"):
        call_command("bench", "cycle", "--runs", "0")


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell what a process needs")
def test_bench_memory_measures_a_picture_that_is_the_databases():
    result = bench("memory", "--quick")
    assert result["nodes"] == cycle.QUICK_NODES
    assert result["pending"] == cycle.QUICK.jobs
    assert 0 < result["kernels_mib"] <= result["picture_mib"] < result["total_mib"]
    assert result["seconds"]["same_plan"] is True
    assert "MiB" in memory.text(result)


# ---- placement and fragmentation -------------------------------------------------------------------------------------


@pytest.fixture
def small_trace(tmp_path):
    folder = tmp_path / "alibaba-gpu-v2023"
    folder.mkdir()
    (folder / placement.NODE_LIST).write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,8,G2\nn2,96000,393216,2,T4\n"
    )
    pods = ["name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"]
    pods += [f"p{i},{1000 * (i % 3 + 1)},1024,1,{500 if i % 2 else 1000}," for i in range(12)]
    (folder / "openb_pod_list_default.csv").write_text("\n".join(pods) + "\n")
    orders = tmp_path / "fgd-published-results" / "pod_orders"
    orders.mkdir(parents=True)
    arrays: dict[str, Any] = {f"order_{seed}": np.roll(np.arange(12), seed) for seed in (7, 8)}
    arrays |= {f"noderank_{seed}": np.array([1, 0]) for seed in (7, 8)}
    np.savez(orders / "default.npz", **arrays)
    return folder


def test_growth_is_of_both_learning_scores(small_trace):
    result = bench("placement", "--trace", str(small_trace), "--growth", "--seeds", "7", "--nodes-copies", "2")
    assert [row["score"] for row in result["rows"]] == ["fragmentation", "lookahead"]
    assert (result["nodes"], result["nodes_of_copies"]) == (2, 4)
    assert "times" in placement.text(result)


def test_a_comparison_goes_on_where_it_ended_and_says_the_same(small_trace, tmp_path):
    out = tmp_path / "runs.jsonl"
    words = ("fragmentation", "--trace", str(small_trace), "--out", str(out))
    first = bench(*words)
    assert first["played_now"] == first["runs"] == 2 * len(fragmentation.POLICIES)
    again = bench(*words)
    assert again["played_now"] == 0
    assert again["rows"] == first["rows"]
    lines = out.read_text().splitlines()
    out.write_text("\n".join(lines[:3]) + "\n" + lines[3][:40])  # as one that was killed while it wrote
    third = bench(*words)
    assert third["played_now"] == third["runs"] - 3
    assert [timeless(row) for row in third["rows"]] == [timeless(row) for row in first["rows"]]


def timeless(row: dict) -> dict:
    return {name: value for name, value in row.items() if name != "decisions_per_second"}


def test_a_file_of_something_else_is_refused_and_left_alone(small_trace, tmp_path):
    out = tmp_path / "notes.txt"
    out.write_text("shopping\nlist\n")
    with pytest.raises(CommandError, match="line 1: not a run of this benchmark"):
        call_command("bench", "fragmentation", "--trace", str(small_trace), "--out", str(out))
    assert out.read_text() == "shopping\nlist\n"


# ---- fairness --------------------------------------------------------------------------------------------------------


def philly(tmp_path: Path, rows: list[tuple[str, int, int, int]]) -> Path:
    """A list of (vc, submit_s, num_gpu, duration_s)."""
    numbers: dict[str, int] = {}
    lines = ["vc,seq,submit_s,num_gpu,duration_s"]
    for vc, submit, gpus, duration in rows:
        numbers[vc] = numbers.get(vc, -1) + 1
        lines.append(f"{vc},{numbers[vc]},{submit},{gpus},{duration}")
    path = tmp_path / "philly_vc_first2000.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_who_comes_first_takes_all_but_with_guarantees_both_have_theirs(tmp_path):
    """``aa`` fills the only node for a whole day, and ``bb`` comes a minute later: by the list half is each one's."""
    rows = [("aa", 0, 1, 86_400)] * 8 + [("bb", 60, 1, 86_400)] * 8
    result = fairness.run(philly(tmp_path, rows), from_day=0, days=1, load=2.0, least_jobs=1)
    assert result["devices"] == 8
    by_policy = {row["policy"]: row for row in result["rows"]}
    first, ours, quotas = (by_policy[name] for name in ("fifo", "allotment", "strict quotas"))
    assert first["by_team"]["vc-bb"]["received_over_deserved"] == 0
    assert first["jain"] == pytest.approx(0.5, abs=0.001)
    assert ours["jain"] == pytest.approx(1.0, abs=0.001)
    assert ours["evictions"] == 4
    # Four of aa's jobs ran for the minute that they had the room.
    assert ours["lost_gpu_hours"] == pytest.approx(4 / 60, abs=0.05)
    assert ours["utilization"] == first["utilization"] == 100.0
    assert quotas["jain"] == pytest.approx(1.0, abs=0.001)
    assert quotas["evictions"] == first["evictions"] == 0
    assert result["verdict"]["fairer_than"]["fifo"] is True
    assert "Jain" in fairness.text(result)


def test_what_is_idle_is_lent_but_not_by_strict_quotas(tmp_path):
    """``bb`` has work only on the second day: on the first, counted here, ``aa`` may have all of it."""
    rows = [("aa", 0, 1, 86_400)] * 8 + [("bb", 90_000, 1, 86_400)] * 8
    result = fairness.run(philly(tmp_path, rows), from_day=0, days=1, load=1.0, least_jobs=1)
    by_policy = {row["policy"]: row for row in result["rows"]}
    assert by_policy["allotment"]["utilization"] == by_policy["fifo"]["utilization"] == 100.0
    assert by_policy["strict quotas"]["utilization"] == 50.0
    assert by_policy["strict quotas"]["never_started"] == 4


def test_one_that_does_not_fit_is_waited_for_or_passed_over(tmp_path):
    rows = [("aa", 0, 6, 7200), ("aa", 60, 8, 7200), ("aa", 120, 1, 7200)]
    result = fairness.run(philly(tmp_path, rows), from_day=0, days=0.05, load=3.0, least_jobs=1)
    by_policy = {row["policy"]: row for row in result["rows"]}
    assert result["devices"] == 8
    assert by_policy["fifo"]["never_started"] == 2
    assert by_policy["fifo, first fit"]["never_started"] == 1


def test_what_came_before_the_window_is_played_and_not_counted(tmp_path):
    rows = [("aa", 0, 8, 86_400), ("aa", 3600, 8, 3600)]
    result = fairness.run(philly(tmp_path, rows), from_day=3600 / 86_400, days=0.5, load=0.1, least_jobs=1)
    (row,) = [row for row in result["rows"] if row["policy"] == "fifo"]
    assert result["jobs"] == 1
    assert row["wait_s"]["mean"] in (0, 43_200)  # beside the first where there is a second node, else behind it


@pytest.mark.parametrize(("values", "index"), [([1, 1, 1], 1.0), ([1, 0, 0, 0], 0.25), ([2, 1], 0.9), ([0, 0], 1.0)])
def test_jains_index(values, index):
    assert fairness.jain(values) == pytest.approx(index)


def test_a_list_without_such_clusters_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no virtual cluster with 100 jobs"):
        fairness.run(philly(tmp_path, [("aa", 0, 1, 60)]))


# ---- pipeline --------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_database(monkeypatch):
    """An empty PostgreSQL, whatever the tests themselves run on."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    try:
        with own_postgres(["fsync=off"]):
            pass
    except NoPostgres as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_bench_pipeline_loses_nothing(own_database):
    result = bench("pipeline", "--quick", "--not-durable")
    assert result["faults"] == []
    assert result["submitted"] == result["ended"] > 0
    assert result["usage_seconds"] == pytest.approx(result["allocation_seconds"])
    assert set(result["stages"]) == {"web", "scheduler"}
    assert result["stages"]["scheduler"]["decide"]["calls"] > 0
    assert "nothing lost" in pipeline.text(result)


def test_bench_pipeline_refuses_batches_that_no_request_may_have():
    with pytest.raises(CommandError, match="--batch must be within"):
        call_command("bench", "pipeline", "--batch", "1001")


def test_the_servers_folder_is_gone_with_it(own_database):
    before = set(Path(os.environ.get("TMPDIR", "/tmp")).glob("allotment-postgres-*"))
    with own_postgres() as url:
        assert url.startswith("postgres://allotment@127.0.0.1:")
    assert set(Path(os.environ.get("TMPDIR", "/tmp")).glob("allotment-postgres-*")) <= before
