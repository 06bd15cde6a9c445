"""A node that is killed or hangs: every page says so, and no figure pretends that its messages were worked off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.cluster import Cluster, running_cluster
from tests.support.nsqd_process import NsqdProcess

TOPIC = "on.one.node"
PAGES = ("/topics", f"/topics/{TOPIC}", "/nodes", "/counter", "/lookup", "/pipelines")


class Lonely:
    """An nsqd that alone has a topic with five messages."""

    def __init__(self, process: NsqdProcess, node: str, cluster: Cluster) -> None:
        self.process = process
        self.node = node
        self.url = cluster.admin.url
        cluster.ask(node, f"/topic/create?topic={TOPIC}")
        cluster.ask(node, f"/channel/create?topic={TOPIC}&channel=c")
        for _ in range(5):
            cluster.ask(node, f"/pub?topic={TOPIC}", b"message")


@pytest.fixture
def lonely(tmp_path: Path) -> Iterator[Lonely]:
    """In a cluster of its own: the pages of the other one would show the node that is gone to the tests that follow."""
    flags = ("--http-client-request-timeout=2s", "--http-client-connect-timeout=2s")
    with running_cluster(tmp_path, *flags) as cluster, cluster.with_nsqd(tmp_path) as (process, node):
        yield Lonely(process, node, cluster)
        process.go_on()


def absence(page: Page) -> Locator:
    return page.locator("#absent .absence")


def depth_chart(page: Page) -> Locator:
    return page.get_by_role("img", name=re.compile("^Depth:"))


def test_a_node_that_was_killed_stays_on_every_page_until_it_is_dismissed(page: Page, lonely: Lonely) -> None:
    page.goto(f"{lonely.url}/topics")
    expect(page.get_by_role("link", name=TOPIC, exact=True)).to_be_visible()
    expect(depth_chart(page).locator(".chart-line")).to_have_attribute("d", re.compile("M.*L"))
    lonely.process.kill()
    expect(absence(page)).to_contain_text(f"({lonely.node}) is gone. It was last heard of at ")
    expect(absence(page)).to_contain_text("with 5 messages in 1 topic, and 0 consumers")
    expect(depth_chart(page)).to_have_attribute("aria-label", re.compile(f"; {lonely.node} gone at "))
    expect(depth_chart(page).locator(".chart-event")).not_to_have_count(0)  # more, if others were slow to answer
    label = depth_chart(page).get_attribute("aria-label") or ""
    assert label.count(f"{lonely.node} gone at ") == 1
    for path in PAGES:
        page.goto(f"{lonely.url}{path}")
        expect(absence(page)).to_contain_text(lonely.node)
    page.goto(f"{lonely.url}/nodes")
    row = page.get_by_role("table", name="Nodes").locator("tbody tr[data-key]").filter(has_text="gone")
    expect(row).to_contain_text("5")
    page.get_by_role("button", name=f"Dismiss {lonely.node}").click()
    page.get_by_role("dialog").get_by_role("button", name="Dismiss").click()
    expect(page.locator(".note").filter(has_text=f"Dismissed node {lonely.node}")).to_be_visible()
    expect(absence(page)).to_have_count(0)
    expect(row).to_have_count(0)


def test_a_node_that_hangs_leaves_a_gap_and_not_a_smaller_figure(page: Page, lonely: Lonely) -> None:
    page.goto(f"{lonely.url}/topics")
    row = page.get_by_role("table", name="Topics").locator("tbody tr[data-key]").filter(has_text=TOPIC)
    expect(row).to_be_visible()
    lonely.process.hang()
    expect(absence(page)).to_contain_text(f"({lonely.node}) does not answer.")
    expect(absence(page).get_by_role("button")).to_have_count(0)
    expect(page.locator("main")).to_have_attribute("data-incomplete", "")
    expect(depth_chart(page)).to_have_attribute("aria-label", re.compile("^Depth: now –"))
    expect(page.locator("[data-figure=net]")).to_have_text("–")
    expect(row).to_contain_text("incomplete")
    expect(row).to_contain_text("≥ 0")
    page.goto(f"{lonely.url}/nodes")
    silent = page.get_by_role("table", name="Nodes").locator("tbody tr[data-key]").filter(has_text="silent")
    expect(silent).to_contain_text("–")
    page.goto(f"{lonely.url}/topics")
    lonely.process.go_on()
    expect(row).to_contain_text("5")
    expect(absence(page)).to_have_count(0)
    expect(depth_chart(page)).to_have_attribute("aria-label", re.compile(r"^Depth: now \d"))
