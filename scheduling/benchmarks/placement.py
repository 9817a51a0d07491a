"""How fast and how well requests are placed: the published allocation experiment, through the production ``Fleet``."""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scheduling.core import experiment
from scheduling.core.fleet import Fleet
from scheduling.core.fragmentation import TypicalShape
from scheduling.core.model import SCORES, Request, Score
from scheduling.workload.machine import machine

NODE_LIST = "openb_node_list_gpu_node.csv"
COLUMNS = (95, 100, 130)
GROWING: tuple[Score, ...] = ("fragmentation", "lookahead")
GROWTH_SEEDS = (42, 43, 44)
GROWTH_COPIES = 10
OWN_SEEDS = tuple(range(42, 52))
PUBLISHED_POLICY: Mapping[str, str] = {"fragmentation": "FGD"}


class MissingTrace(FileNotFoundError):
    """A folder or file that the benchmark needs is not there; the message says where it was looked for."""


def run(
    trace_dir: Path,
    *,
    score: Score = "fragmentation",
    seeds: Sequence[int] | None = None,
    workload: str = "default",
    copies: int = 1,
    orders: Path | None = None,
    published_dir: Path | None = None,
) -> dict[str, Any]:
    """Play the experiment once per seed on a new fleet, on one thread; JSON-ready figures.

    A decision is one arrival: placed and taken, or found not to fit anywhere. The clock runs over those alone, from an
    empty fleet for which no shape has been scored. ``seeds`` None: all that the stored arrival orders have, or
    42..51 where there are none. ``copies``: the fleet and the arrivals, that many times.
    """
    csv_dir = csv_dir_of(trace_dir)
    nodes = experiment.read_nodes(read(csv_dir / NODE_LIST))
    pods = experiment.read_pods(read(csv_dir / f"openb_pod_list_{workload}.csv"))
    published_dir = published_dir or published_dir_of(csv_dir)
    orders = orders or published_dir / "pod_orders" / f"{workload}.npz"
    arrivals, source = arrivals_of(orders, seeds, pods, nodes)
    typical, demand = experiment.typical_of(pods), experiment.demand_of(pods)

    def empty_fleet(seed: int) -> Fleet:
        ranks = arrivals[seed].node_ranks
        return experiment.build_fleet(nodes, ranks, score=score, typical=typical, demand=demand, copies=copies)

    outcomes, rates, cpu_rates, builds = {}, {}, [], []
    cold_seconds = _first_decision_seconds(nodes, pods, score, typical)
    for seed, drawn in arrivals.items():
        begin = time.perf_counter()
        fleet = empty_fleet(seed)
        builds.append(time.perf_counter() - begin)
        requests = experiment.arriving(pods, drawn.order, copies)
        begin, cpu_begin = time.perf_counter(), time.process_time()
        placed = fleet.place_each(requests)
        rates[seed] = len(requests) / (time.perf_counter() - begin)
        cpu_rates.append(len(requests) / max(time.process_time() - cpu_begin, 1e-6))
        outcomes[seed] = experiment.outcome(
            requests, placed.nodes, placed.milli, placed.fragmentation_milli, fleet.total_milli()
        )
    known_rate = _rate_with_known_shapes(empty_fleet(seed), requests)
    result: dict[str, Any] = {
        "benchmark": "placement",
        "workload": workload,
        "score": score,
        "seeds": list(arrivals),
        "arrival_orders": source,
        "nodes": len(nodes) * copies,
        "devices": sum(node.gpus for node in nodes) * copies,
        "copies": copies,
        "shapes": len(set(pods)),
        "typical_shapes": len(typical),
        "decisions": sum(outcome.decisions for outcome in outcomes.values()),
        "failed": sum(outcome.failed for outcome in outcomes.values()),
        "threads": 1,
        "decisions_per_second": round(statistics.median(rates.values())),
        "decisions_per_cpu_second": round(statistics.median(cpu_rates)),
        "decisions_per_second_by_seed": {str(seed): round(rate) for seed, rate in rates.items()},
        "decisions_per_second_shapes_known": round(known_rate),
        "cold_first_decision_seconds": round(cold_seconds, 3),
        "fleet_build_seconds": round(statistics.median(builds), 3),
        "peak_memory_mib": _peak_memory_mib(),
        "python": platform.python_version(),
    }
    result |= _quality(outcomes, published_dir, workload, score, comparable=source == "stored" and copies == 1)
    return result


