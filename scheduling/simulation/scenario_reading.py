"""A scenario file as a ``Scenario``, or a ScenarioError that names the line, the field and what is allowed there.

Beyond the fields that every scenario has, these are read: ``vendor`` and ``taints`` of a node; ``tolerations`` and
``apart`` of a submission; ``pool`` and ``from`` of a rate; ``valid_from``, ``valid_until``, ``override`` of a quota,
``remove: true`` of a quota step; ``rename``, ``state`` of a pool step; ``priority_class: {name, value}`` as a step; a
``team`` step that names a new team creates it;
``pool/node`` where two pools have a node of the same name; a name that was submitted with ``repeat`` stands for all of
its jobs; ``pool`` in what is expected of a team counts that pool alone; ``cost`` of a job. Of a pool's options also
``idle_limit`` and ``max_evictions`` (null: none), of a submission ``max_evictions``. ``duration`` of a service is how
long each replica lives before it ends as ``exit`` says. What a job uses is unknown until a ``utilization`` step.

How models may be cut: ``models: [{name, vendor, memory_mib, slicing: any | templates | whole, templates: [{name, gpus,
memory_mib}, …]}]`` at the top, or ``slicing`` and ``templates`` of a node, for its model; and ``model: {name, slicing,
templates}`` as a step. A model that is known by name is cut as its maker cuts it where nothing else is said. A quota
may have ``memory_limit_mib``, a priority class ``max_gpus_per_team``; a ``priority`` step is done by the ``user`` that
it names, else by who submitted the job. Of a job ``allocated``, ``memory_mib`` (of devices, held) and ``template`` are
expected, of a team ``memory_mib``.

Money (``scenario_money`` has the fields): ``billing: {time_zone, tax_percent, packages_pay: net | gross}`` at the
top, UTC without tax where it is left out. Steps ``budget: {team, amount, period: month | quarter | year | total,
action: warn | hold, thresholds: [percent, …], starts, ends}`` (a month's that warns where nothing is said; again for
the same team and period it changes that one; ``remove: true`` removes it), ``package: {team, gpu_hours, pool, model,
price, starts, expires}``, ``plan: {team, name, monthly_fee, day}`` (from that day on), ``invoice: {team, month}``
(issues it; again changes nothing). Expected: ``invoice: {team, month, total, net, tax, prepaid, due, issued, lines}``
or a list of such; it is the invoice if it was issued, else what it would be now. ``lines`` is how many there are, or
a list of ``{description, model, pool, kind, gpu_hours, per_hour, amount}``, each of any of these (a part of the
description is enough): then there are as many lines, and each matches one of its own. And ``teams: {name:
{budget_events: N}}`` counts thresholds that were told.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from inventory.models import AcceleratorModel, Device, Node, Pool
from scheduling.core.units import milli_from_gpus
from scheduling.models import Job
from scheduling.simulation import scenario_money as money
from scheduling.simulation import scenario_values as values
from scheduling.simulation.scenario_model import Check, Entry, NodeSpec, PoolSpec, Scenario, Step
from scheduling.simulation.scenario_models import MODEL_RULE, ModelSpec, cut, read_models
from scheduling.simulation.scenario_names import Names
from scheduling.simulation.scenario_values import (
    Field,
    as_given,
    choice,
    converted,
    may,
    need,
    read_fields,
    sections,
    text,
    unset,
    whole,
)
from scheduling.simulation.scenario_yaml import Items, ScenarioError, Section, read_yaml
from scheduling.workload import accelerators

DEFAULT_START = datetime(2026, 1, 5, tzinfo=UTC)  # a Monday
DEFAULT_MODEL = "GPU"
DEFAULT_MEMORY_MIB = 81920
MOST_DEVICES = 256
MOST_NODES = 100_000
MOST_REPEATS = 1000

TOP = {
    "title": need(text),
    "start": may(values.absolute),
    "billing": may(as_given),
    **{name: may(as_given) for name in ("models", "pools", "rates", "priority_classes", "teams", "quotas", "steps")},
}
NODE = {
    "name": need(text),
    "count": may(whole(1, MOST_NODES)),
    "accelerators": may(whole(0, MOST_DEVICES)),
    "model": may(text),
    "vendor": may(choice(*AcceleratorModel.Vendor.values)),
    "memory_mib": may(whole(1, 2**31 - 1)),
    **MODEL_RULE,
    "cpu": may(values.scaled(1000)),
    "host_memory_gib": may(values.scaled(1024)),
    "labels": may(values.text_map),
    "taints": may(values.text_map),
}
POOL_OPTIONS = {
    "half_life": unset(values.duration),
    "grace": may(values.duration),
    "min_runtime": may(values.duration),
    "idle_limit": unset(values.duration),
    "max_evictions": unset(whole(0, 32_767)),
}


POOL = {
    "name": need(text),
    "sharing": may(choice(*Pool.Sharing.values)),
    "placement": may(choice(*Pool.Placement.values)),
    "options": may(as_given),
}
RATE = {
    "model": may(text),
    "pool": may(text),
    "per_gpu_hour": need(values.money),
    "from": may(values.moment),
}
PRIORITY_CLASS = {
    "name": need(text),
    "value": need(whole(-(2**31), 2**31 - 1)),
    "cluster_wide": may(values.flag),
    "max_jobs_per_team": unset(whole(0, 10**6)),
    "max_gpus_per_team": unset(milli_from_gpus),
}
TEAM = {"name": need(text), "parent": unset(text)}
QUOTA = {
    "team": need(text),
    "pool": may(text),
    "guaranteed": unset(milli_from_gpus),
    "limit": unset(milli_from_gpus),
    "weight": may(whole(0, 10**9)),
    "reserved": may(milli_from_gpus),
    "per_user_limit": unset(milli_from_gpus),
    "memory_limit_mib": unset(whole(0, 10**12)),
    "valid_from": may(values.moment),
    "valid_until": may(values.moment),
    "override": may(values.flag),
}
SUBMIT = {
    "job": need(text),
    "team": need(text),
    "user": may(text),
    "repeat": may(whole(1, MOST_REPEATS)),
    "after": may(values.texts),
    **{
        name: may(as_given)
        for name in (
            "pool pools gpus devices gpu_memory_mib cpu memory_gib tasks min_tasks model vendor node_selector groups "
            "priority preemptible duration time_limit exit kind retries min_runtime max_evictions "
            "min_device_memory_mib topology apart tolerations"
        ).split()
    },
}
ACTIONS: Mapping[str, Mapping[str, Field]] = {
    "submit": SUBMIT,
    **{name: {"job": need(text)} for name in ("cancel", "hold", "release")},
    "priority": {"job": need(text), "value": may(whole(-(2**31), 2**31 - 1)), "class": may(text), "user": may(text)},
    "model": {"name": need(text), **MODEL_RULE},
    "priority_class": PRIORITY_CLASS,
    "quota": {**QUOTA, "remove": may(values.only_true)},
    "team": {**TEAM, "delete": may(values.only_true)},
    "pool": {**POOL, "rename": may(text), "state": may(choice(*Pool.State.values))},
    "rate": RATE,
    "node": {"name": need(text), "state": need(choice(*Node.State.values))},
    "device": {
        "node": need(text),
        "index": need(whole(0, MOST_DEVICES)),
        "health": need(choice(*Device.Health.values)),
    },
    "restart": {},
    **money.ACTIONS,
    "utilization": {"job": need(text), "compute": need(values.money), "memory": need(values.money)},
    "expect": {},
}
FACTS: Mapping[str, Mapping[str, values.Convert]] = {
    "jobs": {
        "state": values.plain(choice(*Job.State.values)),
        "reason": values.plain(text),
        "node": values.plain(text),
        "nodes": values.plain(lambda value: tuple(sorted(set(values.texts(value))))),
        "tasks_running": values.NUMBER,
        "devices": lambda value: (
            values.plain(lambda items: tuple(sorted(values.texts(items))))(value)
            if isinstance(value, list)
            else values.NUMBER(value)
        ),
        "preemptions": values.NUMBER,
        "allocated": values.GPUS,
        "memory_mib": values.NUMBER,
        "template": values.plain(text),
        "started_at": values.MOMENT,
        "estimated_start": values.MOMENT,
        "cost": values.compared_decimal,
    },
    "teams": {
        "allocated": values.GPUS,
        "deserved": values.GPUS,
        "pending": values.GPUS,
        "cost": values.compared_decimal,
        "gpu_hours": values.compared_decimal,
        "memory_mib": values.NUMBER,
        "budget_events": values.NUMBER,
    },
    "pools": dict.fromkeys(("free", "allocated", "capacity", "fragmented"), values.GPUS),
    "nodes": dict.fromkeys(("allocated", "free"), values.GPUS),
    "counts": dict.fromkeys(Job.State.values, values.NUMBER),
}
MOMENTS = ("started_at", "estimated_start")


def read_scenario(path: Path) -> Scenario:
    """The file's scenario. Raises ScenarioError."""
    top = read_yaml(path)
    head = read_fields(top, "", TOP)
    start = head.get("start", DEFAULT_START)
    models = read_models(_list(top, "models"))
    pools = tuple(_pool(*each, models) for each in _list(top, "pools"))
    if not pools:
        raise ScenarioError("needs at least one pool", field="pools", line=top.lines.get("pools", top.line))
    found = Scenario(
        file=str(path),
        title=head["title"],
        start=start,
        pools=pools,
        models=models,
        rates=tuple(_rate(each, start, top) for each in _entries(top, "rates", RATE)),
        priority_classes=_entries(top, "priority_classes", PRIORITY_CLASS),
        teams=_entries(top, "teams", TEAM),
        quotas=tuple(_quota(each, start, top) for each in _entries(top, "quotas", QUOTA)),
        steps=_steps(top, start),
        billing=money.read_terms(top),
    )
    Names(found).check()
    return found


