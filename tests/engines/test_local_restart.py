"""Servers end at any moment and come back, or come in twos: every task is found again, ends once, and ran once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from scheduling.engines.local import LocalEngine
from scheduling.engines.local.supervisor.records import identity
from tests.engines.local_server import Server
from tests.engines.local_tasks import (
    BOUND_AT,
    Told,
    folder,
    now,
    number_in,
    order,
    processes_of,
    runs,
    shell,
    supervisor,
    until,
)

RUNNING = {"running_at": BOUND_AT}


@pytest.fixture
def serve(root: Path) -> Iterator[Callable[[int, str], Server]]:
    servers: list[Server] = []

    def start(count: int, script: str) -> Server:
        servers.append(Server(root, count, script))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


@pytest.fixture
def gate(tmp_path: Path) -> Callable[[], None]:
    """Opens the gate at which ``gated`` scripts wait."""
    os.mkfifo(tmp_path / "gate")

    def open_gate() -> None:
        (tmp_path / "gate").write_text("\n")

    return open_gate


def gated(tmp_path: Path, script: str) -> str:
    return f"echo up; read x < {tmp_path / 'gate'}; {script}"


def killed_while_running(serve: Callable[[int, str], Server], script: str) -> None:
    server = serve(1, script)
    server.go()
    server.expect("launched")
    server.expect("started 1")
    server.kill()


def test_a_task_outlives_the_server_and_its_exit_code_is_known(
    serve: Callable[[int, str], Server], engine: LocalEngine, told: Told, gate: Callable[[], None], tmp_path: Path
) -> None:
    killed_while_running(serve, gated(tmp_path, "echo on; exit 3"))
    engine.resume([shell(1, "", **RUNNING)], now())
    assert told.look().reports == []
    gate()
    assert (told.end(1).exit_code, told.end(1).reason) == (3, "")
    assert engine.logs(1) == b"up\non\n"
    assert told.of(1, "started") == []  # that it started is on record already


def test_a_task_that_ended_while_no_server_was_there(
    serve: Callable[[int, str], Server],
    make_engine: Callable[..., LocalEngine],
    root: Path,
    gate: Callable[[], None],
    tmp_path: Path,
) -> None:
    killed_while_running(serve, gated(tmp_path, "exit 3"))
    gate()
    until((folder(root, 1) / "ended.json").exists)
    engine = make_engine()
    told = Told(engine)
    engine.resume([shell(1, "")], now())
    assert told.end(1).exit_code == 3
    assert [report.kind for report in told.reports] == ["started", "ended"]


def test_the_time_limit_holds_while_no_server_is_there(make_engine: Callable[..., LocalEngine], root: Path) -> None:
    first = make_engine()
    first.launch(shell(1, "trap '' TERM; while :; do sleep 0.05; done", time_limit_s=1), now())
    Told(first).start(1)
    first.close()
    until((folder(root, 1) / "ended.json").exists)
    second = make_engine()
    second.resume([shell(1, "", **RUNNING)], now())
    assert Told(second).end(1).reason == "time_limit"


def test_a_task_found_again_can_be_stopped(
    serve: Callable[[int, str], Server], engine: LocalEngine, told: Told
) -> None:
    killed_while_running(serve, "exec sleep 600")
    engine.resume([shell(1, "", **RUNNING)], now())
    engine.stop(1, 10, now())
    assert told.end(1).message == "Stopped (killed by SIGTERM)."


def test_what_runs_and_nobody_ordered_is_stopped_in_silence(
    serve: Callable[[int, str], Server], engine: LocalEngine, told: Told, root: Path
) -> None:
    killed_while_running(serve, "exec sleep 600")
    engine.resume([], now())
    until(lambda: not told.look() or not list(processes_of(root)))
    assert told.look().reports == []


def test_what_was_bound_and_is_not_there_waits_for_its_order(engine: LocalEngine, told: Told) -> None:
    engine.resume([order(1, "true")], now())
    assert told.look().reports == []
    engine.launch(order(1, "true"), now())
    assert told.end(1).exit_code == 0


def test_what_ran_and_left_no_trace_is_lost(engine: LocalEngine, told: Told) -> None:
    at = now()
    engine.resume([order(1, "true", **RUNNING)], at)
    report = told.end(1)
    assert (report.exit_code, report.reason, report.at) == (None, "lost", at)


def test_a_crash_between_the_record_and_the_start_ends_in_one_process(
    make_engine: Callable[..., LocalEngine], root: Path, tmp_path: Path
) -> None:
    task = shell(1, f"echo x >> {tmp_path / 'tally'}")
    broken = make_engine(python="/no/such/python")
    with pytest.raises(Exception, match="could not be started"):
        broken.launch(task, now())
    assert (folder(root, 1) / "order.json").exists()
    engine = make_engine()
    told = Told(engine)
    engine.resume([task], now())
    assert told.look().reports == []
    engine.launch(task, now())
    assert told.end(1).exit_code == 0
    assert (tmp_path / "tally").read_text() == "x\n"


def test_a_recorded_task_that_never_began_can_be_stopped_and_will_not_begin(
    make_engine: Callable[..., LocalEngine], tmp_path: Path
) -> None:
    task = shell(1, f"echo x >> {tmp_path / 'tally'}")
    with pytest.raises(Exception, match="could not be started"):
        make_engine(python="/no/such/python").launch(task, now())
    engine = make_engine()
    told = Told(engine)
    engine.stop(1, 10, now())
    assert (told.end(1).reason, told.end(1).message) == ("stopped", "Stopped before it began.")
    engine.launch(task, now())
    until(lambda: len(told.look().of(1, "ended")) == 2)
    assert not (tmp_path / "tally").exists()


def test_a_server_killed_in_the_middle_of_launching(
    serve: Callable[[int, str], Server], engine: LocalEngine, told: Told, tmp_path: Path
) -> None:
    script = f"echo x >> {tmp_path}/tally-$ALLOTMENT_JOB_ID"
    server = serve(20, script)
    server.go()
    until(lambda: len(list((tmp_path / "local" / "tasks").glob("*"))) > 5)
    server.kill()
    tasks = [shell(number, script) for number in range(1, 21)]
    engine.resume(tasks, now())
    for task in tasks:
        engine.launch(task, now())
    assert [told.end(task.allocation_id).exit_code for task in tasks] == [0] * 20
    assert sorted(path.read_text() for path in tmp_path.glob("tally-*")) == ["x\n"] * 20
    assert len(told.reports) == 40


def test_two_servers_that_launch_the_same_start_it_once(
    serve: Callable[[int, str], Server], engine: LocalEngine, told: Told, tmp_path: Path
) -> None:
    script = f"echo x >> {tmp_path}/tally-$ALLOTMENT_JOB_ID; exit 4"
    servers = [serve(20, script) for _ in range(2)]
    for server in servers:
        server.go()
    for server in servers:
        server.expect("launched")
    engine.resume([shell(number, script) for number in range(1, 21)], now())
    for number in range(1, 21):
        engine.launch(shell(number, script), now())
    assert [told.end(number).exit_code for number in range(1, 21)] == [4] * 20
    assert sorted(path.read_text() for path in tmp_path.glob("tally-*")) == ["x\n"] * 20


def test_two_engines_in_one_process_start_it_once(make_engine: Callable[..., LocalEngine], tmp_path: Path) -> None:
    engines = [make_engine(), make_engine()]
    together = threading.Barrier(len(engines))

    def launch(engine: LocalEngine) -> None:
        together.wait()
        for number in range(1, 11):
            engine.launch(shell(number, f"echo x >> {tmp_path}/tally-{number}"), now())

    threads = [threading.Thread(target=launch, args=[engine]) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for told in map(Told, engines):
        assert [told.end(number).exit_code for number in range(1, 11)] == [0] * 10
    assert sorted(path.read_text() for path in tmp_path.glob("tally-*")) == ["x\n"] * 10


# What cannot be known is lost, and nobody else is taken for it


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def lose_supervisor(root: Path, engine: LocalEngine) -> int:
    """Task 1 runs, then its supervisor is killed while no engine is there; answers the pid of its main process."""
    engine.launch(shell(1, "echo $$ > pid; setsid sleep 600 & exec sleep 600"), now())
    main = number_in(folder(root, 1) / "work" / "pid")
    # The command may have run before its supervisor had that on record.
    until((folder(root, 1) / "started.json").exists, "the record that the command runs")
    engine.close()
    os.kill(supervisor(root, 1), signal.SIGKILL)
    return main


def test_a_task_that_lost_its_supervisor_is_lost_and_gone(make_engine: Callable[..., LocalEngine], root: Path) -> None:
    lose_supervisor(root, make_engine())
    engine = make_engine()
    engine.resume([shell(1, "", **RUNNING)], now())
    end = Told(engine).end(1)
    assert (end.exit_code, end.reason) == (None, "lost")
    assert list(processes_of(root)) == []


def test_a_supervisor_killed_before_our_eyes(engine: LocalEngine, told: Told, root: Path) -> None:
    engine.launch(shell(1, "sleep 600"), now())
    told.start(1)
    os.kill(supervisor(root, 1), signal.SIGKILL)
    assert told.end(1).reason == "lost"
    assert list(processes_of(root)) == []


@pytest.mark.parametrize("record", ["begun.json", "started.json"])
@pytest.mark.parametrize("mistake", ["start", "boot"])
def test_a_pid_that_was_given_to_another_process_is_not_mistaken(
    make_engine: Callable[..., LocalEngine],
    root: Path,
    bystander: subprocess.Popen[bytes],
    record: str,
    mistake: str,
) -> None:
    """As after a restart of the machine, or when pids came round: the number is there, the process is another."""
    lose_supervisor(root, make_engine())
    path = folder(root, 1) / record
    changed = json.loads(path.read_text()) | identity(bystander.pid)
    changed[mistake] = {"start": changed["start"] - 100, "boot": "an earlier one"}[mistake]
    path.write_text(json.dumps(changed))
    with closing(LocalEngine(root)) as engine:
        engine.resume([shell(1, "", **RUNNING)], now())
        engine.stop(1, 0, now())
        assert Told(engine).end(1).reason == "lost"
    assert runs(bystander.pid)


def test_a_supervisor_that_is_told_to_end_from_outside_ends_its_task(
    engine: LocalEngine, told: Told, root: Path
) -> None:
    """As when the machine shuts down: the job did not fail by itself, and nobody here asked for its end."""
    engine.launch(shell(1, "exec sleep 600"), now())
    told.start(1)
    os.kill(supervisor(root, 1), signal.SIGTERM)
    end = told.end(1)
    assert (end.exit_code, end.reason) == (None, "lost")
    assert "from outside" in end.message
