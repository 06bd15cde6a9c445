"""The route of an operator whose queue grows: which one, who is slow, since when, what is in it, what can be done."""

from __future__ import annotations

import json
import re
from itertools import count
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.cluster import Cluster, dead_letter
from tests.support.waiting import wait_until

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


def confirm(page: Page, verb: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()


# Which?


def test_what_needs_attention_comes_first_among_all_channels(page: Page, cluster: Cluster, topic: str) -> None:
    cluster.create(f"{topic}.calm", "reader")
    cluster.publish(topic, *[b"message"] * 7)
    page.goto(f"{cluster.admin.url}/topics")
    page.get_by_role("link", name="Channels", exact=True).click()
    waiting = row(page, "Channels", f"{topic} / channel")
    expect(waiting).to_contain_text("no consumers")
    expect(waiting.locator(".figure")).to_have_text("7")
    assert re.match(r"\d", cell(page, "Channels", waiting, "Oldest"))  # as nsqd tells it
    calm = row(page, "Channels", f"{topic}.calm / reader")
    places = [int(each.get_attribute("aria-rowindex") or 0) for each in (waiting, calm)]
    assert places[0] < places[1]
    page.get_by_label("Which channels").select_option("attention")
    expect(calm).to_have_count(0)
    waiting.get_by_role("link").click()
    expect(page.locator("[data-figure=depth]")).to_have_text(str(cluster.depth(topic, "channel")))


def test_one_search_leads_to_everything_that_has_a_name(page: Page, cluster: Cluster, topic: str) -> None:
    consumer = cluster.consumer(topic, "channel", client_id=f"{topic}-worker", hostname="web-9.example")
    page.goto(f"{cluster.admin.url}/topics")
    expect(row(page, "Topics", topic)).to_be_visible()  # a search finds what nsqadmin has seen
    page.keyboard.press("f")
    page.keyboard.type(topic)
    page.keyboard.press("Enter")
    expect(row(page, "Topics", topic)).to_be_visible()
    expect(row(page, "Consumers", f"{topic}-worker")).to_contain_text("web-9.example")
    page.get_by_label("Find by name").fill(f"{topic} chan")
    page.keyboard.press("Enter")
    expect(row(page, "Channels", f"{topic} / channel")).to_be_visible()
    page.goto(f"{cluster.admin.url}/search?q={cluster.nodes[1]}")
    row(page, "Nodes", cluster.nodes[1]).get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(cluster.nodes[1])
    page.goto(f"{cluster.admin.url}/search?q=web-9")
    expect(page.get_by_text("0 topics", exact=True)).to_be_visible()  # what is said above the consumers moves them
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


# Since when?


def test_history_and_marks_are_there_after_a_restart(page: Page, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    cluster.publish(topic, *[b"message"] * 9)
    flags = (f"--history-path={tmp_path / 'history'}", "--history-duration=10m")
    depth = page.get_by_role("img", name=re.compile("^Depth:"))
    with cluster.with_admin(tmp_path, *flags) as before:
        page.goto(f"{before.admin.url}/topics/{topic}/channel")
        expect(depth).to_have_attribute("aria-label", re.compile("now 9"))
        post = (
            "([path, body]) => fetch(path, { method: 'POST', body: JSON.stringify(body) }).then((answer) => answer.ok)"
        )
        assert page.evaluate(post, ["/api/marks", {"text": "deploy 12", "topic": topic}])
        page.get_by_role("button", name="Pause", exact=True).click()
        confirm(page, "Pause")
        expect(depth).to_have_attribute("aria-label", re.compile(f"pause {topic} / channel at "))
        page.goto("about:blank")  # or it would complain of the daemon that is gone
    cluster.post(0, f"/channel/empty?topic={topic}&channel=channel")
    with cluster.with_admin(tmp_path, *flags) as after:
        page.goto(f"{after.admin.url}/topics/{topic}/channel?range=86400")
        expect(page.get_by_label("How far charts reach back")).to_have_value("86400")
        expect(depth).to_have_attribute("aria-label", re.compile("at most 9 since .*deploy 12 at "))
        page.get_by_label("How far charts reach back").select_option("")
        expect(depth).to_have_attribute("aria-label", re.compile("at most 9 since .*deploy 12 at "))
        page.goto("about:blank")


# What is in it?


def test_messages_are_filtered_paged_folded_and_copied(page: Page, cluster: Cluster, topic: str) -> None:
    orders = [f'{{"order": {number}, "customer": {{"name": "Ada"}}}}'.encode() for number in range(12)]
    cluster.publish(topic, *orders, b"plain text")
    cluster.publish(topic, b"\x00AB\xff", node=1)
    page.goto(f"{cluster.admin.url}/topics/{topic}/channel")
    expect(page.locator("[data-figure=depth]")).to_have_text("14")  # the first figures move the button
    peek = page.get_by_role("button", name="Peek", exact=True)
    peek.click()
    bodies = page.locator(".message pre")
    position = page.locator(".pager .count")
    expect(position).to_have_text("1 to 10 of 14")
    page.get_by_role("button", name="Next").click()
    expect(position).to_have_text("11 to 14 of 14")
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    page.get_by_label("JSON member").fill("order=7")
    peek.click()
    expect(position).to_have_text("1 to 1 of 1 of 14")
    expect(bodies).to_contain_text(['"order": 7'])
    page.get_by_role("button", name="Hex").click()
    expect(bodies).to_contain_text(["000000  7b 22 6f 72 64 65 72 22 3a 20 37"])
    expect(bodies).to_contain_text(['{"order": 7'])
    page.get_by_role("button", name="Hex").click()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert '"order": 7' in page.evaluate("navigator.clipboard.readText()")
    page.get_by_role("button", name="Collapse all").click()
    expect(bodies).to_be_hidden()
    page.get_by_role("button", name="Expand all").click()
    expect(bodies).to_be_visible()
    page.get_by_label("JSON member").fill("order=70")
    peek.click()
    expect(page.get_by_text("None of the next 14 is such a message.")).to_be_visible()
    page.get_by_label("JSON member").fill("")
    page.get_by_label("Text", exact=True).fill("AB")
    peek.click()
    expect(bodies).to_have_text(["000000  00 41 42 ff                                      .AB."])


# What can I do safely?


def noted(page: Page, text: str) -> Locator:
    note = page.locator(".note").filter(has_text=text)
    expect(note).to_be_visible()
    return note


def paused(cluster: Cluster, topic: str) -> list[bool]:
    """The topic's channel, on both nodes."""
    return [bool((cluster.channel(topic, "channel", node=node) or {}).get("paused")) for node in (0, 1)]


def test_actions_are_listed_by_the_harm_they_do_with_numbers(page: Page, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, *[b"message"] * 3)
    page.goto(f"{cluster.admin.url}/topics/{topic}/channel")
    expect(page.locator("[data-figure=depth]")).to_have_text("3")
    page.get_by_text("What would they do?").click()
    entries = page.locator("#harms li:visible")
    expect(entries).to_have_count(3)
    expect(entries.locator(".label")).to_have_text(["can be undone", "loses messages", "loses messages"])
    expect(entries.nth(0)).to_contain_text("0 consumers would get no messages")
    expect(entries.nth(1)).to_contain_text("3 messages are dropped: 3 waiting.")
    cluster.publish(topic, b"one more")
    expect(entries.nth(1)).to_contain_text("4 messages are dropped")
    entries.nth(0).get_by_role("button").click()
    confirm(page, "Pause")
    noted(page, f"Paused channel {topic} / channel.")
    expect(entries.nth(0).get_by_role("button")).to_have_text("Unpause")


def test_a_pause_on_one_node_can_be_undone(page: Page, cluster: Cluster, topic: str) -> None:
    page.goto(f"{cluster.admin.url}/topics/{topic}/channel")
    row(page, "Nodes", cluster.nodes[1]).get_by_role("button", name=f"Pause on {cluster.nodes[1]}").click()
    expect(page.get_by_role("dialog")).to_contain_text("The other nodes go on as they are.")
    confirm(page, "Pause")
    note = noted(page, f"Paused channel {topic} / channel on {cluster.nodes[1]}")
    wait_until(lambda: paused(cluster, topic) == [False, True])
    expect(row(page, "Nodes", cluster.nodes[1])).to_contain_text("paused")
    note.get_by_role("button", name="Undo").click()
    wait_until(lambda: paused(cluster, topic) == [False, False])
    expect(row(page, "Nodes", cluster.nodes[1])).not_to_contain_text("paused")


def test_undo_leaves_what_was_paused_before(page: Page, cluster: Cluster, topic: str) -> None:
    cluster.post(0, f"/channel/pause?topic={topic}&channel=channel")
    page.goto(f"{cluster.admin.url}/topics/{topic}/channel")
    expect(page.locator("#state")).to_have_text("paused")  # on any node
    page.get_by_role("button", name="Unpause", exact=True).first.click()
    confirm(page, "Unpause")
    wait_until(lambda: paused(cluster, topic) == [False, False])
    noted(page, "Unpaused").get_by_role("button", name="Undo").click()
    wait_until(lambda: paused(cluster, topic) == [True, False])


def test_all_channels_that_a_search_leaves_are_paused_and_emptied_at_once(page: Page, cluster: Cluster) -> None:
    topics = [f"bulk-{number}" for number in range(3)]
    for name in topics:
        cluster.create(name, "channel")
        cluster.publish(name, b"1", b"2")
    page.goto(f"{cluster.admin.url}/channels?q=bulk-&sort=name")
    group = page.get_by_role("group", name="All that are shown")
    expect(group).to_contain_text("3 channels shown")
    for name in topics:
        expect(row(page, "Channels", f"{name} / channel").locator(".figure")).to_have_text("2")
    group.get_by_role("button", name="Pause all…", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("3 channels: bulk-0 / channel, bulk-1 / channel")
    expect(page.get_by_role("dialog")).to_contain_text("6 messages wait now")
    confirm(page, "Pause")
    note = noted(page, "Paused 3 channels.")
    wait_until(lambda: all(paused(cluster, name) == [True, True] for name in topics))
    expect(row(page, "Channels", "bulk-1 / channel")).to_contain_text("paused")
    note.get_by_role("button", name="Undo").click()
    wait_until(lambda: all(paused(cluster, name) == [False, False] for name in topics))
    page.get_by_role("searchbox").fill("bulk-2")
    group.get_by_role("button", name="Empty all…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 messages are dropped")
    expect(dialog.get_by_role("button", name="Empty")).to_be_disabled()
    dialog.get_by_role("textbox").fill("1")
    confirm(page, "Empty")
    noted(page, "Emptied channel bulk-2 / channel.")
    assert [cluster.depth(name, "channel") for name in topics] == [2, 2, 0]


def test_a_redrive_says_what_it_would_do_before_it_does(page: Page, cluster: Cluster, topic: str) -> None:
    cluster.create(f"{topic}.dead", "review")
    cluster.publish(f"{topic}.dead", b"no envelope", *[dead_letter(topic, "channel", "body")] * 2)
    page.goto(f"{cluster.admin.url}/topics/{topic}.dead/review")
    page.get_by_role("button", name="Redrive…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Of the next 3 messages: 2 to {topic}; 1 stay: no dead letter.")
    assert cluster.depth(f"{topic}.dead", "review") == 3
    dialog.get_by_label("To another topic").fill(f"{topic}.other")
    expect(dialog).to_contain_text(f"Of the next 3 messages: 3 to {topic}.other.")


# What was given up, and who did what?


def test_dead_letters_of_the_cluster_are_sent_back_and_the_audit_log_tells_it(
    page: Page, cluster: Cluster, topic: str
) -> None:
    policy = json.dumps({"max_attempts": 2, "dead_letter_topic": f"{topic}.dead"}).encode()
    for node in (0, 1):
        cluster.post(node, f"/channel/policy?topic={topic}&channel=channel", policy)
    cluster.create(f"{topic}.dead", nodes=(0,))
    cluster.publish(f"{topic}.dead", *[dead_letter(topic, "channel", "body")] * 3)
    page.goto(f"{cluster.admin.url}/dead_letters?q={topic}")
    kept = row(page, "Dead letters", f"{topic} / channel")
    expect(kept).to_contain_text(f"{topic}.dead")
    expect(kept.locator("td").nth(5)).to_have_text("3")
    kept.get_by_role("button", name="Create channel review").click()
    place = row(page, "Dead letters", f"{topic}.dead / review")
    expect(place.locator("td").nth(5)).to_have_text("3")
    own = cluster.channel(f"{topic}.dead", "review") or {}
    assert own["oldest_age_ms"] >= 0
    expect(place.locator("td").nth(6)).to_have_text(re.compile(r"^\d"))
    place.get_by_role("link", name="Peek").click()
    expect(page.locator("[data-figure=depth]")).to_have_text("3")  # the first figures move the button
    page.get_by_role("button", name="Peek", exact=True).click()
    expect(page.locator(".message")).to_have_count(3)
    page.go_back()
    place.get_by_role("button", name="Redrive…").click()
    expect(page.get_by_role("dialog")).to_contain_text(f"Of the next 3 messages: 3 to {topic}.")
    assert cluster.depth(f"{topic}.dead", "review") == 3  # nothing was done yet
    confirm(page, "Redrive")
    noted(page, f"Redrove 3 messages of {topic}.dead / review; none waits")
    expect(place.locator("td").nth(5)).to_have_text("0")
    page.get_by_role("link", name="Audit", exact=True).click()
    expect(page.locator(".count")).to_have_text(re.compile("lines$"))  # the page asks for all of them by itself first
    page.get_by_label("Topic", exact=True).fill(f"{topic}.*")
    page.get_by_role("button", name="Show", exact=True).click()
    lines = page.get_by_role("table", name="Audit log").locator("tbody tr[data-key]")
    expect(lines).to_contain_text(["redrive_channel", "peek", "create_channel", "create_topic"])
    assert [cell(page, "Audit log", lines.nth(place_), "Messages") for place_ in range(2)] == ["3", "3"]
    expect(page).to_have_url(re.compile(r"topic="))
    page.reload()
    expect(lines).to_have_count(4)
    page.get_by_label("Action").fill("redrive*")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(lines).to_have_count(1)
    with page.expect_download() as downloaded:
        page.get_by_role("button", name="Download the rows shown as CSV").click()
    assert "redrive_channel" in Path(downloaded.value.path()).read_text()