def _list(top: Section, name: str) -> list[tuple[Section, int, str]]:
    return sections(top.get(name), name, top.lines.get(name, top.line))


def _entries(top: Section, name: str, fields: Mapping[str, Field]) -> tuple[Entry, ...]:
    return tuple(Entry(line, read_fields(section, where, fields, line)) for section, line, where in _list(top, name))


def _rate(entry: Entry, start: datetime, top: Section) -> Entry:
    return Entry(entry.line, _with_moments(entry.values, ("from",), start, top))


def _quota(entry: Entry, start: datetime, top: Section) -> Entry:
    return Entry(entry.line, _with_moments(entry.values, ("valid_from", "valid_until"), start, top))


def _with_moments(given: Mapping[str, Any], names: tuple[str, ...], start: datetime, top: Section) -> dict[str, Any]:
    return {key: _moment(value, start, top) if key in names else value for key, value in given.items()}


def _moment(value: timedelta | datetime, start: datetime, top: Section) -> datetime:
    if isinstance(value, timedelta):
        return start + value
    if "start" not in top:
        raise ScenarioError("a moment of the calendar needs start at the top of the file", field="start", line=top.line)
    return value


# ---- pools -----------------------------------------------------------------------------------------------------------


def _pool(section: Section, line: int, where: str, models: dict[str, ModelSpec]) -> PoolSpec:
    nodes = [
        _nodes(*each, models)
        for each in sections(section.get("nodes"), f"{where}.nodes", section.lines.get("nodes", line))
    ]
    given = read_fields(section, where, {**POOL, "nodes": may(as_given)}, line)
    return PoolSpec(
        line, given["name"], pool_options(given, section, where), tuple(node for some in nodes for node in some)
    )


