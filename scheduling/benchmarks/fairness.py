"""How fairly a pool is shared: Philly's jobs, its virtual clusters as teams, beside first-in-first-out and quotas."""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduling.core.model import DeviceState, NodeState, PendingJob, Team
from scheduling.core.units import MILLI_PER_DEVICE
from scheduling.workload.machine import machine
from scheduling.workload.records import TraceJob
from scheduling.workload.traces import read_trace

# In the first ten days the list fills up, and from the 30th on lists of some virtual clusters are cut off.
FROM_DAY = 10
DAYS = 20
LOAD = 1.0  # what is asked for in the window, in parts of what the fleet can give in it
STEP_S = 60
LEAST_JOBS = 100  # of a virtual cluster, to be a team in this: the others have fewer than 20 jobs each
DEVICES = 8
OTHERS = ("fifo", "fifo, first fit", "strict quotas")  # what ours is held against; the rest is ours, otherwise set
SECOND = 1_000_000
DAY = 86_400
POINT = 1.0


def run(
    trace_dir: Path,
    *,
    from_day: float = FROM_DAY,
    days: float = DAYS,
    load: float = LOAD,
    step_s: int = STEP_S,
    policies: Sequence[str] | None = None,
    least_jobs: int = LEAST_JOBS,
) -> dict[str, Any]:
    """Every policy over the same jobs, all virtual clusters beginning at 0 as in the list, from an empty fleet on day
    0. Counted is what happens within [from_day, from_day + days), whatever still runs or waits at its end. The fleet
    is as large as makes the work that is submitted then ``load`` of what it can do in that time.

    Each team is guaranteed its part of the GPU-seconds of the *whole* list, which is its historical share.
    """
    from scheduling.workload.fair_policies import POLICIES  # not at the top: numba takes long to import

    trace = read_trace(trace_dir, strict=True)
    counts = Counter(job.team for job in trace.jobs)
    jobs = [job for job in trace.jobs if job.devices and counts[job.team] >= least_jobs]
    if not jobs:
        raise ValueError(f"{trace_dir}: no virtual cluster with {least_jobs} jobs or more")
    names = sorted({job.team for job in jobs})
    shares = _shares(jobs, names)
    end = from_day + days
    played = [job for job in jobs if job.submit_s < end * DAY]
    window = [job for job in played if job.submit_s >= from_day * DAY]
    if not window:
        raise ValueError(f"{trace_dir}: nothing is submitted in these days")
    offered = sum(_work(job) for job in window) / (days * DAY)
    nodes = max(1, round(offered / load / DEVICES))
    counted = (from_day, end)
    chosen = policies or tuple(POLICIES)
    rows = [_row(name, POLICIES[name], played, names, shares, nodes, counted, step_s) for name in chosen]
    return {
        "benchmark": "fairness",
        "trace": trace.name,
        "source": trace.source,
        "from_day": from_day,
        "days": days,
        "jobs": len(window),
        "teams": len(names),
        "left_out": sorted(set(counts) - set(names)),
        "load": load,
        "step_seconds": step_s,
        "nodes": nodes,
        "devices": nodes * DEVICES,
        "shares": {name: round(share, 4) for name, share in zip(names, shares, strict=True)},
        "rows": rows,
        "verdict": verdict(rows),
        "machine": machine(),
    }


