"""The route of an operator whose queue grows: which one, who is slow, since when, what is in it, what can be done."""

from __future__ import annotations

import re
from itertools import count

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.cluster import Cluster

_number = count(1)


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic of the test's own, on both nodes, with a channel."""
    name = f"route-{next(_number)}"
    cluster.create(name, "channel")
    return name


def row(page: Page, table: str, text: str) -> Locator:
    return page.get_by_role("table", name=table).locator("tbody tr[data-key]").filter(has_text=text)


# Which?


def test_what_needs_attention_comes_first_among_all_channels(page: Page, cluster: Cluster, topic: str) -> None:
    cluster.create(f"{topic}.calm", "reader")
    cluster.publish(topic, *[b"message"] * 7)
    page.goto(f"{cluster.admin.url}/topics")
    page.get_by_role("link", name="Channels").click()
    waiting = row(page, "Channels", f"{topic} / channel")
    expect(waiting).to_contain_text("no consumers")
    expect(waiting.locator(".figure")).to_have_text("7")
    expect(waiting).to_contain_text(re.compile("[≈>] "))
    calm = row(page, "Channels", f"{topic}.calm / reader")
    places = [int(each.get_attribute("aria-rowindex") or 0) for each in (waiting, calm)]
    assert places[0] < places[1]
    page.get_by_label("Which channels").select_option("attention")
    expect(calm).to_have_count(0)
    waiting.get_by_role("link").click()
    expect(page.locator("[data-figure=depth]")).to_have_text(str(cluster.depth(topic, "channel")))


def test_one_search_leads_to_everything_that_has_a_name(page: Page, cluster: Cluster, topic: str) -> None:
    consumer = cluster.consumer(topic, "channel", client_id=f"{topic}-worker", hostname="web-9.example")
    page.goto(f"{cluster.admin.url}/nodes")
    page.keyboard.press("f")
    page.keyboard.type(topic)
    page.keyboard.press("Enter")
    expect(row(page, "Topics", topic)).to_be_visible()
    expect(row(page, "Consumers", f"{topic}-worker")).to_contain_text("web-9.example")
    page.get_by_label("Find topics, channels, nodes and consumers").fill(f"{topic} chan")
    page.keyboard.press("Enter")
    expect(row(page, "Channels", f"{topic} / channel")).to_be_visible()
    page.goto(f"{cluster.admin.url}/search?q={cluster.nodes[1]}")
    row(page, "Nodes", cluster.nodes[1]).get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(cluster.nodes[1])
    page.goto(f"{cluster.admin.url}/search?q=web-9")
    row(page, "Consumers", topic).get_by_role("link").click()
    expect(row(page, "Consumers", f"{topic}-worker")).to_be_visible()
    consumer.close()