def pool_options(given: Mapping[str, Any], section: Section, where: str) -> dict[str, Any]:
    """What a pool's mapping says, as ``create_pool`` and ``change_pool`` take it; what is left out stays out."""
    options = {name: given[name] for name in ("sharing", "placement", "state") if name in given}
    if "options" in given:
        inner = section["options"]
        more = read_fields(inner, f"{where}.options", POOL_OPTIONS, section.lines["options"])
        if "max_evictions" in more:
            options["max_evictions"] = more["max_evictions"]
        for name in ("half_life", "grace", "min_runtime", "idle_limit"):
            if name in more:
                if more[name] is None:
                    options[f"{name}_s"] = None
                    continue
                if more[name] % timedelta(seconds=1):
                    field = f"{where}.options.{name}"
                    raise ScenarioError("must be whole seconds", line=inner.lines[name], field=field)
                options[f"{name}_s"] = more[name] // timedelta(seconds=1)
    return options


def _nodes(section: Section, line: int, where: str, models: dict[str, ModelSpec]) -> list[NodeSpec]:
    given = read_fields(section, where, NODE, line)
    model = given.get("model", DEFAULT_MODEL)
    known = models.get(model) or accelerators.BY_NAME.get(model)
    if given.get("accelerators", 0):
        cut(models, model, given, section, where, line, DEFAULT_MEMORY_MIB)
    names = [given["name"]]
    if "count" in given:
        names = [f"{given['name']}-{index}" for index in range(given["count"])]
    return [
        NodeSpec(
            line=line,
            name=name,
            accelerators=given.get("accelerators", 0),
            model=model,
            vendor=given.get("vendor", known.vendor if known else "nvidia"),
            memory_mib=given.get("memory_mib", known.memory_mib if known else DEFAULT_MEMORY_MIB),
            cpu_milli=given.get("cpu", 64_000),
            host_memory_mib=given.get("host_memory_gib", 512 * 1024),
            labels=given.get("labels", {}),
            taints=given.get("taints", {}),
        )
        for name in names
    ]


