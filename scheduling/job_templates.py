"""Ready forms for the common frameworks: a command's shape, its environment and sensible resources to begin with.

Engines set ``RANK`` and ``WORLD_SIZE`` for each task; a launcher that starts one process per GPU needs no more on one
node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """``values`` are fields of the form as text, by the names that the API has for them."""

    key: str
    label: str | Promise
    icon: str
    summary: str | Promise
    values: Mapping[str, str]


TEMPLATES = (
    JobTemplate(
        "command",
        _("Command"),
        "terminal-2",
        _("Any program on a slice of a GPU"),
        {"command": "python3 -c \"print('hello')\"", "gpus": "0.5", "tasks": "1", "name": "hello"},
    ),
    JobTemplate(
        "pytorch",
        _("PyTorch DDP"),
        "flame",
        _("torchrun, one process per GPU"),
        {
            "framework": "pytorch",
            "command": "torchrun --standalone --nproc-per-node=4 train.py",
            "gpus": "4",
            "tasks": "1",
            "cpu": "32",
            "memory_gib": "128",
            "name": "pytorch-ddp",
            "environment": "OMP_NUM_THREADS=8\nNCCL_DEBUG=WARN",
        },
    ),
    JobTemplate(
        "pytorch-nodes",
        _("PyTorch, several nodes"),
        "network",
        _("A gang of 2 × 8 GPUs"),
        {
            "framework": "pytorch",
            "command": (
                "bash -c 'exec torchrun --nnodes=$WORLD_SIZE --node-rank=$RANK --nproc-per-node=8 "
                "--master-addr=$MASTER_ADDR --master-port=$MASTER_PORT train.py'"
            ),
            "gpus": "8",
            "tasks": "2",
            "cpu": "64",
            "memory_gib": "512",
            "name": "pytorch-nodes",
            "environment": "MASTER_ADDR=address-of-the-first-node\nMASTER_PORT=29500\nOMP_NUM_THREADS=8",
        },
    ),
    JobTemplate(
        "tensorflow",
        _("TensorFlow"),
        "chart-dots",
        _("MirroredStrategy on one node"),
        {
            "framework": "tensorflow",
            "command": "python3 train.py",
            "gpus": "2",
            "tasks": "1",
            "cpu": "16",
            "memory_gib": "64",
            "name": "tensorflow",
            "environment": "TF_FORCE_GPU_ALLOW_GROWTH=true\nTF_CPP_MIN_LOG_LEVEL=1",
        },
    ),
    JobTemplate(
        "jax",
        _("JAX"),
        "bolt",
        _("All GPUs of one node"),
        {
            "framework": "jax",
            "command": "python3 train.py",
            "gpus": "8",
            "tasks": "1",
            "cpu": "64",
            "memory_gib": "256",
            "name": "jax",
            "environment": "XLA_PYTHON_CLIENT_MEM_FRACTION=0.9",
        },
    ),
    JobTemplate(
        "mindspore",
        _("MindSpore"),
        "topology-star",
        _("msrun on eight Ascend NPUs"),
        {
            "framework": "mindspore",
            "command": "msrun --worker_num=8 --local_worker_num=8 --master_port=8118 --join=True train.py",
            "gpus": "8",
            "tasks": "1",
            "cpu": "64",
            "memory_gib": "512",
            "vendor": "ascend",
            "name": "mindspore",
            "environment": "GLOG_v=2",
        },
    ),
    JobTemplate(
        "paddle",
        _("PaddlePaddle"),
        "rocket",
        _("paddle.distributed.launch"),
        {
            "framework": "paddlepaddle",
            "command": "python3 -m paddle.distributed.launch --nproc_per_node=4 train.py",
            "gpus": "4",
            "tasks": "1",
            "cpu": "32",
            "memory_gib": "128",
            "name": "paddle",
            "environment": "FLAGS_fraction_of_gpu_memory_to_use=0.9",
        },
    ),
    JobTemplate(
        "notebook",
        _("Notebook"),
        "notes",
        _("A quarter of a GPU for a day's work"),
        {
            "framework": "notebook",
            "kind": "interactive",
            "command": "jupyter lab --ip=127.0.0.1 --no-browser",
            "gpus": "0.25",
            "tasks": "1",
            "cpu": "4",
            "memory_gib": "16",
            "time_limit": "8h",
            "name": "notebook",
        },
    ),
)
BY_KEY: Mapping[str, JobTemplate] = {template.key: template for template in TEMPLATES}
