"""The accelerator models of a scenario: how much memory they have and how they may be cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from events.errors import Invalid
from inventory.models import AcceleratorModel
from inventory.services import set_accelerator_model
from inventory.slicing import checked_templates
from scheduling.core.units import milli_from_gpus
from scheduling.simulation.scenario_values import Field, choice, may, need, read_fields, sections, text, whole
from scheduling.simulation.scenario_yaml import Items, ScenarioError, Section
from scheduling.workload import accelerators

Template = Mapping[str, Any]


def _templates(given: Any) -> list[Template]:
    """Templates as ``set_accelerator_model`` takes them; each with its GPUs as people write them."""
    if not isinstance(given, Items):
        raise ValueError("must be a list of templates")
    found: list[Template] = []
    for section, line, where in sections(given, "templates", given.line):
        values = read_fields(section, where, TEMPLATE, line)
        found.append({"name": values["name"], "compute_milli": values["gpus"], "memory_mib": values["memory_mib"]})
    return found


TEMPLATE: Mapping[str, Field] = {
    "name": need(text),
    "gpus": need(milli_from_gpus),
    "memory_mib": need(whole(1, 2**31 - 1)),
}
MODEL_RULE: Mapping[str, Field] = {
    "slicing": may(choice(*AcceleratorModel.Slicing.values)),
    "templates": may(_templates),
}
MODEL: Mapping[str, Field] = {
    "name": need(text),
    "vendor": may(choice(*AcceleratorModel.Vendor.values)),
    "memory_mib": may(whole(1, 2**31 - 1)),
    **MODEL_RULE,
}
DEFAULT_MEMORY_MIB = 81920


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model. ``said``: whether the file says how it is cut."""

    line: int
    name: str
    vendor: str
    memory_mib: int
    slicing: str
    templates: tuple[Template, ...]
    said: bool

    def recut(self, given: Mapping[str, Any]) -> ModelSpec:
        """The model with the rule that ``given`` says: templates alone mean to cut by them."""
        templates = tuple(given.get("templates", self.templates))
        default = "templates" if "templates" in given else self.slicing
        said = self.said or bool({"slicing", "templates"} & set(given))
        return replace(self, slicing=given.get("slicing", default), templates=templates, said=said)

    def enter(self, now: datetime) -> AcceleratorModel:
        """The model is there and is so."""
        return set_accelerator_model(
            self.name, self.vendor, self.memory_mib, slicing=self.slicing, slice_templates=self.templates, now=now
        )


def read_models(given: list[tuple[Section, int, str]]) -> dict[str, ModelSpec]:
    """The models at the top of a file, by name."""
    models: dict[str, ModelSpec] = {}
    for section, line, where in given:
        values = read_fields(section, where, MODEL, line)
        if values["name"] in models:
            raise ScenarioError(f"{values['name']} is there twice", line=line, field=f"{where}.name")
        models[values["name"]] = _checked(_spec(values["name"], values, line, DEFAULT_MEMORY_MIB), section, where)
    return models


def cut(
    models: dict[str, ModelSpec],
    name: str,
    node: Mapping[str, Any],
    section: Section,
    where: str,
    line: int,
    default_memory_mib: int,
) -> None:
    """``models`` has the model of this node, cut as the node says; ScenarioError where that was said otherwise."""
    known = models.get(name)
    if known is None:
        models[name] = _checked(_spec(name, node, line, default_memory_mib), section, where)
        return
    found = known.recut(node)
    if known.said and (found.slicing, found.templates) != (known.slicing, known.templates):
        place = "templates" if "templates" in node else "slicing"
        message = f"{name} is cut otherwise on line {known.line}: a model has one rule"
        raise ScenarioError(message, line=section.lines[place], field=f"{where}.{place}")
    models[name] = _checked(found, section, where)


def _spec(name: str, given: Mapping[str, Any], line: int, default_memory_mib: int) -> ModelSpec:
    maker = accelerators.BY_NAME.get(name)
    memory = given.get("memory_mib", maker.memory_mib if maker else default_memory_mib)
    as_made = maker is not None and memory == maker.memory_mib
    plain = ModelSpec(
        line=line,
        name=name,
        vendor=given.get("vendor", maker.vendor if maker else "nvidia"),
        memory_mib=memory,
        slicing=maker.slice_rule if maker and as_made else "any",
        templates=maker.stored_templates if maker and as_made else (),
        said=False,
    )
    return plain.recut(given)


def _checked(spec: ModelSpec, section: Section, where: str) -> ModelSpec:
    """The spec, if its templates can be meant; ScenarioError where they cannot."""
    try:
        checked_templates(spec.templates, spec.slicing, spec.memory_mib)
    except Invalid as error:
        fault = error.faults[0]
        place = "templates" if "templates" in section else "slicing"
        line = section.lines.get(place, section.line)
        name = fault.field.replace("slice_templates", "templates")
        raise ScenarioError(fault.message, line=line, field=f"{where}.{name}", allowed=fault.allowed) from None
    return spec
