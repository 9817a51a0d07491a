"""The output of a task, wherever its engine keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings

from events.errors import Fault, NotThere
from inventory.models import EngineConnection
from scheduling.engines.base import EngineError
from scheduling.engines.registry import local_folder
from scheduling.models import Allocation, Job, Task

if TYPE_CHECKING:
    from scheduling.engines.local import LocalEngine

MAX_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Text of a log and the byte at which the next piece begins."""

    text: str
    next_offset: int


def read_log(job: Job, task_index: int = 0, offset: int = 0, limit: int = MAX_BYTES) -> LogPiece:
    """What the task wrote in its latest attempt, from byte ``offset``, at most ``limit`` bytes.

    A piece never ends inside a character, so pieces put together are the whole; bytes that are no UTF-8 are shown as
    U+FFFD. Empty where nothing was written yet, or the log was pruned. Raises NotThere where the job has no such task.
    """
    if not 0 <= task_index < job.tasks_wanted:
        message = f"the job has tasks 0 to {job.tasks_wanted - 1}"
        raise NotThere(message, faults=[Fault("task", message, "unknown", task_index, [0, job.tasks_wanted - 1])])
    task = Task.objects.get(job=job, index=task_index)
    attempt = Allocation.objects.filter(task=task).select_related("node").order_by("-id").first()
    if attempt is None:
        return LogPiece("", offset)
    engine = EngineConnection.objects.get(pools=attempt.pool_id)
    if engine.kind == EngineConnection.Kind.LOCAL:
        try:
            raw = _local_engine(local_folder(settings.LOCAL_ENGINE_DIR, engine.pk)).logs(attempt.pk, offset, limit)
        except EngineError:
            raw = b""
    else:
        raw = _played(job, task, attempt)[offset : offset + limit]
    whole = raw[: _whole_characters(raw)] or raw
    return LogPiece(whole.decode("utf-8", "replace"), offset + len(whole))


@lru_cache(maxsize=4)
def _local_engine(root: Path) -> LocalEngine:
    """One for this process: it only reads logs, and looking at the machine's devices takes time."""
    from scheduling.engines.local import LocalEngine

    return LocalEngine(Path(root))


def _played(job: Job, task: Task, attempt: Allocation) -> bytes:
    command = " ".join(job.command) or "(no command)"
    where = f"task {task.index} of {job.tasks_wanted} on {attempt.node.name}"
    return f"[simulated] {where}: nothing ran, this pool only plays its jobs. Command: {command}\n".encode(
        "utf-8", "replace"
    )


def _whole_characters(raw: bytes) -> int:
    """How many bytes of ``raw`` there are before a character that its end cuts off."""
    for back in range(1, min(4, len(raw) + 1)):
        byte = raw[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return len(raw) - back if length > back else len(raw)
    return len(raw)
