"""Quantities as integers, converted exactly and once at the edge.

An accelerator quantity is an integer in milli-GPU: 1000 is one whole device. People write GPUs (``0.5``),
memory in MiB and durations as ``90s``, ``10m``, ``2h``, ``3d``. No function here returns a float.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

MILLI_PER_DEVICE = 1000
DEFAULT_STEP_MILLI = 50

MAX_DIGITS = 28  # so that no product with a power of ten is rounded by the decimal context
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_SECONDS = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
    "w": Decimal(604800),
}


class QuantityError(ValueError):
    """A quantity that cannot be meant: says what was given and what is allowed."""

    def __init__(self, message: str, *, allowed: tuple[str, ...] = ()):
        super().__init__(message)
        self.message = message
        self.allowed = allowed


def exact(value: object) -> Decimal:
    """The decimal that a person wrote. A float stands for its shortest text (0.1 is 0.1, not 0.1000000000000000055).

    A text is a number in plain digits: no underscores, no digits of other scripts. Raises QuantityError for anything
    that is not a finite number of at most ``MAX_DIGITS`` digits, booleans included.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise QuantityError(f"{shown(value)} is not a number")
    if isinstance(value, str) and len(value) > 40:
        raise QuantityError("not a number of at most 40 characters")
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        raise QuantityError(f"{shown(value)} is not a number") from None
    if not number.is_finite():
        raise QuantityError(f"{shown(value)} is not a finite number")
    if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
        raise QuantityError(f"{shown(value)} is not a number")
    if number and not -15 < number.adjusted() < 15:
        raise QuantityError(f"{shown(value)} is out of range")
    if len(number.as_tuple().digits) > MAX_DIGITS:
        raise QuantityError(f"{shown(value)} has more than {MAX_DIGITS} digits")
    return number


def shown(value: object) -> str:
    """``value`` as who wrote it in JSON would know it again: a number in its digits, a text in quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float | Decimal) else repr(value)


def milli_from_gpus(value: object) -> int:
    """GPUs as written → milli-GPU, exactly. Raises QuantityError below zero or finer than 0.001."""
    milli = exact(value) * MILLI_PER_DEVICE
    if milli < 0:
        raise QuantityError(f"{value} is negative; a quantity of GPUs is 0 or more")
    if milli != milli.to_integral_value():
        raise QuantityError(f"{value} GPUs is finer than a thousandth of a GPU")
    return int(milli)


def gpus_from_milli(milli: int) -> float | int:
    """Milli-GPU → the JSON number that prints exactly (900 → 0.9, 2000 → 2)."""
    whole, rest = divmod(milli, MILLI_PER_DEVICE)
    return milli / MILLI_PER_DEVICE if rest else whole


def format_gpus(milli: int) -> str:
    """Milli-GPU → text without trailing zeros (900 → ``0.9``, 2000 → ``2``, -3000 → ``-3``)."""
    text = f"{Decimal(milli) / MILLI_PER_DEVICE:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def nearest_steps(milli: int, step: int) -> tuple[int, ...]:
    """The legal values next to ``milli``: multiples of ``step`` within 1..1000, one or two of them, ascending."""
    below = milli // step * step
    above = below if below == milli else below + step
    return tuple(sorted({value for value in (below, above) if 0 < value <= MILLI_PER_DEVICE}))


def check_fraction(milli: int, step: int = DEFAULT_STEP_MILLI) -> int:
    """``milli`` itself where it is a legal request for one device or for whole devices; else QuantityError.

    Below one device it must be a positive multiple of ``step`` (or one whole device); above, a whole number of devices.
    """
    if milli <= 0:
        raise QuantityError("a request for GPUs must be more than 0")
    if milli > MILLI_PER_DEVICE:
        if milli % MILLI_PER_DEVICE:
            low = milli // MILLI_PER_DEVICE
            raise QuantityError(
                f"{format_gpus(milli)} GPUs: above one GPU only whole GPUs can be asked for; "
                f"nearest are {low} and {low + 1} (or devices: k with gpus below 1 for equal slices)",
                allowed=(str(low), str(low + 1)),
            )
        return milli
    if milli != MILLI_PER_DEVICE and milli % step:
        near = tuple(format_gpus(value) for value in nearest_steps(milli, step))
        raise QuantityError(
            f"{format_gpus(milli)} GPU is not a multiple of the sharing step {format_gpus(step)}; "
            f"nearest {'is' if len(near) == 1 else 'are'} {' and '.join(near)}",
            allowed=near,
        )
    return milli


def compute_for_memory(memory_mib: int, device_memory_mib: int, step: int = DEFAULT_STEP_MILLI) -> int:
    """The smallest multiple of ``step`` (at most 1000 milli) whose share of a device is at least ``memory_mib``'s."""
    steps = -(-memory_mib * MILLI_PER_DEVICE // (device_memory_mib * step))
    return min(max(steps, 1) * step, MILLI_PER_DEVICE)


def memory_for_compute(compute_milli: int, device_memory_mib: int) -> int:
    """The MiB that go with a fraction of a device: its share, rounded down; all of it for a whole device."""
    return device_memory_mib * compute_milli // MILLI_PER_DEVICE


def seconds_from_duration(value: object) -> Decimal:
    """``90s``, ``10m``, ``2h``, ``3d``, ``1h30m`` or a plain number of seconds → seconds, exactly, 0 or more."""
    if isinstance(value, str):
        text = value.strip()
        parts = _DURATION.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            return sum((exact(number) * _SECONDS[unit] for number, unit in parts), Decimal(0))
    try:
        seconds = exact(value)
    except QuantityError:
        raise QuantityError(f"{shown(value)} is not a duration; write 90s, 10m, 2h, 3d or seconds") from None
    if seconds < 0:
        raise QuantityError(f"{shown(value)} is negative; a duration is 0 or more")
    return seconds
