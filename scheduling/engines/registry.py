"""Which engine stands behind a connection."""

from __future__ import annotations

from pathlib import Path

from inventory.models import EngineConnection
from scheduling.engines.base import Engine, EngineError
from scheduling.engines.simulated import SimulatedEngine


class NoEngine(Exception):
    """There is no engine for this connection here, and why."""


def local_folder(root: Path, connection_id: int) -> Path:
    """Where a local connection keeps its tasks: a folder of its own: an engine stops in it what it does not know."""
    return root / str(connection_id)


def make_engine(connection: EngineConnection, *, local_root: Path, local_enabled: bool) -> Engine:
    """A new engine object for the connection. Raises NoEngine where its kind is not to be had or turned off."""
    settings = connection.settings
    if connection.kind == EngineConnection.Kind.SIMULATED:
        return SimulatedEngine(speed=float(settings.get("speed", 1)))
    if connection.kind == EngineConnection.Kind.LOCAL:
        if not local_enabled:
            raise NoEngine("the local engine runs commands as the server's user and is turned off here")
        from scheduling.engines.local import LocalEngine

        try:
            return LocalEngine(
                local_folder(local_root, connection.pk), pretend_devices=int(settings.get("pretend_devices", 0))
            )
        except EngineError as problem:
            raise NoEngine(str(problem)) from problem
    raise NoEngine(f"this installation has no engine of the kind '{connection.kind}'")
