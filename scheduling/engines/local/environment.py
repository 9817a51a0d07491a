"""What a task's command finds in its environment: a clean base, what its job set, what Allotment tells it.

========================================  =======================================================================
``PATH``                                  the server's, without its own virtual environment; then the usual places
``HOME``, ``PWD``                         the task's working folder
``LANG``                                  ``C.UTF-8``
``PYTHONUNBUFFERED``                      ``1``: a log that is followed shows lines when they are printed
``INHERITED`` names                       as the server has them: where CUDA, MPS and time zones are found
the job's own                             as the job says; they may take the place of all of the above
``ALLOTMENT_JOB_ID``, ``…_TASK_INDEX``    numbers; the index from 0
``ALLOTMENT_TASKS``, ``…_TEAM``           how many tasks the job has; the team's name
``ALLOTMENT_TASK_FOLDER``                 by this its processes are found again, should their supervisor die
``RANK``, ``WORLD_SIZE``                  as torch.distributed wants them: the index and the number of tasks
``CUDA_VISIBLE_DEVICES``                  UUIDs of its NVIDIA devices; empty for a task without, where there are some
``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE``     only for a part of a device: its share of the compute
``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT``      only for a part of a device: its memory, by position in the list above
``ALLOTMENT_PRETEND_DEVICES``             indices of its pretend devices; then none of the CUDA variables is set
========================================  =======================================================================

Nothing else of the server's environment is handed on: no secret, no database. The two MPS variables bind only where
the operator runs NVIDIA's MPS daemon; without it a slice is an agreement that nothing enforces.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence

from scheduling.engines.base import Order, Slice

USUAL_PLACES = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
INHERITED = ("CUDA_HOME", "CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_PIPE_DIRECTORY", "LD_LIBRARY_PATH", "TZ")
NVIDIA_UUIDS = ("GPU-", "MIG-")


def search_path(server_path: str) -> str:
    """The server's PATH as a task may have it: what a task installs must not land in the server's own environment."""
    own = {os.path.join(sys.prefix, "bin")} if sys.prefix != sys.base_prefix else set()
    places = [*server_path.split(os.pathsep), os.path.join(sys.base_prefix, "bin"), *USUAL_PLACES]
    return os.pathsep.join(dict.fromkeys(place for place in places if os.path.isabs(place) and place not in own))


def task_environment(
    order: Order, folder: str, home: str, server: Mapping[str, str], *, has_nvidia: bool
) -> dict[str, str]:
    """All of the variables of a task; ``folder`` is its folder, ``server`` the server's own environment."""
    return {
        "PATH": search_path(server.get("PATH", "")),
        "HOME": home,
        "PWD": home,
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        **{name: server[name] for name in INHERITED if name in server},
        **order.environment,
        "ALLOTMENT_JOB_ID": str(order.job_id),
        "ALLOTMENT_TASK_INDEX": str(order.task_index),
        "ALLOTMENT_TASKS": str(order.tasks),
        "ALLOTMENT_TEAM": order.team,
        "ALLOTMENT_TASK_FOLDER": folder,
        "RANK": str(order.task_index),
        "WORLD_SIZE": str(order.tasks),
        **device_variables(order.slices, has_nvidia=has_nvidia),
    }


def is_nvidia(slices: Sequence[Slice]) -> bool:
    """Slices of real devices; those that are not NVIDIA's are pretended."""
    return bool(slices) and all(slice_.uuid.startswith(NVIDIA_UUIDS) for slice_ in slices)


def device_variables(slices: Sequence[Slice], *, has_nvidia: bool) -> dict[str, str]:
    """How the command learns which devices it may use."""
    if not slices:
        return {"CUDA_VISIBLE_DEVICES": ""} if has_nvidia else {}
    if not is_nvidia(slices):
        return {"ALLOTMENT_PRETEND_DEVICES": joined(slice_.index for slice_ in slices)}
    variables = {"CUDA_VISIBLE_DEVICES": joined(slice_.uuid for slice_ in slices)}
    share = min(slice_.compute_milli for slice_ in slices)
    if share < 1000:
        variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(1, -(-share // 10)))
        # MPS counts the devices as the process sees them: by their place in CUDA_VISIBLE_DEVICES.
        limits = (f"{place}={slice_.memory_mib}M" for place, slice_ in enumerate(slices))
        variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = joined(limits)
    return variables


def joined(parts: Iterable[object]) -> str:
    return ",".join(map(str, parts))
