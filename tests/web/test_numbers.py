"""Quantities, money and times as text: exact, without float noise."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import pytest

from config.share_bars import ShareBar
from config.templatetags import pages


@pytest.mark.parametrize(
    ("milli", "unit", "words"),
    [
        (900, "gpu", "0.9 GPU"),
        (1000, "gpu", "1 GPU"),
        (2000, "gpu", "2 GPUs"),
        (0, "gpu", "0 GPUs"),
        (7500, "cpu", "7.5 cores"),
    ],
)
def test_quantities(milli: int, unit: str, words: str) -> None:
    assert pages.quantity(milli, unit) == words


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        ("0.015", "€0.0150"),
        ("0", "€0.00"),
        ("2.4", "€2.40"),
        ("1234567.895", "€1,234,567.90"),
        ("2.125", "€2.12"),
        ("2.135", "€2.14"),
    ],
)
def test_money(amount: str, shown: str) -> None:
    assert f">{shown}<" in pages.money(Decimal(amount))


def test_money_tells_the_exact_amount_on_demand() -> None:
    assert 'title="EUR 0.015000000001"' in pages.money(Decimal("0.015000000001"))
    assert pages.money(None) == "–"


@pytest.mark.parametrize(
    ("part", "whole", "words"), [(999, 1000, "99 %"), (0, 10, "0 %"), (None, 10, "–"), (1, 0, "–")]
)
def test_full_is_said_only_of_what_is_full(part: int | None, whole: int, words: str) -> None:
    assert pages.percent(part, whole) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59.9, "59 s"), (303, "5 min 03 s"), (7500, "2 h 05 min"), (277200, "3 d 5 h"), (-5, "0 s")],
)
def test_durations(seconds: float, words: str) -> None:
    assert pages.duration(seconds) == words


@pytest.mark.parametrize(
    ("mib", "words"), [(512, "512 MiB"), (81920, "80 GiB"), (1536, "1.5 GiB"), (1500, "1500 MiB"), (None, "")]
)
def test_memory(mib: int | None, words: str) -> None:
    assert pages.mib(mib) == words


@dataclass(frozen=True)
class Share:
    allocated: int = 0
    guaranteed: int = 0
    deserved: int = 0
    limit: int | None = None
    pending: int = 0


def test_a_bar_ends_at_its_limit_and_parts_follow_one_another() -> None:
    bar = ShareBar.of(Share(allocated=6000, guaranteed=4000, deserved=5000, limit=8000, pending=9000), 20000)
    assert (bar.inside, bar.above_at, bar.above) == ("50%", "50%", "25%")
    assert (bar.waiting_at, bar.waiting) == ("75%", "25%")
    assert (bar.guaranteed, bar.deserved, bar.limit) == ("50%", "62.5%", "100%")
    assert not bar.over_limit


def test_a_bar_without_a_limit_ends_at_the_pools_capacity() -> None:
    bar = ShareBar.of(Share(allocated=1000, guaranteed=2000), 10000)
    assert (bar.inside, bar.guaranteed, bar.limit) == ("10%", "20%", None)


def test_more_than_the_limit_is_said_and_drawn_within_the_bar() -> None:
    bar = ShareBar.of(Share(allocated=3000, limit=2000))
    assert bar.over_limit
    assert (bar.above, bar.limit) == ("100%", "66.6%")


def test_a_bar_of_nothing_is_empty() -> None:
    bar = ShareBar.of(Share())
    assert (bar.inside, bar.above, bar.waiting, bar.limit) == ("0%", "0%", "0%", None)
