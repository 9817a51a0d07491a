"""Every "no" the core can say: its code, the numbers that it must carry, and the sentence for people.

Numbers are in the pool's unit (milli-GPU, or milli-cores in a CPU pool) unless their name says otherwise. The same
object feeds REST, pages and the ledger; ``message`` is the only place that turns it into text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Literal

from scheduling.core.model import Reason
from scheduling.core.reasons_of_place import also_kept_away, kept_away_sentence, place_sentence
from scheduling.core.units import MILLI_PER_DEVICE, format_gpus

Unit = Literal["gpu", "cpu"]
Numbers = Mapping[str, Any]

_UNIT_NAMES: Mapping[Unit, tuple[str, str]] = {"gpu": ("GPU", "GPUs"), "cpu": ("core", "cores")}


@dataclass(frozen=True, slots=True)
class ReasonKind:
    """One code: the numbers without which it may not be given, and how it reads."""

    code: str
    needs: frozenset[str]
    sentence: Callable[[Numbers, Unit], str]


def reason(
    code: str, numbers: Numbers, *, pool_id: int | None = None, helps: Mapping[str, object] | None = None
) -> Reason:
    """A Reason of a known code with all its numbers; raises ValueError where one is missing."""
    missing = sorted(REASONS[code].needs - numbers.keys()) if code in REASONS else [f"the code {code!r} itself"]
    if missing:
        raise ValueError(f"reason {code} lacks {', '.join(missing)}")
    return Reason(code, numbers, pool_id, helps)


def held_reason(code: str | None, numbers: Numbers) -> Reason:
    """Why a job is passed over, as the snapshot tells it. An unknown code, or one without its numbers, is ``held``."""
    kind = REASONS.get(code or "held")
    if kind is None or not kind.needs <= numbers.keys():
        return Reason("held", {"by": code or "held", **numbers})
    return Reason(kind.code, numbers)


def message(reason: Reason, unit: Unit = "gpu") -> str:
    """The reason in plain English, with its numbers as people write them; ``unit`` is that of the reason's pool."""
    numbers = reason.numbers
    return REASONS[reason.code].sentence(numbers, unit) + _freeable(numbers, unit) + _kept(numbers)


# ---- quantities in words ---------------------------------------------------------------------------------------------


def _amount(milli: int, unit: Unit) -> str:
    one, many = _UNIT_NAMES[unit]
    return f"{format_gpus(milli)} {one if 0 < milli <= MILLI_PER_DEVICE else many}"


def _freeable(n: Numbers, unit: Unit) -> str:
    """Of a job that is entitled to make others give way, where that is not enough."""
    if "freeable_milli" not in n:
        return ""
    spared = n.get("spared_milli")
    also = f", {format_gpus(spared)} held by jobs that gave way as often as they may be made to" if spared else ""
    return f"; {_amount(n['needed_milli'], unit)} needed, at most {format_gpus(n['freeable_milli'])} can be freed{also}"


def moment(microseconds: int) -> str:
    """A moment as numbers tell it: ISO 8601, UTC, exact to the microsecond where it must be."""
    whole = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    return whole.isoformat().replace("+00:00", "Z")


def _kept(n: Numbers) -> str:
    """Of a job that has a reservation whose moment is known."""
    if n.get("kept_until") is None:
        return ""
    return f"; room is kept for it, free at the latest by {n['kept_until'][:16].replace('T', ' ')} UTC"