def verdict(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Whether ours is fairer than each other one, and its utilization within a point of first-in-first-out."""
    by_name = {row["policy"]: row for row in rows}
    ours = by_name.get("allotment")
    others = [row for row in rows if row is not ours and row["policy"] in OTHERS]
    if ours is None or not others:
        return {}
    found: dict[str, Any] = {
        "fairer_than": {row["policy"]: ours["jain"] > row["jain"] for row in others},
        "fairer_by_day_than": {row["policy"]: ours["jain_by_day"] > row["jain_by_day"] for row in others},
    }
    for name in ("fifo", "fifo, first fit"):
        if name in by_name:
            less = by_name[name]["utilization"] - ours["utilization"]
            useful = by_name[name]["useful_utilization"] - ours["useful_utilization"]
            found[f"points_below_{name}"] = round(less, 2)
            found[f"useful_points_below_{name}"] = round(useful, 2)
    found["met"] = all(found["fairer_than"].values()) and all(
        value <= POINT for name, value in found.items() if name.startswith("points_below")
    )
    return found


def jain(values: Sequence[float]) -> float:
    """(Σx)² / (n Σx²): 1 where all are the same, 1/n where one has all (Jain, Chiu and Hawe, DEC-TR-301, 1984)."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _work(job: TraceJob) -> float:
    return job.tasks * job.devices * float(job.duration_s or 0)


def _shares(jobs: Sequence[TraceJob], names: Sequence[str]) -> list[float]:
    work: Counter[str] = Counter()
    for job in jobs:
        work[job.team] += int(_work(job))
    return [work[name] / work.total() for name in names]


def _row(
    name: str,
    policy: Any,
    played: Sequence[TraceJob],
    names: Sequence[str],
    shares: Sequence[float],
    nodes: int,
    days: tuple[float, float],
    step_s: int,
) -> dict[str, Any]:
    from scheduling.core.fleet import Fleet
    from scheduling.workload.fair_policies import whole_devices
    from scheduling.workload.fair_simulation import Load, Player

    capacity = nodes * DEVICES * MILLI_PER_DEVICE
    ids = {team: number for number, team in enumerate(names, start=1)}
    jobs, durations = [], {}
    for number, job in enumerate(played, start=1):
        at = int(job.submit_s * SECOND)
        groups = whole_devices("main", job.tasks, job.devices)
        jobs.append(PendingJob(number, ids[job.team], ids[job.team], (1,), groups, at))
        durations[number] = max(1, int((job.duration_s or 0) * SECOND))
    load = Load(
        teams=tuple(Team(number, team) for team, number in ids.items()),
        guarantees={ids[team]: int(capacity * share) for team, share in zip(names, shares, strict=True)},
        jobs=tuple(sorted(jobs, key=lambda job: (job.submitted_at, job.id))),
        durations=durations,
        begin=int(days[0] * DAY * SECOND),
        end=int(days[1] * DAY * SECOND),
    )
    fleet = Fleet(_node(number) for number in range(1, nodes + 1))
    begun = time.process_time()
    outcome = Player(load, fleet, policy, step_s * SECOND).play()
    spent = time.process_time() - begun
    whole = capacity * (load.end - load.begin)
    received, deserved = outcome.received, outcome.deserved
    days_of = [_ratios(got, due) for got, due in outcome.days]
    waits = [wait / SECOND for team in outcome.waits.values() for wait in team]
    milli_hours = 1000 * 3600 * SECOND
    return {
        "policy": name,
        "jain": round(jain(list(_ratios(received, deserved).values())), 4),
        "jain_by_day": round(statistics.fmean(jain(list(each.values())) for each in days_of if each), 4),
        "least_received": round(min(_ratios(received, deserved).values()), 3),
        "utilization": round(100 * sum(received.values()) / whole, 2),
        "useful_utilization": round(100 * (sum(received.values()) - outcome.lost) / whole, 2),
        "lost_gpu_hours": round(outcome.lost / milli_hours, 1),
        "gpu_hours": round(sum(received.values()) / milli_hours, 1),
        "evictions": outcome.evictions,
        "finished": outcome.finished,
        "never_started": outcome.never_started,
        "wait_s": _waits(waits),
        "by_team": {
            team: {
                "received_over_deserved": round(received[number] / deserved[number], 3) if deserved[number] else None,
                "wait_s": _waits([wait / SECOND for wait in outcome.waits.get(number, [])]),
            }
            for team, number in ids.items()
        },
        "decisions": outcome.decisions,
        "cpu_seconds": round(spent, 1),
    }


def _node(number: int) -> NodeState:
    devices = tuple(DeviceState(number * DEVICES + i, i, "Philly-24G", "nvidia", 24_576) for i in range(DEVICES))
    return NodeState(number, f"philly-{number:04d}", number, 64_000, 524_288, devices)


def _ratios(received: Mapping[int, int], deserved: Mapping[int, int]) -> dict[int, float]:
    """Received over deserved of every team that deserved anything."""
    return {team: received.get(team, 0) / due for team, due in sorted(deserved.items()) if due}


def _waits(seconds: Sequence[float]) -> dict[str, int] | None:
    """Mean, median and the value that 95 % do not exceed, of jobs that still wait so far."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    at = {name: ordered[min(len(ordered) - 1, len(ordered) * part // 100)] for name, part in (("p50", 50), ("p95", 95))}
    return {"mean": round(statistics.fmean(ordered)), **{name: round(value) for name, value in at.items()}}


# ---- the command line ------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, required=True, help="a Philly job list, or the folder of one")
    parser.add_argument("--from-day", type=float, default=float(FROM_DAY), help="of the list, where the window begins")
    parser.add_argument("--days", type=float, help=f"how many days the window has ({DAYS})")
    parser.add_argument("--load", type=float, default=LOAD, help="work asked for, in parts of what the fleet can do")
    parser.add_argument("--step", type=int, default=STEP_S, help="events within so many seconds are taken together")
    parser.add_argument("--quick", action="store_true", help="two days of them")


def run_options(options: Mapping[str, Any]) -> dict[str, Any]:
    days = options["days"] or (2.0 if options["quick"] else float(DAYS))
    if days <= 0 or options["load"] <= 0 or options["step"] < 1:
        raise ValueError("--days, --load and --step must be more than 0")
    return run(options["trace"], from_day=options["from_day"], days=days, load=options["load"], step_s=options["step"])


def text(result: Mapping[str, Any]) -> str:
    """A table, a policy a line, and the waits by team."""
    when = f"{result['days']} days from day {result['from_day']}"
    world = f"{result['jobs']} jobs of {result['teams']} virtual clusters in {when}"
    asked = f"they ask for {result['load']} of what these can do"
    lines = [f"{result['trace']}: {world} on {result['devices']} devices; {asked}"]
    heads = ("Jain", "by day", "least", "util %", "useful %", "lost h", "evicted", "never", "mean s", "p50 s", "p95 s")
    lines.append(f"{'':18}" + "".join(f"{head:>10}" for head in heads))
    for row in result["rows"]:
        cells = [row["jain"], row["jain_by_day"], row["least_received"], row["utilization"], row["useful_utilization"]]
        cells += [row["lost_gpu_hours"], row["evictions"], row["never_started"], *(row["wait_s"] or {}).values()]
        lines.append(f"{row['policy']:18}" + "".join(f"{cell:>10}" for cell in cells))
    lines += ["", "received over deserved, and mean and p95 of the waits in s, by team"]
    for team in result["shares"]:
        told = [f"{row['by_team'][team]['received_over_deserved']} ({_told(row, team)})" for row in result["rows"]]
        lines.append(f"{team:12}" + "".join(f"{cell:>28}" for cell in told))
    return "\n".join([*lines, "", f"verdict: {result['verdict']}"])


def _told(row: Mapping[str, Any], team: str) -> str:
    waits = row["by_team"][team]["wait_s"]
    return f"{waits['mean']}, {waits['p95']}" if waits else "no jobs"