# ---- steps -----------------------------------------------------------------------------------------------------------


def _steps(top: Section, start: datetime) -> tuple[Step, ...]:
    steps: list[Step] = []
    for section, line, where in _list(top, "steps"):
        step = _step(section, line, where, start, top)
        if steps and step.at < steps[-1].at:
            raise ScenarioError(
                f"lies before {steps[-1].at_written} of the step on line {steps[-1].line}; steps come in order of time",
                line=section.lines["at"],
                field=f"{where}.at",
            )
        steps.append(step)
    return tuple(steps)


def _step(section: Section, line: int, where: str, start: datetime, top: Section) -> Step:
    names = [key for key in section if key not in ("at", "refused")]
    for key in names:
        if key not in ACTIONS:
            raise ScenarioError(
                "there is no such action",
                line=section.lines[key],
                field=f"{where}.{key}",
                allowed=["at", "refused", *sorted(ACTIONS)],
            )
    if len(names) != 1:
        raise ScenarioError(
            f"has {len(names)} actions; a step has one", line=line, field=where, allowed=sorted(ACTIONS)
        )
    if section.get("at") is None:
        raise ScenarioError("is required", line=line, field=f"{where}.at")
    at = _moment(converted(section["at"], values.moment, f"{where}.at", section.lines["at"]), start, top)
    (kind,) = names
    refused = _refused(section, kind, where)
    action, place, action_line = section[kind], f"{where}.{kind}", section.lines[kind]
    written = str(section["at"])
    if kind == "expect":
        if refused is not None:
            raise ScenarioError("belongs to an action, not to what is expected", line=line, field=f"{where}.refused")
        return Step(line, at, written, kind, {}, tuple(_checks(action, action_line, place, start, top)))
    if kind == "restart":
        converted(action, choice("scheduler"), place, action_line)
        return Step(line, at, written, kind, {}, (), refused)
    given = read_fields(action, place, ACTIONS[kind], action_line)
    given = _with_moments(given, ("from", "valid_from", "valid_until", "starts", "ends", "expires"), start, top)
    _check_action(kind, given, action, place)
    if kind == "pool":
        given = {"name": given["name"], "rename": given.get("rename"), "options": pool_options(given, action, place)}
    return Step(line, at, written, kind, given, (), refused, dict(action.lines))


