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


def cell(page: Page, table: str, of: Locator, heading: str) -> str:
    """What a row has below a heading."""
    headings = page.get_by_role("table", name=table).locator("th").all_text_contents()
    return of.locator("td").nth(headings.index(heading)).inner_text()


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


# Who is slow?


def test_a_slow_consumer_stands_out_with_its_host_and_its_node(page: Page, cluster: Cluster, topic: str) -> None:
    slow = cluster.consumer(topic, "channel", rdy=5, client_id="slow", hostname="slow.example", node=0)
    quick = cluster.consumer(topic, "channel", rdy=5, client_id="quick", hostname="quick.example", node=1)
    cluster.publish(topic, *[b"held"] * 5, node=0)
    held = [slow.read_message() for _ in range(5)]
    page.goto(f"{cluster.admin.url}/topics/{topic}/channel")
    busy, idle = row(page, "Consumers", "quick.example"), row(page, "Consumers", "slow.example")
    expect(busy).to_be_visible()
    cluster.publish(topic, *[b"done"] * 5, node=1)
    for _ in range(5):
        quick.fin(quick.read_message())
    expect(busy).to_contain_text(re.compile("ago|just now"))
    expect(idle).to_contain_text("never")
    assert cell(page, "Consumers", idle, "In flight") == str(len(held))
    assert cell(page, "Consumers", busy, "Address").startswith("127.0.0.1:")
    expect(busy).to_contain_text(cluster.nodes[1])
    page.get_by_label("Consumers one by one or by host").select_option("host")
    expect(row(page, "Hosts", "slow.example")).to_be_visible()
    assert cell(page, "Hosts", row(page, "Hosts", "slow.example"), "Connections") == "1"
    page.reload()
    expect(row(page, "Hosts", "quick.example")).to_be_visible()
    page.get_by_label("Consumers one by one or by host").select_option("")
    busy.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(cluster.nodes[1])
    expect(row(page, "Consumers", "quick.example")).to_contain_text(f"{topic} / channel")
    for client in (slow, quick):
        client.close()


def test_messages_that_a_consumer_lets_time_out_are_counted(page: Page, cluster: Cluster, topic: str) -> None:
    sleepy = cluster.consumer(topic, "channel", rdy=1, client_id="sleepy", msg_timeout=1000)
    cluster.publish(topic, b"slept through")
    sleepy.read_message()
    page.goto(f"{cluster.admin.url}/topics/{topic}/channel")
    consumer = row(page, "Consumers", "sleepy")
    expect(consumer.locator("[data-kind=warning]").first).not_to_have_text("0")
    sleepy.close()
