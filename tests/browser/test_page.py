"""Every page on a real cluster: what stands on it is what the cluster says, and it changes without a reload."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.cluster import JOURNALED, Cluster

BODY = b'{"order": 4711}'


def row(page: Page, table: str, text: str) -> Locator:
    return page.get_by_role("table", name=table, exact=True).locator("tbody tr[data-key]").filter(has_text=text)


def figure(page: Page, name: str) -> Locator:
    return page.locator(f"[data-figure='{name}']")


@pytest.fixture(scope="module", autouse=True)
def orders(cluster: Cluster) -> None:
    """A topic on both nodes with two channels, of which one has a consumer."""
    cluster.create("orders", "archive", "billing")
    cluster.publish("orders", *[BODY] * 3, node=0)
    cluster.publish("orders", *[BODY] * 2, node=1)
    cluster.consumer("orders", "billing", client_id="worker-1", user_agent="tests/1.0", hostname="host.example")


def test_topics(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/")
    expect(row(page, "Topics", "orders").locator("td").nth(2)).to_have_text("10")  # two channels, five each
    expect(page.locator("#live-state")).to_have_text("Live")
    cluster.create("appears.by.itself")
    expect(row(page, "Topics", "appears.by.itself")).to_be_visible()


def test_topic(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/topics/orders")
    expect(figure(page, "messages")).to_have_text("5")
    expect(row(page, "Channels", "archive")).to_contain_text("5 + 0")
    expect(row(page, "Nodes", cluster.nodes[0])).to_contain_text("3")
    expect(row(page, "Nodes", cluster.nodes[1])).to_contain_text("2")
    page.get_by_role("heading", name="Journal", exact=True).scroll_into_view_if_needed()
    expect(page.get_by_text("This topic is not journaled")).to_be_visible()


def test_figures_change_without_a_reload(page: Page, cluster: Cluster) -> None:
    cluster.create("counting", "c")
    page.goto(f"{cluster.admin.url}/topics/counting")
    expect(figure(page, "messages")).to_have_text("0")
    cluster.publish("counting", BODY)
    expect(figure(page, "messages")).to_have_text("1")
    expect(page.locator(".chart-line").first).to_have_attribute("d", re.compile("M.*L"))


def test_channel(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/topics/orders/billing")
    expect(figure(page, "depth")).to_have_text("5")
    expect(figure(page, "clients")).to_have_text("1")
    client = row(page, "Consumers", "worker-1")
    expect(client).to_contain_text("tests/1.0")
    expect(row(page, "Nodes", cluster.nodes[0])).to_be_visible()
    expect(page.get_by_role("link", name="orders")).to_have_attribute("href", "/topics/orders")


def test_nodes(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/nodes")
    rows = page.get_by_role("table", name="Nodes").locator("tbody tr[data-key]")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("1 of 1")
    rows.first.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("127.0.0.1:")


def test_node(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/nodes/{cluster.nodes[0]}")
    expect(row(page, "Topics", "orders")).to_be_visible()
    expect(row(page, "Channels", "billing")).to_contain_text("orders")
    expect(row(page, "Consumers", "worker-1")).to_contain_text("orders / billing")
    expect(figure(page, "clients")).to_have_text("1")


def test_counter(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/counter")
    expect(row(page, "Counters", "archive").filter(has_text=cluster.nodes[0])).to_contain_text("3")
    expect(figure(page, "total")).not_to_have_text("–")


def test_lookup(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/lookup")
    expect(page.locator("main code")).to_have_count(1)
    expect(page.get_by_text("None.", exact=True)).to_be_visible()


def test_pipelines(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/pipelines")
    expect(page.get_by_text("No pipeline has reported yet.")).to_be_visible()
    cluster.publish(
        "emberq.pipelines",
        b'{"name": "archive", "id": "1", "batchId": 1, "inputRowsPerSecond": 1500.0, "lag": 12,'
        b' "durationMs": {"triggerExecution": 250}, "timestamp": "2026-05-17T09:30:00.000Z"}',
    )
    card = page.locator(".pipeline")
    expect(card).to_contain_text("1,500")
    expect(card).to_contain_text("250 ms")


def test_the_journal_of_a_topic(page: Page, cluster: Cluster) -> None:
    cluster.create(f"{JOURNALED}.events", "reader")
    cluster.publish(f"{JOURNALED}.events", *[BODY] * 4)
    page.goto(f"{cluster.admin.url}/topics/{JOURNALED}.events")
    page.get_by_role("heading", name="Journal", exact=True).scroll_into_view_if_needed()
    journal = row(page, "Journal by node", cluster.nodes[0])
    expect(journal.locator("td").nth(2)).to_have_text("4")
    cursor = row(page, "Channels in the journal", cluster.nodes[0])
    expect(cursor.locator("td").nth(3)).to_have_text("4")


def test_a_topic_that_nobody_has(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/topics/nobody.has.it")
    expect(page.locator("#banner")).to_contain_text("nobody.has.it")


def test_a_node_that_is_gone_is_reported_and_the_page_lives_on(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/nodes/127.0.0.1:1")
    expect(page.locator("#banner")).to_be_visible()
