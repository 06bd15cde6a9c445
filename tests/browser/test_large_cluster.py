"""Pages of a large cluster: 1,000 topics on 80 nodes, a channel with 600 consumers that are connected to all of them.

What makes pages quick is asserted: that few of many rows exist as elements, and that the server sends few of many
clients, without anything becoming unreachable. How quick they are is told by `python -m bench.admin --browser`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from bench.admin.simulated_cluster import SimulatedCluster, Size
from tests.browser.admin_process import AdminProcess

SIZE = Size(nodes_per_topic=8)
MANY_ROWS = 150
"""More elements than this are more than a screen and what lies around it."""
FIRST_LOOK_MS = 60_000
"""Generous, for a machine that is busy with other tests."""


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminProcess]:
    log_path = tmp_path_factory.mktemp("admin") / "nsqadmin.log"
    with SimulatedCluster(SIZE) as cluster:
        lookupd = f"--lookupd-http-address={cluster.lookupd_address}"
        with AdminProcess(lookupd, "--live-interval=1s", "--history-interval=5s", log_path=log_path) as admin:
            yield admin


def rows(page: Page, table: str) -> Locator:
    return page.get_by_role("table", name=table).locator("tbody tr[data-key]")


def open_topics(page: Page, admin: AdminProcess) -> None:
    page.goto(f"{admin.url}/topics")
    expect(page.locator(".count")).to_have_text(f"{SIZE.topics:,} topics", timeout=FIRST_LOOK_MS)


def test_all_topics_are_reached_by_scrolling_though_few_exist_as_elements(page: Page, admin: AdminProcess) -> None:
    open_topics(page, admin)
    expect(page.get_by_role("link", name="topic-0000", exact=True)).to_be_visible()
    assert 10 < rows(page, "Topics").count() < MANY_ROWS
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    expect(page.get_by_role("link", name="topic-0999", exact=True)).to_be_visible()
    assert rows(page, "Topics").count() < MANY_ROWS


def test_a_search_finds_what_is_out_of_sight(page: Page, admin: AdminProcess) -> None:
    open_topics(page, admin)
    page.get_by_role("searchbox").fill("topic-09")
    expect(page.get_by_role("link", name="topic-0900", exact=True)).to_be_visible()
    expect(page.get_by_role("table", name="Topics")).to_have_attribute("aria-rowcount", "101")


def test_rows_out_of_sight_are_reached_by_the_keyboard(page: Page, admin: AdminProcess) -> None:
    open_topics(page, admin)
    for _ in range(60):
        page.keyboard.press("j")
    expect(page.get_by_role("link", name="topic-0059", exact=True)).to_be_focused()
    assert rows(page, "Topics").count() < MANY_ROWS


def test_figures_go_on_by_themselves_and_rows_stay(page: Page, admin: AdminProcess) -> None:
    open_topics(page, admin)
    row = rows(page, "Topics").filter(has=page.get_by_role("link", name="topic-0005", exact=True))
    cell = row.locator("td").last
    row.evaluate("(row) => (row.dataset.seen = 'before')")
    before = cell.inner_text()
    expect(cell).not_to_have_text(before, timeout=FIRST_LOOK_MS)
    expect(row).to_have_attribute("data-seen", "before")


def test_of_very_many_consumers_some_are_sent_and_all_are_found(page: Page, admin: AdminProcess) -> None:
    page.goto(f"{admin.url}/topics/topic-0000/worker")
    connections = SIZE.consumers * SIZE.nodes
    expect(page.locator("[data-figure=clients]")).to_have_text(f"{connections:,}", timeout=FIRST_LOOK_MS)
    expect(page.get_by_text(re.compile(f"first 1,000 of {connections:,}"))).to_be_visible()
    assert rows(page, "Consumers").count() < MANY_ROWS
    page.get_by_role("searchbox").fill("worker-599")
    table = page.get_by_role("table", name="Consumers")
    expect(table).to_have_attribute("aria-rowcount", str(SIZE.nodes + 1), timeout=FIRST_LOOK_MS)
    expect(rows(page, "Consumers").first).to_contain_text("worker-599")


def test_all_channels_and_a_search_for_a_host(page: Page, admin: AdminProcess) -> None:
    page.goto(f"{admin.url}/channels")
    table = page.get_by_role("table", name="Channels")
    expect(table).to_have_attribute("aria-rowcount", str(2 * SIZE.topics + 1), timeout=FIRST_LOOK_MS)
    assert rows(page, "Channels").count() < MANY_ROWS
    page.goto(f"{admin.url}/search?q=worker-599")
    found = page.get_by_text(re.compile(f"the first 50 of {SIZE.nodes} consumers"))
    expect(found).to_be_visible(timeout=FIRST_LOOK_MS)


def test_nodes(page: Page, admin: AdminProcess) -> None:
    page.goto(f"{admin.url}/nodes")
    expect(page.locator(".count")).to_have_text(f"{SIZE.nodes} nodes", timeout=FIRST_LOOK_MS)


def test_the_counter_of_a_large_cluster_tells_channels_over_all_nodes(page: Page, admin: AdminProcess) -> None:
    page.goto(f"{admin.url}/counter")
    table = page.get_by_role("table", name="Counters")
    expect(table).to_have_attribute("aria-rowcount", str(2 * SIZE.topics + 1), timeout=FIRST_LOOK_MS)
