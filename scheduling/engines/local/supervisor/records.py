"""Records in a task's folder, the claim on it, and who a process is. Read and written by engines and supervisors."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import time
from collections.abc import Mapping
from typing import Any

ORDER, CLAIM, BEGUN, STARTED = "order.json", "claim", "begun.json", "started.json"
STOP, ENDED, LOG, ERRORS, WORK = "stop.json", "ended.json", "log", "errors", "work"

TIME_LIMIT, STOPPED, LOST, FAILED_TO_START = "time_limit", "stopped", "lost", "failed_to_start"

# struct flock of fcntl(2), with the alignment of this machine.
FLOCK = struct.Struct("hhqqi0q")

Path = str | os.PathLike[str]


def now_us() -> int:
    return time.time_ns() // 1000


def end_record(exit_code: int | None, reason: str, message: str) -> dict[str, Any]:
    """What ``ended.json`` says; it happened now."""
    return {"at": now_us(), "exit_code": exit_code, "reason": reason, "message": message[:500]}


def write_record(path: Path, record: Mapping[str, Any], *, durable: bool = False) -> None:
    """``path`` holds all of ``record``, or is as it was; ``durable``: also after a loss of power. OSError if not."""
    temporary = f"{os.fspath(path)}.{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            json.dump(record, file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def read_record(path: Path) -> dict[str, Any] | None:
    """What ``path`` holds; None where there is nothing, or nothing whole (the power went before it was on the disk)."""
    try:
        with open(path, encoding="ascii") as file:
            record = json.load(file)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def take_claim(path: Path) -> int | None:
    """An open file that has the claim until it is closed or this process ends; None while another process has it.

    A POSIX record lock: no child inherits it, and it is gone when *any* descriptor of the file is closed here.
    """
    claim = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(claim)
        return None
    return claim


def claim_holder(path: Path) -> int | None:
    """The pid that has the claim, told by the kernel (0: a process that cannot be seen from here); None: nobody."""
    try:
        claim = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        question = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = FLOCK.unpack(fcntl.fcntl(claim, fcntl.F_GETLK, question))
    finally:
        os.close(claim)
    return None if kind == fcntl.F_UNLCK else int(pid)


def process_fields(pid: int | str) -> list[bytes] | None:
    """``/proc/PID/stat`` from its third field (the state) on, see proc(5); None where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def identity(pid: int) -> dict[str, Any]:
    """What tells this process from all others, past and future: pid, start in clock ticks since boot, boot."""
    fields = process_fields(pid)
    return {"pid": pid, "start": int(fields[19]) if fields else None, "boot": boot_id()}


def is_alive(process: Mapping[str, Any]) -> bool:
    """The very process of this ``identity`` still runs; one that only waits to be reaped does not."""
    if process.get("boot") != boot_id():
        return False
    fields = process_fields(process["pid"])
    return fields is not None and int(fields[19]) == process.get("start") and fields[0] not in (b"Z", b"X")
