"""Changes of single rows, gathered and written a statement for many: what a transaction does to its rows one by one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Model

from events.rows import set_rows


@dataclass
class _Change:
    """What one row is to have. ``only``: what it must have had before."""

    only: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


class RowWrites:
    """``change`` as often as needed, then ``write``. Changes of one row add up: it has what the last of them said."""

    def __init__(self) -> None:
        self._changes: dict[tuple[type[Model], int], _Change] = {}

    def change(self, row: Model, only: dict[str, Any] | None = None, **values: Any) -> None:
        """The row gets these values, where it has those of ``only`` when it is written; its version counts up."""
        key = (type(row), row.pk)
        change = self._changes.get(key)
        if change is None:
            change = self._changes[key] = _Change()
        for name, value in (only or {}).items():
            if name not in change.values:
                change.only.setdefault(name, value)
        change.values |= values

    def write(self) -> None:
        """All changes are in the database, in the transaction that is open."""
        alike: dict[tuple[Any, ...], dict[int, list[Any]]] = defaultdict(dict)
        for (model, row_id), change in self._changes.items():
            names = tuple(sorted(change.values))
            key = (model, names, tuple(sorted(change.only.items())))
            alike[key][row_id] = [change.values[name] for name in names]
        self._changes.clear()
        for (model, names, only), rows in alike.items():
            set_rows(model, names, rows, only=dict(only))
