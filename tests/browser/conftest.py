"""A real browser before the real server, with a real scheduler and real engines behind it, on the test's database."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone
from playwright.sync_api import Browser, Page, sync_playwright

from tests.live.server import Server, wait_until

ARTIFACTS = Path(settings.ROOT) / "artifacts"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    # The browser's driver keeps an event loop in this thread, and the tests look into the database beside it.
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        path = os.environ.get("CHROMIUM") or "/usr/bin/chromium"
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def site(chromium: Browser, transactional_db: None, world: Any) -> Iterator[str]:
    """The address of a running installation: the little world, a pool ``local`` of this machine, all loops."""
    from billing.services import set_rate
    from config.processes import core_loops
    from inventory.services import create_engine, create_pool
    from live.relay import relay

    now = timezone.now()
    local = create_engine("this-machine", "local", settings={"pretend_devices": 4})
    pool = create_pool("local", local, now, grace_s=1, placement="binpack")
    set_rate(Decimal("3600"), now, pool=pool)  # one a second: what is used is seen
    stop = threading.Event()
    threads = [loop.start() for loop in core_loops(stop, holder="browser")]
    server = Server()
    try:
        yield f"http://127.0.0.1:{server.port}"
        wait_until(lambda: relay.is_idle)  # the browser's sockets are closed; a server that ends first would not notice
        server.stop()
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)
    gc.collect()  # what the server left open is closed here, where the tests' filter still holds


@pytest.fixture
def open_as(chromium: Browser, site: str) -> Iterator[Callable[..., Page]]:
    """Opens a page signed in as someone. At the end: no error in any console, nothing that the policy had to stop."""
    contexts, errors = [], []

    def of(name: str, path: str = "/", *, width: int = 1440, height: int = 900, theme: Any = "light") -> Page:
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=theme, base_url=site)
        contexts.append(context)
        context.set_default_timeout(15_000)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(f"{page.url}: {error}"))
        page.on("console", lambda told: errors.append(f"{page.url}: {told.text}") if _is_ours(told) else None)
        page.goto("/sign-in")
        page.get_by_label("Name").fill(name)
        page.get_by_label("Password").fill("correct horse battery")
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(lambda url: "/sign-in" not in url)
        page.goto(path)
        return page

    yield of
    for context in contexts:
        context.close()
    assert errors == []


def _is_ours(told: Any) -> bool:
    """An error of a script or of the policy; not the browser's note that an answer had a status of 400 and more."""
    return told.type == "error" and "Failed to load resource" not in told.text


def keep_picture(page: Page, name: str) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"{name}.png", full_page=True)
