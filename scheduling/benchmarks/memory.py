"""How much memory the scheduler's picture of 12,130 nodes needs, and how long the whole service takes for a cycle."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scheduling.benchmarks.cycle import NODES, QUICK, QUICK_NODES, nodes_for
from scheduling.workload.crowded import Size
from scheduling.workload.machine import machine, resident_mib

STAGES = ("build", "empty", "picture")
STAGE_S = 1800.0
TARGET_MIB = 300


def run(trace_dir: Path | None, *, quick: bool = False, placement: str = "fragmentation") -> dict[str, Any]:
    """Fills a database of its own through the services, then reads the picture in a process of its own.

    ``picture_mib``: the most that this process ever had resident, less what a process has that only has Django loaded
    and the same database open. What the kernels need (numba, compiled code) is in it, and told by itself too.
    """
    with tempfile.TemporaryDirectory(prefix="allotment-memory-") as home:
        environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        environment["ALLOTMENT_DATA"] = home
        told = {stage: _stage(stage, environment, trace_dir, quick=quick, placement=placement) for stage in STAGES}
    empty, found = told["empty"], told["picture"]
    if not all(value is not None for value in (*empty.values(), found["most_mib"])):
        raise ValueError("this system does not tell how much memory a process has")
    return {
        "benchmark": "memory",
        **told["build"],
        "placement": placement,
        "quick": quick,
        "empty_process_mib": empty["most_mib"],
        "kernels_mib": found["kernels_mib"] - empty["most_mib"],
        "picture_mib": found["most_mib"] - empty["most_mib"],
        "total_mib": found["most_mib"],
        "target_mib": TARGET_MIB,
        "met": found["most_mib"] - empty["most_mib"] < TARGET_MIB,
        "seconds": found["seconds"],
        "machine": machine(),
    }


def _stage(
    stage: str, environment: Mapping[str, str], trace_dir: Path | None, *, quick: bool, placement: str
) -> dict[str, Any]:
    manage = Path(__file__).resolve().parents[2] / "manage.py"
    words = [sys.executable, str(manage), "bench", "memory", "--stage", stage, "--placement", placement]
    words += ["--quick"] if quick else []
    words += ["--trace", str(trace_dir)] if trace_dir else []
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=STAGE_S, check=False)
    if done.returncode:
        raise OSError(f"{stage} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# ---- stages, each in a process of its own ----------------------------------------------------------------------------


def _build(options: Mapping[str, Any]) -> dict[str, Any]:
    from django.core.management import call_command
    from django.utils import timezone

    from scheduling.services.cycle import Scheduler
    from scheduling.workload.installation import fill, guarantee_what_is_held, install, queue_up

    call_command("migrate", verbosity=0)
    quick, now = options["quick"], timezone.now()
    nodes, source = nodes_for(options["trace"], QUICK_NODES if quick else NODES)
    size = replace(QUICK, running=60) if quick else Size()
    made = install(nodes, size.teams, now, guaranteed=False, placement=options["placement"])
    scheduler = Scheduler("bench")
    scheduler.lead(now)
    running = fill(made, scheduler, size, now)
    guarantee_what_is_held(made, now)
    queue_up(made, size, now)
    scheduler.stand_down()
    devices = sum(node.devices for node in nodes)
    return {"fleet": source, "nodes": len(nodes), "devices": devices, "running": running, "pending": size.jobs}


def _empty(options: Mapping[str, Any]) -> dict[str, Any]:
    from scheduling.models import Job

    Job.objects.exists()
    return {"most_mib": resident_mib(most=True)}


def _picture(options: Mapping[str, Any]) -> dict[str, Any]:
    from django.utils import timezone

    from scheduling.core.fleet import compile_kernels
    from scheduling.services.cycle import Scheduler

    compile_kernels(options["placement"])
    kernels = resident_mib(most=True)
    now = timezone.now()
    scheduler = Scheduler("bench")
    scheduler.lead(now)
    seconds = {}
    seconds["load"], _ = _timed(lambda: scheduler.picture.refresh(now))
    loaded = resident_mib(most=True)
    seconds["first_cycle"], result = _timed(lambda: scheduler.cycle(now, force=True))
    seconds["deciding_of_it"] = round(result.deciding_s, 4)
    scheduler.cycle(now)  # has read its own events then
    seconds["unchanged_cycle"], _ = _timed(lambda: scheduler.cycle(now))
    settled = scheduler.cycle(now, force=True)  # for whom room is kept is part of the picture from now on
    seconds["unchanged_forced_cycle"], forced = _timed(lambda: scheduler.cycle(now, force=True))
    differences = scheduler.picture.check()
    if differences:
        raise ValueError(f"the picture is not the database's: {differences[:3]}")
    return {
        "kernels_mib": kernels,
        "loaded_mib": loaded,
        "most_mib": resident_mib(most=True),
        "seconds": {**seconds, "started": result.started, "same_plan": forced.plan is settled.plan},
    }


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    found = work()
    return round(time.perf_counter() - begun, 4), found


# ---- the command line ------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, help="the Alibaba GPU trace of 2023; left out: the demo's fleet")
    parser.add_argument("--placement", default="fragmentation", help="the score that the pool is placed by")
    parser.add_argument("--quick", action="store_true", help="200 jobs on 60 nodes: whether it works at all")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)


def run_options(options: Mapping[str, Any]) -> dict[str, Any]:
    if options["stage"]:
        return {"build": _build, "empty": _empty, "picture": _picture}[options["stage"]](options)
    return run(options["trace"], quick=options["quick"], placement=options["placement"])


def text(result: Mapping[str, Any]) -> str:
    """The figures for people, one a line."""
    if "benchmark" not in result:
        return json.dumps(result)  # a stage speaks to the process that started it
    world = f"{result['nodes']} nodes, {result['devices']} devices ({result['fleet']})"
    kernels, target = result["kernels_mib"], result["target_mib"]
    lines = [f"{world}, {result['running']} jobs on them, {result['pending']} waiting"]
    lines += [f"picture {result['picture_mib']} MiB over a process that only has Django (target {target})"]
    lines += [f"of it kernels {kernels} MiB; process {result['total_mib']} MiB in all; seconds: {result['seconds']}"]
    return "\n".join(lines)
