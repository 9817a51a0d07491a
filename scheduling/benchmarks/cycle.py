"""A cycle over 10,000 jobs that wait for a full fleet of 12,130 nodes: all of it, and with nothing changed since."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from scheduling.core.model import Policy, Score, Snapshot
from scheduling.workload import fleets
from scheduling.workload.crowded import Crowd, Size, copied, crowd
from scheduling.workload.machine import machine
from scheduling.workload.records import TraceNode
from scheduling.workload.traces import read_trace

NODES = 12_130
QUICK_NODES = 60
TARGET_S = 1.0
UNCHANGED_S = 0.05
RUNS = 5


class Variant(NamedTuple):
    """A world: what is more, or otherwise, than in the usual one."""

    name: str
    size: Size = Size()
    score: Score = "fragmentation"
    borrowing: bool = False


VARIANTS = (
    Variant("usual"),
    Variant("look-ahead", score="lookahead"),
    Variant("a thousand shapes", Size(shapes=1000)),
    Variant("ten levels of teams", Size(depth=10)),
    Variant("ten thousand members", Size(members=100)),
    Variant("others must give way", borrowing=True),
    Variant("a thousand shapes, others must give way", Size(shapes=1000), borrowing=True),
)
# Of everything a little, for a look at whether it works.
QUICK = Size(jobs=200, teams=10, members=3, shapes=12, running=150)


def run(trace_dir: Path | None, *, runs: int = RUNS, quick: bool = False) -> dict[str, Any]:
    """Every variant on one thread; JSON-ready figures. Medians of ``runs`` decisions after the first, which also
    scores every node for every shape of the queue. Raises ValueError where the one job that can start does not."""
    nodes, source = nodes_for(trace_dir, QUICK_NODES if quick else NODES)
    rows = []
    for variant in VARIANTS:
        size = _small(variant.size) if quick else variant.size
        made = crowd(nodes, size, score=variant.score, borrowing=variant.borrowing)
        rows.append(_row(variant.name, size, made, 1 if quick else runs))
        del made
    return {
        "benchmark": "cycle",
        "fleet": source,
        "nodes": len(nodes),
        "devices": sum(node.devices for node in nodes),
        "quick": quick,
        "threads": 1,
        "runs": 1 if quick else runs,
        "target_seconds": TARGET_S,
        "target_unchanged_seconds": UNCHANGED_S,
        "met": _met(rows, "seconds"),
        # The same of the processor's time, where others used the machine meanwhile.
        "met_on_processor": _met(rows, "cpu_seconds"),
        "rows": rows,
        "machine": machine(),
    }


def _met(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    return all(row[column] < TARGET_S and (row["unchanged_seconds"] or 0) < UNCHANGED_S for row in rows)


def nodes_for(trace_dir: Path | None, count: int) -> tuple[list[TraceNode], str]:
    """So many nodes: those of the trace again and again, or of the demo's fleet where there is no trace."""
    if trace_dir is None:
        return copied([node for node in fleets.demo_fleet() if node.devices], count), "demo"
    return copied(read_trace(trace_dir).nodes, count), "Alibaba cluster-trace-gpu-v2023"


def _row(name: str, size: Size, made: Crowd, runs: int) -> dict[str, Any]:
    from scheduling.services.deciding import Standing, decide  # not at the top: it imports numba

    policy = Policy()
    first, first_cpu, plan = _timed(lambda: decide(made.snapshot, policy))
    times = [_timed(lambda: decide(made.snapshot, policy))[:2] for _ in range(runs)]
    started = [start.job_id for start in plan.starts]
    if made.startable not in started:
        raise ValueError(f"{name}: job {made.startable} could start and was not found; started: {started[:10]}")
    unchanged = []
    if not plan.evictions:  # who gives way is gone from the next picture: then it has changed
        waiting = _without(made.snapshot, started)
        standing = Standing()
        standing.keep(waiting, policy, decide(waiting, policy))
        unchanged = [_timed(lambda: standing.plan_for(waiting, policy) or decide(waiting, policy)) for _ in range(runs)]
    return {
        "variant": name,
        "pending": size.jobs,
        "teams": size.teams,
        "levels": size.depth,
        "shapes": size.shapes,
        "running": len(made.snapshot.running),
        "seconds": _median(times, 0),
        "cpu_seconds": _median(times, 1),
        "first_seconds": round(first, 4),
        "first_cpu_seconds": round(first_cpu, 4),
        "unchanged_seconds": _median(unchanged, 0) if unchanged else None,
        "started": len(started),
        "given_way_to": len({eviction.for_job for eviction in plan.evictions}),
        "reasons": len(plan.reasons),
    }


def _timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds of the wall and of the processor that it took, and what came of it."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    return time.perf_counter() - wall, time.process_time() - cpu, found


def _median(times: Sequence[tuple[Any, ...]], column: int) -> float:
    return round(statistics.median(each[column] for each in times), 4)


def _without(snapshot: Snapshot, started: Sequence[int]) -> Snapshot:
    return replace(snapshot, pending=tuple(job for job in snapshot.pending if job.id not in started))


def _small(size: Size) -> Size:
    return replace(QUICK, depth=min(size.depth, 4), shapes=QUICK.shapes if size.shapes == Size().shapes else 40)


# ---- the command line ------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, help="the Alibaba GPU trace of 2023; left out: the demo's fleet")
    parser.add_argument("--runs", type=int, default=RUNS, help="decisions of which the median is told")
    parser.add_argument("--quick", action="store_true", help="200 jobs on 60 nodes: whether it works at all")


def run_options(options: Mapping[str, Any]) -> dict[str, Any]:
    if options["runs"] < 1:
        raise ValueError("--runs must be 1 or more")
    return run(options["trace"], runs=options["runs"], quick=options["quick"])


def _verdict(result: Mapping[str, Any]) -> str:
    if result["met"]:
        return "targets met"
    return "targets met in processor time only" if result["met_on_processor"] else "targets not met"


def text(result: Mapping[str, Any]) -> str:
    """A table, a variant a line."""
    goals = f"targets {result['target_seconds']} s, unchanged {result['target_unchanged_seconds']} s"
    fleet = f"{result['nodes']} nodes, {result['devices']} devices ({result['fleet']})"
    lines = [f"{fleet}, one thread, medians of {result['runs']}; {goals}"]
    lines += [f"{'':42}{'s':>9}{'cpu s':>9}{'first s':>9}{'unchanged':>11}{'started':>9}{'given way':>11}"]
    for row in result["rows"]:
        unchanged = "" if row["unchanged_seconds"] is None else f"{row['unchanged_seconds']:.4f}"
        lines.append(
            f"{row['variant']:42}{row['seconds']:9.3f}{row['cpu_seconds']:9.3f}{row['first_seconds']:9.3f}"
            f"{unchanged:>11}{row['started']:9}{row['given_way_to']:11}"
        )
    return "\n".join([*lines, _verdict(result)])
