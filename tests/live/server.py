"""The real thing on loopback: uvicorn with the application, and a client that speaks the protocol."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

PATIENCE_S = 10.0


class Server:
    """``url`` answers until ``stop``."""

    def __init__(self, port: int = 0) -> None:
        from config.asgi import application

        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        self.url = f"ws://127.0.0.1:{self.port}/ws/"
        config = uvicorn.Config(application, lifespan="off", log_level="warning", timeout_graceful_shutdown=2)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started)

    def stop(self) -> None:
        from live.relay import relay

        self._server.should_exit = True
        self._thread.join(timeout=10)
        assert not self._thread.is_alive()
        self._socket.close()
        wait_until(lambda: relay.is_idle)


def wait_until(true: Callable[[], Any], patience: float = PATIENCE_S) -> None:
    """Returns as soon as it is true; fails when it does not become so."""
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end, "it did not become true in time"
        time.sleep(0.01)


def session_of(user: Any) -> str:
    """The key of a new session in which this user is signed in."""
    store = SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.create()
    assert store.session_key
    return store.session_key


class Listener:
    """A client. Frames are folded as a browser would: the latest of each job, device and node."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.jobs: dict[int, dict[str, Any]] = {}
        self.devices: dict[int, list[Any]] = {}
        self.nodes: dict[int, str] = {}
        self.pools: dict[str, dict[str, Any]] = {}
        self.readings: dict[int, list[Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = []
        self.frames: list[dict[str, Any]] = []
        self.raw: list[str] = []
        self.seq = 0
        self.resyncs = 0
        self.closed: int | None = None

    def say(self, body: Any) -> None:
        self.connection.send(body if isinstance(body, str | bytes) else json.dumps(body))

    def ask(self, body: Any) -> dict[str, Any]:
        """The next answer after saying this."""
        count = len(self.answers)
        self.say(body)
        self.until(lambda: len(self.answers) > count)
        return self.answers[count]

    def until(self, true: Callable[[], Any], patience: float = PATIENCE_S) -> None:
        """Takes in what comes until it is true; fails when it does not become so in time, or the socket is closed."""
        end = time.monotonic() + patience
        while not true():
            assert self.closed is None, f"closed with {self.closed}"
            left = end - time.monotonic()
            assert left > 0, f"not seen in time; jobs {self.jobs}, answers {self.answers}"
            self.take(left)

    def take(self, timeout: float) -> bool:
        """Takes in one message; returns whether one came within ``timeout`` seconds."""
        try:
            text = self.connection.recv(timeout=timeout)
        except TimeoutError:
            return False
        except ConnectionClosed as closed:
            self.closed = closed.rcvd.code if closed.rcvd else 1006
            return False
        self.raw.append(text)
        body = json.loads(text)
        if "seq" in body and "subscribed" not in body:
            self._fold(body)
        else:
            self.answers.append(body)
        return True

    def until_closed(self, patience: float = PATIENCE_S) -> int:
        end = time.monotonic() + patience
        while self.closed is None:
            left = end - time.monotonic()
            assert left > 0, "the socket stayed open"
            self.take(left)
        return self.closed

    def _fold(self, frame: dict[str, Any]) -> None:
        self.frames.append(frame)
        assert frame["seq"] >= self.seq
        self.seq = frame["seq"]
        self.resyncs += bool(frame.get("resync"))
        for event in frame.get("events", ()):
            self.events.append(event)
            if "job" in event:
                self.jobs[event["job"]["id"]] = event["job"]
        self.devices.update({device[0]: device for device in frame.get("devices", ())})
        self.nodes.update(dict(frame.get("nodes", ())))
        self.pools.update(frame.get("pools", {}))
        self.readings.update({reading[0]: reading for reading in frame.get("readings", ())})

    def states(self) -> set[str]:
        return {job["state"] for job in self.jobs.values()}

    def heard(self) -> str:
        """Everything that ever came, as text."""
        return "\n".join(self.raw)


@contextlib.contextmanager
def listening(server: Server, *, session: str = "", token: str = "", origin: str | None = None) -> Iterator[Listener]:
    headers = {}
    if session:
        headers["Cookie"] = f"{settings.SESSION_COOKIE_NAME}={session}"
    if token:
        headers["Authorization"] = f"Bearer {token}"
    origin = f"http://127.0.0.1:{server.port}" if origin is None and not token else origin
    with connect(server.url, additional_headers=headers, origin=origin, max_size=None) as connection:  # type: ignore[arg-type]
        yield Listener(connection)
