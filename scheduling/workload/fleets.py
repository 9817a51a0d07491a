"""The demo's fleet: a thousand accelerators of five makers in two zones, and some CPU nodes. The same every time.

A node's CPU and memory per device follow what was measured (``figures.ALIBABA_NODES``): 12 cores and 96 GiB on nodes
of eight, 16 cores for the newest (as its G3), 24 cores and 96 GiB on T4 nodes of four; CPU nodes as its most frequent
large ones, 96 cores with 512 GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.workload.accelerators import ACCELERATOR_MODELS, BY_NAME
from scheduling.workload.records import TraceNode

__all__ = ["ACCELERATOR_MODELS", "demo_fleet"]

MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True)
class Batch:
    """Nodes that were bought together: alike, side by side in racks of ``per_rack``, all in one zone."""

    prefix: str
    model: str  # "" = CPU nodes
    nodes: int
    devices: int
    cores: int
    memory_gib: int
    zone: str
    per_rack: int = 4
    arch: str = "amd64"


BATCHES = (
    Batch("h100", "H100-80G", 20, 8, 128, 768, "a"),
    Batch("a100", "A100-80G", 24, 8, 96, 768, "a"),
    Batch("mi300x", "MI300X-192G", 10, 8, 128, 768, "a"),
    Batch("ascend", "Ascend-910B-64G", 20, 8, 96, 768, "b", arch="arm64"),
    Batch("p800", "Kunlun-P800-96G", 10, 8, 96, 768, "b"),
    Batch("k100", "K100-AI-64G", 5, 8, 96, 768, "b"),
    Batch("v100", "V100-32G", 16, 8, 96, 768, "b"),
    Batch("t4", "T4-16G", 40, 4, 96, 384, "b", per_rack=8),
    Batch("cpu", "", 12, 0, 96, 512, "a", per_rack=12),
)


def demo_fleet() -> tuple[TraceNode, ...]:
    """1,000 devices of eight models on 145 nodes, and 12 CPU nodes, sorted by name.

    Labels: ``zone``, ``rack`` (of one zone and one model), ``arch``.
    """
    nodes = [_node(batch, index) for batch in BATCHES for index in range(batch.nodes)]
    return tuple(sorted(nodes, key=lambda node: node.name))


def _node(batch: Batch, index: int) -> TraceNode:
    accelerator = BY_NAME.get(batch.model)
    return TraceNode(
        name=f"{batch.prefix}-{index:02d}",
        cpu_milli=batch.cores * 1000,
        host_memory_mib=batch.memory_gib * MIB_PER_GIB,
        devices=batch.devices,
        model=batch.model,
        vendor=accelerator.vendor if accelerator else "",
        device_memory_mib=accelerator.memory_mib if accelerator else 0,
        labels=_labels(batch, index),
    )


def _labels(batch: Batch, index: int) -> tuple[tuple[str, str], ...]:
    rack = f"{batch.zone}-{batch.prefix}-{index // batch.per_rack + 1}"
    return (("arch", batch.arch), ("rack", rack), ("zone", batch.zone))
