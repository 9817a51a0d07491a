"""What this machine has to share, and what tasks use of it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from scheduling.engines.base import DeviceUse, TaskUse
from scheduling.engines.local import LocalEngine, cgroups
from scheduling.engines.local.environment import search_path
from scheduling.engines.local.machine import node_name
from scheduling.engines.local.supervisor.confinement import Cgroup
from tests.engines.local_tasks import BOUND_AT, Told, now, order, pretend_slice, processes_of, shell, until

BUSY = ("python3", "-S", "-c", "print('up', flush=True)\nwhile True: pass")


def test_this_machine_is_one_node(make_engine: Callable[..., LocalEngine]) -> None:
    (node,) = make_engine(pretend_devices=0).inventory(now())
    assert re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", node.name)
    assert 0 < node.cpu_milli <= (os.cpu_count() or 0) * 1000
    assert 0 < node.host_memory_mib <= psutil.virtual_memory().total >> 20
    assert node.ready


@pytest.mark.parametrize(
    ("host", "name"),
    [("Gpu-Box.Lab", "gpu-box.lab"), ("über box_7", "ber-box-7"), ("-.", "localhost"), ("x" * 80, "x" * 63)],
)
def test_the_node_is_named_after_the_host(monkeypatch: pytest.MonkeyPatch, host: str, name: str) -> None:
    monkeypatch.setattr(platform, "node", lambda: host)
    assert node_name() == name


def test_pretend_devices_say_that_they_are(engine: LocalEngine) -> None:
    (node,) = engine.inventory(now())
    if any(device.vendor == "nvidia" for device in node.devices):
        pytest.skip("this machine has real devices, so it pretends none")
    assert [(device.index, device.vendor, device.model) for device in node.devices] == [
        (0, "pretend", "pretend-gpu"),
        (1, "pretend", "pretend-gpu"),
    ]
    assert all(device.uuid.startswith("pretend-") and device.memory_mib == 16384 for device in node.devices)
    assert len({device.uuid for device in node.devices}) == 2


def test_a_busy_task_shows_its_cpu_its_memory_and_pretended_devices(engine: LocalEngine, told: Told) -> None:
    engine.launch(order(1, *BUSY, slices=(pretend_slice(1, 250, 1),)), now())
    told.start(1)
    until(lambda: engine.logs(1))
    first = engine.utilization(now())
    assert [use.cpu_milli for use in first.tasks] == [None]  # it takes two looks to see a speed
    assert next(use for use in first.devices if use.index == 1) == DeviceUse(node_name(), 1, None, 1)

    def is_busy() -> TaskUse | None:
        (use,) = engine.utilization(now()).tasks
        return use if (use.cpu_milli or 0) > 250 else None

    task = until(is_busy)
    assert (task.host_memory_mib or 0) > 1
    assert (task.compute_milli, task.memory_mib) == (250, 1)  # never more than the slice


def test_an_idle_task_uses_no_cpu_and_an_idle_device_nothing(engine: LocalEngine, told: Told) -> None:
    engine.launch(order(1, "sleep", "600", slices=(pretend_slice(0),)), now())
    told.start(1)
    at = now()
    engine.utilization(at)
    later = engine.utilization(at + timedelta(seconds=30))
    (task,) = later.tasks
    assert task.cpu_milli is not None
    assert task.cpu_milli <= 10
    assert later.devices[1] == DeviceUse(node_name(), 1, 0, 0)


def test_children_and_what_left_the_group_count_for_their_task(engine: LocalEngine, told: Told) -> None:
    engine.launch(shell(1, "setsid python3 -S -c \"print('up', flush=True)\nwhile True: pass\" & wait"), now())
    told.start(1)
    until(lambda: engine.logs(1))
    engine.utilization(now())
    until(lambda: (engine.utilization(now()).tasks[0].cpu_milli or 0) > 100)


def test_ended_tasks_use_nothing(engine: LocalEngine, told: Told) -> None:
    engine.launch(order(1, "true"), now())
    told.end(1)
    assert engine.utilization(now()).tasks == ()


def test_tasks_do_not_get_the_server_s_own_environment_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", "/srv/allotment/.venv")
    monkeypatch.setattr("sys.base_prefix", "/opt/python")
    path = search_path("/srv/allotment/.venv/bin:relative:/home/bob/bin::/usr/bin")
    assert path.split(":")[:4] == ["/home/bob/bin", "/usr/bin", "/opt/python/bin", "/usr/local/bin"]


# Control groups


def test_the_limits_of_a_cgroup_are_written_as_the_kernel_wants_them(tmp_path: Path) -> None:
    """In a plain folder: what the kernel does with these files is its own."""
    path = tmp_path / "task"
    group = Cgroup({"cgroup": str(path), "cpu_milli": 1500, "host_memory_mib": 512})
    group.make()
    group.join()
    assert (path / "cpu.max").read_text() == "150000 100000"
    assert (path / "memory.max").read_text() == str(512 * 1024 * 1024)
    assert (path / "cgroup.procs").read_text() == "0"
    assert group.ran_out_of_memory() == ""
    (path / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert group.ran_out_of_memory() == "Out of memory: it took more than its 512 MiB."


def test_what_was_not_asked_for_is_not_limited(tmp_path: Path) -> None:
    Cgroup({"cgroup": str(tmp_path / "task"), "cpu_milli": 0, "host_memory_mib": 0}).make()
    assert list((tmp_path / "task").iterdir()) == []


def test_where_no_cgroup_can_be_made_tasks_run_without(make_engine: Callable[..., LocalEngine], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    engine = make_engine(cgroup=tmp_path / "file")
    engine.launch(shell(1, "exit 3", cpu_milli=1000), now())
    assert Told(engine).end(1).exit_code == 3


@pytest.mark.skipif(cgroups.place_for_tasks() is None, reason="this process may not make cgroups with cpu and memory")
def test_a_task_that_takes_more_memory_than_it_asked_for_is_killed(engine: LocalEngine, told: Told) -> None:
    engine.launch(order(1, "python3", "-c", "x = bytearray(200 << 20)", host_memory_mib=64), now())
    assert told.end(1).message == "Out of memory: it took more than its 64 MiB."


def scratch_cgroup() -> Path | None:
    """A cgroup of this test's own, with or without controllers; None where none may be made."""
    found = cgroups.own_cgroup()
    path = found[1] / f"allotment-test-{os.getpid()}" if found else None
    try:
        if path is not None:
            path.mkdir()
            (path / "cgroup.procs").read_text()
            return path
    except OSError:
        pass
    return None