def growth(
    trace_dir: Path,
    *,
    scores: Sequence[Score] = GROWING,
    seeds: Sequence[int] = GROWTH_SEEDS,
    workload: str = "default",
    copies: int = GROWTH_COPIES,
) -> dict[str, Any]:
    """How much more a decision costs on ``copies`` of the fleet than on one, every shape known before the clock starts.

    Processor time, the arrivals as many times as the fleet, so that both fill up alike; medians over the seeds.
    """
    csv_dir = csv_dir_of(trace_dir)
    nodes = experiment.read_nodes(read(csv_dir / NODE_LIST))
    pods = experiment.read_pods(read(csv_dir / f"openb_pod_list_{workload}.csv"))
    arrivals, source = arrivals_of(published_dir_of(csv_dir) / "pod_orders" / f"{workload}.npz", seeds, pods, nodes)
    typical, demand = experiment.typical_of(pods), experiment.demand_of(pods)
    rows = []
    for score in scores:
        costs: dict[int, list[float]] = {1: [], copies: []}
        for drawn in arrivals.values():
            for count, found in costs.items():
                fleet = experiment.build_fleet(
                    nodes, drawn.node_ranks, score=score, typical=typical, demand=demand, copies=count
                )
                found.append(_seconds_per_decision(fleet, experiment.arriving(pods, drawn.order, count)))
        small, large = (statistics.median(costs[count]) for count in (1, copies))
        rows.append(
            {
                "score": score,
                "microseconds": round(small * 1e6, 2),
                "microseconds_on_copies": round(large * 1e6, 2),
                "growth": round(large / small, 3),
                "below_two": large < 2 * small,
            }
        )
    return {
        "benchmark": "placement",
        "part": "growth",
        "workload": workload,
        "arrival_orders": source,
        "seeds": list(arrivals),
        "nodes": len(nodes),
        "nodes_of_copies": len(nodes) * copies,
        "threads": 1,
        "rows": rows,
        "machine": machine(),
    }


def _seconds_per_decision(fleet: Fleet, requests: Sequence[Request]) -> float:
    fleet.warm(dict.fromkeys(requests))
    begin = time.process_time()
    fleet.place_each(requests)
    return (time.process_time() - begin) / len(requests)


def _quality(
    outcomes: Mapping[int, experiment.Outcome], published_dir: Path, workload: str, score: str, *, comparable: bool
) -> dict[str, Any]:
    """Allocation and fragmentation, mean over the seeds, beside the published figures for the same seeds."""
    found: dict[str, Any] = {}
    for column in COLUMNS:
        found[f"allocation_ratio_{column}"] = _mean(outcomes[seed].allocated.get(column) for seed in outcomes)
        found[f"fragmentation_{column}"] = _mean(outcomes[seed].fragments.get(column) for seed in outcomes)
    allocated = _published(published_dir / "analysis_allo_discrete.csv", workload, score)
    fragments = _published(published_dir / "analysis_frag_discrete.csv", workload, score)
    known = [seed for seed in outcomes if seed in allocated and seed in fragments]
    found |= {"published": None, "difference": None, "largest_difference": None}
    if not known:
        return found
    published = {}
    for column in COLUMNS:
        published[f"allocation_ratio_{column}"] = _mean(allocated[seed].get(column) for seed in known)
        published[f"fragmentation_{column}"] = _mean(fragments[seed].get(column) for seed in known)
    found["published"] = published
    found["difference"] = {
        name: None if value is None or found[name] is None else round(found[name] - value, 3)
        for name, value in published.items()
    }
    if comparable:
        found["largest_difference"] = {
            "allocation": _largest_difference((outcomes[seed].allocated, allocated[seed]) for seed in known),
            "fragmentation": _largest_difference((outcomes[seed].fragments, fragments[seed]) for seed in known),
        }
    return found


def _largest_difference(pairs: Iterable[tuple[dict[int, float], dict[int, float]]]) -> float:
    """Over all columns 0..130 of all seeds."""
    return round(max(abs(ours[x] - theirs[x]) for ours, theirs in pairs for x in ours if x in theirs), 3)


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return round(statistics.fmean(present), 3) if present else None


def arrivals_of(
    orders: Path, seeds: Sequence[int] | None, pods: Sequence[Request], nodes: Sequence[experiment.TraceNode]
) -> tuple[dict[int, experiment.Arrivals], str]:
    """Seed → arrivals, and where they are from: ``stored`` or ``numpy``."""
    if not orders.exists():
        return {seed: experiment.draw_arrivals(pods, nodes, seed) for seed in seeds or OWN_SEEDS}, "numpy"
    with np.load(orders) as stored:
        there = sorted(int(name.removeprefix("order_")) for name in stored if name.startswith("order_"))
        missing = sorted(set(seeds or there) - set(there))
        if missing:
            raise MissingTrace(f"{orders} has no arrival order for seed {missing[0]}, only for {there}")
        wanted = list(seeds or there)
        return {s: experiment.Arrivals(stored[f"order_{s}"], stored[f"noderank_{s}"]) for s in wanted}, "stored"


