"""What was asked and what was granted, on pages; and limits of GPU memory there."""

from __future__ import annotations

import html
import re
from typing import Any

from django.urls import reverse

from inventory.models import Device
from inventory.services import set_accelerator_model
from quotas.services import set_quota

VIR = [{"name": "vir04", "compute_milli": 500, "memory_mib": 40960}]
FORM = {"team": "nlp", "pool": "train", "name": "hello", "command": "true"}


def text(answer: Any) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", answer.content.decode())))


def cut(world: Any, slicing: str = "templates") -> None:
    set_accelerator_model("A100-80G", "nvidia", 81920, slicing=slicing, slice_templates=VIR, now=world.now)


def test_a_job_s_page_and_its_device_tell_the_template(world: Any, sign_in: Any) -> None:
    cut(world)
    job = world.submit(gpu_memory_mib=10240)
    world.settle()
    page = text(sign_in("bob").get(reverse("job", args=[job.pk])))
    assert "10 GiB GPU memory" in page
    assert "Granted vir04: 0.5 GPU, 40 GiB" in page
    device = Device.objects.get(compute_allocated_milli=500)
    shown = text(sign_in("bob").get(f"/pools/train/devices/{device.pk}/"))
    assert "40 GiB · vir04" in shown


def test_the_preview_counts_and_prices_what_would_be_granted(world: Any, sign_in: Any) -> None:
    answer = sign_in("bob").post("/jobs/new/?part=preview", {**FORM, "gpu_memory_mib": "10240"})
    assert "€0.36" in text(answer), "0.15 GPU at 2.40 where any size can be had"
    assert "0.15 GPU, 10 GiB on A100-80G" in text(answer)
    cut(world)
    answer = sign_in("bob").post("/jobs/new/?part=preview", {**FORM, "gpu_memory_mib": "10240"})
    assert "vir04: 0.5 GPU, 40 GiB on A100-80G" in text(answer)
    assert "€1.20" in text(answer)
    assert answer.context["outlook"].wanted == 500
    plain = sign_in("bob").post("/jobs/new/?part=preview", {**FORM, "gpus": "2"})
    assert "Granted" not in text(plain)
    assert "€4.80" in text(plain)
    cut(world, "whole")
    answer = sign_in("bob").post("/jobs/new/?part=preview", {**FORM, "gpu_memory_mib": "10240"})
    assert answer.context["outlook"].wanted == 1000


def test_the_page_of_quotas_shows_limits_of_gpu_memory(world: Any, sign_in: Any) -> None:
    set_quota(world.teams["nlp"], world.pool, world.now, memory_limit_mib=102400)
    world.submit(gpus=1)
    world.settle()
    assert "GPU memory 80 GiB / 100 GiB" in text(sign_in("alice").get("/quotas/"))
