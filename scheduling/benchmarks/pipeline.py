"""Jobs a second from REST bulk submit to bound, on PostgreSQL, with one web and one scheduler process; nothing lost."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scheduling.workload.machine import machine

BATCH = 500
CLIENTS = 2
MOST_WAITING = 3000  # of the queue: clients pause while it is longer, so that the rate is one that lasts
DEVICES = 8
RATE_OF_REQUESTS = 1_000_000  # of a minute: no limit here
START_S, DRAIN_S, STOP_S = 60.0, 120.0, 30.0
# What the jobs ask for, in turn: whole devices, parts of one, several.
ASKS: tuple[float, ...] = (1, 0.5, 1, 0.25, 2, 0.5, 1, 4)
STAGES = ("install", "web", "scheduler", "count")


@dataclass(frozen=True)
class Setting:
    """What is measured with."""

    seconds: float = 60.0
    nodes: int = 1000
    teams: int = 50
    batch: int = BATCH
    duration: str = "1s"
    durable: bool = True


@dataclass
class Tally:
    """What the clients sent and were answered."""

    submitted: int = 0
    requests: int = 0
    latencies: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def run(setting: Setting) -> dict[str, Any]:
    """Starts everything, submits for ``seconds``, waits until all has ended, counts, and ends everything again."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="allotment-pipeline-")))
        url = os.environ.get("DATABASE_URL") or stack.enter_context(_own_postgres(setting))
        environment = {**os.environ, "DATABASE_URL": url, "ALLOTMENT_DATA": str(home)}
        environment["API_REQUESTS_PER_MINUTE"] = str(RATE_OF_REQUESTS)
        made = _stage("install", setting, environment, home)
        processes = stack.enter_context(_processes(setting, environment, home))
        watch = stack.enter_context(_Watch(url))
        first = _warm_up(setting, made, processes, watch)
        before = _used(processes, watch)
        tally, begun, ended = _submit(setting, made, processes, watch)
        tally.submitted += first
        watch.until(lambda: watch.unfinished() == 0, DRAIN_S, "the jobs did not all end")
        drained = time.time()
        used = {name: after - before[name] for name, after in _used(processes, watch).items() if name in before}
        processes.stop()
        counted = _stage("count", setting, environment, home, begun=begun, ended=ended)
        timed = {name: json.loads((home / f"{name}.json").read_text()) for name in processes.items}
    return _result(setting, tally, counted, timed, used, ended - begun, drained - begun)


