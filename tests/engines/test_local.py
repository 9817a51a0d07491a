"""The local engine runs real processes: what they find, what they write, how they end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from scheduling.engines.base import EngineError
from scheduling.engines.local import LocalEngine
from scheduling.engines.local.engine import Bounds
from tests.engines.local_tasks import (
    BOUND_AT,
    Told,
    folder,
    now,
    number_in,
    nvidia_slice,
    order,
    pretend_slice,
    processes_of,
    runs,
    shell,
    supervisor,
    until,
)

SLEEP = "sleep 600"


def test_hello(engine: LocalEngine, told: Told) -> None:
    before = now()
    engine.launch(order(1, "echo", "hello"), before)
    start, end = told.start(1), told.end(1)
    assert (end.exit_code, end.reason, end.message) == (0, "", "")
    assert before <= start.at <= end.at <= now()
    assert engine.logs(1) == b"hello\n"


def test_an_exit_code_that_is_not_zero(engine: LocalEngine, told: Told) -> None:
    engine.launch(shell(1, "exit 3"), now())
    assert (told.end(1).exit_code, told.end(1).reason) == (3, "")


def test_a_task_that_dies_of_a_signal_has_the_code_that_a_shell_gives_it(engine: LocalEngine, told: Told) -> None:
    engine.launch(shell(1, "kill -SEGV $$"), now())
    end = told.end(1)
    assert (end.exit_code, end.message) == (128 + signal.SIGSEGV, "Killed by SIGSEGV.")


def test_nothing_is_reported_twice(engine: LocalEngine, told: Told) -> None:
    engine.launch(order(1, "true"), now())
    told.end(1)
    assert [report.kind for report in told.reports] == ["started", "ended"]
    assert told.look().look().reports == told.reports
    assert len(told.reports) == 2


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ((), 127, "The command is empty."),
        (("",), 127, "The command is empty."),
        (("no-such-command", "x"), 127, "no-such-command: No such file or directory."),
        (("./no/such/file",), 127, "./no/such/file: No such file or directory."),
        (("/etc",), 126, "/etc: Permission denied."),
        (("echo", "a\0b"), 126, "echo: embedded null byte."),
    ],
)
def test_a_command_that_cannot_be_run(
    engine: LocalEngine, told: Told, command: tuple[str, ...], code: int, message: str
) -> None:
    engine.launch(order(1, *command), now())
    end = told.end(1)
    assert (end.exit_code, end.reason, end.message) == (code, "failed_to_start", message)
    assert told.of(1, "started") == []


# What it writes


def test_the_log_can_be_read_while_the_task_runs_and_from_any_byte(engine: LocalEngine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    engine.launch(shell(1, "echo first; echo wrong >&2; read x < $GO; echo last", environment=go(tmp_path)), now())
    until(lambda: engine.logs(1) == b"first\nwrong\n")
    assert engine.logs(1, offset=6) == b"wrong\n"
    assert engine.logs(1, offset=6, limit=2) == b"wr"
    assert engine.logs(1, offset=10_000) == b""
    (tmp_path / "go").write_text("\n")
    until(lambda: engine.logs(1, offset=12) == b"last\n")


def go(tmp_path: Path) -> dict[str, str]:
    return {"GO": str(tmp_path / "go")}


def test_there_is_no_log_of_what_never_was(engine: LocalEngine) -> None:
    assert engine.logs(404) == b""


def test_output_is_kept_as_the_bytes_that_it_is(engine: LocalEngine, told: Told) -> None:
    engine.launch(shell(1, r"printf '\377\376\000x'"), now())
    told.end(1)
    assert engine.logs(1) == b"\xff\xfe\x00x"


def test_python_prints_are_in_the_log_at_once(engine: LocalEngine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    engine.launch(order(1, "python3", "-c", "print('now'); open('../../../../go').read()"), now())
    until(lambda: engine.logs(1) == b"now\n")


def test_a_log_that_is_full_keeps_its_beginning_and_its_end(make_engine: Callable[..., LocalEngine]) -> None:
    engine = make_engine(bounds=Bounds(log_bytes=4000))
    told = Told(engine)
    engine.launch(shell(1, "seq 100000; echo the end"), now())
    assert told.end(1).exit_code == 0
    log = engine.logs(1)
    assert log.startswith(b"1\n2\n3\n")
    assert log.endswith(b"99999\n100000\nthe end\n")
    whole = sum(len(f"{number}\n") for number in range(1, 100_001)) + len("the end\n")
    assert b"The log is full" in log
    assert b"%d bytes are left out here" % (whole - 4000) in log
    assert len(log) < 4000 + 200


def test_all_output_of_a_task_is_in_its_log_when_it_has_ended(engine: LocalEngine, told: Told) -> None:
    engine.launch(shell(1, "seq 200000"), now())
    told.end(1)
    assert engine.logs(1, limit=10_000_000).split() == [b"%d" % number for number in range(1, 200_001)]


# What it finds


def environment_of(engine: LocalEngine, told: Told, allocation_id: int) -> dict[str, str]:
    told.end(allocation_id)
    lines = engine.logs(allocation_id).decode().split("\0")
    return dict(line.split("=", 1) for line in lines if line)


def test_the_environment_is_clean(engine: LocalEngine, told: Told, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for secret in ("SECRET_KEY", "DATABASE_URL", "REDIS_URL", "ALLOTMENT_DATA", "PYTHONPATH", "DJANGO_SETTINGS_MODULE"):
        monkeypatch.setenv(secret, "secret")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    for variable in ("CUDA_HOME", "CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_PIPE_DIRECTORY", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(variable, raising=False)
    engine.launch(order(1, "env", "-0", task_index=2, tasks=4, environment={"LR": "0.1", "RANK": "9"}), now())
    variables = environment_of(engine, told, 1)
    path = variables.pop("PATH")
    home = str(folder(root, 1) / "work")
    assert variables == {
        "HOME": home,
        "PWD": home,
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "TZ": "Europe/Berlin",
        "LR": "0.1",
        "ALLOTMENT_JOB_ID": "71",
        "ALLOTMENT_TASK_INDEX": "2",
        "ALLOTMENT_TASKS": "4",
        "ALLOTMENT_TEAM": "nlp",
        "ALLOTMENT_TASK_FOLDER": str(folder(root, 1)),
        "RANK": "2",
        "WORLD_SIZE": "4",
    }
    assert "/usr/bin" in path.split(":")


def test_slices_of_pretend_devices_are_named_and_no_cuda_variable_is_set(engine: LocalEngine, told: Told) -> None:
    slices = (pretend_slice(0, 500), pretend_slice(1, 500))
    engine.launch(order(1, "env", "-0", slices=slices), now())
    variables = environment_of(engine, told, 1)
    assert variables["ALLOTMENT_PRETEND_DEVICES"] == "0,1"
    assert not [name for name in variables if "CUDA" in name]


def test_slices_of_nvidia_devices_are_handed_over_by_uuid(engine: LocalEngine, told: Told) -> None:
    engine.launch(order(1, "env", "-0", slices=(nvidia_slice(3),)), now())
    engine.launch(order(2, "env", "-0", slices=(nvidia_slice(2, 250, 20480), nvidia_slice(5, 250, 10240))), now())
    whole, part = environment_of(engine, told, 1), environment_of(engine, told, 2)
    assert whole["CUDA_VISIBLE_DEVICES"] == "GPU-3"
    assert not [name for name in whole if "MPS" in name]
    assert part["CUDA_VISIBLE_DEVICES"] == "GPU-2,GPU-5"
    assert part["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert part["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=20480M,1=10240M"
    assert "ALLOTMENT_PRETEND_DEVICES" not in whole | part


def test_a_task_has_a_folder_of_its_own_and_nothing_to_read(engine: LocalEngine, told: Told, root: Path) -> None:
    engine.launch(shell(1, "pwd; cat; touch made; umask"), now())
    told.end(1)
    work = folder(root, 1) / "work"
    assert engine.logs(1).decode().split() == [str(work), "0022"]
    assert (work / "made").exists()
    assert folder(root, 1).stat().st_mode & 0o777 == 0o700


def test_a_task_is_bounded_and_shares_no_file_of_the_server(engine: LocalEngine, told: Told, tmp_path: Path) -> None:
    leaked = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(leaked, True)
    engine.launch(shell(1, "ulimit -c; ulimit -n; nice; ls /proc/self/fd"), now())
    told.end(1)
    os.close(leaked)
    core, files, nice, *descriptors = engine.logs(1).decode().split()
    assert (core, nice) == ("0", str(os.nice(0) + Bounds().nice))
    assert int(files) <= Bounds().max_files
    assert descriptors == ["0", "1", "2", "3"]  # the last is ls's own


def test_a_task_leads_a_session_of_its_own(engine: LocalEngine, told: Told, root: Path) -> None:
    engine.launch(shell(1, f"echo $$; {SLEEP}"), now())
    until(lambda: engine.logs(1))
    main = int(engine.logs(1))
    assert os.getsid(main) == os.getpgid(main) == main
    assert os.getsid(supervisor(root, 1)) not in (main, os.getsid(0))


# How it is ended


def test_a_task_ends_at_its_time_limit(engine: LocalEngine, told: Told) -> None:
    engine.launch(shell(1, f"exec {SLEEP}", time_limit_s=1), now())
    end = told.end(1)
    assert (end.exit_code, end.reason) == (None, "time_limit")
    assert end.message == "The time limit of 1 s was reached (killed by SIGTERM)."
    assert end.at - told.start(1).at >= timedelta(seconds=1)


def test_a_task_that_is_asked_to_stop_may_clean_up(engine: LocalEngine, told: Told) -> None:
    engine.launch(shell(1, "trap 'echo cleaned; exit 5' TERM; echo up; while :; do sleep 0.02; done"), now())
    until(lambda: engine.logs(1) == b"up\n")
    engine.stop(1, 30, now())
    end = told.end(1)
    assert (end.exit_code, end.reason, end.message) == (None, "stopped", "Stopped (exit code 5).")
    assert engine.logs(1).endswith(b"cleaned\n")


def test_a_task_that_ignores_the_request_is_killed_after_its_grace(engine: LocalEngine, told: Told) -> None:
    engine.launch(shell(1, "trap '' TERM; echo up; while :; do sleep 0.02; done"), now())
    until(lambda: engine.logs(1) == b"up\n")
    asked = now()
    engine.stop(1, 0.3, asked)
    end = told.end(1)
    assert (end.reason, end.message) == ("stopped", "Stopped (killed by SIGKILL).")
    assert end.at - asked >= timedelta(seconds=0.3)


def test_a_second_request_can_only_shorten_the_grace(engine: LocalEngine, told: Told) -> None:
    engine.launch(shell(1, "trap '' TERM; echo up; while :; do sleep 0.02; done"), now())
    until(lambda: engine.logs(1) == b"up\n")
    engine.stop(1, 600, now())
    engine.stop(1, 0, now())
    assert told.end(1).reason == "stopped"


def test_a_task_that_was_suspended_can_be_stopped(engine: LocalEngine, told: Told) -> None:
    engine.launch(shell(1, f"echo $$; exec {SLEEP}"), now())
    main = int(until(lambda: engine.logs(1)))
    os.kill(main, signal.SIGSTOP)
    engine.stop(1, 600, now())
    assert told.end(1).message == "Stopped (killed by SIGTERM)."


def test_an_end_that_came_by_itself_is_not_called_stopped(engine: LocalEngine, told: Told) -> None:
    engine.launch(shell(1, "exit 4"), now())
    told.end(1)
    engine.stop(1, 0, now())
    again = told.look().of(1, "ended")
    assert [(report.exit_code, report.reason) for report in again] == [(4, ""), (4, "")]


def test_stopping_what_is_unknown_reports_its_end(engine: LocalEngine, told: Told, root: Path) -> None:
    asked = now()
    engine.stop(404, 10, asked)
    assert engine.next_change() == asked
    assert (told.end(404).exit_code, told.end(404).reason, told.end(404).at) == (None, "stopped", asked)
    assert engine.next_change() is None
    assert not folder(root, 404).exists()


def test_a_stop_right_after_the_launch_is_not_lost(engine: LocalEngine, told: Told) -> None:
    for allocation_id in range(1, 11):
        engine.launch(order(allocation_id, "sleep", "600"), now())
        engine.stop(allocation_id, 5, now())
    assert {told.end(allocation_id).reason for allocation_id in range(1, 11)} == {"stopped"}


# Nothing of it is left


def test_the_whole_tree_is_killed_also_what_left_its_group(engine: LocalEngine, told: Told, root: Path) -> None:
    script = (
        "trap '' TERM; (sleep 601 & setsid sleep 602 & wait) & setsid sh -c 'sleep 603 & exit'; echo up; wait; wait"
    )
    engine.launch(shell(1, script), now())
    until(lambda: engine.logs(1) == b"up\n")
    until(lambda: len(sleepers(root)) == 3)
    engine.stop(1, 0.1, now())
    told.end(1)
    assert list(processes_of(root)) == []


def sleepers(root: Path) -> list[int]:
    return [pid for pid in processes_of(root) if psutil.Process(pid).name() == "sleep"]


def test_what_outlives_the_main_process_is_killed_before_the_end_is_told(
    engine: LocalEngine, told: Told, root: Path
) -> None:
    engine.launch(shell(1, "setsid sleep 600 & echo $! > pid; exit 7"), now())
    assert told.end(1).exit_code == 7
    assert not runs(number_in(folder(root, 1) / "work" / "pid"))


def test_what_outlives_the_main_process_may_finish_its_output(engine: LocalEngine, told: Told) -> None:
    engine.launch(shell(1, "(while kill -0 $$ 2>&-; do :; done; echo late) & exit 0"), now())
    assert told.end(1).exit_code == 0
    assert engine.logs(1) == b"late\n"


def test_ended_supervisors_are_reaped(engine: LocalEngine, told: Told, root: Path) -> None:
    engine.launch(shell(1, f"exec {SLEEP}"), now())
    told.start(1)
    pid = supervisor(root, 1)
    assert psutil.Process(pid).ppid() == os.getpid()
    engine.stop(1, 0, now())
    told.end(1)
    until(lambda: engine.observe(now()) or not psutil.pid_exists(pid))


def test_fifty_quick_tasks_are_each_reported_once(engine: LocalEngine, told: Told) -> None:
    for number in range(50):
        engine.launch(shell(number, f"exit {number}"), now())
    assert [told.end(number).exit_code for number in range(50)] == list(range(50))
    counts = {(number, kind): len(told.of(number, kind)) for number in range(50) for kind in ("started", "ended")}
    assert set(counts.values()) == {1}


# Once


def test_launching_twice_starts_once(engine: LocalEngine, told: Told, tmp_path: Path) -> None:
    tally = tmp_path / "tally"
    for _ in range(3):
        engine.launch(shell(1, f"echo x >> {tally}"), now())
    told.end(1)
    engine.launch(shell(1, f"echo x >> {tally}"), now())
    until(lambda: len(told.look().of(1, "ended")) == 2, "the end, told again")
    assert tally.read_text() == "x\n"


def test_the_folder_of_another_database_s_allocation_is_not_taken_for_this_one(
    engine: LocalEngine, told: Told, root: Path
) -> None:
    engine.launch(shell(1, "echo old; exit 9"), now())
    assert told.end(1).exit_code == 9
    engine.launch(shell(1, "echo new", bound_at=BOUND_AT + timedelta(days=1)), now())
    until(lambda: len(told.look().of(1, "ended")) == 2)
    assert told.of(1, "ended")[1].exit_code == 0
    assert engine.logs(1) == b"new\n"


def test_what_still_runs_of_another_database_is_ended_before_its_number_is_used_again(
    make_engine: Callable[..., LocalEngine], root: Path
) -> None:
    old = make_engine()
    old.launch(shell(1, f"trap '' TERM; {SLEEP}; {SLEEP}"), now())
    Told(old).start(1)
    new, again = make_engine(), shell(1, "echo new", bound_at=BOUND_AT + timedelta(days=1))
    told = Told(new)
    with pytest.raises(EngineError, match="not gone yet"):
        new.launch(again, now())

    def launched() -> bool:
        told.look()
        try:
            new.launch(again, now())
        except EngineError:
            return False
        return True

    until(launched)
    assert told.end(1).exit_code == 0
    assert new.logs(1) == b"new\n"
    assert [report.kind for report in told.reports] == ["started", "ended"]


def test_a_report_is_never_dated_before_the_binding_nor_after_now(engine: LocalEngine) -> None:
    past = BOUND_AT + timedelta(seconds=3)
    engine.launch(shell(1, "exit 0", bound_at=BOUND_AT), past)
    reports = until(lambda: [report for report in engine.observe(past) if report.kind == "ended"])
    assert reports[0].at == past
    future = now() + timedelta(days=1)
    engine.launch(shell(2, "exit 0", bound_at=future), future)
    reports = until(lambda: [report for report in engine.observe(future) if report.kind == "ended"])
    assert reports[0].at == future


def test_no_supervisor_no_task(make_engine: Callable[..., LocalEngine], tmp_path: Path) -> None:
    broken = make_engine(python="/no/such/python")
    with pytest.raises(EngineError, match="allocation 1 could not be started"):
        broken.launch(order(1, "true"), now())
    mended = make_engine()
    mended.launch(order(1, "true"), now())
    assert Told(mended).end(1).exit_code == 0


def test_a_supervisor_that_fails_at_once_is_a_failed_start(make_engine: Callable[..., LocalEngine]) -> None:
    engine = make_engine(python="/bin/false")
    engine.launch(order(1, "true"), now())
    end = Told(engine).end(1)
    assert (end.exit_code, end.reason) == (None, "failed_to_start")


# Afterwards


def test_old_folders_are_pruned_and_running_ones_kept(engine: LocalEngine, told: Told, root: Path) -> None:
    engine.launch(shell(1, "mkdir closed; touch closed/file; chmod 500 closed; echo old"), now())
    engine.launch(shell(2, f"echo up; exec {SLEEP}"), now())
    told.end(1)
    told.start(2)
    assert engine.prune(told.end(1).at) == 0
    assert engine.logs(1) == b"old\n"
    assert engine.prune(now() + timedelta(days=1)) == 1
    assert not folder(root, 1).exists()
    assert engine.logs(1) == b""
    assert runs(supervisor(root, 2))
    assert sorted(path.name for path in root.iterdir()) == ["tasks"]