def _refused(section: Section, kind: str, where: str) -> str | None:
    """The text that the refusal must have; "" for any; None where the action must be accepted."""
    inner = section[kind]
    place = section
    if isinstance(inner, Section) and "refused" in inner:
        place = inner
    if "refused" not in place:
        return None
    given = place["refused"]
    line = place.lines["refused"]
    if place is inner:
        del inner["refused"]
    if given is True:
        return ""
    if not isinstance(given, str) or not given:
        raise ScenarioError("must be true, or a part of the message", line=line, field=f"{where}.refused")
    return given


def _check_action(kind: str, given: Mapping[str, Any], section: Section, where: str) -> None:
    """What the fields of an action must be together."""

    def refuse(message: str, key: str = "") -> None:
        field = f"{where}.{key}" if key else where
        raise ScenarioError(message, line=section.lines.get(key, section.line), field=field)

    if kind == "priority" and ("value" in given) == ("class" in given):
        refuse("needs value or class, one of them")
    if kind == "team" and "delete" in given and "parent" in given:
        refuse("either delete or parent", "delete")
    if kind == "quota" and "remove" in given and set(given) - {"team", "pool", "remove"}:
        refuse("a quota that is removed has no other values", "remove")
    if kind == "rate" and not {"model", "pool"} & set(given):
        refuse("needs model or pool")
    if kind == "utilization" and (given["compute"] > 1 or given["memory"] > 1):
        refuse("compute and memory are parts from 0 to 1")
    money.check_action(kind, given, refuse)


def _checks(section: Any, line: int, where: str, start: datetime, top: Section) -> list[Check]:
    if not isinstance(section, Section) or not section:
        known = sorted([*FACTS, "invoice"])
        raise ScenarioError("must be a mapping that expects something", line=line, field=where, allowed=known)
    found: list[Check] = []
    for subject, inner in section.items():
        place, here = f"{where}.{subject}", section.lines[subject]
        if subject == "invoice":
            found += money.checks(inner, here, place)
            continue
        if subject not in FACTS:
            raise ScenarioError("there is no such subject", line=here, field=place, allowed=sorted([*FACTS, "invoice"]))
        if not isinstance(inner, Section):
            raise ScenarioError("must be a mapping", line=here, field=place)
        if subject == "counts":
            found += _facts(subject, "", inner, place, start, top)
            continue
        for name, facts in inner.items():
            if subject == "jobs" and not isinstance(facts, Section | Items):
                shorthand = Section(inner.lines[name])
                shorthand["state"], shorthand.lines["state"] = facts, inner.lines[name]
                facts = shorthand
            if not isinstance(facts, Section) or not facts:
                allowed = sorted(FACTS[subject])
                raise ScenarioError(
                    "must be a mapping", line=inner.lines[name], field=f"{place}.{name}", allowed=allowed
                )
            found += _facts(subject, name, facts, f"{place}.{name}", start, top)
    return found


def _facts(subject: str, name: str, facts: Section, where: str, start: datetime, top: Section) -> list[Check]:
    known = FACTS[subject]
    pool = ""
    if subject == "teams" and "pool" in facts:
        pool = converted(facts["pool"], text, f"{where}.pool", facts.lines["pool"])
    found = []
    for fact, given in facts.items():
        line, field = facts.lines[fact], f"{where}.{fact}"
        if fact == "pool" and subject == "teams":
            continue
        if fact not in known:
            allowed = sorted([*known, "pool"] if subject == "teams" else known)
            raise ScenarioError("there is no such fact to expect", line=line, field=field, allowed=allowed)
        if given is None and fact in ("reason", "node", "template", *MOMENTS):
            wanted = values.Wanted("none", "=", None)
        else:
            wanted = converted(given, known[fact], field, line)
        if fact in MOMENTS and wanted.value is not None:
            wanted = values.Wanted(wanted.written, wanted.operator, _moment(wanted.value, start, top))
        found.append(Check(line, subject, name, fact, wanted, pool))
    return found
