"""The typical requests of a pool: what expected fragmentation is measured against.

The measure itself (F, Weng et al., USENIX ATC 2023) is computed in ``placement_kernels``; this is its input.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scheduling.core.model import Request

COVERAGE_PERCENT = 95  # of the requests, most frequent shapes first, are called typical


@dataclass(frozen=True, slots=True)
class TypicalShape:
    """One typical request and the part ``share`` (0..1) it has among them. Host memory and labels are ignored.

    ``compute_milli`` and ``memory_mib`` as in ``Request``; both None with ``devices`` 0, a CPU-only request.
    """

    cpu_milli: int
    devices: int
    compute_milli: int | None
    models: tuple[str, ...]
    share: float
    memory_mib: int | None = None
    vendors: tuple[str, ...] = ()
    min_device_memory_mib: int = 0


def typical_shapes(
    requests: Iterable[tuple[Request, int]], *, coverage_percent: int = COVERAGE_PERCENT
) -> tuple[TypicalShape, ...]:
    """The most frequent shapes among ``requests`` (each with how often it was seen) that cover the asked part of them.

    Ordered by count, then CPU, compute, devices and models, all descending; the shares add up to 1 within rounding.
    Their order and the way the shares are divided are those of the authors' simulator, which the summation of F and so
    the truncated scores depend on. Empty when nothing was seen.
    """
    counts: dict[tuple, int] = {}
    for request, count in requests:
        if count < 0:
            raise ValueError(f"a request cannot have been seen {count} times")
        key = _typical_part(request)
        counts[key] = counts.get(key, 0) + count
    ordered = sorted(((count, key) for key, count in counts.items() if count), key=_by_frequency, reverse=True)
    total = float(sum(count for count, _ in ordered))
    wanted = coverage_percent * total / 100.0
    covered = 0.0
    chosen = []
    for count, key in ordered:
        if covered >= wanted:
            break
        chosen.append((count / total, key))
        covered += count
    all_chosen = len(chosen) == len(ordered)
    return tuple(_typical(key, share if all_chosen else share / (covered / total)) for share, key in chosen)


def _typical_part(request: Request) -> tuple:
    """What two requests must have in common to be one typical shape."""
    if request.devices == 0:
        return (request.cpu_milli, 0, 0, (), 0, (), 0)
    return (
        request.cpu_milli,
        request.compute_milli or 0,
        request.devices,
        request.models,
        request.memory_mib or 0,
        request.vendors,
        request.min_device_memory_mib,
    )


def _by_frequency(entry: tuple[int, tuple]) -> tuple:
    count, (cpu, compute, devices, models, memory, vendors, least_memory) = entry
    return (count, cpu, compute, devices, "|".join(models), memory, vendors, least_memory)


def _typical(key: tuple, share: float) -> TypicalShape:
    cpu, compute, devices, models, memory, vendors, least_memory = key
    return TypicalShape(
        cpu_milli=cpu,
        devices=devices,
        compute_milli=compute or None,
        models=models,
        share=share,
        memory_mib=memory or None,
        vendors=vendors,
        min_device_memory_mib=least_memory,
    )
