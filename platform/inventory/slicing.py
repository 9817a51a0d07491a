"""The slice rule of an accelerator model: as the scheduler's core takes it, and what an operator may write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from events.errors import Fault, Invalid
from inventory.models import AcceleratorModel
from scheduling.core.slicing import ANY, WHOLE, SliceRule, Template, template_rule
from scheduling.core.units import MILLI_PER_DEVICE

MOST_TEMPLATES = 64
LONGEST_NAME = 63
TEMPLATE_FIELDS = ("name", "compute_milli", "memory_mib")


def rule_of(model: AcceleratorModel) -> SliceRule:
    """The model's rule. Templates that are kept while the rule is another one say nothing."""
    if model.slicing == AcceleratorModel.Slicing.WHOLE:
        return WHOLE
    if model.slicing == AcceleratorModel.Slicing.TEMPLATES:
        return template_rule(*(Template(**each) for each in model.slice_templates))
    return ANY


def checked_templates(given: object, slicing: str, memory_mib: int) -> list[dict[str, Any]]:
    """The templates as they are stored: each its name, milli of a device and MiB, the smallest first.

    Invalid, with every fault, where they are no such list, a size is not within the device, two have one name or one
    size, or there is none though the rule is to cut by templates.
    """
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) > MOST_TEMPLATES:
        raise Invalid.at("slice_templates", f"must be a list of at most {MOST_TEMPLATES} templates", value=str(given))
    faults: list[Fault] = []
    for position, template in enumerate(given):
        faults += _faults_of(template, f"slice_templates[{position}]", memory_mib)
    if not faults:
        faults += _repeats(given)
    if not given and slicing == AcceleratorModel.Slicing.TEMPLATES:
        faults.append(Fault("slice_templates", "needs at least one template where devices are cut by templates"))
    if faults:
        raise Invalid(faults)
    ordered = sorted(given, key=lambda each: (each["compute_milli"], each["memory_mib"], each["name"]))
    return [{name: template[name] for name in TEMPLATE_FIELDS} for template in ordered]


def _faults_of(template: object, where: str, memory_mib: int) -> list[Fault]:
    if not isinstance(template, Mapping):
        return [Fault(where, "must be a mapping", value=str(template), allowed=TEMPLATE_FIELDS)]
    faults = [
        Fault(f"{where}.{key}", "is not a field", allowed=TEMPLATE_FIELDS)
        for key in template.keys() - set(TEMPLATE_FIELDS)
    ]
    name = template.get("name")
    if not isinstance(name, str) or not 0 < len(name.strip()) <= LONGEST_NAME or not name.isprintable():
        faults.append(Fault(f"{where}.name", f"must be a text of 1 to {LONGEST_NAME} characters", value=name))
    for key, most, unit in (("compute_milli", MILLI_PER_DEVICE, "milli"), ("memory_mib", memory_mib, "MiB")):
        value = template.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            message = f"must be a whole number of {unit} from 1 to {most}, all that a device has"
            faults.append(Fault(f"{where}.{key}", message, value=value, allowed=[1, most]))
    return faults


def _repeats(templates: Sequence[Mapping[str, Any]]) -> list[Fault]:
    """What a slice was cut by is told from its size, so no two templates have one size, as no two have one name."""
    faults = []
    names: set[str] = set()
    sizes: dict[tuple[int, int], str] = {}
    for position, template in enumerate(templates):
        name, size = template["name"], (template["compute_milli"], template["memory_mib"])
        if name in names:
            faults.append(Fault(f"slice_templates[{position}].name", "is there twice", value=name))
        elif size in sizes:
            faults.append(Fault(f"slice_templates[{position}]", f"has the same size as {sizes[size]}", value=name))
        names.add(name)
        sizes.setdefault(size, name)
    return faults
