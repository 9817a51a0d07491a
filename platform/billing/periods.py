"""Calendar months, quarters and years of the billing time zone as half-open spans of moments."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime

from billing.rates import zone
from events.errors import Invalid

ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)  # where a span has no beginning of its own
NEVER = datetime(9999, 1, 1, tzinfo=UTC)  # and where it has no end
MONTH = r"^(19[89]|20[0-9]|21[0-9])[0-9]-(0[1-9]|1[0-2])$"
MONTHS = {"month": 1, "quarter": 3, "year": 12}


@dataclass(frozen=True, slots=True)
class Span:
    """[start, end)."""

    start: datetime
    end: datetime

    def holds(self, moment: datetime) -> bool:
        return self.start <= moment < self.end


def first_of(month: date, zone_name: str) -> datetime:
    """The first instant, in UTC, of the calendar month that ``month`` lies in."""
    return datetime(month.year, month.month, 1, tzinfo=zone(zone_name)).astimezone(UTC)


def months_later(month: date, count: int) -> date:
    """The first day of the month ``count`` months after ``month``'s."""
    months = month.year * 12 + month.month - 1 + count
    return date(months // 12, months % 12 + 1, 1)


def month_span(month: date, zone_name: str) -> Span:
    """All of the calendar month: 743 hours of March 2026 in Berlin."""
    return Span(first_of(month, zone_name), first_of(months_later(month, 1), zone_name))


def month_of(moment: datetime, zone_name: str) -> date:
    """The first day of the month that it is there at ``moment``."""
    return moment.astimezone(zone(zone_name)).date().replace(day=1)


def month_named(text: str, field: str = "month") -> date:
    """``2026-03`` as its first day, of the years 1980 to 2199. Raises Invalid for anything else."""
    if not isinstance(text, str) or re.fullmatch(MONTH, text, re.ASCII) is None:
        raise Invalid.at(field, "must be a month such as 2026-03", value=text)
    return date(int(text[:4]), int(text[5:]), 1)


def period_at(
    kind: str, moment: datetime, zone_name: str, *, starts: datetime | None = None, ends: datetime | None = None
) -> Span | None:
    """The month, quarter or year (or ``total``: all time) that ``moment`` lies in, as far as it lies in [starts, ends);
    None where ``moment`` does not."""
    limits = Span(starts or ALWAYS, ends or NEVER)
    if not limits.holds(moment):
        return None
    if kind == "total":
        return limits
    count = MONTHS[kind]
    month = month_of(moment, zone_name)
    first = month.replace(month=(month.month - 1) // count * count + 1)
    span = Span(first_of(first, zone_name), first_of(months_later(first, count), zone_name))
    return Span(max(span.start, limits.start), min(span.end, limits.end))
