"""A real, headless Chromium, driven by Playwright.

Playwright would download a browser of its own; we drive the system's. Where there is none the tests are skipped, and
say what is missing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, ViewportSize, sync_playwright

from tests.support.waiting import PATIENCE_S

COMMANDS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first has no windows to draw, and takes a quarter less of the processor."""
OTHER_SITE = "evil.example"
"""A site that is not ours. Its name leads to this machine, as DNS rebinding would have it."""
FLAGS = (
    "--no-sandbox",  # tests may run as root, where the sandbox refuses to
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # One process draws all pages. Otherwise nearly every page that is opened starts a process, a fifth of all the work.
    "--disable-site-isolation-trials",
    "--process-per-site",
    "--renderer-process-limit=1",
    f"--host-resolver-rules=MAP {OTHER_SITE} 127.0.0.1",
)
VIEWPORT = ViewportSize(width=1280, height=900)
PATIENCE_MS = PATIENCE_S * 1000
"""How long an expected change may take."""


def executable() -> str:
    """Where Chromium is; the test is skipped if it is nowhere."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, COMMANDS)), None)
    if found is None:
        pytest.skip("no Chromium: on Debian `apt-get install chromium`, elsewhere set CHROMIUM to its path")
    return found


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """A browser, from start to end."""
    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


class Complaints:
    """What pages write to their console, and errors that their scripts do not catch."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._expected: list[str] = []

    def watch(self, page: Page) -> None:
        page.on("console", self._note_message)
        page.on("pageerror", self._note_error)

    @contextmanager
    def watching(self, page: Page) -> Iterator[None]:
        """Watch a page that others will use, too."""
        self.watch(page)
        yield
        page.remove_listener("console", self._note_message)
        page.remove_listener("pageerror", self._note_error)

    def expect(self, part: str) -> None:
        """Do not mind complaints that hold this text: the browser's own about a refused request, say."""
        self._expected.append(part)

    def unexpected(self) -> list[str]:
        return [text for text in self.texts if not any(part in text for part in self._expected)]

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.texts.append(f"{message.type}: {message.text}")

    def _note_error(self, error: Error) -> None:
        self.texts.append(f"error: {error}")


@contextmanager
def open_page(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page in a context of its own: no cookies, no storage, nothing in the cache."""
    context = browser.new_context(**({"viewport": VIEWPORT, "reduced_motion": "reduce"} | options))
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


def forget(page: Page) -> None:
    """Make the page as it was when it was opened, but for the cache.

    It is left first: what it asks for without its cookies would be refused, and it would turn to the login in the
    middle of the next test.
    """
    if page.url.startswith("http"):
        page.evaluate("localStorage.clear()")
    page.goto("about:blank")
    page.unroute_all(behavior="ignoreErrors")
    page.context.clear_cookies()
    if page.viewport_size != VIEWPORT:
        page.set_viewport_size(VIEWPORT)
