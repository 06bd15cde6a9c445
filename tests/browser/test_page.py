"""Every page on a real cluster: what stands on it is what the cluster says, and it changes without a reload."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.cluster import JOURNALED, Cluster, running_cluster
from tests.support.pipeline_report import REPORT
from tests.support.waiting import wait_until

BODY = b'{"order": 4711}'


def row(page: Page, table: str, text: str) -> Locator:
    return page.get_by_role("table", name=table, exact=True).locator("tbody tr[data-key]").filter(has_text=text)


def cell(page: Page, row: Locator, heading: str) -> Locator:
    """The cell of a row under a heading."""
    row.wait_for()
    titles = row.locator("xpath=ancestor::table").locator("thead th").all_text_contents()
    return row.locator("td").nth(titles.index(heading))


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


def test_the_filters_know_channels_too(page: Page, cluster: Cluster) -> None:
    """A topic that is well as a whole may have a channel that is not."""
    cluster.create("filtered", "read", "unread", "held")
    for channel in ("read", "held"):
        cluster.consumer("filtered", channel)
    cluster.publish("filtered", *[BODY] * 3)
    for node in (0, 1):
        cluster.post(node, "/channel/pause?topic=filtered&channel=held")
    cluster.create("healthy", "read")
    cluster.consumer("healthy", "read")
    page.goto(f"{cluster.admin.url}/topics")
    found, healthy = row(page, "Topics", "filtered"), row(page, "Topics", "healthy")
    expect(healthy).to_be_visible()
    for choice, mark, channel in (
        ("Paused", "held paused", "held"),
        ("Without consumers", "unread without consumers: 3", "unread"),
    ):
        page.get_by_label("Which topics").select_option(choice)
        expect(healthy).to_have_count(0)
        expect(found.get_by_role("link", name=mark)).to_have_attribute("href", f"/topics/filtered/{channel}")


def test_escape_ends_a_search(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/topics")
    expect(row(page, "Topics", "orders")).to_be_visible()
    field = page.get_by_role("searchbox")
    field.fill("no such topic")
    expect(row(page, "Topics", "orders")).to_have_count(0)
    field.press("Escape")
    expect(field).to_have_value("")
    expect(row(page, "Topics", "orders")).to_be_visible()


def test_all_columns_on_a_phone_have_their_headings(page: Page, cluster: Cluster) -> None:
    page.set_viewport_size({"width": 375, "height": 760})
    page.goto(f"{cluster.admin.url}/topics")
    expect(row(page, "Topics", "orders")).to_be_visible()
    page.get_by_role("button", name="All columns").click()
    headings = page.get_by_role("table", name="Topics").locator("thead th")
    tops = headings.evaluate_all("(all) => all.map((each) => Math.round(each.getBoundingClientRect().top))")
    assert len(set(tops)) == 1  # all of one moment, for new figures may move the table


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
    expect(client).to_contain_text("host.example")
    expect(client.get_by_text("tests/1.0")).to_be_hidden()
    client.locator("xpath=ancestor::div[contains(@class, 'table-frame')]").get_by_text("All columns").click()
    expect(client.get_by_text("tests/1.0")).to_be_visible()
    expect(row(page, "Nodes", cluster.nodes[0])).to_be_visible()
    expect(page.get_by_role("link", name="orders")).to_have_attribute("href", "/topics/orders")


def test_a_tab_tells_channels_of_the_same_name_apart(page: Page, cluster: Cluster) -> None:
    for topic in ("one", "other"):
        cluster.create(topic, "same")
        page.goto(f"{cluster.admin.url}/topics/{topic}/same")
        expect(page).to_have_title(f"{topic} / same · nsqadmin")


def chart_values(page: Page, title: str) -> Locator:
    """The newest figures of a chart."""
    return page.locator(".chart").filter(has_text=title).locator(".chart-value")


def rate(shown: str) -> float:
    """1,234, 0.5 or 12.3K; 0 where none is known."""
    return 0.0 if shown == "–" else float(shown.replace(",", "").replace("K", "e3"))


def test_what_comes_in_and_goes_out_is_counted_in_one_unit(page: Page, cluster: Cluster) -> None:
    """Two of three channels finish every message, so more comes in than goes out; and the third grows."""
    topic = "growing"
    cluster.create(topic, "first", "second", "unread", nodes=(0,))
    consumers = [cluster.consumer(topic, channel, rdy=1) for channel in ("first", "second")]

    def work() -> None:
        cluster.publish(topic, BODY)
        for consumer in consumers:
            consumer.fin(consumer.read_message())

    page.goto(f"{cluster.admin.url}/topics/{topic}")
    expect(chart_values(page, "Messages/s")).to_have_count(2)
    with again_and_again(work):

        def more_comes_than_goes() -> bool:
            came, went = map(rate, chart_values(page, "Messages/s").all_text_contents())
            return came > went > 0

        wait_until(more_comes_than_goes)
        expect(figure(page, "net")).to_have_text(re.compile(r"^\+\d"))
        expect(page.locator(".tile").filter(has_text="Net/s")).to_contain_text("doubles in")


def test_a_backlog_that_is_worked_off_tells_when_it_will_be_gone(page: Page, cluster: Cluster) -> None:
    topic = "shrinking"
    cluster.create(topic, "channel", nodes=(0,))
    cluster.post(0, f"/mpub?topic={topic}", b"\n".join([b"x"] * 100_000))

    def is_an_old_backlog() -> bool:
        points = page.request.get(f"{cluster.admin.url}/api/history?topic={topic}&channel=channel").json()["points"]
        return any(point["depth"] == 100_000 and point["in_rate"] == 0 for point in points)

    wait_until(is_an_old_backlog)  # else the page would count the burst for half a minute
    consumer = cluster.consumer(topic, "channel", rdy=1)
    page.goto(f"{cluster.admin.url}/topics/{topic}/channel")
    with again_and_again(lambda: consumer.fin(consumer.read_message())):
        expect(figure(page, "net")).to_have_text(re.compile(r"^−\d"))
        expect(page.locator(".tile").filter(has_text="Net/s")).to_contain_text("empty in")
    consumer.close()
    page.goto("about:blank")  # before the topic goes
    cluster.post(0, f"/topic/delete?topic={topic}")


def test_a_burst_is_no_spike_among_points_of_longer_time(page: Page, cluster: Cluster, tmp_path: Path) -> None:
    topic, count, interval_s = "bursting", 900, 3
    cluster.create(topic, "channel", nodes=(0,))
    with cluster.with_admin(tmp_path, f"--history-interval={interval_s}s") as other:

        def await_points(least: int) -> None:
            asked = f"{other.admin.url}/api/history?topic={topic}"
            wait_until(lambda: len(page.request.get(asked).json()["points"]) >= least, interval_s=0.1)

        await_points(1)
        page.goto(f"{other.admin.url}/topics/{topic}")
        expect(figure(page, "messages")).to_have_text("0")
        cluster.post(0, f"/mpub?topic={topic}", b"\n".join([b"x"] * count))
        expect(figure(page, "messages")).to_have_text(f"{count}")
        await_points(3)  # the burst is before the last one
        label = page.get_by_role("img", name="Messages/s: ").get_attribute("aria-label") or ""
        (highest,) = re.findall("at most (.*) since", label)
        assert 0 < rate(highest) <= 1.5 * count / interval_s
        page.goto("about:blank")  # before nsqadmin goes


def test_a_latency_is_shown_when_there_was_something_to_measure(page: Page, tmp_path: Path) -> None:
    options: dict[str, Any] = {"nsqd_count": 1, "e2e_processing_latency_percentile": (0.99,)}
    with running_cluster(tmp_path, **options) as cluster:
        cluster.create("timed", "channel", nodes=(0,))
        page.goto(f"{cluster.admin.url}/topics/timed/channel")
        expect(figure(page, "depth")).to_have_text("0")
        expect(figure(page, "latency")).to_have_text("–")
        cluster.publish("timed", BODY)
        consumer = cluster.consumer("timed", "channel", rdy=1)
        consumer.fin(consumer.read_message())
        expect(figure(page, "latency")).to_have_text(re.compile(r"^\d.*s$"))
        page.goto("about:blank")  # before nsqadmin goes


def test_dead_letters_and_requeued_messages_are_seen_as_they_happen(page: Page, cluster: Cluster) -> None:
    topic = "failing"
    cluster.create(topic, "strict", "idle")
    policy = json.dumps({"max_attempts": 1, "dead_letter_topic": f"{topic}.dead"}).encode()
    cluster.post(0, f"/channel/policy?topic={topic}&channel=strict", policy)
    page.goto(f"{cluster.admin.url}/topics/{topic}")
    with giving_up(cluster, topic, "strict"):
        wait_until(lambda: (cluster.topic(f"{topic}.dead") or {}).get("message_count", 0) > 50)
        expect(chart_values(page, "Messages/s").last).to_have_text("0")  # what is given up was not worked off
        channel = row(page, "Channels", "strict")
        expect(cell(page, channel, "Dead/s").locator("[data-kind=problem]")).to_be_visible()
        expect(cell(page, channel, "Requeued/s").locator("[data-kind=warning]")).to_be_visible()
        expect(page.locator("[data-figure=dead-lettered][data-kind=problem]")).to_be_visible()
        failures = page.locator(".chart").filter(has_text="Failures/s")
        expect(failures.locator(".chart-line").first).to_have_attribute("d", re.compile("M.*L"))


@contextmanager
def giving_up(cluster: Cluster, topic: str, channel: str) -> Iterator[None]:
    """Messages that come all the time, to a consumer that finishes none."""
    consumer = cluster.consumer(topic, channel, rdy=1)

    def fail() -> None:
        cluster.publish(topic, BODY)
        consumer.req(consumer.read_message(), 0)

    with again_and_again(fail):
        yield


@contextmanager
def again_and_again(work: Callable[[], None]) -> Iterator[None]:
    """Work that goes on beside the test."""
    has_ended = threading.Event()

    def repeat() -> None:
        while not has_ended.is_set():
            work()

    working = threading.Thread(target=repeat)
    working.start()
    try:
        yield
    finally:
        has_ended.set()
        working.join()


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
    expect(figure(page, "clients")).not_to_have_text("0")
    expect(figure(page, "memory")).to_contain_text("MB")
    memory = page.get_by_role("img", name=re.compile("^Memory: now .* MB"))
    expect(memory.locator(".chart-line").first).to_have_attribute("d", re.compile("M.*L"))


def test_counter(page: Page, cluster: Cluster) -> None:
    cluster.create("counted", "tally")
    cluster.publish("counted", *[BODY] * 3, node=0)
    page.goto(f"{cluster.admin.url}/counter")
    expect(row(page, "Counters", "tally").filter(has_text=cluster.nodes[0])).to_contain_text("3")
    expect(figure(page, "total")).not_to_have_text("–")


def test_lookup(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/lookup")
    expect(page.locator("main code")).to_have_count(1)
    expect(page.locator("#loading")).to_have_count(0)
    assert page.locator(".inactive-topic").filter(has_text="orders").count() == 0


def test_pipelines(page: Page, cluster: Cluster) -> None:
    """What Spark queries publish, over HTTP as they do it."""
    page.goto(f"{cluster.admin.url}/pipelines")
    expect(page.get_by_text("No pipeline has reported yet.")).to_be_visible()
    for report in (REPORT, REPORT | {"batch": 43, "duration_ms": 250, "rows_in_per_second": 1500.0}):
        cluster.publish("emberq.pipelines", json.dumps(report).encode())
    card = page.get_by_role("article", name="clickstream / counts")
    graph = page.get_by_role("region", name="What clickstream is made of")
    source, view, sink = (graph.locator(f".graph-box[data-kind={kind}]") for kind in ("source", "view", "sink"))
    # First what is of the present: a query that reports nothing more is silent after 15 s, and has no rates.
    expect(card.locator("[data-figure=in]")).to_have_text("1,500")
    expect(card.locator("[data-figure=out]")).to_have_text("25")
    expect(card.locator(".label")).to_have_text("running")
    expect(source).to_contain_text("1,500 rows/s · lag 12")
    expect(sink).to_contain_text("25 rows/s")
    for name, text in {
        "lag": "12",
        "batch": "250 ms",
        "number": "43",
        "rows": "2,400",
        "bad": "6",
        "state": "310",
    }.items():
        expect(card.locator(f"[data-figure={name}]")).to_have_text(text)
    expect(card).to_contain_text("The last 2 batches took 250 ms to 1.3 s.")
    expect(card.locator("polyline").first).to_have_attribute("points", re.compile(r"^0\.0,\S+ 80\.0,\S+$"))
    expect(card).to_contain_text("Lag behind the last batches: 12.")
    rule = card.get_by_role("row", name="clicks.has_user")
    for text in ("user IS NOT NULL", "dropped", "4"):
        expect(rule).to_contain_text(text)
    card.get_by_role("button", name="Show samples").click()
    expect(card.locator(".samples")).to_contain_text('offset 183249: {"page": "/"}')
    expect(sink).to_contain_text("s old")
    expect(graph.locator("path")).to_have_count(2)
    edges = [box.evaluate("box => box.getBoundingClientRect().left") for box in (source, view, sink)]
    assert edges == sorted(set(edges))
    sink.get_by_role("link", name="counts").press("Enter")
    expect(page).to_have_url(re.compile("#query-clickstream-counts$"))


def test_a_pipeline_that_failed_has_no_rate(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/pipelines")
    cluster.publish("emberq.pipelines", json.dumps(REPORT | {"pipeline": "shop"}).encode())
    card = page.get_by_role("article", name="shop / counts")
    expect(card.locator("[data-figure=in]")).to_have_text("800")
    failed = REPORT | {"pipeline": "shop", "state": "failed", "error": "the sink's disk is full"}
    cluster.publish("emberq.pipelines", json.dumps(failed).encode())
    expect(card.locator(".label")).to_have_text("failed")
    expect(card.locator(".problem")).to_contain_text("the sink's disk is full")
    expect(card.locator("[data-figure=batch]")).to_have_text("1.3 s")
    for name in ("in", "out"):  # nothing comes or goes any more
        expect(card.locator(f"[data-figure={name}]")).to_have_text("–")


def test_the_journal_of_a_topic(page: Page, cluster: Cluster) -> None:
    topic = f"{JOURNALED}.events"
    cluster.create(topic, "reader")
    cluster.publish(topic, *[BODY] * 4)
    page.goto(f"{cluster.admin.url}/topics/{topic}")
    page.get_by_role("heading", name="Journal", exact=True).scroll_into_view_if_needed()
    journal = row(page, "Journal by node", cluster.nodes[0])
    expect(cell(page, journal, "Next offset")).to_have_text("4")
    expect(cell(page, journal, "Messages")).to_have_text("4")
    expect(cell(page, journal, "Retention")).to_have_text("1 d")
    expect(cell(page, journal, "Sync")).to_have_text("always")
    expect(cell(page, journal, "Oldest message")).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$"))
    expect(cell(page, row(page, "Journal by node", cluster.nodes[1]), "Oldest message")).to_have_text("–")
    cursor = row(page, "Channels in the journal", cluster.nodes[0])
    expect(cell(page, cursor, "Lag")).to_have_text("4")
    cursor.get_by_role("link", name="reader").click()
    page.wait_for_url(re.compile(f"/topics/{topic}/reader$"))


def test_a_topic_that_nobody_has(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/topics/nobody.has.it")
    expect(page.locator("#banner")).to_contain_text("nobody.has.it")
    expect(page.locator("#live-state")).to_have_text("Live")
    expect(page.locator("#title-buttons")).to_be_hidden()
    expect(page.get_by_role("button", name="Publish")).to_be_hidden()  # it would make the topic
    page.goto(f"{cluster.admin.url}/topics/nobody.has.it/channel")
    expect(page.locator("#banner")).to_contain_text("nobody.has.it")
    expect(page.locator("#banner")).to_have_attribute("data-kind", "warning")
    expect(page.locator("#title-buttons")).to_be_hidden()


def test_a_topic_that_was_just_created_is_no_problem(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/topics")
    expect(row(page, "Topics", "orders")).to_be_visible()  # the first figures move the button
    page.get_by_role("button", name="Create topic…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Topic").fill("brand.new")
    dialog.get_by_role("button", name="Create").click()
    page.get_by_role("link", name="brand.new").click()
    expect(figure(page, "messages")).to_have_text("0")
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.get_by_text("No node has this topic now.")).to_be_visible()
    cluster.publish("brand.new", BODY)
    expect(figure(page, "messages")).to_have_text("1")


def test_a_node_that_is_gone_is_reported_and_the_page_lives_on(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/nodes/127.0.0.1:1")
    expect(page.locator("#banner")).to_be_visible()
