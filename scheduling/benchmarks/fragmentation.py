"""What part of all GPUs each policy allocates: the published comparison repeated, and look-ahead beside it."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, cast

from scheduling.benchmarks import placement
from scheduling.benchmarks.placement import COLUMNS, NODE_LIST
from scheduling.core import experiment
from scheduling.core.fleet import Fleet, PlacedEach
from scheduling.core.model import Request, Score
from scheduling.workload.machine import machine

PUBLISHED: Mapping[str, str] = {
    "random": "Random",
    "dotprod": "DotProd",
    "clustering": "GpuClustering",
    "packing": "GpuPacking",
    "bestfit": "BestFit",
    "fragmentation": "FGD",
}
POLICIES = (*PUBLISHED, "lookahead")
TOLERANCE = 0.1  # points of allocation, mean over the seeds, that a published figure may differ
RANDOM_TOLERANCE = 0.7  # the same for the random policy, whose dice are others
COMPARED = (90, 95, 100, 110, 130)  # percent asked, at which look-ahead is held against fragmentation
DEFAULT = "default"
VARIANT_SEEDS = 3
QUICK_SEEDS = 2
RUNS_OF_A_PROCESS = 20
QUICK_VARIANTS = ("gpuspec33", "multigpu20")


class Workload(NamedTuple):
    """A pod list ready to be played: its arrivals by seed, what is typical in it, and where they are from."""

    name: str
    nodes: tuple[experiment.TraceNode, ...]
    pods: tuple[Request, ...]
    arrivals: dict[int, experiment.Arrivals]
    source: str


class Run(NamedTuple):
    """One policy on one workload with one seed, from an empty fleet. ``rate``: decisions a second of processor time."""

    workload: str
    policy: str
    seed: int
    source: str
    allocated: dict[int, float]
    fragments: dict[int, float]
    rate: float

    @property
    def key(self) -> Key:
        return self.workload, self.policy, self.seed


Key = tuple[str, str, int]


def run(
    trace_dir: Path,
    *,
    quick: bool = False,
    workloads: Sequence[str] | None = None,
    seeds: int | None = None,
    processes: int = 1,
    out: Path | None = None,
) -> dict[str, Any]:
    """Play every policy on every workload, each run on one thread; JSON-ready figures.

    All stored seeds of the default workload and three of each variant (``quick``: two of the default and of two
    variants; ``seeds``: at most so many of each). ``reproduced``: every published mean is met within its tolerance;
    None where none is at hand. ``out``: each run is written there, a line, as it ends, and what is there already is
    not played again.
    """
    csv_dir = placement.csv_dir_of(trace_dir)
    published_dir = placement.published_dir_of(csv_dir)
    names = workloads or _workloads(csv_dir, published_dir, quick)
    wanted = [key for name in names for key in _keys(_workload(name, csv_dir, published_dir), quick, seeds)]
    done = {found.key: found for found in _written(out)}
    left = [key for key in wanted if key not in done]
    for found in _played(left, csv_dir, published_dir, processes):
        done[found.key] = found
        if out is not None:
            with out.open("a") as file:
                file.write(json.dumps(found._asdict()) + "\n")
    nodes = experiment.read_nodes(placement.read(csv_dir / NODE_LIST))
    rows = [row for name in names for row in _rows([done[key] for key in wanted if key[0] == name], published_dir)]
    checked = [row["within"] for row in rows if row["within"] is not None]
    return {
        "benchmark": "fragmentation",
        "nodes": len(nodes),
        "devices": sum(node.gpus for node in nodes),
        "quick": quick,
        "threads": 1,
        "processes": processes,
        "runs": len(wanted),
        "played_now": len(left),
        "tolerance": TOLERANCE,
        "tolerance_random": RANDOM_TOLERANCE,
        "reproduced": all(checked) if checked else None,
        "never_below_fragmentation": all((row.get("below_fragmentation") or 0) <= 0 for row in rows),
        "rows": rows,
        "machine": machine(),
    }


def _workloads(csv_dir: Path, published_dir: Path, quick: bool) -> list[str]:
    """The default workload and the variants with stored arrival orders whose pod list is there."""
    stored = sorted(path.stem for path in (published_dir / "pod_orders").glob("*.npz"))
    there = [name for name in stored if (csv_dir / f"openb_pod_list_{name}.csv").exists() and name != DEFAULT]
    return [DEFAULT, *(name for name in there if not quick or name in QUICK_VARIANTS)]


@lru_cache(maxsize=2)
def _workload(name: str, csv_dir: Path, published_dir: Path) -> Workload:
    nodes = experiment.read_nodes(placement.read(csv_dir / NODE_LIST))
    pods = experiment.read_pods(placement.read(csv_dir / f"openb_pod_list_{name}.csv"))
    arrivals, source = placement.arrivals_of(published_dir / "pod_orders" / f"{name}.npz", None, pods, nodes)
    return Workload(name, nodes, pods, arrivals, source)


def _keys(workload: Workload, quick: bool, seeds: int | None) -> Iterator[Key]:
    most = QUICK_SEEDS if quick else len(workload.arrivals) if workload.name == DEFAULT else VARIANT_SEEDS
    for policy in POLICIES:
        for seed in list(workload.arrivals)[: min(most, seeds or most)]:
            yield workload.name, policy, seed


def _written(out: Path | None) -> Iterator[Run]:
    """The runs that the file holds; a last line cut short is taken out. Raises ValueError where it is no such file."""
    if out is None or not out.exists():
        return
    lines = out.read_text().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            found = Run(**json.loads(line))
        except (ValueError, TypeError) as error:
            if number == len(lines) and not line.endswith("\n"):
                out.write_text("".join(lines[:-1]))
                return
            raise ValueError(f"{out}, line {number}: not a run of this benchmark") from error
        yield found._replace(allocated=_by_percent(found.allocated), fragments=_by_percent(found.fragments))


def _by_percent(values: Mapping[Any, float]) -> dict[int, float]:
    return {int(x): value for x, value in values.items()}


def _played(keys: Sequence[Key], csv_dir: Path, published_dir: Path, processes: int) -> Iterator[Run]:
    """Each run once, in whatever order they end; a process that has played some gives way to a new one, so that none
    keeps what it does not need any more."""
    if processes <= 1:
        yield from (_play(key, csv_dir, published_dir) for key in keys)
        return
    play = partial(_play, csv_dir=csv_dir, published_dir=published_dir)
    with get_context("spawn").Pool(processes, maxtasksperchild=RUNS_OF_A_PROCESS) as pool:
        yield from pool.imap_unordered(play, keys)


def _rows(runs: Sequence[Run], published_dir: Path) -> Iterator[dict[str, Any]]:
    """A row for each policy, of the runs of one workload."""
    gradient: list[dict[int, float]] = []
    for policy in POLICIES:
        own = [found for found in runs if found.policy == policy]
        if not own:
            continue
        allocated = [found.allocated for found in own]
        means = _means(allocated)
        seeds = [found.seed for found in own]
        row: dict[str, Any] = {
            "workload": own[0].workload,
            "policy": policy,
            "seeds": seeds,
            "arrival_orders": own[0].source,
            "decisions_per_second": round(statistics.median(found.rate for found in own)),
            "published": None,
            "difference": None,
            "within": None,
        }
        row |= {f"allocation_ratio_{x}": means.get(x) for x in COLUMNS}
        row |= {f"fragmentation_{x}": value for x, value in _means([found.fragments for found in own]).items()}
        if policy == "fragmentation":
            gradient = allocated
        if policy == "lookahead":
            row["below_fragmentation"] = _most_below(allocated, gradient)
        if own[0].source == "stored":
            row |= _beside(policy, own[0].workload, seeds, means, published_dir)
        yield row


def _play(key: Key, csv_dir: Path, published_dir: Path) -> Run:
    """One run of the experiment."""
    name, policy, seed = key
    workload = _workload(name, csv_dir, published_dir)
    ranks, order = workload.arrivals[seed].node_ranks, workload.arrivals[seed].order
    typical, demand = experiment.typical_of(workload.pods), experiment.demand_of(workload.pods)
    score = cast(Score, policy) if policy in ("fragmentation", "lookahead") else "binpack"
    fleet = experiment.build_fleet(workload.nodes, ranks, score=score, typical=typical, demand=demand)
    requests = experiment.arriving(workload.pods, order)
    begin = time.process_time()
    placed = _place_each(fleet, policy, requests, seed)
    rate = len(requests) / max(time.process_time() - begin, 1e-6)
    outcome = experiment.outcome(requests, placed.nodes, placed.milli, placed.fragmentation_milli, fleet.total_milli())
    return Run(name, policy, seed, workload.source, outcome.allocated, outcome.fragments, round(rate))


def _place_each(fleet: Fleet, policy: str, requests: Sequence[Request], seed: int) -> PlacedEach:
    if policy in ("fragmentation", "lookahead"):
        return fleet.place_each(requests)
    from scheduling.core import baselines  # not at the top: it imports numba, and so would every command line of bench

    return baselines.place_each_by(fleet, cast(baselines.Baseline, policy), requests, seed)


def _beside(
    policy: str, workload: str, seeds: Sequence[int], ours: Mapping[int, float], published_dir: Path
) -> dict[str, Any]:
    """The published means over the same seeds, and whether ours are within the tolerance of them."""
    table = published_dir / "analysis_allo_discrete.csv"
    if policy not in PUBLISHED or not table.exists():
        return {}
    rows = experiment.read_published(table.read_text(), workload, PUBLISHED[policy])
    if not all(seed in rows for seed in seeds):
        return {}
    theirs = _means([rows[seed] for seed in seeds])
    difference = {x: round(ours[x] - theirs[x], 3) for x in theirs if x in ours}
    if not difference:
        return {}
    tolerance = RANDOM_TOLERANCE if policy == "random" else TOLERANCE
    return {
        "published": {f"allocation_ratio_{x}": value for x, value in theirs.items()},
        "difference": {f"allocation_ratio_{x}": value for x, value in difference.items()},
        "within": all(abs(value) <= tolerance for value in difference.values()),
    }


def _most_below(ours: Sequence[Mapping[int, float]], theirs: Sequence[Mapping[int, float]]) -> float | None:
    """The most points that a run of ours is below the same run of theirs at any of COMPARED; negative: never below.

    None where no run has met any of COMPARED.
    """
    pairs = zip(ours, theirs, strict=True)
    below = [their[x] - our[x] for our, their in pairs for x in COMPARED if x in our and x in their]
    return round(max(below), 3) if below else None


def _means(series: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """For each column that all have, the mean."""
    return {x: round(statistics.fmean(one[x] for one in series), 3) for x in COLUMNS if all(x in one for one in series)}


# ---- the command line ------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, required=True, help="folder of the Alibaba GPU trace of 2023")
    parser.add_argument("--quick", action="store_true", help="two seeds of the default workload and of two variants")
    parser.add_argument("--seeds", type=int, help="at most so many of each workload")
    parser.add_argument("--processes", type=int, default=1, help="how many runs at the same time")
    parser.add_argument("--out", type=Path, help="each run is added to this file; what is there is not played again")
    parser.add_argument(
        "--workloads", type=_names, help="such as default,gpuspec33; left out: all with stored arrivals"
    )


def run_options(options: Mapping[str, Any]) -> dict[str, Any]:
    if options["processes"] < 1 or (options["seeds"] or 1) < 1:
        raise ValueError("--processes and --seeds must be 1 or more")
    return run(
        options["trace"],
        quick=options["quick"],
        workloads=options["workloads"],
        seeds=options["seeds"],
        processes=options["processes"],
        out=options["out"],
    )


def text(result: Mapping[str, Any]) -> str:
    """A table: allocation in % of all GPUs by what is asked, the published figures in brackets."""
    heads = "".join(f"{f'{x} % asked':>16}" for x in COLUMNS)
    lines = [f"{result['nodes']} nodes, {result['devices']} devices, one thread; allocated, % of all GPUs (published)"]
    seen = None
    for row in result["rows"]:
        if row["workload"] != seen:
            seen = row["workload"]
            lines += ["", f"{seen}, {len(row['seeds'])} seeds ({row['arrival_orders']} arrival orders)"]
            lines.append(f"{'':14}{heads}{'fragments at 100':>18}{'decisions/s':>13}")
        lines.append(_line(row))
    lines += ["", _verdict(result)]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    cells = ""
    for x in COLUMNS:
        name = f"allocation_ratio_{x}"
        beside = f" ({row['published'][name]:.2f})" if row["published"] and name in row["published"] else " " * 8
        cells += f"{row[name]:8.2f}{beside:8}" if row[name] is not None else " " * 16
    fragments = row.get("fragmentation_100")
    mark = "" if row["within"] is not False else "  differs"
    shown = f"{fragments:18.2f}" if fragments is not None else " " * 18
    return f"{row['policy']:14}{cells}{shown}{row['decisions_per_second']:13,}{mark}"


def _verdict(result: Mapping[str, Any]) -> str:
    if result["reproduced"] is None:
        return "No published figures for these arrivals."
    apart = sum(row["within"] is False for row in result["rows"])
    met = "all within" if result["reproduced"] else f"{apart} rows not within"
    below = "never below" if result["never_below_fragmentation"] else "below"
    return (
        f"Published means: {met} {result['tolerance']} points (random {result['tolerance_random']}). "
        f"Look-ahead is {below} fragmentation in a run at {', '.join(map(str, COMPARED))} % asked."
    )


def _names(value: str) -> tuple[str, ...]:
    return tuple(value.split(","))
