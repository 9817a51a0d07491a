"""Fields of requests and answers: quantities, money and moments that are exact, texts that are texts.

A JSON value of another type than the field's is refused, never converted: ``"3"`` is not 3 and 1 is not true.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from scheduling.core.units import QuantityError, gpus_from_milli, milli_from_gpus

MILLIONTH = Decimal("0.000001")
CENTS = Decimal("0.01")
MAX_ID = 2**63 - 1
# Text on one line: no control characters, none that turn the direction of text, and something that can be seen.
_BARRED = r"\x00-\x1F\x7F-\x9F\u2028-\u202E\u2066-\u2069"
_UNSEEN = r"\s\u00AD\u200B-\u200F\u2060-\u2064\uFEFF"
NAME_PATTERN = rf"^[^{_BARRED}]*[^{_BARRED}{_UNSEEN}][^{_BARRED}]*$"
DECIMAL_TEXT = r"^[0-9]{1,12}(\.[0-9]{1,6})?$"


def storable(text: str) -> bool:
    """Whether every database can keep it: no NUL, no half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def decimal_text(amount: Decimal, places: Decimal = MILLIONTH) -> str:
    """``amount`` rounded half-even to the places of ``places``, in plain digits (never 1E+3)."""
    with localcontext() as context:
        context.prec = 60
        return f"{amount.quantize(places, ROUND_HALF_EVEN):f}"


def exact_text(amount: Decimal) -> str:
    """``amount`` in plain digits without zeros at the end: 76, 0.5."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def moment_text(moment: datetime) -> str:
    """ISO 8601 in UTC with a Z."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


@extend_schema_field({"type": "number", "minimum": 0})
class Quantity(serializers.Field):
    """Milli inside, GPUs (or cores, in a CPU pool) as a JSON number outside: 900 ↔ 0.9."""

    def to_representation(self, value: int) -> float | int:
        return gpus_from_milli(value)

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, str):
            raise serializers.ValidationError("must be a number")
        try:
            return milli_from_gpus(data)
        except QuantityError as error:
            raise serializers.ValidationError(error.message) from None


@extend_schema_field({"type": "string", "pattern": r"^-?[0-9]+\.[0-9]{6}$"})
class Money(serializers.Field):
    """An amount with 6 places, as text. Rounded for display only."""

    def to_representation(self, value: Decimal) -> str:
        return decimal_text(value)


@extend_schema_field({"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"})
class ExactDecimal(serializers.Field):
    """A decimal as text, all its digits."""

    def to_representation(self, value: Decimal) -> str:
        return exact_text(value)


@extend_schema_field({"type": "string", "pattern": DECIMAL_TEXT})
class Price(serializers.Field):
    """A price of 0 or more with at most 12 digits before and 6 after the point, as text."""

    def to_representation(self, value: Decimal) -> str:
        return decimal_text(value)

    def to_internal_value(self, data: Any) -> Decimal:
        if not isinstance(data, str) or not re.fullmatch(DECIMAL_TEXT, data, re.ASCII):
            raise serializers.ValidationError('must be a text like "2.40": at most 12 digits before the point, 6 after')
        return Decimal(data)


@extend_schema_field({"type": "string", "format": "date-time"})
class Moment(serializers.Field):
    """A moment in ISO 8601. Written in UTC with a Z; read only with a time zone, because without one it is none."""

    def to_representation(self, value: datetime) -> str:
        return moment_text(value)

    def to_internal_value(self, data: Any) -> datetime:
        try:
            moment = datetime.fromisoformat(data) if isinstance(data, str) else None
            if moment is not None and moment.tzinfo is not None:
                return moment.astimezone(UTC)
        except (ValueError, OverflowError):
            pass
        raise serializers.ValidationError("must be a time in ISO 8601 with a time zone, like 2026-03-02T09:00:00Z")


class Text(serializers.CharField):
    """A JSON string and nothing that could be turned into one."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            raise serializers.ValidationError("must be a text")
        return super().to_internal_value(data)


class Name(Text):
    """One line of text that is not only spaces."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.validators.append(
            _matching(NAME_PATTERN, "must be one line of text that can be seen, without control characters")
        )


def _matching(pattern: str, message: str) -> Callable[[str], None]:
    compiled = re.compile(pattern)

    def validate(value: str) -> None:
        if not compiled.search(value):
            raise serializers.ValidationError(message)

    return validate


@extend_schema_field({"type": "boolean"})
class Flag(serializers.Field):
    """true or false; in a query these words."""

    def to_representation(self, value: bool) -> bool:
        return value

    def to_internal_value(self, data: Any) -> bool:
        if getattr(self.root, "in_query", False) and data in ("true", "false"):
            return bool(data == "true")
        if not isinstance(data, bool):
            raise serializers.ValidationError("must be true or false")
        return data


class Whole(serializers.IntegerField):
    """A whole number in JSON (3, or 3.0, which is the same number there) or in a query (its digits)."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, str) and getattr(self.root, "in_query", False):
            number = Decimal(data) if re.fullmatch(r"-?[0-9]{1,30}", data) else None
        else:
            number = Decimal(data) if isinstance(data, int | Decimal) and not isinstance(data, bool) else None
        if number is None or not number.is_finite() or number.adjusted() > 25 or number != int(number):
            raise serializers.ValidationError("must be a whole number")
        return int(number)


def identifier(**options: Any) -> Whole:
    """A field for the id of something."""
    return Whole(min_value=1, max_value=MAX_ID, **options)


class Choices(serializers.MultipleChoiceField):
    """One or more of the choices; in a query the parameter may come again, or its values be joined by commas."""

    def __init__(self, choices: Any, **options: Any):
        super().__init__(choices=choices, **options)

    def to_internal_value(self, data: Any) -> list[str]:  # type: ignore[override]
        if isinstance(data, str) or not isinstance(data, Sequence):
            raise serializers.ValidationError("must be a list")
        unknown = [item for item in data if not isinstance(item, str) or item not in self.choices]
        if unknown or not data:
            raise serializers.ValidationError(f"{str(unknown[0]) if unknown else ''!r:.80} is not a valid choice")
        return [value for value in self.choices if value in data]
