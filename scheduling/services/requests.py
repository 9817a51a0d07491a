"""What a person wrote, as data that can be submitted. The one reading of it for REST, forms and scenario files.

Field names are those of scenario files. Every fault is found in one reading and told with its field; nothing is
guessed, and an unknown field is a fault.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from events.errors import Fault, Invalid
from inventory.models import AcceleratorModel, Pool
from scheduling.core.model import Topology
from scheduling.core.units import (
    MILLI_PER_DEVICE,
    QuantityError,
    check_fraction,
    exact,
    format_gpus,
    milli_from_gpus,
    seconds_from_duration,
)
from scheduling.granted import cut_by_templates_alone
from scheduling.models import Job
from scheduling.services.place_rules import place_rules
from tenants.services import checked_name

MAX_DEVICES = 256  # of one node
MAX_TASKS = 10_000
MAX_CPU_MILLI = 10_000_000
MAX_MEMORY_MIB = 2**31 - 1
MAX_SECONDS = 10 * 366 * 86400
MAX_COMMAND_BYTES = 65_536
MAX_RETRIES = 100
MAX_EVICTIONS = 32_767
MAX_PREDECESSORS = 1000  # of one job
MAX_UNKNOWN = 20  # told of one job; who sends more has sent something else
ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")

GROUP_FIELDS = (
    "name",
    "tasks",
    "min_tasks",
    "gpus",
    "devices",
    "gpu_memory_mib",
    "cpu",
    "memory_gib",
    "model",
    "vendor",
    "node_selector",
    "tolerations",
    "min_device_memory_mib",
    "command",
)
JOB_FIELDS = (
    "team",
    "pool",
    "pools",
    "name",
    *(name for name in GROUP_FIELDS if name != "name"),
    "groups",
    "environment",
    "image",
    "framework",
    "kind",
    "priority",
    "preemptible",
    "time_limit",
    "retries",
    "min_runtime",
    "topology",
    "apart",
    "max_evictions",
    "after",
    "duration",
    "exit",
)


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """One group as it will be stored. Units as in ``models.TaskGroup``."""

    name: str
    count: int
    min_count: int
    devices: int
    compute_milli: int | None
    memory_mib: int | None
    cpu_milli: int
    host_memory_mib: int
    models: tuple[str, ...]
    vendors: tuple[str, ...]
    node_selector: Mapping[str, str]
    min_device_memory_mib: int
    command: tuple[str, ...] | None
    tolerations: Mapping[str, str] = field(default_factory=dict)

    def milli(self, step: int) -> int:
        """Milli-GPU of all its tasks; a slice named by memory alone counts at the smallest step."""
        return self.count * self.devices * (self.compute_milli or step)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job that can be submitted. ``pools`` in order of preference; times in seconds or milliseconds as named."""

    team: str
    pools: tuple[Pool, ...]
    name: str
    groups: tuple[GroupSpec, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    image: str
    framework: str
    kind: str
    priority: str | int
    preemptible: bool
    time_limit_s: int | None
    retries: int
    min_runtime_s: int | None
    duration_ms: int | None
    exit_code: int
    topology: Topology | None = None
    apart: str | None = None
    max_evictions: int | None = None
    after: tuple[int | str, ...] = ()  # ids of jobs that are there, names of earlier jobs of the same list

    @property
    def milli(self) -> int:
        return sum(group.milli(self.pools[0].step_milli) for group in self.groups)

    @property
    def tasks(self) -> int:
        return sum(group.count for group in self.groups)


@dataclass
class Reading:
    """A payload being read: takes fields one by one and collects what is wrong with them."""

    payload: Mapping[str, Any]
    where: str = ""
    faults: list[Fault] = field(default_factory=list)

    def path(self, name: str) -> str:
        return f"{self.where}{name}"

    def fault(self, name: str, message: str, allowed: Sequence[Any] | None = None, *, code: str = "invalid") -> None:
        self.faults.append(Fault(self.path(name), message, code, self.payload.get(name), allowed))

    def has(self, name: str) -> bool:
        return self.payload.get(name) is not None

    def take(self, name: str, convert: Callable[[Any], Any], default: Any = None) -> Any:
        """The converted value, ``default`` where it is absent, null or wrong; wrong ones leave a fault."""
        if not self.has(name):
            return default
        try:
            return convert(self.payload[name])
        except QuantityError as error:
            self.fault(name, error.message, error.allowed or None)
        except Invalid as error:
            self.faults += [Fault(self.path(name), fault.message, value=fault.value) for fault in error.faults]
        except (ValueError, TypeError) as error:
            self.fault(name, str(error))
        return default

    def choice(self, name: str, allowed: Sequence[str], default: str) -> str:
        if not self.has(name):
            return default
        value = self.payload[name]
        if value not in allowed:
            self.fault(name, "is not one of the allowed values", allowed)
            return default
        return str(value)


def whole(low: int, high: int) -> Callable[[Any], int]:
    """A reader of whole numbers from ``low`` to ``high``."""

    def read(value: Any) -> int:
        number = exact(value) if not isinstance(value, str) else None
        if number is None or number != number.to_integral_value() or not low <= number <= high:
            raise QuantityError(f"must be a whole number from {low} to {high}")
        return int(number)

    return read


def scaled(factor: int, high: int, unit: str) -> Callable[[Any], int]:
    """A reader of quantities of 0 or more: ``factor`` times the number, rounded up to a whole one."""

    def read(value: Any) -> int:
        number = exact(value) * factor
        if number < 0 or number > high:
            raise QuantityError(f"must be from 0 to {high // factor} {unit}")
        return int(-(-number // 1))

    return read


def duration(scale: int = 1) -> Callable[[Any], int]:
    """A reader of durations above 0; the result in 1/``scale`` seconds."""

    def read(value: Any) -> int:
        seconds = seconds_from_duration(value)
        if not 0 < seconds <= MAX_SECONDS:
            raise QuantityError("must be more than 0 and at most ten years")
        return max(1, int(seconds * scale))

    return read


def any_duration(scale: int = 1) -> Callable[[Any], int]:
    """Like ``duration``, 0 allowed."""

    def read(value: Any) -> int:
        return 0 if seconds_from_duration(value) == 0 else duration(scale)(value)

    return read


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def texts(value: Any) -> tuple[str, ...]:
    """A text, or a list of texts, as a sorted tuple without repeats."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) and 0 < len(item) <= 120 for item in items):
        raise ValueError("must be a text or a list of texts")
    return tuple(sorted(set(items)))


def command_words(value: Any) -> tuple[str, ...]:
    """A list of words, or one text that is split as a shell would."""
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"cannot be split into words: {error}") from None
    else:
        words = value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise ValueError("must be a list of texts, or one text")
    if any("\0" in word for word in words):
        raise ValueError("must not contain a NUL character")
    if sum(len(word.encode("utf-8", "surrogatepass")) for word in words) > MAX_COMMAND_BYTES:
        raise ValueError(f"must be at most {MAX_COMMAND_BYTES} bytes in all")
    return tuple(words)


def text_map(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(
        isinstance(key, str) and 0 < len(key) <= 120 and isinstance(item, str) and len(item) <= 120
        for key, item in value.items()
    ):
        raise ValueError("must map texts to texts of at most 120 characters")
    return dict(sorted(value.items()))


def environment(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(value) > 500:
        raise ValueError("must map at most 500 names to texts")
    for key, item in value.items():
        if not isinstance(key, str) or not ENVIRONMENT_NAME.fullmatch(key):
            raise ValueError(f"{str(key)[:60]!r} is not a name of an environment variable")
        if not isinstance(item, str) or "\0" in item or len(item) > 32_768:
            raise ValueError(f"{key} must be a text of at most 32768 characters without NUL")
    return dict(value)


def predecessors(value: Any) -> tuple[int | str, ...]:
    """A job or a list of jobs, each by its id, or by the name of an earlier job of the same list."""
    items = list(value) if isinstance(value, list | tuple) else [value]
    if len(items) > MAX_PREDECESSORS:
        raise ValueError(f"must name at most {MAX_PREDECESSORS} jobs, names {len(items)}")
    if not all((isinstance(each, int) and not isinstance(each, bool) and each > 0) or _is_name(each) for each in items):
        raise ValueError("must name jobs: by id, or by the name of an earlier job of the same list")
    if len(set(items)) != len(items):
        raise ValueError("names a job twice")
    return tuple(items)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 200


def short_text(longest: int) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        return checked_name(value, "", longest) if value != "" else ""

    return read


def _has_no_step(reading: Reading, pools: Sequence[Pool]) -> bool:
    """Whether any fraction may be asked for: all devices that could serve it are cut by templates and round it up."""
    wishes = {}
    for name in ("model", "vendor"):
        try:
            wishes[name] = texts(reading.payload[name]) if reading.has(name) else ()
        except ValueError:
            return False
    return cut_by_templates_alone(pools, wishes["model"], wishes["vendor"])


def _devices(reading: Reading, step: int, pools: Sequence[Pool]) -> tuple[int, int | None]:
    """(devices, compute_milli of each): of a whole request, a fraction, or equal fractions of several devices."""
    count = reading.take("devices", whole(1, MAX_DEVICES))
    milli = reading.take("gpus", milli_from_gpus)
    if milli is None:
        return (count or 1, None) if reading.has("gpu_memory_mib") or count else (0, None)
    if milli == 0:
        if count or reading.has("gpu_memory_mib"):
            reading.fault("gpus", "is 0, but devices or gpu_memory_mib ask for a GPU; leave it out or name a fraction")
        return 0, None
    if milli > MAX_DEVICES * MILLI_PER_DEVICE:
        reading.fault(
            "gpus", f"one task can have at most {MAX_DEVICES} GPUs, all of one node; use tasks for more", [MAX_DEVICES]
        )
        return 0, None
    try:
        check_fraction(milli, step)
    except QuantityError as error:
        if milli > MILLI_PER_DEVICE or not _has_no_step(reading, pools):
            reading.fault("gpus", error.message, error.allowed or None)
            return 0, None
    if milli <= MILLI_PER_DEVICE:
        return count or 1, milli
    if count is not None and count * MILLI_PER_DEVICE != milli:
        reading.fault("gpus", f"with devices it is the part of each device, at most 1; {format_gpus(milli)} is more")
        return 0, None
    return milli // MILLI_PER_DEVICE, MILLI_PER_DEVICE


def _group(reading: Reading, pools: Sequence[Pool], default_name: str, *, named: bool) -> GroupSpec:
    step = max((pool.step_milli for pool in pools), default=50)
    devices, compute = _devices(reading, step, pools)
    memory = reading.take("gpu_memory_mib", whole(1, MAX_MEMORY_MIB))
    if devices and compute is None and memory is None and not reading.faults:
        compute = MILLI_PER_DEVICE
    exclusive = [pool.name for pool in pools if pool.sharing == Pool.Sharing.EXCLUSIVE]
    if exclusive and devices and (compute or 0) < MILLI_PER_DEVICE:
        reading.fault("gpus", f"the pool {exclusive[0]} gives whole GPUs only", ["a whole number"])
    tasks = reading.take("tasks", whole(1, MAX_TASKS), 1)
    min_tasks = reading.take("min_tasks", whole(1, MAX_TASKS), tasks)
    if min_tasks > tasks:
        reading.fault("min_tasks", f"must be at most tasks, which is {tasks}")
    cpu = reading.take("cpu", scaled(1000, MAX_CPU_MILLI, "cores"))
    if cpu is None:
        cpu = 0 if devices else 1000  # a task without a GPU takes a core, so that it holds something
    elif not cpu and not devices and not reading.faults:
        reading.fault("cpu", "is 0 and no GPU is asked for: a task must hold something")
    models = reading.take("model", texts, ())
    _check_known(reading, "model", models, AcceleratorModel.objects.values_list("name", flat=True) if models else ())
    vendors = reading.take("vendor", texts, ())
    _check_known(reading, "vendor", vendors, AcceleratorModel.Vendor.values)
    return GroupSpec(
        name=reading.take("name", short_text(63), default_name) if named else default_name,
        count=tasks,
        min_count=min(min_tasks, tasks),
        devices=devices,
        compute_milli=compute,
        memory_mib=memory if devices else None,
        cpu_milli=cpu,
        host_memory_mib=reading.take("memory_gib", scaled(1024, MAX_MEMORY_MIB, "GiB"), 0),
        models=models,
        vendors=vendors,
        node_selector=reading.take("node_selector", text_map, {}),
        min_device_memory_mib=reading.take("min_device_memory_mib", whole(0, MAX_MEMORY_MIB), 0),
        command=reading.take("command", command_words) if named else None,
        tolerations=reading.take("tolerations", text_map, {}),
    )


def _check_known(reading: Reading, name: str, values: Sequence[str], known: Any) -> None:
    allowed = sorted(known)
    unknown = [value for value in values if value not in allowed]
    if unknown:
        reading.fault(name, f"there is no {name} {unknown[0]!r}", allowed, code="unknown")


def _pools(reading: Reading, known: Mapping[str, Pool]) -> tuple[Pool, ...]:
    if reading.has("pool") and reading.has("pools"):
        reading.fault("pools", "give pool or pools, not both")
        return ()
    field_name = "pools" if reading.has("pools") else "pool"
    given = reading.payload.get(field_name)
    if given is None:
        if len(known) == 1:
            return tuple(known.values())
        reading.fault("pool", "is required", sorted(known))
        return ()
    names = [given] if field_name == "pool" else given
    if not isinstance(names, list | tuple) or not names or len(names) > 20:
        reading.fault(field_name, "must name at least one pool and at most 20")
        return ()
    unknown = [name for name in names if not isinstance(name, str) or name not in known]
    if unknown:
        reading.fault(field_name, "there is no such pool", sorted(known), code="unknown")
        return ()
    if len(set(names)) != len(names):
        reading.fault(field_name, "names a pool twice")
        return ()
    return tuple(known[name] for name in names)


def _groups(reading: Reading, pools: Sequence[Pool]) -> tuple[GroupSpec, ...]:
    given = reading.payload.get("groups")
    if given is None:
        return (_group(reading, pools, "task", named=False),)
    doubled = [name for name in GROUP_FIELDS if name not in ("name", "command") and reading.has(name)]
    for name in doubled:
        reading.fault(name, "belongs in the groups where groups are given")
    if not isinstance(given, list) or not 1 <= len(given) <= 32 or not all(isinstance(item, Mapping) for item in given):
        reading.fault("groups", "must be a list of 1 to 32 groups")
        return ()
    found = []
    for position, item in enumerate(given):
        inner = Reading(item, f"{reading.where}groups[{position}].")
        _refuse_unknown(inner, GROUP_FIELDS)
        found.append(_group(inner, pools, f"group-{position}", named=True))
        reading.faults += inner.faults
    if len({group.name for group in found}) != len(found):
        reading.fault("groups", "two groups have the same name")
    if sum(group.count for group in found) > MAX_TASKS:
        reading.fault("groups", f"a job has at most {MAX_TASKS} tasks")
    return tuple(found)


def _refuse_unknown(reading: Reading, allowed: Sequence[str]) -> None:
    known = sorted(allowed)
    unknown = (name for name in reading.payload if name not in allowed)
    for name in islice(unknown, MAX_UNKNOWN):
        reading.fault(str(name)[:80], "is not a field of this request", known)


def _priority(value: Any) -> str | int:
    if isinstance(value, str):
        return value
    return whole(0, 1_000_000)(value)


def read_job(payload: Any, pools: Mapping[str, Pool], *, where: str = "") -> JobSpec:
    """The payload as a JobSpec. ``pools``: by name, all that may be named. Raises Invalid with every fault found."""
    if not isinstance(payload, Mapping):
        raise Invalid.at(where.rstrip(".") or "body", "must be an object with the fields of a job", value=payload)
    reading = Reading(payload, where)
    _refuse_unknown(reading, JOB_FIELDS)
    chosen = _pools(reading, pools)
    top = Reading(payload, where)
    groups = _groups(reading, chosen)
    team = payload.get("team")
    if not isinstance(team, str) or not team:
        top.fault("team", "is required: the slug of the team that the job counts for")
    framework = reading.take("framework", short_text(32), "")
    spec = JobSpec(
        team=str(team),
        pools=chosen,
        name=reading.take("name", lambda value: checked_name(value, "name"), framework or "job"),
        groups=groups,
        command=reading.take("command", command_words, ()),
        environment=reading.take("environment", environment, {}),
        image=reading.take("image", short_text(500), ""),
        framework=framework,
        kind=reading.choice("kind", Job.Kind.values, Job.Kind.BATCH),
        priority=reading.take("priority", _priority, "normal"),
        preemptible=reading.take("preemptible", flag, True),
        time_limit_s=reading.take("time_limit", duration()),
        retries=reading.take("retries", whole(0, MAX_RETRIES), 0),
        min_runtime_s=reading.take("min_runtime", any_duration()),
        max_evictions=reading.take("max_evictions", whole(0, MAX_EVICTIONS)),
        after=reading.take("after", predecessors, ()),
        duration_ms=reading.take("duration", any_duration(1000)),
        exit_code=0 if reading.choice("exit", ("succeeded", "failed"), "succeeded") == "succeeded" else 1,
        **place_rules(reading, sum(group.min_count for group in groups)),
    )
    if spec.kind == Job.Kind.SERVICE and spec.retries:
        reading.fault("retries", "a service is started again however often it ends; retries are for other kinds")
    faults = top.faults + reading.faults
    if faults:
        raise Invalid(faults)
    return spec
