"""What may stand behind a key of a scenario file, and how it is read. Every "no" names the line and the field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, Literal

from scheduling.core.units import QuantityError, exact, format_gpus, milli_from_gpus, seconds_from_duration
from scheduling.simulation.scenario_yaml import Items, ScenarioError, Section

Convert = Callable[[Any], Any]
LONGEST = timedelta(days=3660)


@dataclass(frozen=True, slots=True)
class Field:
    """A key: how its value is read, whether it must be there, and whether ``null`` says something of its own."""

    convert: Convert
    required: bool = False
    nullable: bool = False


def need(convert: Convert) -> Field:
    return Field(convert, required=True)


def may(convert: Convert) -> Field:
    return Field(convert)


def unset(convert: Convert) -> Field:
    """A key whose ``null`` means "not set" rather than "not given"."""
    return Field(convert, nullable=True)


def read_fields(section: Any, where: str, fields: Mapping[str, Field], line: int = 1) -> dict[str, Any]:
    """The section's values, converted; keys that are not given stay out. Raises ScenarioError at the first fault."""
    if not isinstance(section, Section):
        raise ScenarioError("must be a mapping", line=line, field=where, allowed=sorted(fields))
    for key in section:
        if key not in fields:
            raise ScenarioError(
                "there is no such field", line=section.lines[key], field=_under(where, key), allowed=sorted(fields)
            )
    values: dict[str, Any] = {}
    for key, field in fields.items():
        given = section.get(key)
        if given is None:
            if field.required:
                raise ScenarioError("is required", line=section.line, field=_under(where, key))
            if key in section and field.nullable:
                values[key] = None
            continue
        values[key] = converted(given, field.convert, _under(where, key), section.lines[key])
    return values


def converted(given: Any, convert: Convert, where: str, line: int) -> Any:
    """``given`` as ``convert`` reads it; what that does not take is a ScenarioError at this place."""
    try:
        return convert(given)
    except QuantityError as error:
        raise ScenarioError(error.message, line=line, field=where, allowed=error.allowed or None) from None
    except NotOneOf as error:
        raise ScenarioError(str(error), line=line, field=where, allowed=error.allowed) from None
    except (ValueError, TypeError, OverflowError) as error:
        raise ScenarioError(str(error), line=line, field=where) from None


def _under(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


class NotOneOf(ValueError):
    def __init__(self, given: object, allowed: Sequence[object]):
        super().__init__(f"{given!r} is not one of the allowed values")
        self.allowed = list(allowed)


# ---- scalars ---------------------------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """A text; a number stands for its digits, so that a thing may be called 1."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ValueError(f"must be a text, is {value!r}")
    return str(value)


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, is {value!r}")
    return value


def only_true(value: Any) -> bool:
    if value is not True:
        raise ValueError(f"must be true where it is given, is {value!r}")
    return True


def whole(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}, is {value!r}")
        return value

    return read


def choice(*allowed: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in allowed:
            raise NotOneOf(value, allowed)
        return str(value)

    return read


def scaled(factor: int) -> Callable[[Any], int]:
    """A quantity of 0 or more in ``factor``ths, exactly."""

    def read(value: Any) -> int:
        number = exact(value) * factor
        if number < 0 or number != number.to_integral_value():
            raise ValueError(f"must be 0 or more and a multiple of 1/{factor}, is {value!r}")
        return int(number)

    return read


def duration(value: Any) -> timedelta:
    seconds = seconds_from_duration(value)
    span = timedelta(microseconds=int(seconds * 1_000_000))
    if span > LONGEST:
        raise ValueError("is longer than ten years")
    return span


def money(value: Any) -> Decimal:
    amount = exact(value)
    if amount < 0:
        raise ValueError("a price is 0 or more")
    return amount


def moment(value: Any) -> timedelta | datetime:
    """A duration from the scenario's start, or a moment with its time zone in ISO 8601."""
    if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\d[T ]", value):
        return absolute(value)
    return duration(value)


def absolute(value: Any) -> datetime:
    """A moment with its time zone, in UTC."""
    try:
        found = datetime.fromisoformat(text(value))
    except ValueError:
        raise ValueError(f"must be a moment such as 2026-03-28T23:00:00Z, is {value!r}") from None
    if found.tzinfo is None:
        raise ValueError(f"{value} names no time zone; write 2026-03-28T23:00:00Z or +01:00")
    return found.astimezone(UTC)


# ---- collections -----------------------------------------------------------------------------------------------------


def texts(value: Any) -> tuple[str, ...]:
    """A text, or a list of texts."""
    items = value if isinstance(value, list) else [value]
    return tuple(text(item) for item in items)


def text_map(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("must map texts to texts")
    return {text(key): text(item) for key, item in value.items()}


def as_given(value: Any) -> Any:
    """Left to the reader of submissions, which has its own say about it."""
    return value


def sections(value: Any, where: str, line: int) -> list[tuple[Section, int, str]]:
    """The mappings of a list, each with its line and its place."""
    if value is None:
        return []
    if not isinstance(value, Items):
        raise ScenarioError("must be a list", line=line, field=where)
    found = []
    for position, item in enumerate(value):
        place = f"{where}[{position}]"
        if not isinstance(item, Section):
            raise ScenarioError("must be a mapping", line=value.lines[position], field=place)
        found.append((item, value.lines[position], place))
    return found


# ---- what is expected ------------------------------------------------------------------------------------------------

Operator = Literal["=", "<", "<=", ">", ">="]
_COMPARED = re.compile(r"\s*(<=|>=|<|>|==|=)\s*(.+?)\s*")


@dataclass(frozen=True, slots=True)
class Wanted:
    """An expectation as written and as compared. ``places``: to how many decimals what is seen is rounded."""

    written: str
    operator: Operator
    value: Any
    places: int | None = None

    def met_by(self, seen: Any) -> bool:
        if seen is None or self.value is None:
            return bool(seen == self.value)
        if self.places is not None:
            seen = seen.quantize(Decimal(1).scaleb(-self.places), rounding=ROUND_HALF_EVEN)
        return {
            "=": lambda: seen == self.value,
            "<": lambda: seen < self.value,
            "<=": lambda: seen <= self.value,
            ">": lambda: seen > self.value,
            ">=": lambda: seen >= self.value,
        }[self.operator]()


def compared(convert: Convert) -> Callable[[Any], Wanted]:
    """A value, or ``"<= value"`` and the like."""

    def read(value: Any) -> Wanted:
        operator, rest = "=", value
        if isinstance(value, str) and (found := _COMPARED.fullmatch(value)):
            operator, rest = found[1].replace("==", "="), found[2]
        return Wanted(str(value), operator, convert(rest))  # type: ignore[arg-type]

    return read


def count(value: Any) -> int:
    number = exact(value)
    if number != number.to_integral_value() or number < 0:
        raise ValueError(f"must be a whole number of 0 or more, is {value!r}")
    return int(number)


def compared_decimal(value: Any) -> Wanted:
    """An amount, compared to the places that it is written with, at least two: a cent, a hundredth of a GPU-hour."""
    wanted = compared(exact)(value)
    exponent = wanted.value.as_tuple().exponent
    return Wanted(wanted.written, wanted.operator, wanted.value, max(2, -int(exponent)))


GPUS = compared(milli_from_gpus)
NUMBER = compared(count)
MOMENT = compared(moment)


def plain(convert: Convert) -> Callable[[Any], Wanted]:
    """An expectation that is met by this very value."""

    def read(value: Any) -> Wanted:
        return Wanted(str(value), "=", convert(value))

    return read


def gpus_text(milli: int) -> str:
    return format_gpus(milli)
