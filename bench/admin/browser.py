"""How nsqadmin's pages feel in Chromium, headless, on a large cluster.

shown          from the click to rows on the screen, when figures are at hand and scripts in the browser's cache
longest task   the longest that the page did not react, while live figures came in for some time: the browser's own
               count of tasks over 50 ms (`longtask`); 0 means that there was none
search, sort   from the key or click to the next frame but one
scrolling      time between frames, from the top of the table to its end
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator

from playwright.sync_api import Page, sync_playwright

from bench.admin.measurement import Figure
from bench.admin.nsqadmin import Nsqadmin
from bench.failure import LoadFailure

COMMANDS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
PATIENCE_MS = 60_000
WATCHED_S = 10.0

_ROWS = "tbody tr[data-key]"

_NOTE_LONG_TASKS = """
window.longTasks = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) longTasks.push(entry.duration);
}).observe({ type: "longtask" });
"""

_SCROLL = """async () => {
  const frames = [];
  let last = performance.now();
  const end = document.documentElement.scrollHeight - innerHeight;
  for (let top = 0; top < end; top += 400) {
    scrollTo(0, top);
    await new Promise(requestAnimationFrame);
    frames.push(performance.now() - last);
    last = performance.now();
  }
  scrollTo(0, 0);
  frames.sort((a, b) => a - b);
  return [frames[frames.length >> 1], frames[Math.floor(frames.length * 0.95)]];
}"""

_TIMED = """async (act) => {
  const began = performance.now();
  %s
  await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now() - began;
}"""
_SEARCH = (
    _TIMED
    % """
  const field = document.querySelector("input[type=search]");
  field.value = "topic-09";
  field.dispatchEvent(new Event("input", { bubbles: true }));
"""
)
_SORT = _TIMED % """document.querySelector("th[data-column=message_count] button").click();"""


def measure_pages(admin: Nsqadmin) -> Iterator[Figure]:
    """All figures, one after the other."""
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, COMMANDS)), None)
    if path is None:
        raise LoadFailure("no Chromium: set CHROMIUM to its path")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(PATIENCE_MS)
        page.add_init_script(_NOTE_LONG_TASKS)
        yield from _topics(page, admin)
        yield from _channel(page, admin)
        browser.close()


def _topics(page: Page, admin: Nsqadmin) -> Iterator[Figure]:
    _shown_ms(page, f"{admin.url}/topics")
    shown = [_shown_ms(page, f"{admin.url}/topics") for _ in range(5)]
    yield Figure("topics page shown", f"median {sorted(shown)[2]:.0f} ms of {len(shown)}")
    yield _long_tasks(page, "topics page, longest task with live figures")
    yield Figure("topics page, search", f"{page.evaluate(_SEARCH):.0f} ms")
    yield Figure("topics page, sort", f"{page.evaluate(_SORT):.0f} ms")
    page.goto(f"{admin.url}/topics")
    page.wait_for_selector(_ROWS)
    median, p95 = page.evaluate(_SCROLL)
    yield Figure("topics page, scrolling", f"{median:.1f} ms a frame (p95 {p95:.1f} ms)")


def _channel(page: Page, admin: Nsqadmin) -> Iterator[Figure]:
    shown_ms = _shown_ms(page, f"{admin.url}/topics/topic-0000/worker")
    yield Figure("channel page with 48,000 connections shown", f"{shown_ms:.0f} ms, with all nodes asked for them")
    yield _long_tasks(page, "channel page, longest task with live figures")


def _shown_ms(page: Page, url: str) -> float:
    began = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.wait_for_selector(_ROWS)
    return (time.perf_counter() - began) * 1000


def _long_tasks(page: Page, name: str) -> Figure:
    page.evaluate("longTasks.length = 0")
    page.wait_for_timeout(WATCHED_S * 1000)
    tasks: list[float] = page.evaluate("longTasks")
    return Figure(name, f"{max(tasks, default=0):.0f} ms ({len(tasks)} over 50 ms in {WATCHED_S:.0f} s)")
