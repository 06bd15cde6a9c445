"""Pages of a large cluster: 1,000 topics on 80 nodes, a channel with 600 consumers.

Only what makes pages quick is asserted: that few of many rows exist as elements. How quick they are is printed
(`pytest -s -k large`), and noted in docs/PERFORMANCE.md from a quiet machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.admin_process import AdminProcess
from tests.browser.chromium import Complaints
from tests.browser.large_cluster import CLIENT_COUNT, NODE_COUNT, TOPIC_COUNT, LargeCluster

MANY_ROWS = 150
"""More elements than this are more than a screen and what lies around it."""

SCROLL = """async () => {
    const frames = [];
    let last = performance.now();
    const end = document.documentElement.scrollHeight - innerHeight;
    for (let top = 0; top < end; top += 400) {
        scrollTo(0, top);
        await new Promise(requestAnimationFrame);
        frames.push(performance.now() - last);
        last = performance.now();
    }
    frames.sort((a, b) => a - b);
    return { median: frames[frames.length >> 1], p95: frames[Math.floor(frames.length * 0.95)], count: frames.length };
}"""

SEARCH = """async (text) => {
    const field = document.querySelector("input[type=search]");
    const began = performance.now();
    field.value = text;
    field.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise(requestAnimationFrame);
    await new Promise(requestAnimationFrame);
    return performance.now() - began;
}"""


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminProcess]:
    log_path = tmp_path_factory.mktemp("admin") / "nsqadmin.log"
    with LargeCluster() as cluster:
        lookupd = f"--lookupd-http-address={cluster.lookupd_address}"
        with AdminProcess(lookupd, "--live-interval=2s", "--history-interval=10s", log_path=log_path) as admin:
            yield admin


def rows(page: Page) -> int:
    return page.locator("tbody tr[data-key]").count()


def test_topics(page: Page, complaints: Complaints, admin: AdminProcess) -> None:
    page.goto(f"{admin.url}/topics")
    expect(page.locator(".count")).to_have_text(f"{TOPIC_COUNT:,} topics", timeout=60_000)

    # The figures are at hand now, and the scripts in the browser's cache: so long waits a reader who comes back.
    second = page.context.new_page()
    complaints.watch(second)
    began = time.monotonic()
    second.goto(f"{admin.url}/topics", wait_until="commit")
    second.wait_for_selector("tbody tr[data-key]")
    shown_ms = (time.monotonic() - began) * 1000
    assert 10 < rows(second) < MANY_ROWS
    scrolled = second.evaluate(SCROLL)
    expect(second.get_by_role("link", name="topic-0999", exact=True)).to_be_visible()
    assert rows(second) < MANY_ROWS
    second.evaluate("scrollTo(0, 0)")
    searched_ms = second.evaluate(SEARCH, "topic-09")
    expect(second.get_by_role("link", name="topic-0900", exact=True)).to_be_visible()
    assert second.get_by_role("table", name="Topics").get_attribute("aria-rowcount") == "101"
    print(
        f"\ntopics page, {TOPIC_COUNT} topics on {NODE_COUNT} nodes: shown after {shown_ms:.0f} ms, "
        f"search {searched_ms:.0f} ms, scrolling {scrolled['median']:.1f} ms a frame (p95 {scrolled['p95']:.1f} ms)"
    )


def test_rows_out_of_sight_are_reached_by_the_keyboard(page: Page, admin: AdminProcess) -> None:
    page.goto(f"{admin.url}/topics")
    page.wait_for_selector("tbody tr[data-key]", timeout=60_000)
    for _ in range(60):
        page.keyboard.press("j")
    expect(page.get_by_role("link", name="topic-0059", exact=True)).to_be_focused()
    assert rows(page) < MANY_ROWS


def test_a_channel_with_many_consumers(page: Page, admin: AdminProcess) -> None:
    page.goto(f"{admin.url}/topics/topic-0000/worker")
    expect(page.locator("[data-figure=clients]")).to_have_text(str(CLIENT_COUNT), timeout=60_000)
    page.get_by_role("searchbox").fill("worker-599")
    expect(page.get_by_role("table", name="Consumers").locator("tbody tr[data-key]")).to_have_count(1)


def test_nodes(page: Page, admin: AdminProcess) -> None:
    page.goto(f"{admin.url}/nodes")
    expect(page.locator(".count")).to_have_text(f"{NODE_COUNT} nodes", timeout=60_000)
