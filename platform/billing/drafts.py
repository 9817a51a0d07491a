"""An invoice worked out: lines from usage and fees, rounded once each, and what they add up to. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Literal

from billing.burn import PER_UNIT
from billing.exact import cents, exactly, money_text
from billing.periods import months_later
from billing.rates import PLACES
from billing.terms import Terms

ZERO = Decimal(0)
NOUGHT = Decimal("0.00")


@dataclass(frozen=True, slots=True)
class Billed:
    """A usage record, or what one that is open has come to: ``work`` in milli × microseconds at one price."""

    record_id: int | None
    pool: str
    model: str
    unit: str
    per_hour: Decimal | None
    work: int
    package_id: int | None = None
    waived: bool = False


@dataclass(frozen=True, slots=True)
class Fee:
    """``days`` of a month of ``of_days`` on a plan."""

    plan: str
    monthly: Decimal
    days: int
    of_days: int


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an invoice; see ``models.InvoiceLine``. ``records``: ids of what it bills."""

    kind: Literal["usage", "package", "fee"]
    description: str
    exact: Decimal
    amount: Decimal
    pool: str = ""
    model: str = ""
    unit: str = ""
    per_hour: Decimal | None = None
    work: int = 0
    package_id: int | None = None
    records: tuple[int, ...] = ()

    @property
    def hours(self) -> Decimal:
        """GPU-hours (core-hours where the unit is cpu)."""
        return exactly(lambda: Decimal(self.work) / PER_UNIT)


@dataclass(frozen=True, slots=True)
class Sums:
    """``net`` is the sum of the rounded lines, ``tax`` rounded once on it; ``due`` = ``total`` − ``prepaid``."""

    net: Decimal
    tax_percent: Decimal
    tax: Decimal
    total: Decimal
    prepaid: Decimal

    @property
    def due(self) -> Decimal:
        return self.total - self.prepaid


@dataclass(frozen=True, slots=True)
class Draft:
    """``free``: ids of records that cost nothing and are on no line, such as starts that the platform spoiled."""

    lines: tuple[Line, ...]
    sums: Sums
    free: tuple[int, ...] = field(default=())


def compose(usage: Iterable[Billed], fees: Sequence[Fee], on: Terms) -> Draft:
    """Fees first, then what was used, by pool, model and price, then what packages paid of it. The lines' work adds up
    to the usage's, to the milli-GPU-microsecond."""
    groups: dict[tuple[str, str, str, Decimal | None, int | None], list[Billed]] = defaultdict(list)
    free: list[int] = []
    for each in usage:
        if each.waived or not each.work:
            free += [each.record_id] if each.record_id is not None else []
        else:
            groups[each.pool, each.model, each.unit, each.per_hour, each.package_id].append(each)
    ordered = sorted(groups.items(), key=lambda item: _place(item[0]))
    lines = [_fee_line(fee) for fee in fees]
    lines += [_usage_line(own, on) for _, own in ordered]
    return Draft(tuple(lines), sums_of(lines, on.tax_percent, gross=on.packages_pay == "gross"), tuple(free))


def _place(key: tuple[str, str, str, Decimal | None, int | None]) -> tuple[int, str, str, str, Decimal, int]:
    pool, model, unit, per_hour, package_id = key
    return (package_id is not None, pool, model, unit, -1 if per_hour is None else per_hour, package_id or 0)  # type: ignore[return-value]


def _fee_line(fee: Fee) -> Line:
    value = exactly(lambda: fee.monthly * fee.days / fee.of_days)
    part = "" if fee.days == fee.of_days else f", {fee.days} of {fee.of_days} days"
    return Line("fee", f"Plan {fee.plan}{part}", exactly(lambda: value.quantize(PLACES)), cents(value))


def _usage_line(own: Sequence[Billed], on: Terms) -> Line:
    first = own[0]
    work = sum(each.work for each in own)
    value = exactly(lambda: work * (first.per_hour or ZERO) / PER_UNIT)
    paid = first.package_id is not None
    hour = "core-hour" if first.unit == "cpu" else "GPU-hour"
    price = "no rate was set" if first.per_hour is None else f"{money_text(first.per_hour)} per {hour}"
    what = f"{first.model or 'CPU'} in {first.pool}, {price}"
    return Line(
        "package" if paid else "usage",
        f"Package {first.package_id}: {what}" if paid else what,
        exactly(lambda: value.quantize(PLACES)),
        NOUGHT if paid and on.packages_pay == "net" else cents(value),
        first.pool,
        first.model,
        first.unit,
        first.per_hour,
        work,
        first.package_id,
        tuple(each.record_id for each in own if each.record_id is not None),
    )


def sums_of(lines: Iterable[Line], tax_percent: Decimal, *, gross: bool) -> Sums:
    """What the lines come to. ``gross``: what packages paid is charged and taxed above, and they pay it with its tax;
    never more than the whole."""
    rows = list(lines)
    net = sum((line.amount for line in rows), NOUGHT)
    tax = tax_on(net, tax_percent)
    paid = sum((line.amount for line in rows if line.kind == "package"), NOUGHT) if gross else NOUGHT
    prepaid = min(net + tax, paid + tax_on(paid, tax_percent))
    return Sums(net, tax_percent, tax, net + tax, prepaid)


def tax_on(net: Decimal, tax_percent: Decimal) -> Decimal:
    """To cents, half to even, once."""
    return cents(exactly(lambda: net * tax_percent / 100))


def fees_of(month: date, plans: Sequence[tuple[date, str | None, Decimal]]) -> list[Fee]:
    """The month's fees, pro rata by days. ``plans``: (from which day, name, monthly fee) in order; name None: no plan.

    Each day belongs to one plan, so a month in which the plan changes is charged once, in parts.
    """
    end = months_later(month, 1)
    of_days = (end - month).days
    fees: list[Fee] = []
    for (start, name, monthly), following in pairwise([*plans, (end, None, ZERO)]):
        days = (min(following[0], end) - max(start, month)).days
        if name is not None and days > 0:
            fees.append(Fee(name, monthly, days, of_days))
    return fees