def _are_free(milli: int, unit: Unit) -> str:
    return f"{_amount(milli, unit)} {'is' if 0 < milli <= MILLI_PER_DEVICE else 'are'} free in all"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _list(names: Sequence[object]) -> str:
    words = [str(name) for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "nobody"


# ---- quota -----------------------------------------------------------------------------------------------------------


def _over_limit(n: Numbers, unit: Unit) -> str:
    team, pool, limit, allocated = n["team"], n["pool"], n["limit"], n["allocated"]
    use = f"{format_gpus(allocated)} of {_amount(limit, unit)} in use"
    needs = f"this job needs {format_gpus(n['requested'])}"
    if limit == 0:
        return f"{team} has limit 0 in {pool}: {needs}"
    if allocated > limit:
        return f"{team} is over its limit in {pool}: {use}, over by {format_gpus(allocated - limit)}; {needs}"
    if allocated == limit:
        return f"{team} is at its limit in {pool}: {use}, {needs}"
    return f"{team} would pass its limit in {pool}: {use}, {needs}"


def _over_memory_limit(n: Numbers, unit: Unit) -> str:
    team, pool, limit, allocated = n["team"], n["pool"], n["limit_mib"], n["allocated_mib"]
    use = f"{allocated} of {limit} MiB in use"
    needs = f"this job needs {n['requested_mib']} MiB"
    if limit == 0:
        return f"{team} has limit 0 of GPU memory in {pool}: {needs}"
    if allocated > limit:
        return f"{team} is over its limit of GPU memory in {pool}: {use}, over by {allocated - limit} MiB; {needs}"
    verb = "is at" if allocated == limit else "would pass"
    return f"{team} {verb} its limit of GPU memory in {pool}: {use}, {needs}"


def _over_user_limit(n: Numbers, unit: Unit) -> str:
    return (
        f"one member of {n['team']} may hold {_amount(n['limit'], unit)} in {n['pool']}: "
        f"{format_gpus(n['allocated'])} in use by this one, this job needs {format_gpus(n['requested'])}"
    )


def _class_cap(n: Numbers, unit: Unit) -> str:
    if "limit_milli" in n:
        return (
            f"jobs of class {n['priority_class']} may hold {_amount(n['limit_milli'], 'gpu')} in {n['team']}: "
            f"{format_gpus(n['in_use_milli'])} in use, this job needs {format_gpus(n['requested_milli'])}"
        )
    jobs = _count(n["limit"], "job", "jobs")
    return f"{n['team']} may run {jobs} of class {n['priority_class']} at a time: {n['running']} running"


def _over_share(n: Numbers, unit: Unit) -> str:
    needs = f"this job needs {format_gpus(n['requested'])}"
    if "reserved" in n:
        others = f"{format_gpus(n['reserved'])} of {format_gpus(n['free'])} free {_UNIT_NAMES[unit][1]}"
        return f"{others} in {n['pool']} stay reserved for {_list(n['reserved_for'])}: {needs}"
    return (
        f"a job that cannot be preempted must stay inside the guarantee of {n['team']} in {n['pool']}: "
        f"{format_gpus(n['allocated'])} of {_amount(n['guaranteed'], unit)} in use, {needs}"
    )


# ---- room ------------------------------------------------------------------------------------------------------------


def _no_fit(n: Numbers, unit: Unit) -> str:
    return _why_no_room(n, unit) + _out_of_service(n) + also_kept_away(n)


def _why_no_room(n: Numbers, unit: Unit) -> str:
    if n["matching_nodes"] == 0 and "taints" in n:
        return kept_away_sentence(n)
    if n["matching_nodes"] == 0:
        return f"no node of {n['pool']} carries {_labels(n)}"
    if n["possible_nodes"] == 0:
        return f"no node of {n['pool']} is large enough for {_task(n)}, even when empty"
    if n["short"] is None:
        return f"no node of {n['pool']} that matches takes new tasks"
    return _SHORT[n["short"]](n, unit)


def _full(n: Numbers) -> str:
    if n["models"] or n["vendors"] or n["min_device_memory_mib"] or n["node_selector"]:
        return f"no GPU in {n['pool']} that matches is free"
    return f"{n['pool']} is full: no GPU is free"


def _short_of_compute(n: Numbers, unit: Unit) -> str:
    if n["free"] == 0:
        return _full(n)
    in_all = f"{_are_free(n['free'], 'gpu')}, the largest free piece is {format_gpus(n['largest_piece'])}"
    wanted = n.get("granted_milli", n["compute"])
    if wanted is None:
        return f"no single GPU has enough compute free beside {n['memory_mib']} MiB: {in_all}"
    if wanted == MILLI_PER_DEVICE:
        return f"no GPU is entirely free: {in_all}{_rounding(n)}"
    return f"no single GPU has {format_gpus(wanted)} free: {in_all}{_rounding(n)}"


def _short_of_devices(n: Numbers, unit: Unit) -> str:
    devices = n["devices"]
    if n["free"] == 0:
        return _full(n)
    whole = n.get("granted_milli", n["compute"]) == MILLI_PER_DEVICE
    what = f"{devices} entirely free GPUs" if whole else f"{devices} GPUs with {_slice(n)} free on each"
    seen = f"at most {n['most_devices']} in one node"
    entirely = f", {n['free_devices']} entirely free in all" if whole else ""
    return f"no node has {what}: {seen}{entirely}{_rounding(n)}"


def _short_of_device_memory(n: Numbers, unit: Unit) -> str:
    wanted = n.get("granted_mib", n["memory_mib"])
    if wanted is None:
        what = f"{format_gpus(n['compute'])} of its memory"
    else:
        what = f"{wanted} MiB"
    each = "GPU has" if n["devices"] == 1 else f"node has {n['devices']} GPUs, each with"
    largest = f"the largest free memory of one GPU is {n['largest_free_memory_mib']} MiB"
    return f"no {each} {what} free: {largest}{_rounding(n)}"


def _short_of_cpu(n: Numbers, unit: Unit) -> str:
    if n["free_cpu_milli"] == 0:
        return f"{n['pool']} is full: no core is free"
    where = "node with room on its GPUs" if n["devices"] else "node"
    return (
        f"no {where} has {_amount(n['cpu_milli'], 'cpu')} free: {_are_free(n['free_cpu_milli'], 'cpu')}, "
        f"the most on one node is {format_gpus(n['largest_free_cpu_milli'])}"
    )


def _short_of_host_memory(n: Numbers, unit: Unit) -> str:
    where = "node with room on its GPUs and CPU" if n["devices"] else "node with room on its CPU"
    return (
        f"no {where} has {n['host_memory_mib']} MiB of memory free: "
        f"the most on one node is {n['largest_free_host_memory_mib']} MiB"
    )


def _short_of_sharing(n: Numbers, unit: Unit) -> str:
    return (
        f"the GPUs with room are held by tasks that share with nobody or only inside their team: "
        f"{_are_free(n['free'], 'gpu')}, {n['free_devices']} entirely"
    )


_SHORT: Mapping[str, Callable[[Numbers, Unit], str]] = {
    "compute": _short_of_compute,
    "devices": _short_of_devices,
    "device_memory": _short_of_device_memory,
    "cpu": _short_of_cpu,
    "host_memory": _short_of_host_memory,
    "sharing": _short_of_sharing,
}


def _gang_incomplete(n: Numbers, unit: Unit) -> str:
    if "level" in n:
        return f"{place_sentence(n)}{_out_of_service(n)}"
    free = _are_free(n["free"], "gpu" if n["devices"] else "cpu")
    if n["needed"] == 1:
        return f"one more task has no room: {free}{_out_of_service(n)}"
    return f"{n['needed']} tasks must start together and there is room for {n['fitting']}: {free}{_out_of_service(n)}"


def _no_matching_accelerator(n: Numbers, unit: Unit) -> str:
    if n.get("whole_only"):
        return f"no accelerator in {n['pool']} can be cut as asked: {_list(n['whole_only'])} is given whole only"
    if "taints" in n:
        return kept_away_sentence(n)
    wishes = []
    if n["models"]:
        wishes.append(f"model {' or '.join(n['models'])}")
    if n["vendors"]:
        wishes.append(f"vendor {' or '.join(n['vendors'])}")
    if n["min_device_memory_mib"]:
        wishes.append(f"at least {n['min_device_memory_mib']} MiB")
    if n["node_selector"]:
        wishes.append(f"a node with {_labels(n)}")
    return f"no accelerator in {n['pool']} matches: {', '.join(wishes) or 'it has none'}"


def _labels(n: Numbers) -> str:
    return _list([f"{key}={value}" for key, value in n["node_selector"]])


def _rounding(n: Numbers) -> str:
    """Of slices that the models here make larger than what is asked for."""
    if "granted_milli" not in n:
        return ""
    asked = f"{n['memory_mib']} MiB" if n["compute"] is None else format_gpus(n["compute"])
    if n["granted_milli"] == MILLI_PER_DEVICE:
        return f" ({asked} is given as a whole GPU here)"
    return f" ({asked} is given as {format_gpus(n['granted_milli'])} and {n['granted_mib']} MiB here)"


def _slice(n: Numbers) -> str:
    if "granted_milli" in n:
        return format_gpus(n["granted_milli"])
    return f"{n['memory_mib']} MiB" if n["compute"] is None else format_gpus(n["compute"])


def _task(n: Numbers) -> str:
    devices, compute, memory = n["devices"], n["compute"], n["memory_mib"]
    parts = []
    if devices and (compute == MILLI_PER_DEVICE or (devices == 1 and compute is not None)):
        parts.append(_amount(devices * compute, "gpu"))
    elif devices:
        parts.append(f"{_count(devices, 'GPU', 'GPUs')} with {_slice(n)} of each")
    if devices and memory and compute is not None:
        parts.append(f"{memory} MiB on each GPU")
    if n["cpu_milli"]:
        parts.append(_amount(n["cpu_milli"], "cpu"))
    if n["host_memory_mib"]:
        parts.append(f"{n['host_memory_mib']} MiB of memory")
    return _list(parts) if parts else "a task"


def _out_of_service(n: Numbers) -> str:
    cordoned = n["cordoned_nodes"]
    if not cordoned:
        return ""
    return f"; {_count(cordoned, 'node that matches is', 'nodes that match are')} cordoned or not ready"


# ---- everything else -------------------------------------------------------------------------------------------------


def _reserved_for(n: Numbers, unit: Unit) -> str:
    return f"the room in {n['pool']} is kept for job {n['job']}, which comes first"


_HOLDERS: Mapping[object, str] = {
    "owner": "held by its owner",
    "operator": "held by an operator",
    "dependency": "held until the jobs that it comes after have succeeded",
}


def _held(n: Numbers, unit: Unit) -> str:
    """``after``: the jobs that must succeed first, each an id or {job, name or None, state if it can never succeed}."""
    if n.get("after"):
        waits = f"waits for {_count(len(n['after']), 'job', 'jobs')} to succeed: "
        return waits + _list([_predecessor(each) for each in n["after"]]) + _never(n["after"])
    by = n.get("by", "held")
    return "held" if by == "held" else _HOLDERS.get(by, f"held: {by}")


def _predecessor(each: Any) -> str:
    if not isinstance(each, Mapping):
        return str(each)
    return f"{each['name']} ({each['job']})" if each["name"] else str(each["job"])


def _never(after: Sequence[Any]) -> str:
    """Of those that ended without success, in whose place nothing comes by itself."""
    ended = [each for each in after if isinstance(each, Mapping) and each.get("state")]
    if not ended:
        return ""
    how = {"failed": "failed", "cancelled": "was cancelled"}
    which = [how[each["state"]] if len(after) == 1 else f"{_predecessor(each)} {how[each['state']]}" for each in ended]
    told = f", which {which[0]}" if len(after) == 1 else f"; {_list(which)}"
    return f"{told}: it never starts by itself, release it to start it all the same, or cancel it"


def _crash_loop(n: Numbers, unit: Unit) -> str:
    how = f"exit code {n['exit_code']}" if n["exit_code"] is not None else n["ended"] or "no exit code"
    times = f"{n['in_a_row']} times in a row soon after its start" if n["in_a_row"] > 1 else "by itself"
    others = f", as did {_count(n['replicas'] - 1, 'other', 'others')}" if n["replicas"] > 1 else ""
    moment = str(n["next_try"]).replace("T", " ").replace("+00:00", " UTC")
    return f"a replica ended {times} ({how}){others}: it is started again at {moment}"


def _budget_spent(n: Numbers, unit: Unit) -> str:
    return f"the budget of {n['team']} is spent: {n['spent']} of {n['budget']}"


def _pool_unavailable(n: Numbers, unit: Unit) -> str:
    return f"pool {n['pool']} takes no new jobs: its engine is out of reach or the operator paused it"


def _waiting_for_preemption(n: Numbers, unit: Unit) -> str:
    jobs = n["jobs"]
    gone = "has stopped" if len(jobs) == 1 else "have stopped"
    return f"waits until {_count(len(jobs), 'job that gives', 'jobs that give')} way {gone}: {_list(jobs)}"


def _next_cycle(n: Numbers, unit: Unit) -> str:
    if "max_starts" in n:
        return f"next in line: one cycle starts at most {_count(n['max_starts'], 'job', 'jobs')}"
    return "next in line: there is room for it now, it is tried again in the next cycle"


_ROOM = frozenset({"pool", "free", "cordoned_nodes"})
_REQUEST = frozenset({"devices", "compute", "memory_mib", "cpu_milli", "host_memory_mib"})
_WISHES = frozenset({"models", "vendors", "min_device_memory_mib", "node_selector"})
_HEADROOM = frozenset(
    {"matching_nodes", "possible_nodes", "largest_piece", "free_devices", "most_devices", "largest_free_memory_mib"}
    | {"free_cpu_milli", "largest_free_cpu_milli", "largest_free_host_memory_mib", "short"}
)
_QUOTA = frozenset({"team", "pool", "allocated", "requested"})

_MEMORY_QUOTA = frozenset({"team", "pool", "limit_mib", "allocated_mib", "requested_mib"})

_KINDS = (
    ReasonKind("over_limit", _QUOTA | {"limit"}, _over_limit),
    ReasonKind("over_user_limit", _QUOTA | {"limit", "user"}, _over_user_limit),
    ReasonKind("over_share", _QUOTA | {"guaranteed"}, _over_share),
    ReasonKind("over_memory_limit", _MEMORY_QUOTA, _over_memory_limit),
    ReasonKind("class_cap", frozenset({"team", "priority_class"}), _class_cap),
    ReasonKind("no_fit", _ROOM | _REQUEST | _WISHES | _HEADROOM, _no_fit),
    ReasonKind("no_matching_accelerator", _WISHES | {"pool"}, _no_matching_accelerator),
    ReasonKind("gang_incomplete", _ROOM | {"devices", "needed", "fitting"}, _gang_incomplete),
    ReasonKind("reserved_for", frozenset({"pool", "job"}), _reserved_for),
    ReasonKind("held", frozenset(), _held),
    ReasonKind("crash_loop", frozenset({"replicas", "in_a_row", "exit_code", "ended", "next_try"}), _crash_loop),
    ReasonKind("budget_spent", frozenset({"team", "budget", "spent"}), _budget_spent),
    ReasonKind("pool_unavailable", frozenset({"pool"}), _pool_unavailable),
    ReasonKind("waiting_for_preemption", frozenset({"jobs"}), _waiting_for_preemption),
    ReasonKind("next_cycle", frozenset(), _next_cycle),
)
REASONS: Mapping[str, ReasonKind] = MappingProxyType({kind.code: kind for kind in _KINDS})
