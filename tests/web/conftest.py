"""Browsers that are signed in as the cast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client


@pytest.fixture
def sign_in(world: Any) -> Callable[[str], Client]:
    """A browser that is signed in as someone of the cast."""

    def of(name: str) -> Client:
        client = Client()
        client.force_login(world.users[name])
        return client

    return of
