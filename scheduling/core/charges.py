"""What something counts against quotas.

Everywhere a charge is an integer in the pool's unit: it is added, compared and reported as one. In a pool where some
team's device memory is limited it is a ``Charge``, which is that integer and carries the MiB of device memory along
through sums and multiples; only the predicate of memory looks at them. Elsewhere plain integers do, at no cost.
"""

from __future__ import annotations

from typing import Any


class Charge(int):
    """An amount in the pool's unit, with the device memory that goes with it in MiB. Compares as the amount alone."""

    memory_mib: int

    def __new__(cls, amount: int, memory_mib: int = 0) -> Charge:
        made = super().__new__(cls, amount)
        made.memory_mib = memory_mib
        return made

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        return int(self), self.memory_mib

    def __add__(self, other: int) -> Charge:
        return Charge(int(self) + int(other), self.memory_mib + memory_of(other))

    __radd__ = __add__

    def __sub__(self, other: int) -> Charge:
        return Charge(int(self) - int(other), self.memory_mib - memory_of(other))

    def __rsub__(self, other: int) -> Charge:
        return Charge(int(other) - int(self), memory_of(other) - self.memory_mib)

    def __mul__(self, times: int) -> Charge:
        return Charge(int(self) * times, self.memory_mib * times)

    __rmul__ = __mul__

    def __neg__(self) -> Charge:
        return Charge(-int(self), -self.memory_mib)


def memory_of(charge: Any) -> int:
    """The MiB that go with a charge; 0 for a plain integer."""
    return charge.memory_mib if isinstance(charge, Charge) else 0


def not_negative(charge: int) -> int:
    """The charge with nothing below 0, each of its two parts for itself."""
    if isinstance(charge, Charge):
        return Charge(max(0, int(charge)), max(0, charge.memory_mib))
    return max(0, charge)
