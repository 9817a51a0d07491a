"""Powers of one half in whole numbers, so that every machine works out the same shares.

A library's 2^x may differ in its last digit from one machine to the next. Here it is a product of table entries, and
the tables come from whole square roots: 2^(-1/2) is the root of 1/2, 2^(-1/4) the root of that, and so on.
"""

from __future__ import annotations

from math import isqrt

EXPONENT_BITS = 40  # exponents are whole numbers of 2^-40
VALUE_BITS = 60  # powers are whole numbers of 2^-60
ONE = 1 << VALUE_BITS

_ROOT_BITS = 160
_BYTES = EXPONENT_BITS // 8


def power_of_half(exponent: int) -> int:
    """2^-x of x = ``exponent``/2^40, 0 or more, as a whole number of 2^-60.

    At most 2^-57 below the true value, never above it; exact where x is whole and at most 60.
    """
    value, rest = ONE, exponent & ((1 << EXPONENT_BITS) - 1)
    if rest:
        for table in _TABLES:
            value = value * table[rest & 255] >> VALUE_BITS
            rest >>= 8
    return value >> min(exponent >> EXPONENT_BITS, VALUE_BITS + 1)


def _tables() -> tuple[tuple[int, ...], ...]:
    """For each byte of the exponent's fraction, the lowest first: 2^-x of its 256 values."""
    roots = [1 << (_ROOT_BITS - 1)]  # the n-th is 2^-(2^-n)
    for _ in range(EXPONENT_BITS):
        roots.append(isqrt(roots[-1] << _ROOT_BITS))
    tables = []
    for byte in range(_BYTES):
        value, entries = 1 << _ROOT_BITS, []
        for _ in range(256):
            entries.append(value >> (_ROOT_BITS - VALUE_BITS))
            value = value * roots[EXPONENT_BITS - 8 * byte] >> _ROOT_BITS
        tables.append(tuple(entries))
    return tuple(tables)


_TABLES = _tables()