def _first_decision_seconds(
    nodes: Sequence[experiment.TraceNode], pods: Sequence[Request], score: Score, typical: Sequence[TypicalShape]
) -> float:
    """From nothing to the first placement: numba imported, kernels compiled or read from their cache."""
    begin = time.perf_counter()
    fleet = experiment.build_fleet(nodes, np.arange(len(nodes)), score=score, typical=typical)
    fleet.place_each(pods[:1])
    return time.perf_counter() - begin


def _rate_with_known_shapes(fleet: Fleet, requests: Sequence[Request]) -> float:
    """Decisions a second where every shape has been scored before the clock starts."""
    fleet.warm(dict.fromkeys(requests))
    begin = time.perf_counter()
    fleet.place_each(requests)
    return len(requests) / (time.perf_counter() - begin)


def _published(path: Path, workload: str, score: str) -> dict[int, dict[int, float]]:
    policy = PUBLISHED_POLICY.get(score)
    if policy is None or not path.exists():
        return {}
    return experiment.read_published(path.read_text(), workload, policy)


def csv_dir_of(trace_dir: Path) -> Path:
    places = [trace_dir, trace_dir / "csv", trace_dir / "alibaba-gpu-v2023" / "csv"]
    for place in places:
        if (place / NODE_LIST).exists():
            return place
    raise MissingTrace(f"{NODE_LIST} is in none of {', '.join(map(str, places))}")


def published_dir_of(csv_dir: Path) -> Path:
    trace_dir = csv_dir.parent if csv_dir.name == "csv" else csv_dir
    return trace_dir.parent / "fgd-published-results"


def read(path: Path) -> str:
    if not path.exists():
        raise MissingTrace(f"{path} is missing")
    return path.read_text()


def _peak_memory_mib() -> int | None:
    """The most memory this process has had resident; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak >> (20 if sys.platform == "darwin" else 10)


# ---- the command line ------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, required=True, help="folder of the Alibaba GPU trace of 2023")
    parser.add_argument("--workload", default="default", help="which pod list: default, gpushare100, multigpu20, …")
    parser.add_argument("--score", choices=SCORES, default="fragmentation")
    parser.add_argument("--seeds", type=_seeds, help="such as 42,43; left out: all stored arrival orders")
    parser.add_argument("--orders", type=Path, help="npz file of arrival orders; left out: looked for beside the trace")
    parser.add_argument("--nodes-copies", type=_copies, default=1, help="fleet and arrivals so many times (scaling)")
    parser.add_argument("--growth", action="store_true", help="what a decision costs on 10 fleets, against one")


def run_options(options: Mapping[str, Any]) -> dict[str, Any]:
    if options["growth"]:
        copies = options["nodes_copies"] if options["nodes_copies"] > 1 else GROWTH_COPIES
        return growth(
            options["trace"], seeds=options["seeds"] or GROWTH_SEEDS, workload=options["workload"], copies=copies
        )
    return run(
        options["trace"],
        score=options["score"],
        seeds=options["seeds"],
        workload=options["workload"],
        copies=options["nodes_copies"],
        orders=_existing(options["orders"]),
    )


def text(result: Mapping[str, Any]) -> str:
    """The figures for people, one a line."""
    if result.get("part") == "growth":
        return "\n".join(
            f"{row['score']}: {row['microseconds']} µs a decision on {result['nodes']} nodes, "
            f"{row['microseconds_on_copies']} on {result['nodes_of_copies']}: {row['growth']} times"
            for row in result["rows"]
        )
    published = result["published"] or {}
    fleet = f"{result['nodes']} nodes, {result['devices']} devices"
    runs = f"{len(result['seeds'])} seeds ({result['arrival_orders']} arrival orders)"
    known = f"{result['decisions_per_second_shapes_known']:,} once every shape is known"
    first = f"first decision after {result['cold_first_decision_seconds']} s"
    lines = [
        f"{result['workload']}, {result['score']}: {fleet}, {runs}",
        f"{result['decisions_per_second']:,} decisions a second on one thread ({known}; {first})",
    ]
    for name in (f"{kind}_{column}" for kind in ("allocation_ratio", "fragmentation") for column in COLUMNS):
        beside = f" (published {published[name]})" if published.get(name) is not None else ""
        lines.append(f"{name}: {result[name]} %{beside}")
    lines.append(f"peak memory {result['peak_memory_mib']} MiB")
    return "\n".join(lines)


def _seeds(value: str) -> tuple[int, ...]:
    return tuple(int(part) for part in value.split(","))


def _copies(value: str) -> int:
    copies = int(value)
    if not 1 <= copies <= 100:
        raise argparse.ArgumentTypeError("must be within 1..100")
    return copies


def _existing(path: Path | None) -> Path | None:
    if path is not None and not path.exists():
        raise MissingTrace(f"{path} is missing")
    return path
