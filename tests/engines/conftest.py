"""A local engine with a folder of its own, of which no process is left when a test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduling.engines.local import LocalEngine
from scheduling.engines.local.engine import Bounds
from tests.engines.local_tasks import Told, now, processes_of, until

QUICK = Bounds(grace_s=0.2)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "local"
    yield root
    engine = LocalEngine(root, bounds=Bounds(grace_s=0))
    engine.resume([], now())
    until(lambda: engine.observe(now()) or not list(processes_of(root)), "the end of all processes of the test")
    engine.close()


@pytest.fixture
def make_engine(root: Path) -> Iterator[Callable[..., LocalEngine]]:
    made: list[LocalEngine] = []

    def make(**options: Any) -> LocalEngine:
        chosen: dict[str, Any] = {"bounds": QUICK, "pretend_devices": 2} | options
        made.append(LocalEngine(root, **chosen))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def engine(make_engine: Callable[..., LocalEngine]) -> LocalEngine:
    return make_engine()


@pytest.fixture
def told(engine: LocalEngine) -> Told:
    return Told(engine)
