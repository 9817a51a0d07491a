"""Writes small trace files in the formats of the public ones."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

POD_HEADER = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
)
NODE_HEADER = "sn,cpu_milli,memory_mib,gpu,model"
VC_HEADER = "vc,seq,submit_s,num_gpu,duration_s"
CHRONUS_HEADER = (
    "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,expect_value_list,"
    "best_effort,job_type"
)
NODES = ("n-0,64000,262144,2,P100", "n-1,96000,393216,8,G2", "n-2,32000,131072,0,")
GOOD_POD = "pod-0,12000,16384,1,460,,LS,Running,10,110,20"


def write(path: Path, header: str, rows: Iterable[str]) -> Path:
    """A CSV file (compressed if its name ends in .gz) with this header and these rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join([header, *rows]) + "\n"
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def alibaba(folder: Path, pods: Iterable[str], *, header: str = POD_HEADER, name: str = "default") -> Path:
    """The folder of an Alibaba trace with NODES and these pods; returns the pod list's path."""
    write(folder / "openb_node_list_gpu_node.csv", NODE_HEADER, NODES)
    return write(folder / f"openb_pod_list_{name}.csv", header, pods)
