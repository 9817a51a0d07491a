"""Where a process spends its time, stage by stage: functions are wrapped from outside, production code knows nothing.

Times are exclusive: a stage inside another one is not counted in it. Seconds of the wall and of the thread's processor.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


class Stages:
    """``wrap`` first, then let the process work; ``write`` in the end."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
        self._begun = time.perf_counter()

    def wrap(self, owner: Any, names: Iterable[str], stage: str) -> None:
        """Calls of ``owner.name`` are counted as ``stage`` from now on. AttributeError where there is no such name."""
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name), stage))

    def write(self, path: Path) -> None:
        """JSON: stage → calls, wall and processor seconds; and the processor seconds of the whole process."""
        with self._lock:
            stages = {
                stage: {"calls": int(calls), "wall_s": round(wall, 3), "cpu_s": round(cpu, 3)}
                for stage, (calls, wall, cpu) in sorted(self._sums.items())
            }
        whole = {"cpu_s": round(time.process_time(), 3), "wall_s": round(time.perf_counter() - self._begun, 3)}
        path.write_text(json.dumps({"stages": stages, "process": whole}))

    def _timed(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            stack = self._stack()
            stack.append([0.0, 0.0])
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
                inner_wall, inner_cpu = stack.pop()
                if stack:
                    stack[-1][0] += wall
                    stack[-1][1] += cpu
                with self._lock:
                    sums = self._sums[stage]
                    sums[0] += 1
                    sums[1] += wall - inner_wall
                    sums[2] += cpu - inner_cpu

        return timed

    def _stack(self) -> list[list[float]]:
        stack: list[list[float]] | None = getattr(self._local, "stack", None)
        if stack is None:
            stack = self._local.stack = []
        return stack
