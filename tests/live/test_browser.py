"""The browser's side in a real browser: it binds, reconnects, resumes, ends with its session, and polls if it must."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from playwright.sync_api import Browser, Page, expect

from live import selectors
from tenants.services import record_sign_out
from tests.browser.conftest import chromium  # noqa: F401 (a fixture)
from tests.live.server import Server, session_of, wait_until

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning", "ignore::ResourceWarning"),
]

PAGE = """<!doctype html><html lang="en"><body data-live-subscribe='{subscriptions}' data-live-seq="{seq}">
<span id="state" data-live-job="{job}" data-live-field="state"></span>
<span id="reason" data-live-job="{job}" data-live-field="reason"></span>
<b id="coloured" class="badge state-pending" data-live-job="{job}" data-live-class="state-"></b>
<b id="allocated" data-live-pool="train" data-live-field="allocated"></b>
<i id="device" data-live-device="{device}"></i>
<div id="part" data-live-refresh="job.*"></div>
<div id="other" data-live-refresh="quota.*"></div>
<p data-live-status="" id="status"><b data-live-when="live" hidden>live</b><b data-live-when="polling" hidden>no</b></p>
<script type="application/json" id="live-labels">{{"state": {{"running": "It runs"}}}}</script>
<script type="module" src="/static/js/live.js"></script></body></html>"""


# How often each part was asked to refresh, as an attribute of it.
COUNT = """() => document.addEventListener("live:refresh", (event) => {
  event.target.dataset.count = Number(event.target.dataset.count ?? 0) + 1;
}, true)"""


class Watched:
    """A page of the test's own on the server's origin, signed in as bob."""

    def __init__(self, browser: Browser, world: Any, server: Server, job: Any):
        from inventory.models import Device

        self.site = f"http://127.0.0.1:{server.port}"
        self.session = session_of(world.users["bob"])
        self.context = browser.new_context()
        self.context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": self.session, "url": self.site}])
        self.page: Page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        subscriptions = [{"subscribe": "team", "team": "nlp"}, {"subscribe": "pool", "pool": "train"}]
        device = Device.objects.get(node__name="n-0", index=0)
        self.html = PAGE.format(
            subscriptions=json.dumps(subscriptions), seq=selectors.position(), job=job.pk, device=device.pk
        )

    def open(self) -> Page:
        # Put into a page that came from the server: the browser lets no other speak to this machine.
        self.page.goto(f"{self.site}/healthz")
        self.page.set_content(self.html)
        self.page.evaluate(COUNT)
        return self.page


@pytest.fixture
def job(world: Any) -> Any:
    return world.submit(gpus=1, duration="30s", name="watched")


@pytest.fixture
def watched(chromium: Browser, server: Server, world: Any, job: Any) -> Iterator[Watched]:  # noqa: F811
    from live.relay import relay

    found = Watched(chromium, world, server, job)
    yield found
    found.context.close()
    wait_until(lambda: relay.is_idle)
    assert found.errors == []


def test_what_a_page_declares_is_kept_up_to_date(watched: Watched, world: Any) -> None:
    page = watched.open()
    expect(page.locator("#status")).to_have_attribute("data-live-status", "live")
    expect(page.locator("#status b").first).to_be_visible()
    world.settle()
    expect(page.locator("#state")).to_have_text("It runs")
    expect(page.locator("#state")).to_have_attribute("data-value", "running")
    expect(page.locator("#reason")).to_have_text("–")
    expect(page.locator("#coloured")).to_have_class("badge state-running")
    expect(page.locator("#allocated")).to_have_text("1")
    expect(page.locator("#device")).to_have_attribute("data-allocated", "1000")
    expect(page.locator("#device")).to_have_attribute("data-teams", "nlp")
    expect(page.locator("#device")).to_have_attribute("data-used", "unknown")
    expect(page.locator("#part")).to_have_attribute("data-count", re.compile(r"^[1-9]"))
    assert page.locator("#other").get_attribute("data-count") is None


def test_a_burst_refreshes_a_part_at_most_twice_a_second(watched: Watched, world: Any) -> None:
    page = watched.open()
    expect(page.locator("#status")).to_have_attribute("data-live-status", "live")
    begun = page.evaluate("performance.now()")
    for number in range(40):
        world.submit(gpus=0.05, name=f"job-{number}")
    expect(page.locator("#part")).to_have_attribute("data-count", re.compile(r"^[1-9]"))
    seconds = (page.evaluate("performance.now()") - begun) / 1000
    assert int(page.locator("#part").get_attribute("data-count") or 0) <= 2 * seconds + 2


def test_a_page_outlives_its_server_and_misses_nothing(
    chromium: Browser,  # noqa: F811
    world: Any,
    job: Any,
    transactional_db: None,
) -> None:
    first = Server()
    watched = Watched(chromium, world, first, job)
    page = watched.open()
    expect(page.locator("#status")).to_have_attribute("data-live-status", "live")
    world.settle()
    expect(page.locator("#state")).to_have_attribute("data-value", "running")
    first.stop()
    expect(page.locator("#status")).to_have_attribute("data-live-status", "reconnecting")
    world.pass_time(minutes=1)
    second = Server(first.port)
    try:
        expect(page.locator("#state")).to_have_attribute("data-value", "succeeded", timeout=20_000)
        expect(page.locator("#status")).to_have_attribute("data-live-status", "live")
    finally:
        watched.context.close()
        second.stop()
    assert watched.errors == []


def test_a_page_knows_that_it_was_signed_out(watched: Watched, world: Any) -> None:
    from django.contrib.sessions.models import Session

    page = watched.open()
    expect(page.locator("#status")).to_have_attribute("data-live-status", "live")
    Session.objects.filter(session_key=watched.session).delete()
    record_sign_out(world.users["bob"], watched.session, world.now)
    expect(page.locator("#status")).to_have_attribute("data-live-status", "signed-out")


def test_where_sockets_are_impossible_the_event_log_is_read(watched: Watched, world: Any) -> None:
    watched.page.add_init_script("window.WebSocket = class { constructor() { throw new Error('blocked'); } };")
    page = watched.open()
    expect(page.locator("#status")).to_have_attribute("data-live-status", "polling", timeout=15_000)
    world.settle()
    expect(page.locator("#state")).to_have_attribute("data-value", "running", timeout=15_000)
    expect(page.locator("#part")).to_have_attribute("data-count", re.compile(r"^[1-9]"))
