"""Clients of the cast, at the present moment: the API takes its time from the clock."""

from __future__ import annotations

import pytest
from django.core.cache import cache
from django.utils import timezone

from tests.api.client import make_api


@pytest.fixture(autouse=True)
def _no_counts_of_other_tests():
    cache.clear()


@pytest.fixture
def world(world):
    world.now = timezone.now()
    return world


@pytest.fixture
def api(world):
    """Each of the cast with a token that narrows nothing."""
    return {name: make_api(user) for name, user in world.users.items()}
