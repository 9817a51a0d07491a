"""Random quantities drawn from measured quantiles and counts, with their exact means.

Each takes a number ``u`` in [0, 1) and returns a value: who owns the random generator owns the sequence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Generic, TypeVar

from scheduling.workload.figures import QUANTILES

Item = TypeVar("Item")


class Durations:
    """Seconds between measured quantiles, straight lines on a logarithmic scale, cut to [least, most].

    Durations spread over five orders of magnitude: a straight line between the 99 % and the 100 % quantile would make
    the longest job of a trace far too frequent.
    """

    def __init__(self, quantiles: Sequence[float], least: float, most: float):
        if not 0 < least <= most:
            raise ValueError(f"durations of {least} to {most} seconds: the bounds must be positive and in order")
        self.least = least
        self.most = most
        self._parts = [part / 1000 for part in QUANTILES]
        self._logs = [log(value) for value in quantiles]

    def at(self, u: float) -> float:
        """The duration that the part ``u`` of all jobs does not exceed."""
        index = min(bisect_right(self._parts, u), len(self._parts) - 1)
        low, high = self._parts[index - 1], self._parts[index]
        start, end = self._logs[index - 1], self._logs[index]
        return min(max(exp(start + (end - start) * (u - low) / (high - low)), self.least), self.most)

    def mean(self) -> float:
        """The mean of ``at(u)`` over u, exactly: a piece from a to b is log-uniform, of mean (b − a) ÷ ln(b/a)."""
        low, high = log(self.least), log(self.most)
        pieces = zip(self._parts, self._parts[1:], self._logs, self._logs[1:], strict=False)
        return sum((after - before) * _cut_mean(start, end, low, high) for before, after, start, end in pieces)


class Amounts:
    """A quantity between measured quantiles, straight lines between them."""

    def __init__(self, quantiles: Sequence[int]):
        self._parts = [part / 1000 for part in QUANTILES]
        self._values = list(quantiles)

    def at(self, u: float) -> float:
        """The amount that the part ``u`` of all jobs does not exceed."""
        index = min(bisect_right(self._parts, u), len(self._parts) - 1)
        low, high = self._parts[index - 1], self._parts[index]
        start, end = self._values[index - 1], self._values[index]
        return start + (end - start) * (u - low) / (high - low)


class Choice(Generic[Item]):
    """One of several items, each as often as its weight says. ``parts`` are the probabilities, in the given order."""

    def __init__(self, weights: Mapping[Item, float]):
        kept = {item: weight for item, weight in weights.items() if weight > 0}
        total = sum(kept.values())
        if not kept:
            raise ValueError("nothing to choose from: no weight is above 0")
        self.parts: dict[Item, float] = {item: weight / total for item, weight in kept.items()}
        self._items = list(kept)
        self._bounds = _running_sums(list(self.parts.values()))

    def at(self, u: float) -> Item:
        """The item that holds ``u`` when the probabilities are laid end to end."""
        return self._items[min(bisect_right(self._bounds, u), len(self._items) - 1)]


def _running_sums(values: list[float]) -> list[float]:
    total = 0.0
    return [total := total + value for value in values]


def _cut_mean(start: float, end: float, low: float, high: float) -> float:
    """Mean of exp(x cut to [low, high]), x uniform from ``start`` up to ``end``."""
    span = end - start
    if span < 1e-9:
        return exp(min(max(start, low), high))
    below = max(0.0, min(end, low) - start)
    above = max(0.0, end - max(start, high))
    inside_start, inside_end = min(max(start, low), high), min(max(end, low), high)
    return (below * exp(low) + above * exp(high) + exp(inside_end) - exp(inside_start)) / span
