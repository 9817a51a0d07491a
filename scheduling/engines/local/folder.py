"""A task's folder as an engine sees it: what was ordered, who has the claim, how it ended, what it wrote."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from scheduling.engines.local.supervisor import records

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Record = dict[str, Any]


def microseconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def moment(record: Mapping[str, Any]) -> datetime:
    return EPOCH + timedelta(microseconds=record["at"])


class TaskFolder:
    """``path`` need not exist; only ``record_order`` makes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def record_order(self, order: Mapping[str, Any]) -> None:
        """The order is on record before anything starts. OSError if it could not be written."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        records.write_record(self.path / records.ORDER, order)

    def order(self) -> Record | None:
        return records.read_record(self.path / records.ORDER)

    def is_of(self, bound_at: datetime) -> bool:
        """This folder belongs to the allocation that was bound then, not to one of another database's same number."""
        order = self.order()
        return order is not None and order["bound_at"] == microseconds(bound_at)

    def claim_holder(self) -> int | None:
        """The supervisor that is here now: its pid, 0 where it cannot be seen from here; None: there is none."""
        return records.claim_holder(self.path / records.CLAIM)

    def begun(self) -> Record | None:
        return records.read_record(self.path / records.BEGUN)

    def started(self) -> Record | None:
        return records.read_record(self.path / records.STARTED)

    def ended(self) -> Record | None:
        return records.read_record(self.path / records.ENDED)

    def ask_to_stop(self, grace_s: float) -> None:
        records.write_record(self.path / records.STOP, {"at": records.now_us(), "grace_s": max(0.0, grace_s)})

    @contextlib.contextmanager
    def claimed(self) -> Iterator[bool]:
        """True: no supervisor is here and none can come until this is left."""
        claim = records.take_claim(self.path / records.CLAIM)
        try:
            yield claim is not None
        finally:
            if claim is not None:
                os.close(claim)

    def end(self, exit_code: int | None, reason: str, message: str) -> Record:
        """The end is on record, for when no supervisor can write it. To be called with the claim."""
        record = records.end_record(exit_code, reason, message)
        records.write_record(self.path / records.ENDED, record, durable=True)
        return record

    def errors(self) -> str:
        """The last words of a supervisor that failed."""
        with contextlib.suppress(FileNotFoundError):
            return (self.path / records.ERRORS).read_text(errors="replace").strip()[-300:]
        return ""

    def output(self, offset: int, limit: int) -> bytes:
        """At most ``limit`` bytes of the log from byte ``offset``; empty where there is no log."""
        try:
            with open(self.path / records.LOG, "rb") as file:
                return os.pread(file.fileno(), max(0, limit), max(0, offset))
        except FileNotFoundError:
            return b""

    def move_away(self, trash: Path) -> None:
        """Nothing is at ``path``; what was there waits in ``trash`` for ``empty``."""
        trash.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.rename(trash / f"{self.path.name}-{os.urandom(4).hex()}")


def empty(trash: Path) -> None:
    """All in ``trash`` is deleted, folders that tasks made read-only too; what resists stays for the next time."""
    for directory, folders, _ in os.walk(trash):
        for name in folders:
            folder = os.path.join(directory, name)
            with contextlib.suppress(OSError):
                if not os.path.islink(folder):
                    os.chmod(folder, 0o700)
    shutil.rmtree(trash, ignore_errors=True)
