"""Decimals that stay exact on SQLite, which keeps numbers as binary floats: stored as text there, summed in Decimal."""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import Any

from django.db import models
from django.db.backends.signals import connection_created
from django.db.models import Aggregate

CENT = Decimal("0.01")
DIGITS = 60  # more than any sum of money or work here has


def exactly(work_out: Callable[[], Decimal]) -> Decimal:
    """The result with so many digits that nothing is rounded but what goes on for ever."""
    with localcontext() as context:
        context.prec = DIGITS
        return work_out()


def cents(amount: Decimal) -> Decimal:
    """``amount`` to 2 places, half to even."""
    return exactly(lambda: amount.quantize(CENT, ROUND_HALF_EVEN))


def money_text(amount: Decimal) -> str:
    """``amount`` in plain digits, at least 2 and at most 6 places: 10.00, 0.015."""
    text = f"{exactly(lambda: amount.quantize(Decimal('0.000001'), ROUND_HALF_EVEN)):f}"
    whole, _, places = text.partition(".")
    return f"{whole}.{places.rstrip('0'):0<2}"


class ExactDecimalField(models.DecimalField):
    """NUMERIC on PostgreSQL, text on SQLite. Not for comparisons in SQL, which would compare texts there."""

    def get_internal_type(self) -> str:
        # Not "DecimalField": for that the SQLite backend converts what it reads as a float.
        return "ExactDecimalField"

    def db_type(self, connection: Any) -> str | None:
        return "text" if connection.vendor == "sqlite" else f"numeric({self.max_digits}, {self.decimal_places})"

    def cast_db_type(self, connection: Any) -> str | None:
        return self.db_type(connection)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        if value is None or connection.vendor != "sqlite":
            return value if value is None else self.to_python(value)
        return f"{self.to_python(value):f}"

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Decimal | None:
        return None if value is None else Decimal(str(value))


class ExactSum(Aggregate):
    """The exact sum of decimals or integers, 0 for no rows."""

    function = "SUM"
    output_field = ExactDecimalField(max_digits=60, decimal_places=12)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return super().as_sql(compiler, connection, function="exact_sum", **extra)


class _Summing:
    def __init__(self) -> None:
        self.total = Decimal(0)

    def step(self, value: Any) -> None:
        if value is not None:
            self.total += Decimal(str(value)) if not isinstance(value, int) else value

    def finalize(self) -> str:
        return f"{self.total:f}"


def add_to_connection(connection: Any, **kwargs: Any) -> None:
    if connection.vendor == "sqlite":
        connection.connection.create_aggregate("exact_sum", 1, _Summing)


connection_created.connect(add_to_connection, dispatch_uid="billing.exact")
