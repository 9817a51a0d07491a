"""The one tree of refusals. Services raise them; ``config.errors`` turns them into answers for REST and pages.

Every refusal has a stable ``code``, a message that a person can act on and, where it is about input, the field, the
offending value and the allowed ones. Raising one inside a unit of work leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with the input: where, what, and what would be right."""

    field: str
    message: str
    code: str = "invalid"
    value: Any = None
    allowed: Sequence[Any] | None = None

    def as_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"field": self.field, "code": self.code, "message": self.message}
        if self.value is not None:
            body["value"] = shortened(self.value)
        if self.allowed is not None:
            body["allowed"] = list(self.allowed)
        return body


def shortened(value: Any, length: int = 200) -> Any:
    """``value`` fit to be told back: JSON scalars as they are, long or odd ones as a text cut to ``length``."""
    if value is None or isinstance(value, bool | int):
        return value
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= length else f"{text[:length]}… ({len(text)} characters)"


class Refusal(Exception):
    """Base of all. ``status`` is the HTTP status that it becomes."""

    status = 400
    code = "refused"
    title = "The request was refused"

    def __init__(self, message: str, *, code: str | None = None, faults: Sequence[Fault] = ()):
        super().__init__(message)
        self.message = message
        self.faults = tuple(faults)
        if code:
            self.code = code


class Invalid(Refusal):
    """The input cannot be meant. ``faults`` names every field that is wrong."""

    code = "invalid"
    title = "The request is not valid"

    def __init__(self, faults: Sequence[Fault] | Fault, message: str = ""):
        faults = [faults] if isinstance(faults, Fault) else list(faults)
        super().__init__(message or "; ".join(f"{fault.field}: {fault.message}" for fault in faults), faults=faults)

    @classmethod
    def at(cls, field: str, message: str, *, value: Any = None, allowed: Sequence[Any] | None = None) -> Invalid:
        return cls(Fault(field, message, value=value, allowed=allowed))


class Forbidden(Refusal):
    """Who asks may see the thing, but may not do this to it."""

    status = 403
    code = "forbidden"
    title = "Not allowed"


class NotThere(Refusal):
    """There is no such thing, or none that who asks may see: the two look the same."""

    status = 404
    code = "not_found"
    title = "Not found"


class Conflict(Refusal):
    """What is there now stands against it."""

    status = 409
    code = "conflict"
    title = "It conflicts with what is there"
