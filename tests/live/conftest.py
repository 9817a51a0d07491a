"""A real server for every test of the live socket, on the cast's little world."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.server import Server


@pytest.fixture
def server(transactional_db: None, world: object) -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()
