"""A database to throw away: private to the calling thread, in memory, made by the migrations once a process."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from django.core.management import call_command
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend

ENGINE = "django.db.backends.sqlite3"


@contextmanager
def throw_away_database() -> Iterator[None]:
    """Inside, this thread's default connection is to an empty database with all tables; the configured one is not
    touched. After it, all is as before and the database is gone."""
    with _connected() as wrapper:
        _template().backup(wrapper.connection)
        yield


@contextmanager
def _connected() -> Iterator[BaseDatabaseWrapper]:
    """A connection to an own SQLite database in memory takes the default connection's place in this thread."""
    configured = connections[DEFAULT_DB_ALIAS]
    own = {**configured.settings_dict, "ENGINE": ENGINE, "NAME": ":memory:", "OPTIONS": {}, "CONN_MAX_AGE": None}
    own["CONN_HEALTH_CHECKS"] = False
    wrapper = load_backend(ENGINE).DatabaseWrapper(own, DEFAULT_DB_ALIAS)
    connections[DEFAULT_DB_ALIAS] = wrapper
    try:
        wrapper.ensure_connection()
        yield wrapper
    finally:
        connections[DEFAULT_DB_ALIAS] = configured
        BaseDatabaseWrapper.close(wrapper)


@cache
def _template() -> sqlite3.Connection:
    """A database as the migrations make it; copying it takes a millisecond, making it a second or two."""
    kept = sqlite3.connect(":memory:", check_same_thread=False)
    with _connected() as wrapper:
        call_command("migrate", verbosity=0, interactive=False)
        wrapper.connection.backup(kept)
    return kept
