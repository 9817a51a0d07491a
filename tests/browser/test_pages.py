"""What people do, in a browser: submit, watch without reload, read the log, see the cost; and see no one else's."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import keep_picture

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    # Static files are not streamed as ASGI would like; bodies of requests are left to the collector.
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning", "ignore::ResourceWarning"),
]

Open = Callable[..., Page]


def submit_form(page: Page, **values: str) -> None:
    page.goto("/jobs/new/")
    page.locator("details.card summary").click()
    for name, value in values.items():
        field = page.locator(f"#field-{name}")
        if field.evaluate("each => each.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    page.get_by_role("button", name="Submit").click()


def state(page: Page) -> Any:
    return page.locator("#job-state .status")


def submit(site_user: Any, **payload: Any) -> Any:
    """A job submitted beside the browser, as automation would."""
    from django.utils import timezone

    from scheduling.services.submit import submit_payload

    jobs, _ = submit_payload(site_user, {"team": "nlp", "pool": "train", **payload}, timezone.now())
    return jobs[0]


def test_a_job_runs_on_this_machine_before_ones_eyes(open_as: Open, tmp_path: Path) -> None:
    page = open_as("bob", "/jobs/new/")
    gate = tmp_path / "gate"
    os.mkfifo(gate)  # the job goes on when it has been seen running, however long that takes
    go = f"print('hello from the job', flush=True); open('{gate}').read(); print('bye')"
    submit_form(page, name="hello", pool="local", gpus="0.5", command=f'python3 -c "{go}"')
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    page.evaluate("window.neverReloaded = true")
    expect(state(page)).to_have_attribute("data-state", "running")
    expect(page.locator("[data-log]")).to_contain_text("hello from the job")
    expect(page.locator("#job-cost")).to_contain_text("€")
    keep_picture(page, "job-running")
    gate.write_text("go on")
    expect(state(page)).to_have_attribute("data-state", "succeeded")
    expect(page.locator("[data-log]")).to_contain_text("bye")
    assert page.evaluate("window.neverReloaded")
    from billing.rates import seconds_between
    from scheduling import ports
    from scheduling.models import Job

    job = Job.objects.get()
    assert job.ended_at is not None
    (cost,) = ports.meter.job_costs([job.pk], job.ended_at).values()
    held = job.allocations.get()
    assert held.released_at is not None
    assert cost.amount == seconds_between(held.bound_at, held.released_at) / 2  # half a GPU at one a second
    shown = page.locator("#job-cost .num").get_attribute("title")
    assert shown == f"EUR {cost.amount.normalize():f}"


def test_a_waiting_job_starts_on_the_screen_when_room_comes(open_as: Open, world: Any) -> None:
    page = open_as("bob")
    submit_form(page, name="first", pool="train", gpus="4", tasks="2")
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    expect(state(page)).to_have_attribute("data-state", "running")
    first = page.url
    submit_form(page, name="second", pool="train", gpus="1", duration="2s")
    page.wait_for_url(lambda url: url != first and re.search(r"/jobs/\d+/$", url) is not None)
    expect(state(page)).to_have_attribute("data-state", "pending")
    expect(page.get_by_text("train is full: no GPU is free", exact=False).first).to_be_visible()
    keep_picture(page, "job-waiting")
    page.evaluate("window.neverReloaded = true")

    other = open_as("alice", first)
    other.get_by_role("button", name="Stop").click()
    other.get_by_role("button", name="Yes, do it").click()
    expect(state(other)).to_have_attribute("data-state", "cancelled")
    expect(state(page)).to_have_attribute("data-state", re.compile("running|succeeded"))
    expect(state(page)).to_have_attribute("data-state", "succeeded")
    assert page.evaluate("window.neverReloaded")


def test_rows_change_in_place_and_new_ones_are_announced(open_as: Open, world: Any) -> None:
    job = submit(world.users["bob"], name="row", gpus=1, duration="1h")
    page = open_as("bob", "/jobs/")
    page.evaluate("window.neverReloaded = true")
    row = page.locator(f"#job-{job.pk} .status")
    expect(row).to_have_attribute("data-state", "running")
    submit(world.users["alice"], name="another", gpus=1, duration="1h")
    expect(page.locator("[data-new-rows]")).to_contain_text("+1")
    page.locator(f"#job-{job.pk} input").check()
    page.locator("#bulk button").click()
    page.get_by_role("button", name="Yes, do it").click()
    expect(page.get_by_text("1 job is stopped.")).to_be_visible()
    expect(row).to_have_attribute("data-state", "cancelled")


def test_two_tenants_side_by_side_see_only_their_own(open_as: Open, world: Any) -> None:
    bob, mallory = open_as("bob", "/jobs/"), open_as("mallory", "/jobs/")
    frames: list[str] = []
    mallory.on("websocket", lambda socket: socket.on("framereceived", lambda data: frames.append(str(data))))
    mallory.goto("/pools/train/")
    expect(mallory.locator("[data-live-when=live]").first).to_be_visible()
    job = submit(world.users["bob"], name="secret-plan", gpus=0.5, duration="1h")
    bob.reload()
    expect(bob.locator(f"#job-{job.pk}")).to_be_visible()
    expect(mallory.locator("#map")).to_have_attribute("data-changed", re.compile(r"\d+"))
    assert "secret-plan" not in mallory.content()
    assert not any("secret-plan" in frame or '"nlp"' in frame for frame in frames)
    mallory.goto("/jobs/")
    expect(mallory.get_by_text("No jobs yet")).to_be_visible()
    mallory.goto(f"/jobs/{job.pk}/")
    expect(mallory.get_by_text("Not found")).to_be_visible()


def test_a_devices_fill_changes_on_the_map(open_as: Open, world: Any) -> None:
    from inventory.models import Device

    page = open_as("bob", "/pools/train/")
    expect(page.locator("[data-live-when=live]").first).to_be_visible()
    page.evaluate("window.neverReloaded = true")
    job = submit(world.users["bob"], name="quarter", gpus=0.25, duration="1h")
    expect(page.locator("#map")).to_have_attribute("data-changed", re.compile(r"\d+"))
    device = Device.objects.get(slices__allocation__job=job)
    seen = page.evaluate("id => document.querySelector('#map canvas').deviceState(id)", device.pk)
    assert (seen["allocated"], seen["slices"]) == (250, 1)

    canvas = page.locator("#map canvas")
    canvas.focus()
    canvas.press("ArrowRight")
    expect(page.locator("#map-said")).to_contain_text("device 0")
    canvas.press("Enter")
    expect(page.locator("#device")).to_contain_text("n-0")
    keep_picture(page, "pool")
    assert page.evaluate("window.neverReloaded")


def test_a_wrong_value_is_told_at_its_field_and_mended_with_a_click(open_as: Open) -> None:
    page = open_as("bob")
    submit_form(page, name="slip", pool="train", gpus="0.07")
    field = page.locator("#field-gpus")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_be_focused()
    expect(page.locator("#field-gpus-fault")).to_contain_text("nearest are 0.05 and 0.1")
    expect(page.locator("#field-name")).to_have_value("slip")
    keep_picture(page, "new-job-wrong")
    page.locator("#field-gpus-fault button", has_text="0.1").click()
    expect(field).to_have_value("0.1")
    expect(page.locator("#preview")).to_contain_text("0.1 GPU")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))


def test_the_socket_is_cut_and_comes_back_with_what_was_missed(open_as: Open, world: Any) -> None:
    job = submit(world.users["bob"], name="patient", gpus=4, tasks=2, duration="1h")
    page = open_as("bob", f"/jobs/{job.pk}/")
    expect(state(page)).to_have_attribute("data-state", "running")
    expect(page.locator("[data-live-when=live]").first).to_be_visible()
    page.context.set_offline(True)
    page.evaluate("window.dispatchEvent(new Event('offline'))")
    from django.utils import timezone

    from scheduling.services.stop import cancel_jobs

    cancel_jobs([job.pk], timezone.now())
    page.context.set_offline(False)
    expect(state(page)).to_have_attribute("data-state", "cancelled")


PAGES = {
    "overview": "/teams/nlp/",
    "jobs": "/jobs/",
    "new-job": "/jobs/new/",
    "pools": "/pools/",
    "pool": "/pools/train/",
    "quotas": "/quotas/",
    "not-found": "/nothing/here/",
}


WIDEST = """[...document.querySelectorAll("main *")].filter(each => each.getBoundingClientRect().right > innerWidth)
    .map(each => each.outerHTML.slice(0, 120)).slice(0, 5)"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_every_page_fits_its_screen(width: int, theme: str, open_as: Open, world: Any) -> None:
    job = submit(
        world.users["bob"], name="a-job-with-a-rather-long-name-that-goes-on-and-on", gpus=0.5, tasks=3, duration="1h"
    )
    submit(world.users["bob"], name="waits", gpus=4, tasks=2)
    page = open_as("bob", "/", width=width, height=844 if width < 500 else 900, theme=theme)
    for name, path in {**PAGES, "job": f"/jobs/{job.pk}/"}.items():
        page.goto(path)
        page.wait_for_load_state("networkidle") if name in ("new-job",) else None
        assert page.locator("html").get_attribute("data-bs-theme") == theme
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{name} is {wide} wide: {page.evaluate(WIDEST)}"
        keep_picture(page, f"{name}-{theme}-{width}")


def test_the_theme_is_remembered(open_as: Open) -> None:
    page = open_as("bob", "/jobs/")
    page.get_by_role("button", name="Light or dark").click()
    expect(page.locator("html")).to_have_attribute("data-bs-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-bs-theme", "dark")


def test_the_menu_opens_and_closes_on_a_narrow_screen(open_as: Open) -> None:
    page = open_as("bob", "/jobs/", width=390, height=844)
    expect(page.locator("#side")).to_be_hidden()
    page.get_by_role("button", name="Menu").click()
    expect(page.locator("#side")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#side")).to_be_hidden()
