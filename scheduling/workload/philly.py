"""Microsoft's Philly trace in two forms: job rows per virtual cluster, and the Chronus resampling of it.

Source: github.com/msr-fiddle/philly-traces (CC-BY-4.0), Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters
for DNN Training Workloads", USENIX ATC 2019. Per virtual cluster: recovered from github.com/stanford-futuredata/gavel
(MIT). Chronus: github.com/S-Lab-System-Group/ChronusArtifact (MIT), Gao et al., SoCC 2021. How rows become records:

- A virtual cluster (vc) is a team, ``vc-<id>``. Its historical share is its nodes × 8 devices, from
  ``philly_vc_nodes.csv`` (github.com/S-Lab-System-Group/HeliosArtifact, MIT) where that lies beside; a vc that the file
  leaves out, or all of them without it, gets the nodes that its own jobs need (``nodes_needed``) and no share.
- ``num_gpu`` up to 8 is one task with that many whole devices. More is a gang of equal tasks, as few as can be, of at
  most 8 devices (``records.equal_tasks``): 16 is 2 × 8, 12 is 2 × 6, 20 is 4 × 5. The count is conserved exactly.
- ``num_gpu`` 0 (110 rows of the longer list, 184 of Chronus) is a CPU-only job, not a fault: the trace has such jobs.
  It asks for one core, an assumption.
- CPU and host memory are not recorded: a GPU job asks for none. Nodes: 8 devices of 24 GiB and 512 GiB as in the
  dataset's published example rows, 64 cores assumed.
- ``submit_s`` counts from the first job of *each* vc; the offsets between the vcs are lost, so all begin at 0.
  Chronus counts minutes from one start; seconds = minutes × 60. Its vc labels are random, so its teams are alike.
- Chronus job_type ``best`` (best effort) hints at priority low, ``strict`` (with a deadline) at normal. Deadlines,
  model names and iterations are not used. No row says how a job ended: all are taken as succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scheduling.core.units import MILLI_PER_DEVICE
from scheduling.workload.faults import Columns, Faults, FieldError, Row, records
from scheduling.workload.records import Seconds, TraceJob, TraceNode, TraceTeam, equal_tasks

SOURCE = "Microsoft Philly (CC-BY-4.0), Jeon et al., USENIX ATC 2019; rows per vc recovered from Gavel's traces (MIT)"
CHRONUS_SOURCE = "Microsoft Philly (CC-BY-4.0) as resampled by Chronus (MIT), Gao et al., SoCC 2021"
VC_COLUMNS = Columns(("vc", "seq", "submit_s", "num_gpu", "duration_s"))
VC_NODE_COLUMNS = Columns(("vc", "node num"))
CHRONUS_COLUMNS = Columns(
    ("job_id", "user", "num_gpu", "submit_time", "duration"),
    ("iterations", "model_name", "interval", "expect_time_list", "expect_value_list", "best_effort", "job_type"),
)
VC_LIST = "philly_vc_"
DEFAULT_WORKLOAD = "first2000"

DEVICES_PER_NODE = 8
MOST_DEVICES = 4096  # of one job; the trace has at most 128
MOST_NODES = 10_000  # of one vc
CPU_ONLY_MILLI = 1000
NODE_CPU_MILLI = 64_000
NODE_MEMORY_MIB = 512 * 1024
MODEL = "Philly-24G"
MODEL_MEMORY_MIB = 24 * 1024
SECONDS_PER_MINUTE = 60

NOTES = (
    "CPU and host memory are not recorded: GPU jobs ask for none, CPU-only jobs for one core.",
    "Nodes are taken to have 8 GPUs of 24 GiB, 64 cores and 512 GiB.",
)
VC_NOTE = "Submission times count from each virtual cluster's first job: the offsets between them are lost."
CHRONUS_NOTE = "The virtual clusters in this list are random labels: teams are alike."


@dataclass(slots=True)
class VcWork:
    """What a vc's jobs add up to. ``device_seconds`` over [first_s, last_s], its busiest single job in devices."""

    largest: int = 0
    device_seconds: Seconds = 0
    first_s: Seconds | None = None
    last_s: Seconds = 0

    def add(self, job: TraceJob) -> None:
        """Count ``job`` in."""
        devices = job.tasks * job.devices
        self.largest = max(self.largest, devices)
        self.device_seconds += devices * (job.duration_s or 0)
        self.first_s = job.submit_s if self.first_s is None else min(self.first_s, job.submit_s)
        self.last_s = max(self.last_s, job.submit_s + (job.duration_s or 0))

    def nodes_needed(self) -> int:
        """Nodes of 8 that hold its largest job and, on average over its span, all that it asks for; at least one."""
        span = self.last_s - (self.first_s or 0)
        average = -(-self.device_seconds // span) if span else 0
        return max(1, -(-max(self.largest, int(average)) // DEVICES_PER_NODE))


def read_vc_jobs(path: Path, faults: Faults) -> Iterator[TraceJob]:
    """The rows of a per-vc list as jobs, in file order; a (vc, seq) that comes again is malformed."""
    seen: set[str] = set()

    def parse(row: Row) -> TraceJob:
        return _vc_job(row, seen)

    return records(path, VC_COLUMNS, faults, parse)


def read_chronus_jobs(path: Path, faults: Faults) -> Iterator[TraceJob]:
    """The rows of a Chronus list as jobs, in file order; a job_id that comes again is malformed."""
    seen: set[str] = set()

    def parse(row: Row) -> TraceJob:
        return _chronus_job(row, seen)

    return records(path, CHRONUS_COLUMNS, faults, parse)


def read_vc_nodes(path: Path, faults: Faults) -> dict[str, int]:
    """Nodes by team name, from a list of ``vc,node num``."""
    nodes: dict[str, int] = {}

    def parse(row: Row) -> tuple[str, int]:
        team = team_name(row, "vc")
        if team in nodes:
            raise FieldError("vc", team, "named twice")
        return team, row.integer("node num", least=1, most=MOST_NODES)

    for team, count in records(path, VC_NODE_COLUMNS, faults, parse):
        nodes[team] = count
    return nodes


def fleet_of(work: dict[str, VcWork], given: dict[str, int]) -> tuple[TraceNode, ...]:
    """The nodes of all vcs that have jobs: as many as ``given`` says, else as many as their jobs need."""
    count = sum(given.get(team) or work[team].nodes_needed() for team in sorted(work))
    return tuple(
        TraceNode(
            f"philly-{number:04d}",
            NODE_CPU_MILLI,
            NODE_MEMORY_MIB,
            DEVICES_PER_NODE,
            MODEL,
            "nvidia",
            MODEL_MEMORY_MIB,
        )
        for number in range(count)
    )


def teams_of(teams: Iterable[str], given: dict[str, int]) -> tuple[TraceTeam, ...]:
    """The teams by name, with what they were given then where ``given`` tells."""
    return tuple(
        TraceTeam(name, name.removeprefix("vc-"), _share_milli(given.get(name))) for name in sorted(set(teams))
    )


def team_name(row: Row, field: str) -> str:
    """``vc-<id>`` from ``<id>`` or ``vc_<id>``. Raises FieldError where the id is not letters and digits."""
    label = row.word(field).removeprefix("vc_")
    if not (label.isascii() and label.isalnum()):
        raise FieldError(field, label, "not the id of a virtual cluster (letters and digits)")
    return f"vc-{label.lower()}"


def _share_milli(nodes: int | None) -> int | None:
    return None if nodes is None else nodes * DEVICES_PER_NODE * MILLI_PER_DEVICE


def _vc_job(row: Row, seen: set[str]) -> TraceJob:
    team = team_name(row, "vc")
    name = f"{team}-{row.integer('seq'):05d}"
    if name in seen:
        raise FieldError("seq", row.values["seq"], f"{team} has this number twice")
    job = _job(row, name, team, row.seconds("submit_s"), row.seconds("duration_s"), "normal")
    seen.add(name)
    return job


def _chronus_job(row: Row, seen: set[str]) -> TraceJob:
    team = team_name(row, "user")
    name = f"chronus-{row.integer('job_id'):05d}"
    if name in seen:
        raise FieldError("job_id", row.values["job_id"], "named twice")
    submit_s = row.seconds("submit_time") * SECONDS_PER_MINUTE
    duration_s = row.seconds("duration") * SECONDS_PER_MINUTE
    best_effort = "job_type" in row.values and row.one_of("job_type", ("strict", "best")) == "best"
    job = _job(row, name, team, submit_s, duration_s, "low" if best_effort else "normal")
    seen.add(name)
    return job


def _job(row: Row, name: str, team: str, submit_s: Seconds, duration_s: Seconds, priority_class: str) -> TraceJob:
    gpus = row.integer("num_gpu", most=MOST_DEVICES)
    tasks, devices = equal_tasks(gpus, DEVICES_PER_NODE) if gpus else (1, 0)
    return TraceJob(
        name=name,
        team=team,
        submit_s=submit_s,
        duration_s=duration_s,
        tasks=tasks,
        devices=devices,
        gpu_milli=MILLI_PER_DEVICE if gpus else 0,
        cpu_milli=0 if gpus else CPU_ONLY_MILLI,
        memory_mib=0,
        priority_class=priority_class,
    )
