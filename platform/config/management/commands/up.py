"""``manage.py up``: everything on this machine, with one command, until Ctrl-C."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
from pathlib import Path
from typing import Any, TextIO

import uvicorn
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection
from django.utils import timezone

from config import demo
from config.chores import EmbeddedCelery
from config.processes import Loop, core_loops


class Command(BaseCommand):
    help = (
        "Run everything on this machine: web, scheduler, engines and chores, on SQLite, on loopback. Ctrl-C stops it."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default=os.environ.get("HOST") or "127.0.0.1", help="address to listen on (HOST)")
        parser.add_argument("--port", default=os.environ.get("PORT") or "8000", help="port to listen on (PORT)")
        parser.add_argument("--empty", action="store_true", help="no demo: only the cast and the pool of this machine")
        parser.add_argument("--data", metavar="DIR", help="where to keep the database, logs and secrets")

    def handle(self, *args: Any, **options: Any) -> None:
        port = self._port(options["port"])
        lock = self._only_one(settings.DATA_DIR)
        listener = self._bound(options["host"], port)
        first = self._prepare(empty=options["empty"])
        stop = threading.Event()
        loops = list(core_loops(stop, holder=self._holder()))
        if demo.has_demo() and not options["empty"]:
            loops.append(Loop("demo", demo.DemoLoop().step, stop, wakes=False))
        threads = [loop.start() for loop in loops]
        celery = EmbeddedCelery(str(settings.DATA_DIR / "celerybeat-schedule"))
        celery.start()
        self._greet(options["host"], port, first)
        server = uvicorn.Server(
            uvicorn.Config(
                "config.asgi:application",
                host=options["host"],
                port=port,
                log_level="warning",
                lifespan="off",
                timeout_graceful_shutdown=3,
                ws_max_size=65536,
            )
        )
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:
            pass
        finally:
            self.stdout.write("Stopping …")
            stop.set()
            celery.stop()
            for thread in threads:
                thread.join(timeout=10)
            connection.close()
            lock.close()
        if not server.started:
            raise CommandError(f"Could not listen on {options['host']}:{port}. Is something else there? Set PORT.")
        self.stdout.write("Stopped. Jobs on this machine that were running go on and will be found again.")

    def _holder(self) -> str | None:
        """On SQLite nobody but this process can lead, so it need not wait for the lease of the one that was killed."""
        return "embedded" if connection.vendor == "sqlite" else None

    def _port(self, given: str) -> int:
        if not given.isdigit() or not 0 < int(given) < 65536:
            raise CommandError(f"PORT must be a number from 1 to 65535, not {given!r}")
        return int(given)

    def _bound(self, host: str, port: int) -> socket.socket:
        """A socket that has the address, so that it is known to be free before anything is made or started."""
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(family, kind, protocol)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            what = "Set PORT to another." if error.errno == errno.EADDRINUSE else "Set HOST and PORT to what can be."
            raise CommandError(f"Cannot listen on {host}:{port}: {error.strerror}. {what}") from None
        return listener

    def _only_one(self, folder: Path) -> TextIO:
        """Two of these on one folder would be two schedulers that take themselves for the only one."""
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "up.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CommandError(f"Allotment already runs on {folder}. Stop it, or choose another --data DIR.") from None
        return lock

    def _prepare(self, *, empty: bool) -> demo.Cast:
        self.stdout.write(f"Preparing {settings.DATA_DIR} …")
        call_command("migrate", verbosity=0, interactive=False)
        now = timezone.now()
        cast = demo.first_start(now, settings.DATA_DIR, empty=empty)
        connection.close()
        return cast

    def _greet(self, host: str, port: int, cast: demo.Cast) -> None:
        shown = f"[{host}]" if ":" in host else host
        path = demo.credentials_file(settings.DATA_DIR)
        password = cast.password or (path.read_text().strip() if path.exists() else "the one you chose")
        self.stdout.write(
            f"\n  Allotment is at http://{shown}:{port}/\n\n"
            f"  Sign in as  root     operator, sees and runs everything\n"
            f"              alice    manager of the team nlp\n"
            f"              bob      member of the team nlp\n"
            f"              mallory  member of another team\n"
            f"  Password    {password}    (all four; kept in {path})\n\n"
            f"  REST API    http://{shown}:{port}/api/v1/docs   token: python manage.py issue_token bob\n"
            f"  Ctrl-C stops it.\n"
        )
        self.stdout.flush()
