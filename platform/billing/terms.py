"""On what terms this installation bills: its currency and calendar, its tax, and what a package pays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from django.conf import settings

Pays = Literal["net", "gross"]


@dataclass(frozen=True, slots=True)
class Terms:
    """``tax_percent`` of an invoice's net total. ``packages_pay``: ``net``, what a package covers is not charged and
    not taxed; ``gross``, it is charged and taxed, and the package pays both."""

    currency: str
    time_zone: str
    tax_percent: Decimal
    packages_pay: Pays


_other: ContextVar[Terms | None] = ContextVar("billing_terms", default=None)


def terms() -> Terms:
    """The installation's terms, or those that ``on_terms`` puts in their place."""
    return _other.get() or Terms(
        settings.BILLING_CURRENCY,
        settings.BILLING_TIME_ZONE,
        Decimal(settings.BILLING_TAX_PERCENT),
        "gross" if settings.BILLING_PACKAGES_PAY == "gross" else "net",
    )


@contextmanager
def on_terms(other: Terms) -> Iterator[None]:
    """Inside, this thread bills on these terms: a scenario has a calendar and a tax of its own."""
    token = _other.set(other)
    try:
        yield
    finally:
        _other.reset(token)
