"""The Alibaba GPU-sharing trace of 2023 ("openb"): a node list and lists of pods.

Source: github.com/alibaba/clusterdata, cluster-trace-gpu-v2023; Weng et al., "Beware of Fragmentation", USENIX ATC
2023. How its columns become records:

- A pod is a job of one task. ``num_gpu`` 0 is CPU-only; otherwise each of ``num_gpu`` devices gives ``gpu_milli``.
  The milli value is kept as recorded (810 stays 810), whether or not it lies on a pool's sharing step.
- There is no user, team or priority. ``qos`` is the only class label: it becomes the team (``ls``, ``be``,
  ``burstable``, ``guaranteed``) and hints at the priority class (LS and Guaranteed high, Burstable normal, BE low).
  Lists without that column (multigpu*) have the one team ``pods``.
- ``submit_s`` is creation_time. The duration is deletion_time − scheduled_time; for a pod that was never scheduled it
  is deletion_time − creation_time (how long it was wanted). A pod whose deletion is not recorded has no duration.
  A pod deleted or scheduled before it was created, or deleted before it was scheduled, is malformed.
- ``pod_phase`` Failed gives exit ``failed``; every other phase ``succeeded``.
- Lists without times: every job is submitted at 0 and its duration is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scheduling.core.units import MILLI_PER_DEVICE
from scheduling.workload.faults import Columns, Faults, FieldError, Row, is_word, records
from scheduling.workload.records import Exit, Seconds, TraceJob, TraceNode, TraceTeam

SOURCE = (
    "Alibaba cluster-trace-gpu-v2023 (github.com/alibaba/clusterdata), for research and study; "
    "Weng et al., Beware of Fragmentation, USENIX ATC 2023"
)
NODE_COLUMNS = Columns(("sn", "cpu_milli", "memory_mib", "gpu", "model"))
POD_COLUMNS = Columns(
    ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"),
    ("gpu_spec", "qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time"),
)
NODE_LISTS = ("openb_node_list_gpu_node", "openb_node_list_all_node")  # in order of preference
POD_LIST = "openb_pod_list_"
DEFAULT_WORKLOAD = "default"

MOST_DEVICES = 64  # of one node; the trace has at most 8
ONE_TEAM = "pods"
PRIORITY_BY_QOS = {"LS": "high", "Guaranteed": "high", "Burstable": "normal", "BE": "low"}
PHASES = ("Running", "Succeeded", "Failed", "Pending")

# Memory by the trace's model names. G1, G2 and G3 are not disclosed: their sizes are assumptions. Nothing in the trace
# asks for GPU memory, so no decision of a replay depends on them.
MEMORY_MIB = {
    "P100": 16384,
    "T4": 16384,
    "V100M16": 16384,
    "V100M32": 32768,
    "A10": 24576,
    "G1": 16384,
    "G2": 24576,
    "G3": 81920,
}
UNKNOWN_MEMORY_MIB = 16384
NOTES = (
    "qos is the only class label in this trace: it stands for the team and for the priority class.",
    "G1, G2 and G3 are undisclosed models: 16, 24 and 80 GiB are assumed. No pod asks for GPU memory.",
)


def read_nodes(path: Path, faults: Faults) -> tuple[TraceNode, ...]:
    """The node list at ``path``, sorted by name; a name that comes again is malformed."""
    seen: set[str] = set()

    def parse(row: Row) -> TraceNode:
        return _node(row, seen)

    return tuple(sorted(records(path, NODE_COLUMNS, faults, parse), key=lambda node: node.name))


def read_jobs(path: Path, faults: Faults) -> Iterator[TraceJob]:
    """The pods of ``path`` as jobs, in file order; a name that comes again is malformed."""
    seen: set[str] = set()

    def parse(row: Row) -> TraceJob:
        return _job(row, seen)

    return records(path, POD_COLUMNS, faults, parse)


def teams_of(jobs: tuple[TraceJob, ...]) -> tuple[TraceTeam, ...]:
    """One team per class label that occurs in ``jobs``, by name. What it was given then is not known."""
    labels = {qos.lower(): qos for qos in PRIORITY_BY_QOS}
    return tuple(TraceTeam(name, labels.get(name, name)) for name in sorted({job.team for job in jobs}))


def _node(row: Row, seen: set[str]) -> TraceNode:
    name = _new_name(row, "sn", seen)
    cpu_milli = row.integer("cpu_milli", least=1)
    memory_mib = row.integer("memory_mib", least=1)
    devices = row.integer("gpu", most=MOST_DEVICES)
    model = row.word("model") if devices else ""
    seen.add(name)
    if not devices:
        return TraceNode(name, cpu_milli, memory_mib, 0)
    return TraceNode(name, cpu_milli, memory_mib, devices, model, "nvidia", MEMORY_MIB.get(model, UNKNOWN_MEMORY_MIB))


def _job(row: Row, seen: set[str]) -> TraceJob:
    name = _new_name(row, "name", seen)
    devices = row.integer("num_gpu", most=MOST_DEVICES)
    qos = row.one_of("qos", tuple(PRIORITY_BY_QOS)) if "qos" in row.values else ""
    submit_s, duration_s = _times(row)
    job = TraceJob(
        name=name,
        team=qos.lower() or ONE_TEAM,
        submit_s=submit_s,
        duration_s=duration_s,
        tasks=1,
        devices=devices,
        gpu_milli=row.integer("gpu_milli", least=1 if devices else 0, most=MILLI_PER_DEVICE if devices else 0),
        cpu_milli=row.integer("cpu_milli"),
        memory_mib=row.integer("memory_mib"),
        models=_models(row),
        priority_class=PRIORITY_BY_QOS.get(qos, "normal"),
        exit=_exit(row),
    )
    seen.add(name)
    return job


def _new_name(row: Row, field: str, seen: set[str]) -> str:
    name = row.word(field)
    if name in seen:
        raise FieldError(field, name, "named twice")
    return name


def _models(row: Row) -> tuple[str, ...]:
    names = {name.strip() for name in row.values.get("gpu_spec", "").split("|")} - {""}
    if not all(is_word(name) for name in names):
        raise FieldError("gpu_spec", row.values["gpu_spec"], "not names of models with | between them")
    return tuple(sorted(names))


def _exit(row: Row) -> Exit:
    if "pod_phase" not in row.values:
        return "succeeded"
    return "failed" if row.one_of("pod_phase", PHASES) == "Failed" else "succeeded"


def _times(row: Row) -> tuple[Seconds, Seconds | None]:
    """(submit_s, duration_s) as the module's text says."""
    created = row.seconds("creation_time") if "creation_time" in row.values else 0
    scheduled = row.seconds_or_none("scheduled_time")
    deleted = row.seconds_or_none("deletion_time")
    if scheduled is not None and scheduled < created:
        raise FieldError("scheduled_time", row.values["scheduled_time"], "before the creation")
    begun = created if scheduled is None else scheduled
    if deleted is None:
        return created, None
    if deleted < begun:
        raise FieldError("deletion_time", row.values["deletion_time"], "before the start")
    return created, deleted - begun
