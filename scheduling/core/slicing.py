"""How a model of accelerator may be cut: what a request is granted of one device of it.

- ``any``: exactly what is asked, in the pool's step;
- ``templates``: the smallest template that covers both the compute and the memory that are asked for (smallest by
  compute, then memory, then name). What no template covers gets the whole device. A fraction alone asks for its share
  of the device's memory too, and memory alone for no compute of its own: the template's comes with it;
- ``whole``: the whole device. A fraction that is named is not given there at all, as if the model did not match: who
  asks for a part must not pay for all. Memory alone names no part, so it gets (and counts) the whole device.

Who asks for a whole device gets all of it under every rule. What is granted, not what was asked, is what is held, what
counts against quotas, and what is billed.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from scheduling.core.units import MILLI_PER_DEVICE, compute_for_memory, memory_for_compute

NOT_ALLOWED, TOO_SMALL = 0, -1  # in place of the compute: the model does not match; no device of it is large enough

SliceKind = Literal["any", "templates", "whole"]


class Template(NamedTuple):
    """One fixed size that a device can be cut into. The order of its fields is that in which the smallest is found."""

    compute_milli: int
    memory_mib: int
    name: str


class SliceRule(NamedTuple):
    """The rule of one model. ``templates`` ascending; empty but for the kind of that name."""

    kind: SliceKind = "any"
    templates: tuple[Template, ...] = ()


ANY, WHOLE = SliceRule(), SliceRule("whole")


def template_rule(*templates: Template) -> SliceRule:
    return SliceRule("templates", tuple(sorted(templates)))


def granted(
    rule: SliceRule, compute_milli: int | None, memory_mib: int | None, device_memory_mib: int, step_milli: int
) -> tuple[int, int]:
    """(compute in milli, memory in MiB) that a request gets of one device with this memory, free or not.

    The compute is NOT_ALLOWED where the rule gives nothing of the kind, and TOO_SMALL where the device has less memory
    than is asked for. At least one of ``compute_milli`` and ``memory_mib`` is set.
    """
    whole = (MILLI_PER_DEVICE, device_memory_mib)
    if rule.kind == "whole" and compute_milli is not None and compute_milli < MILLI_PER_DEVICE:
        return NOT_ALLOWED, 0
    if memory_mib is not None and memory_mib > device_memory_mib:
        return TOO_SMALL, 0
    if rule.kind == "whole" or compute_milli == MILLI_PER_DEVICE:
        return whole
    if rule.kind == "templates":
        found = covering(rule, compute_milli, memory_mib, device_memory_mib)
        return whole if found is None else (found.compute_milli, found.memory_mib)
    if compute_milli is None:
        assert memory_mib is not None
        compute_milli = compute_for_memory(memory_mib, device_memory_mib, step_milli) if memory_mib else step_milli
    if memory_mib is None or compute_milli == MILLI_PER_DEVICE:
        memory_mib = memory_for_compute(compute_milli, device_memory_mib)
    return compute_milli, memory_mib


def covering(
    rule: SliceRule, compute_milli: int | None, memory_mib: int | None, device_memory_mib: int
) -> Template | None:
    """The smallest template that covers what is asked for, as a part of such a device; None: only the whole does.

    A template with all of the compute is the whole device under another name, and one with more memory than the device
    has cannot be cut out of it.
    """
    if memory_mib is None:
        assert compute_milli is not None
        memory_mib = memory_for_compute(compute_milli, device_memory_mib)
    for template in rule.templates:  # ascending: the first is the smallest
        if (
            max(compute_milli or 0, 1) <= template.compute_milli < MILLI_PER_DEVICE
            and memory_mib <= template.memory_mib <= device_memory_mib
        ):
            return template
    return None


def template_name(rule: SliceRule, compute_milli: int, memory_mib: int) -> str | None:
    """The name of the template that a slice of this size was cut by; None for whole devices and for free sizes."""
    for template in rule.templates:
        if (template.compute_milli, template.memory_mib) == (compute_milli, memory_mib):
            return template.name if compute_milli < MILLI_PER_DEVICE else None
    return None