def _result(
    setting: Setting,
    tally: Tally,
    counted: Mapping[str, Any],
    timed: Mapping[str, Any],
    used: Mapping[str, float],
    lasted: float,
    drained: float,
) -> dict[str, Any]:
    faults = list(counted["faults"]) + tally.failures[:5]
    if counted["jobs"] != tally.submitted:
        faults.append(f"{tally.submitted} jobs were submitted, {counted['jobs']} are there")
    latencies = sorted(tally.latencies)
    return {
        "benchmark": "pipeline",
        "nodes": setting.nodes,
        "devices": setting.nodes * DEVICES,
        "teams": setting.teams,
        "batch": setting.batch,
        "duration": setting.duration,
        "durable": setting.durable,
        "seconds": round(lasted, 2),
        "drained_after_seconds": round(drained, 2),
        "submitted": tally.submitted,
        "bound_while_submitting": counted["bound_in_time"],
        "jobs_per_second": round(counted["bound_in_time"] / lasted, 1),
        "jobs_per_second_until_drained": round(counted["bound"] / drained, 1),
        "ended": counted["ended"],
        "events": counted["events"],
        "usage_seconds": counted["usage_seconds"],
        "allocation_seconds": counted["allocation_seconds"],
        "wait_s": counted["wait_s"],
        "request_ms_median": round(1000 * latencies[len(latencies) // 2]) if latencies else None,
        "nothing_lost": not faults,
        "faults": faults,
        "processor_ms_per_job": {name: round(1000 * each / max(counted["bound"], 1), 3) for name, each in used.items()},
        "stages": {name: found["stages"] for name, found in timed.items()},
        "machine": machine(),
    }


# ---- processes -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _own_postgres(setting: Setting) -> Iterator[str]:
    from scheduling.workload.postgres import own_postgres

    options = [] if setting.durable else ["fsync=off", "synchronous_commit=off", "full_page_writes=off"]
    with own_postgres(options) as url:
        yield url


def _command(stage: str, setting: Setting, home: Path, **more: Any) -> list[str]:
    manage = Path(__file__).resolve().parents[2] / "manage.py"
    words = [sys.executable, str(manage), "bench", "pipeline", "--stage", stage, "--home", str(home)]
    words += ["--nodes", str(setting.nodes), "--teams", str(setting.teams)]
    for name, value in more.items():
        words += [f"--{name}", repr(value)]
    return words


def _stage(stage: str, setting: Setting, environment: Mapping[str, str], home: Path, **more: Any) -> dict[str, Any]:
    """What a stage in a process of its own says."""
    done = subprocess.run(
        _command(stage, setting, home, **more),
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise OSError(f"{stage} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@dataclass
class _Running:
    items: dict[str, subprocess.Popen[bytes]]
    port: int

    def check(self) -> None:
        for name, process in self.items.items():
            if process.poll() is not None:
                raise OSError(f"{name} ended by itself with {process.returncode}")

    def stop(self) -> None:
        """Both end by themselves when they are told to, and write where their time went."""
        for process in self.items.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.items.values():
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_S)


@contextlib.contextmanager
def _processes(setting: Setting, environment: Mapping[str, str], home: Path) -> Iterator[_Running]:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = int(held.getsockname()[1])
    running = _Running({}, port)
    with open(home / "log", "wb") as log:
        try:
            for stage in ("web", "scheduler"):
                command = [*_command(stage, setting, home), "--port", str(port)]
                running.items[stage] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            _until_it_answers(running)
            yield running
        finally:
            running.stop()


def _until_it_answers(running: _Running) -> None:
    end = time.monotonic() + START_S
    while True:
        running.check()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", running.port), 1):
            return
        if time.monotonic() > end:
            raise OSError("the web process does not answer")
        time.sleep(0.1)


# ---- load ------------------------------------------------------------------------------------------------------------


def _warm_up(setting: Setting, made: Mapping[str, Any], processes: _Running, watch: _Watch) -> int:
    """What is done once is done before the clock starts: imports, connections, kernels. How many jobs that took."""
    tally = Tally()
    _one_request(processes.port, made["token"], _bodies(setting, made)[0], tally)
    watch.until(lambda: watch.unfinished() == 0, START_S + DRAIN_S, "the first jobs did not end")
    return tally.submitted


def _used(processes: _Running, watch: _Watch) -> dict[str, float]:
    """Processor seconds so far, by process; those that the system does not tell are left out."""
    found = {name: _processor_s(process.pid) for name, process in processes.items.items()}
    found["postgres"] = watch.processor_s()
    return {name: value for name, value in found.items() if value is not None}


def _submit(
    setting: Setting, made: Mapping[str, Any], processes: _Running, watch: _Watch
) -> tuple[Tally, float, float]:
    """Clients submit until the time is over, pausing while the queue is long. When it began and ended."""
    tally = Tally()
    bodies = _bodies(setting, made)
    begun = time.time()
    deadline = time.monotonic() + setting.seconds
    over = threading.Event()
    clients = [
        threading.Thread(
            target=_client, args=(i, processes.port, made["token"], bodies, tally, watch, over), daemon=True
        )
        for i in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    while (left := deadline - time.monotonic()) > 0:
        processes.check()
        watch.look()
        time.sleep(min(left, 0.05))
    over.set()
    ended = time.time()
    for client in clients:
        client.join(STOP_S)
    return tally, begun, ended


def _bodies(setting: Setting, made: Mapping[str, Any]) -> list[bytes]:
    """Requests of ``batch`` jobs, the teams in turn."""
    teams = made["teams"]
    common = {"pool": made["pool"], "command": ["true"], "cpu": 1, "memory_gib": 1, "duration": setting.duration}
    bodies = []
    for first in range(len(teams)):
        turns = range(first, first + setting.batch)
        jobs = [{"team": teams[i % len(teams)], "name": "job", "gpus": ASKS[i % len(ASKS)], **common} for i in turns]
        bodies.append(json.dumps(jobs).encode())
    return bodies


def _client(
    number: int, port: int, token: str, bodies: Sequence[bytes], tally: Tally, watch: _Watch, over: threading.Event
) -> None:
    turn = number
    while not over.is_set():
        if watch.waiting > MOST_WAITING:
            over.wait(0.02)
            continue
        if not _one_request(port, token, bodies[turn % len(bodies)], tally):
            over.wait(1.0)
        turn += CLIENTS


def _one_request(port: int, token: str, body: bytes, tally: Tally) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    begun = time.perf_counter()
    try:
        connection.request("POST", "/api/v1/jobs", body, headers)
        answer = connection.getresponse()
        told = answer.read()
    except OSError as error:
        with tally.lock:
            tally.failures.append(str(error))
        return False
    finally:
        connection.close()
    with tally.lock:
        tally.requests += 1
        if answer.status != 201:
            tally.failures.append(f"{answer.status}: {told[:300]!r}")
            return False
        tally.submitted += len(json.loads(told))
        tally.latencies.append(time.perf_counter() - begun)
    return True


class _Watch:
    """Looks at the database from beside, with a connection of its own."""

    def __init__(self, url: str) -> None:
        import psycopg

        self._connection = psycopg.connect(url, autocommit=True)
        self.waiting = 0

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def look(self) -> None:
        self.waiting = self._number("SELECT count(*) FROM scheduling_job WHERE state = 'pending'")

    def unfinished(self) -> int:
        return self._number("SELECT count(*) FROM scheduling_job WHERE state IN ('pending', 'starting', 'running')")

    def until(self, true: Callable[[], bool], patience_s: float, otherwise: str) -> None:
        end = time.monotonic() + patience_s
        while not true():
            if time.monotonic() > end:
                raise OSError(otherwise)
            time.sleep(0.1)

    def processor_s(self) -> float | None:
        """Of all PostgreSQL processes that serve this database, those that have ended left out."""
        rows = self._connection.execute("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()").fetchall()
        found = [_processor_s(row[0]) for row in rows]
        return sum(each for each in found if each is not None) if any(each is not None for each in found) else None

    def _number(self, statement: str) -> int:
        row = self._connection.execute(statement.encode()).fetchone()
        return int(row[0]) if row else 0


def _processor_s(pid: int) -> float | None:
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system)


# ---- stages, each in a process of its own ----------------------------------------------------------------------------


def _install(options: Mapping[str, Any]) -> dict[str, Any]:
    from django.core.management import call_command
    from django.utils import timezone

    from inventory.models import Pool
    from scheduling.workload.installation import install
    from scheduling.workload.records import TraceNode
    from tenants.services import issue_token

    call_command("migrate", verbosity=0)
    if Pool.objects.exists():
        raise ValueError("DATABASE_URL names a database that is in use: this needs an empty one")
    now = timezone.now()
    nodes = [
        TraceNode(f"node-{i:04d}", 96_000, 786_432, DEVICES, "A100-80G", "nvidia", 81_920)
        for i in range(options["nodes"])
    ]
    made = install(nodes, options["teams"], now)
    _, secret = issue_token(made.operator, "bench", now)
    return {"token": secret, "pool": made.pool.name, "teams": [team.slug for team in made.teams]}


def _web(options: Mapping[str, Any]) -> dict[str, Any]:
    import uvicorn

    from scheduling.workload.pipeline_stages import web_stages

    stages = web_stages()
    signal.signal(signal.SIGTERM, lambda *_: None)  # the server sets its own, and sends it again once it has ended
    config = uvicorn.Config("config.asgi:application", port=options["port"], lifespan="off", log_level="warning")
    uvicorn.Server(config).run()
    stages.write(Path(options["home"]) / "web.json")
    return {}


def _scheduler(options: Mapping[str, Any]) -> dict[str, Any]:
    from django.core.management import call_command

    from scheduling.workload.pipeline_stages import scheduler_stages

    stages = scheduler_stages()
    call_command("scheduler")
    stages.write(Path(options["home"]) / "scheduler.json")
    return {}


def _count(options: Mapping[str, Any]) -> dict[str, Any]:
    from scheduling.workload.pipeline_books import books

    return books(options["begun"], options["ended"])


# ---- the command line ------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    usual = Setting()
    parser.add_argument("--seconds", type=float, default=None, help="how long jobs are submitted (60)")
    parser.add_argument("--nodes", type=int, default=None, help="nodes of 8 devices (1000)")
    parser.add_argument("--teams", type=int, default=usual.teams)
    parser.add_argument("--batch", type=int, default=usual.batch, help="jobs in one request, at most 1000")
    parser.add_argument("--duration", default=usual.duration, help="how long each job runs")
    parser.add_argument("--not-durable", action="store_true", help="an own PostgreSQL does not wait for the disk")
    parser.add_argument("--quick", action="store_true", help="two seconds on 20 nodes: whether it works at all")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    for name, kind in (("home", str), ("port", int), ("begun", float), ("ended", float)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)


def run_options(options: Mapping[str, Any]) -> dict[str, Any]:
    if options["stage"]:
        stages = {"install": _install, "web": _web, "scheduler": _scheduler, "count": _count}
        return stages[options["stage"]](options)
    quick = options["quick"]
    if not 1 <= options["batch"] <= 1000:
        raise ValueError("--batch must be within 1..1000")
    return run(
        Setting(
            seconds=options["seconds"] or (2.0 if quick else 60.0),
            nodes=options["nodes"] or (20 if quick else 1000),
            teams=options["teams"],
            batch=min(options["batch"], 40) if quick else options["batch"],
            duration=options["duration"],
            durable=not options["not_durable"],
        )
    )


def text(result: Mapping[str, Any]) -> str:
    """The rate, whether anything was lost, and where the time went."""
    if "benchmark" not in result:
        return json.dumps(result)  # a stage speaks to the process that started it
    rate, lasted, sent = result["jobs_per_second"], result["seconds"], result["submitted"]
    world = f"{result['nodes']} nodes, {result['teams']} teams, requests of {result['batch']}"
    bound, ended, drained = result["bound_while_submitting"], result["ended"], result["drained_after_seconds"]
    lines = [
        f"{rate} jobs a second from submit to bound, for {lasted} s: {world}",
        f"submitted {sent}, bound meanwhile {bound}, ended {ended} after {drained} s; waits {result['wait_s']}",
        "nothing lost" if result["nothing_lost"] else "LOST: " + "; ".join(result["faults"]),
        f"processor ms a job: {result['processor_ms_per_job']}",
    ]
    for process, stages in result["stages"].items():
        lines += ["", f"{process:12}{'calls':>10}{'wall s':>10}{'cpu s':>10}"]
        for stage, sums in sorted(stages.items(), key=lambda item: -item[1]["wall_s"]):
            lines.append(f"  {stage:26}{sums['calls']:>6}{sums['wall_s']:>10.2f}{sums['cpu_s']:>10.2f}")
    return "\n".join(lines)
