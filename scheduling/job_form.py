"""The form of a new job as the request that it stands for, and a job as the form that would submit it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from events.errors import Fault
from scheduling.core.units import format_gpus
from scheduling.models import Job

WHOLE = ("devices", "gpu_memory_mib", "tasks", "min_tasks", "retries", "max_evictions")
NUMBERS = ("gpus", "cpu", "memory_gib")
TEXTS = (
    "team",
    "pool",
    "name",
    "command",
    "framework",
    "image",
    "kind",
    "priority",
    "model",
    "vendor",
    "time_limit",
    "duration",
    "apart",
)
FIELDS = (*TEXTS, *NUMBERS, *WHOLE, "environment", "preemptible", "together", "after")
IF_POSSIBLE = "-if-possible"  # after a level in ``together``: preferred, not required
# What the API takes for granted: left out of the request, so that it stays as short as a person would write it.
DEFAULTS = {"kind": "batch", "priority": "normal", "tasks": 1, "retries": 0}


def values_of(form: Mapping[str, str]) -> dict[str, str]:
    """What was typed, field by field, as it was typed."""
    return {name: str(form.get(name, "")) for name in FIELDS}


def payload_of(values: Mapping[str, str]) -> tuple[dict[str, Any], list[Fault]]:
    """The API's request that these values stand for; and what could not be read at all. Empty fields are left out."""
    payload: dict[str, Any] = {}
    for name in TEXTS:
        if text := values.get(name, "").strip():
            payload[name] = text
    for name in NUMBERS:
        if text := values.get(name, "").strip():
            payload[name] = _number(text)
    for name in WHOLE:
        if text := values.get(name, "").strip():
            payload[name] = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else text
    if text := values.get("together", "").strip():
        level = text.removesuffix(IF_POSSIBLE)
        payload["topology"] = {"level": level} if level == text else {"level": level, "required": False}
    environment, faults = _environment(values.get("environment", ""))
    if environment:
        payload["environment"] = environment
    if after := values.get("after", "").replace(",", " ").split():
        payload["after"] = [_job_number(each) for each in after]
    if values.get("preemptible") == "no":
        payload["preemptible"] = False
    return {name: value for name, value in payload.items() if DEFAULTS.get(name) != value}, faults


def _job_number(text: str) -> Any:
    """The number of a job, with or without the # that pages put before it; the text where it is none."""
    number = text.removeprefix("#")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 19 else text


def _number(text: str) -> Any:
    """The decimal that was typed, or the text where it is none: the service then says what is wrong with it."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    return number if number.is_finite() and len(text) <= 40 else text


def _environment(text: str) -> tuple[dict[str, str], list[Fault]]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals:
            return {}, [Fault("environment", "write one NAME=value a line", value=line[:60])]
        found[name.strip()] = value.strip()
    return found, []


def as_json(payload: Mapping[str, Any]) -> str:
    """The request as a person would write it: 0.5, not "0.5"; whole numbers without a point."""

    def plain(value: Any) -> Any:
        if isinstance(value, Decimal):
            return int(value) if value == value.to_integral_value() and abs(value) < 2**53 else float(value)
        raise TypeError(f"{type(value)} is not JSON")

    return json.dumps(payload, indent=2, ensure_ascii=False, default=plain)


def as_curl(payload: Mapping[str, Any], address: str) -> str:
    """The same request for a terminal; the token comes from the environment."""
    return (
        f"curl -sS {shlex.quote(address)} \\\n"
        '  -H "Authorization: Bearer $ALLOTMENT_TOKEN" \\\n'
        "  -H 'Content-Type: application/json' \\\n"
        f"  --data-binary {shlex.quote(as_json(payload))}"
    )


def values_from(job: Job) -> dict[str, str]:
    """The form that would submit the job again. Jobs of several groups keep their first one only."""
    values = dict.fromkeys(FIELDS, "")
    values.update(
        team=job.team.slug,
        pool=job.pool.name,
        name=job.name,
        command=shlex.join(job.command),
        framework=job.framework,
        image=job.image,
        kind=job.kind,
        priority=job.priority_class.name,
        environment="\n".join(f"{name}={value}" for name, value in sorted(job.environment.items())),
        preemptible="" if job.preemptible else "no",
        time_limit=f"{job.time_limit_s}s" if job.time_limit_s else "",
        apart=job.apart,
        together=_together(job.topology),
        duration=f"{job.simulated_duration_ms}ms" if job.simulated_duration_ms is not None else "",
        retries=str(job.retries) if job.retries else "",
        max_evictions="" if job.max_evictions is None else str(job.max_evictions),
    )
    group = job.groups.first()
    if group is not None:
        whole = group.compute_milli == 1000
        values.update(
            tasks=str(group.count),
            min_tasks=str(group.min_count) if group.min_count != group.count else "",
            gpus=""
            if group.compute_milli is None
            else format_gpus(group.compute_milli * (group.devices if whole else 1)),
            devices=str(group.devices) if group.devices > 1 and not whole else "",
            gpu_memory_mib=str(group.memory_mib or ""),
            cpu=format_gpus(group.cpu_milli) if group.cpu_milli else "",
            memory_gib=_gib(group.host_memory_mib),
            model=group.models_allowed[0] if len(group.models_allowed) == 1 else "",
            vendor=group.vendors_allowed[0] if len(group.vendors_allowed) == 1 else "",
        )
    return values


def _together(topology: Mapping[str, Any] | None) -> str:
    if topology is None:
        return ""
    return topology["level"] if topology["required"] else "host" + IF_POSSIBLE  # a wish means the same at any level


def _gib(mib: int) -> str:
    return f"{(Decimal(mib) / 1024).normalize():f}" if mib else ""
