"""A PostgreSQL of one's own, empty, on a free port of the loopback, that is gone with the context it was made in."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PLACES = "/usr/lib/postgresql"
ROLE = "allotment"
START_S = 60


class NoPostgres(OSError):
    """There is none on this machine, or it does not start; the message says which."""


@contextmanager
def own_postgres(options: Sequence[str] = ()) -> Iterator[str]:
    """The URL of the database. ``options``: settings such as ``fsync=off``. Raises NoPostgres."""
    programs = _programs()
    home = Path(tempfile.mkdtemp(prefix="allotment-postgres-"))
    try:
        home.chmod(0o755)
        run, data = home / "run", home / "data"
        run.mkdir()
        if os.geteuid() == 0:  # it refuses to run as root
            shutil.chown(home, "postgres")
            shutil.chown(run, "postgres")
        _server(home, [programs / "initdb", f"--pgdata={data}", "--username=postgres", "--auth=trust", "--no-sync"])
        port = _free_port()
        settings = ["listen_addresses=127.0.0.1", "max_connections=100", *options]
        words = " ".join([f"-p {port} -k {run}", *(f"-c {setting}" for setting in settings)])
        start = [programs / "pg_ctl", "start", "--wait", f"--pgdata={data}", f"--log={run}/log", f"--options={words}"]
        _server(home, start)
        try:
            _server(home, [programs / "createuser", f"--host={run}", f"--port={port}", "-U", "postgres", ROLE])
            create = [programs / "createdb", f"--host={run}", f"--port={port}", "-U", "postgres", "-O", ROLE, ROLE]
            _server(home, create)
            yield f"postgres://{ROLE}@127.0.0.1:{port}/{ROLE}"
        finally:
            _server(home, [programs / "pg_ctl", "stop", "--mode=fast", f"--pgdata={data}"])
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _programs() -> Path:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    for path in sorted(Path(PLACES).glob("*/bin/initdb"), reverse=True):
        return path.parent
    raise NoPostgres("PostgreSQL is not installed here: name a database of its own for this in DATABASE_URL")


def _server(home: Path, words: Sequence[object]) -> None:
    """Runs one of its programs; as the user ``postgres`` where this is root."""
    as_whom = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*as_whom, *map(str, words)],
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # not a pipe: the server would hold it open
        stderr=subprocess.DEVNULL,
        timeout=START_S,
        check=False,
    )
    if done.returncode:
        log = home / "run" / "log"
        said = log.read_text()[-2000:] if log.exists() else ""
        raise NoPostgres(f"{Path(str(words[0])).name} ended with {done.returncode}. {said}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])