def test_a_cgroup_holds_all_of_a_task_and_is_gone_with_it(make_engine: Callable[..., LocalEngine], root: Path) -> None:
    place = scratch_cgroup()
    if place is None:
        pytest.skip("this process may not make cgroups")
    try:
        engine = make_engine(cgroup=place)
        told = Told(engine)
        engine.launch(shell(1, "setsid sleep 600 & echo $!; echo $$; exec sleep 600"), now())
        told.start(1)
        pids = until(lambda: len(engine.logs(1).split()) == 2 and engine.logs(1).split())
        (group,) = [path for path in place.iterdir() if path.is_dir()]
        assert group.name.startswith("allotment-1-")
        assert sorted((group / "cgroup.procs").read_text().split()) == sorted(pid.decode() for pid in pids)
        engine.stop(1, 0, now())
        told.end(1)
        assert list(processes_of(root)) == []
        assert not group.exists()
    finally:
        place.rmdir()


def test_bounds_around_the_server_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "service" / "server"
    own.mkdir(parents=True)
    (own / "cpu.max").write_text("max 100000\n")
    (own / "memory.max").write_text(f"{8 << 30}\n")
    (tmp_path / "service" / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "service" / "memory.max").write_text("max\n")
    monkeypatch.setattr(cgroups, "own_cgroup", lambda: (tmp_path, own))
    assert cgroups.bounds() == (1500, 8192)
    monkeypatch.setattr(cgroups, "own_cgroup", lambda: None)
    assert cgroups.bounds() == (None, None)


def test_an_order_that_was_bound_at_another_time_is_another_order(engine: LocalEngine, told: Told) -> None:
    task = order(1, "true")
    engine.launch(task, now())
    told.end(1)
    engine.resume([replace(task, bound_at=BOUND_AT + timedelta(microseconds=1), running_at=BOUND_AT)], now())
    until(lambda: len(told.look().of(1, "ended")) == 2)
    assert told.of(1, "ended")[1].reason == "lost"
