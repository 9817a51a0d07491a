"""Logs through REST: text, piece by piece, never ending inside a character."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from scheduling.models import Allocation
from scheduling.services import logs
from tests.api.client import HELLO, settled


def test_a_simulated_job_says_that_it_only_plays(api, world):
    job = api["bob"].post("/jobs", HELLO)
    assert api["bob"].send("GET", f"/jobs/{job['id']}/logs").content == b""
    settled(world)
    response = api["bob"].send("GET", f"/jobs/{job['id']}/logs?task=0")
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert b"simulated" in response.content
    assert int(response["Log-Next-Offset"]) == len(response.content)
    problem = api["bob"].get(f"/jobs/{job['id']}/logs?task=1", 404)
    assert (problem["field"], problem["allowed"]) == ("task", [0, 0])
    for query, field in (("task=x", "task"), ("offset=-1", "offset"), ("limit=0", "limit"), ("tail=5", "tail")):
        assert api["bob"].get(f"/jobs/{job['id']}/logs?{query}", 400)["field"] == field


@pytest.fixture
def local_job(world, tmp_path, settings):
    """A job of this machine's engine that wrote something, as the engine keeps it."""
    from inventory.models import Device, EngineConnection
    from inventory.services import NodeEntry, add_nodes, create_engine, create_pool

    settings.LOCAL_ENGINE_DIR = tmp_path
    logs._local_engine.cache_clear()
    pool = create_pool("local", create_engine("machine", EngineConnection.Kind.LOCAL), timezone.now(), grace_s=0)
    model = Device.objects.first().model
    (node,) = add_nodes(pool, [NodeEntry("here", 8000, 16384, ((model, 1024, "p0"),))], timezone.now())
    job = world.submit(pool="local", gpus=0.5, command=["true"], tasks=2)
    moment = timezone.now()
    for task in job.tasks.order_by("index"):
        for attempt in range(2):
            released = moment + timedelta(seconds=attempt) if attempt == 0 else None
            Allocation.objects.create(
                task=task,
                job=job,
                team=job.team,
                user=job.user,
                pool=pool,
                node=node,
                milli=500,
                bound_at=moment,
                released_at=released,
                state=Allocation.State.RELEASED if released else Allocation.State.RUNNING,
            )
    yield job
    logs._local_engine.cache_clear()


def write(root, job, index, text: bytes):
    from scheduling.engines.local.supervisor import records
    from scheduling.engines.registry import local_folder

    attempt = Allocation.objects.filter(job=job, task__index=index).order_by("-id").first()
    folder = local_folder(root, attempt.pool.engine_id) / "tasks" / str(attempt.pk)
    folder.mkdir(parents=True)
    (folder / records.LOG).write_bytes(text)


def test_a_local_job_s_log_is_that_of_its_latest_attempt(api, local_job, tmp_path):
    text = "héllo wörld 😀 " * 50
    write(tmp_path, local_job, 1, text.encode())
    path = f"/jobs/{local_job.pk}/logs?task=1"
    assert api["bob"].send("GET", path).content.decode() == text
    assert api["bob"].send("GET", f"/jobs/{local_job.pk}/logs?task=0").content == b""
    pieces, offset = [], 0
    while True:
        response = api["bob"].send("GET", f"{path}&offset={offset}&limit=5")
        if not response.content:
            break
        pieces.append(response.content.decode())
        offset = int(response["Log-Next-Offset"])
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)


def test_bytes_that_are_no_text_are_shown_as_such(api, local_job, tmp_path):
    write(tmp_path, local_job, 0, b"\xff\xfe\x00ok\n\xc3")
    answer = api["bob"].send("GET", f"/jobs/{local_job.pk}/logs")
    assert answer.content.decode() == "\ufffd\ufffd\x00ok\n"
    # A log that ends inside a character for good is not kept back for ever.
    rest = api["bob"].send("GET", f"/jobs/{local_job.pk}/logs?offset={answer['Log-Next-Offset']}")
    assert rest.content.decode() == "\ufffd"
    assert api["mallory"].get(f"/jobs/{local_job.pk}/logs", 404)
