"""Pages filled with documents that a test makes up: what a real cluster cannot easily be brought to show."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from emberq.admin.access.user import Role
from tests.browser.kept import Kept
from tests.support.pipeline_report import HEARTBEAT, REPORT
from tests.support.stand_in import FixedSite, StandIn
from tests.support.waiting import wait_until

HOSTILE = "<img src=x onerror=alert(1)>'\"&amp;${1}"


def topic_line(name: str, **figures: Any) -> dict[str, Any]:
    fixed = {"topic_name": name, "depth": 0, "channel_depth": 0, "in_flight_count": 0, "deferred_count": 0}
    counts = {"client_count": 0, "channel_count": 1, "node_count": 1, "message_count": 0, "paused": False, "rate": 0}
    return fixed | counts | figures


def topics_document(*topics: dict[str, Any], message: str = "") -> dict[str, Any]:
    return {"topics": list(topics), "time": time.time(), "message": message}


def channel_document(**changes: Any) -> dict[str, Any]:
    figures = ("depth", "memory_depth", "backend_depth", "in_flight_count", "deferred_count", "requeue_count")
    fixed = dict.fromkeys((*figures, "timeout_count", "message_count", "client_count"), 0)
    names = {"node": "*", "hostname": "", "topic_name": "t", "channel_name": "c", "paused": False}
    return fixed | names | {"nodes": [], "clients": [], "rates": {}, "time": time.time(), "message": ""} | changes


NO_HISTORY = {"interval": 10, "points": [], "topics": {}}


@pytest.fixture
def stand_in(kept: Kept, page: Page) -> Iterator[StandIn]:
    """Always the same one, so that the browser knows its scripts; what a test shows, the next one does not find."""
    stand_in = kept.get("stand in", lambda: StandIn({}))
    stand_in.documents = {"/api/history": NO_HISTORY}
    yield stand_in
    page.goto("about:blank")  # before the documents change, for which it asks again and again


def test_hostile_names_are_shown_as_they_are_spelled(page: Page, stand_in: StandIn) -> None:
    stand_in.documents["topics"] = topics_document(topic_line(HOSTILE))
    page.goto(f"{stand_in.url}/topics")
    expect(page.get_by_role("link", name=HOSTILE, exact=True)).to_be_visible()
    assert page.locator("table img").count() == 0


def test_hostile_clients_and_their_links_are_harmless(page: Page, stand_in: StandIn) -> None:
    client = {
        "node": "n:1",
        "remote_address": "1.2.3.4:5",
        "client_id": HOSTILE,
        "hostname": HOSTILE,
        "user_agent": HOSTILE,
        "connected": 1_000_000_000,
        "authed": True,
        "auth_identity": HOSTILE,
        "auth_identity_url": "javascript:alert(1)",
    }
    stand_in.documents["channel"] = channel_document(clients=[client])
    page.goto(f"{stand_in.url}/topics/t/c")
    row = page.get_by_role("table", name="Consumers").locator("tbody tr[data-key]")
    expect(row).to_contain_text(HOSTILE)
    assert page.locator("main img").count() == 0
    assert page.locator("a[href^='javascript']").count() == 0


def test_hostile_bodies_are_shown_as_text(page: Page, stand_in: StandIn) -> None:
    stand_in.documents["channel"] = channel_document()
    stand_in.documents["/api/peek/t/c"] = {
        "messages": [
            {"id": "1", "timestamp": 1, "attempts": 0, "body": HOSTILE},
            {"id": "2", "timestamp": 1, "attempts": 0, "body_base64": "AP8="},
            {"id": "3", "timestamp": 1, "attempts": 0, "body": '{"emberq_dead_letter":1,"reason":"<b>"}'},
        ]
    }
    page.goto(f"{stand_in.url}/topics/t/c")
    expect(page.locator("[data-figure=depth]")).to_have_text("0")  # the first figures move the button
    page.get_by_role("button", name="Peek").click()
    expect(page.locator(".message pre")).to_have_text([HOSTILE, "000000  00 ff  ..", ""])
    expect(page.locator(".dead-letter")).to_contain_text("<b>")
    assert page.locator(".message img").count() == 0


def test_a_partial_failure_is_shown_with_what_is_known(page: Page, stand_in: StandIn) -> None:
    stand_in.documents["topics"] = topics_document(topic_line("orders"), message="WARNING: 10.0.0.9:4151 timed out")
    page.goto(f"{stand_in.url}/topics")
    expect(page.get_by_role("alert")).to_contain_text("10.0.0.9:4151 timed out")
    expect(page.get_by_role("link", name="orders")).to_be_visible()


def test_a_latency_that_nothing_was_measured_of_is_not_zero(page: Page, stand_in: StandIn) -> None:
    percentile = {"quantile": 0.99, "max": 0, "min": 0, "average": 0, "count": 0}
    unmeasured = {"count": 0, "percentiles": [percentile]}
    stand_in.documents["channel"] = channel_document(e2e_processing_latency=unmeasured)
    page.goto(f"{stand_in.url}/topics/t/c")
    expect(page.locator("[data-figure=depth]")).to_have_text("0")
    expect(page.locator("[data-figure=latency]")).to_have_text("–")


@pytest.mark.parametrize(
    ("finished", "net", "outlook"),
    [(10, "+20", "doubles in 50 s"), (80, "−50", "empty in 20 s"), (30, "0", "steady")],
)
def test_where_a_backlog_goes_is_told_in_one_unit(
    page: Page, stand_in: StandIn, finished: int, net: str, outlook: str
) -> None:
    flow = {"in_rate": 30, "finish_rate": finished, "dead_letter_rate": 0, "requeue_rate": 0}
    stand_in.documents["channel"] = channel_document(depth=1000, flow=flow)
    page.goto(f"{stand_in.url}/topics/t/c")
    tile = page.locator(".tile").filter(has_text="Net/s")
    expect(tile.locator("[data-figure=net]")).to_have_text(net)
    expect(tile).to_contain_text(outlook)


def test_a_channel_that_gives_up_most_messages_does_not_look_healthy(page: Page, stand_in: StandIn) -> None:
    flow = {"in_rate": 100, "finish_rate": 9, "dead_letter_rate": 91, "requeue_rate": 364}
    now = time.time()
    points = [{"time": now - 20 + 10 * number, "depth": 0, **flow} for number in range(2)]
    stand_in.documents["/api/history"] = NO_HISTORY | {"points": points}
    stand_in.documents["channel"] = channel_document(flow=flow, dead_letter_count=4711)
    page.goto(f"{stand_in.url}/topics/t/c")
    given_up = page.locator("[data-figure=dead-lettered]")
    expect(given_up).to_have_text("91")
    expect(given_up).to_have_attribute("data-kind", "problem")
    expect(page.locator("[data-figure=requeued]")).to_have_text("364")
    expect(page.locator("[data-figure=net]")).to_have_text("0")
    rates = page.locator(".chart").filter(has_text="Messages/s")
    expect(rates.locator(".chart-value")).to_have_text(["100", "9"])
    failures = page.locator(".chart").filter(has_text="Failures/s")
    expect(failures.locator(".chart-value")).to_have_text(["91", "364"])


def test_a_burst_of_a_moment_is_no_spike_among_points_of_ten_seconds(page: Page, stand_in: StandIn) -> None:
    now = time.time()
    flow = {"in_rate": 10, "finish_rate": 10, "dead_letter_rate": 0, "requeue_rate": 0}
    points = [{"time": now - 101 + 10 * number, "depth": 0, **flow} for number in range(11)]
    stand_in.documents["/api/history"] = NO_HISTORY | {"points": points}
    stand_in.documents["channel"] = channel_document(flow=flow | {"in_rate": 100}, time=now + 1)
    page.goto(f"{stand_in.url}/topics/t/c")
    rates = page.locator(".chart").filter(has_text="Messages/s")
    expect(rates.locator(".chart-value").first).to_have_text("28")  # 2 s of 100, and 8 s of 10


def test_one_look_that_is_missing_in_the_history_is_a_gap(page: Page, stand_in: StandIn) -> None:
    """It lacked a node, say. That points lie a little closer or further apart is none."""
    now = time.time()
    flow = {"in_rate": 10, "finish_rate": 10, "dead_letter_rate": 0, "requeue_rate": 0}
    points = [{"time": now - age, "depth": 5, **flow} for age in (80, 70, 59, 50, 30, 21, 9)]
    stand_in.documents["/api/history"] = NO_HISTORY | {"points": points}
    stand_in.documents["channel"] = channel_document(flow=flow, depth=5, time=now + 1)
    page.goto(f"{stand_in.url}/topics/t/c")
    line = page.locator(".chart").filter(has_text="Depth").locator(".chart-line")
    expect(line).to_have_attribute("d", re.compile("^M[^M]*L[^M]*M[^M]*L[^M]*$"))


def test_figures_that_have_grown_old_say_how_old_they_are(page: Page, stand_in: StandIn) -> None:
    stand_in.documents["topics"] = topics_document(topic_line("orders")) | {"time": time.time() - 3 * 3600}
    page.goto(f"{stand_in.url}/topics")
    expect(page.locator("#live-state")).to_have_text("Polling · 3h 0m old")
    stand_in.documents["topics"] = topics_document(topic_line("orders")) | {"time": time.time() + 3600}
    expect(page.locator("#live-state")).to_have_text("Polling")


def test_an_empty_cluster_says_so(page: Page, stand_in: StandIn) -> None:
    stand_in.documents["topics"] = {"topics": None, "time": time.time(), "message": ""}
    page.goto(f"{stand_in.url}/topics")
    expect(page.locator(".empty")).to_contain_text("No topics yet")


def test_a_cluster_without_inactive_topics_says_so(page: Page, stand_in: StandIn) -> None:
    stand_in.documents["/api/topics"] = {"topics": {}, "message": ""}
    page.goto(f"{stand_in.url}/lookup")
    expect(page.get_by_text("None.", exact=True)).to_be_visible()


def test_the_policies_of_nodes_that_do_not_agree_are_all_shown(page: Page, stand_in: StandIn) -> None:
    strict = {"max_attempts": 1, "dead_letter_topic": "t.dead"}
    nodes = [channel_document(node="a:1", policy=strict), channel_document(node="b:1")]
    stand_in.documents |= {"channel": channel_document(nodes=nodes), "/api/topics": {"topics": [], "message": ""}}
    page.goto(f"{stand_in.url}/topics/t/c")
    policy = page.locator("[data-figure=policy]")
    expect(policy).to_contain_text("The nodes do not agree")
    expect(policy).to_contain_text("After 1 delivery without success a message goes to topic t.dead.")
    expect(policy).to_contain_text("No policy.")


def test_of_very_many_consumers_the_server_searches_for_more(page: Page, stand_in: StandIn) -> None:
    first = [{"node": "n:1", "remote_address": f"1.2.3.4:{port}", "client_id": "worker"} for port in range(3)]
    stand_in.documents["channel"] = channel_document(clients=first, client_count=500, clients_matching=500)
    page.goto(f"{stand_in.url}/topics/t/c")
    expect(page.locator("[data-figure=clients]")).to_have_text("500")
    expect(page.get_by_text("The first 3 of 500: search to find the others.")).to_be_visible()
    with page.expect_request(lambda request: "search=late" in request.url):
        page.get_by_role("searchbox", name="Search consumers").fill("late")


def test_where_streams_do_not_get_through_the_page_polls(page: Page, stand_in: StandIn) -> None:
    # Of a time to come: the page would say how old it is if it took some seconds to load.
    stand_in.documents["topics"] = topics_document(topic_line("orders")) | {"time": time.time() + 3600}
    page.goto(f"{stand_in.url}/topics")
    expect(page.locator("#live-state")).to_have_text("Polling")


def test_pipelines_tell_how_they_are(page: Page, stand_in: StandIn) -> None:
    now = time.time()
    known = {"received": now, "recent": [], "row_count": 0, "bad_count": 0, "last_error": None}
    error = {"error": f"disk full {HOSTILE}", "time": "2026-11-15T06:11:00.000Z"}
    stand_in.documents["pipelines"] = {
        "pipelines": [
            REPORT | known | {"query": "a", "received": now - 3, "watermark": "1970-01-01T00:00:00.000Z"},
            REPORT | known | {"query": "b", "received": now - 16},
            HEARTBEAT | known | {"query": "c", "state": "failed", "error": error["error"], "last_error": error},
            REPORT | known | {"query": "d", "lag": None, "rows_out_per_second": None, "last_error": error},
        ],
        "time": now,
        "message": "",
    }
    page.goto(f"{stand_in.url}/pipelines")
    well, silent, failed, mended = (page.get_by_role("article", name=f"clickstream / {name}") for name in "abcd")
    expect(well.locator(".label")).to_have_text("running")
    expect(well).to_contain_text("figures are 3 s old")
    expect(well.locator(".problem")).to_be_hidden()
    expect(well.locator("[data-figure=in]")).not_to_have_text("–")
    expect(well.locator("[data-figure=watermark]")).to_have_text("–")
    expect(silent.locator(".label")).to_have_text("silent")
    expect(silent).to_contain_text("not heard of since")
    expect(silent.locator("[data-figure=in]")).to_have_text("–")
    expect(failed.locator(".label")).to_have_text("failed")
    expect(failed.locator(".problem")).to_contain_text(HOSTILE)
    expect(mended.locator(".label")).to_have_text("running")
    expect(mended.locator(".problem")).to_contain_text("disk full")
    expect(mended.locator("[data-figure=lag]")).to_have_text("–")
    assert page.locator("main img").count() == 0


LINES_THROUGH_BOXES = """() => {
  const within = ({ left, right, top, bottom }, { x, y }) => left < x - 1 && x + 1 < right && top < y && y < bottom;
  const boxes = [...document.querySelectorAll(".graph-box")].map((box) => box.getBoundingClientRect());
  const points = (path) =>
    Array.from({ length: 200 }, (_, step) => path.getPointAtLength((step / 199) * path.getTotalLength()))
      .map((point) => point.matrixTransform(path.getScreenCTM()));
  const isHidden = (path) => points(path).some((point) => boxes.some((box) => within(box, point)));
  return [...document.querySelectorAll(".graph path")].map(isHidden);
}"""


def test_no_line_of_a_pipeline_runs_behind_a_box(page: Page, stand_in: StandIn) -> None:
    graph = [
        {"name": "clicks", "kind": "source", "detail": "clicks", "uses": []},
        {"name": "per_minute", "kind": "view", "detail": "", "uses": ["clicks"]},
        {"name": "both", "kind": "sink", "detail": "console", "uses": ["clicks", "per_minute"]},
    ]
    now = time.time()
    known = {"received": now, "recent": [], "row_count": 0, "bad_count": 0, "last_error": None}
    stand_in.documents["pipelines"] = {"pipelines": [REPORT | known | {"graph": graph}], "time": now, "message": ""}
    page.goto(f"{stand_in.url}/pipelines")
    expect(page.locator(".graph path")).to_have_count(3)
    assert page.evaluate(LINES_THROUGH_BOXES) == [False, False, False]


def test_readers_without_permissions_see_no_buttons(page: Page) -> None:
    documents = {"/api/history": NO_HISTORY, "channel": channel_document()}
    with StandIn(documents, FixedSite(role=Role.VIEWER)) as stand_in:
        page.goto(f"{stand_in.url}/topics/t/c")
        expect(page.locator("[data-figure=depth]")).to_have_text("0")
        for action in ("Pause", "Empty…", "Delete…", "Seek…", "Redrive…", "Peek", "Set policy…"):
            assert page.get_by_role("button", name=action).count() == 0
        page.goto("about:blank")


def test_graphite_draws_what_nsqd_reports_to_statsd(page: Page) -> None:
    graphite = {"graph_enabled": True, "graphite_url": "", "statsd_interval": 60, "statsd_prefix": "nsq.%s"}
    formats = {"statsd_counter_format": "stats.counters.%s.count", "statsd_gauge_format": "stats.gauges.%s"}
    documents = {"/api/history": NO_HISTORY, "/render": {}, "channel": channel_document()}
    with StandIn(documents, FixedSite(config=graphite | formats)) as stand_in:
        page.goto(f"{stand_in.url}/topics/t%23ephemeral/c?t=24h")
        drawn = page.locator("section", has=page.get_by_role("heading", name="Graphite")).locator("img")
        expect(drawn).to_have_count(2)
        depth = parse_qs(urlsplit(drawn.nth(0).get_attribute("src") or "").query)
        series = "stats.gauges.nsq.*.topic.tephemeral.channel.c.depth"
        assert depth["target"] == [f'summarize(sumSeries({series}),"60sec","avg")']
        assert depth["from"] == ["-24h"]
        page.get_by_role("combobox", name="Time shown").select_option("off")
        expect(drawn).to_have_count(0)
        page.goto("about:blank")


def test_search_sort_and_filter_are_kept_in_the_address(page: Page, stand_in: StandIn) -> None:
    lines = [topic_line(f"topic-{number}", channel_depth=number, paused=number == 3) for number in range(1, 12)]
    stand_in.documents["topics"] = topics_document(*lines)
    page.goto(f"{stand_in.url}/topics")
    names = page.get_by_role("table", name="Topics").locator("tbody tr[data-key] td.name a")
    expect(names.first).to_have_text("topic-1")
    page.get_by_role("button", name="Depth").click()
    expect(names.first).to_have_text("topic-11")
    page.get_by_role("searchbox").fill("topic-1")
    expect(names).to_have_text(["topic-11", "topic-10", "topic-1"])
    page.reload()
    expect(names).to_have_text(["topic-11", "topic-10", "topic-1"])
    page.get_by_role("searchbox").fill("")
    page.get_by_role("combobox", name="Which topics").select_option("paused")
    expect(names).to_have_text(["topic-3"])
    page.get_by_role("searchbox").fill("none of them")
    expect(page.locator(".empty")).to_have_text("None of 11 topics matches.")


def test_the_keyboard_is_enough(page: Page, stand_in: StandIn) -> None:
    stand_in.documents["topics"] = topics_document(*[topic_line(name) for name in ("alpha", "beta", "gamma")])
    stand_in.documents["topic"] = channel_document(channels=[], topic_name="beta")
    page.goto(f"{stand_in.url}/topics")
    expect(page.get_by_role("link", name="gamma")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="beta")).to_be_focused()
    page.keyboard.press("k")
    expect(page.get_by_role("link", name="alpha")).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="beta", level=1)).to_be_visible()
    expect(page.locator("#loading")).to_have_count(0)  # the heading is there before the scripts that hear keys

    def pressed_in_time() -> bool:
        """Two keys within a second; a busy machine may need several tries."""
        page.keyboard.press("g")
        page.keyboard.press("t")
        return page.get_by_role("heading", name="Topics", level=1).is_visible()

    wait_until(pressed_in_time)


def test_the_choice_of_dark_or_light_lasts(page: Page, stand_in: StandIn) -> None:
    stand_in.documents["topics"] = topics_document()
    page.emulate_media(color_scheme="light")
    page.goto(f"{stand_in.url}/topics")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Dark or light").click()
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark


def channel_line(topic: str, **fields: Any) -> dict[str, Any]:
    reasons = ["dead_letters", "no_consumers", "growing"]
    return channel_document(topic_name=topic, attention=56, reasons=reasons, oldest_s=70.0, is_older=True, **fields)


def test_no_link_is_cut_off_by_how_old_the_figures_are(page: Page, stand_in: StandIn) -> None:
    stand_in.documents["topics"] = topics_document()
    page.goto(f"{stand_in.url}/topics")
    expect(page.locator("#live-state")).to_have_text(re.compile("^Polling"))
    for width in (1280, 1440):
        page.set_viewport_size({"width": width, "height": 812})
        widths = """(nav) => {
          document.getElementById("live-state").append("59 s old");
          return [nav.scrollWidth, nav.clientWidth];
        }"""
        wanted, had = page.locator(".top nav").evaluate(widths)
        assert wanted <= had, width


HOLD_THE_NEXT_ANSWER = """() => {
  const ask = window.fetch;
  window.fetch = async () => {
    window.fetch = ask;
    await new Promise((resolve) => { window.letGo = resolve; });
    return Response.json({ lines: [], has_more: false, has_file: true });
  };
}"""
LET_IT_GO = "async () => { letGo(); await new Promise((resolve) => setTimeout(resolve, 50)); }"


def test_an_answer_that_comes_late_does_not_replace_a_newer_one(page: Page, stand_in: StandIn) -> None:
    stand_in.documents["/api/audit"] = {"lines": [AUDITED], "has_more": False, "has_file": True}
    page.goto(f"{stand_in.url}/audit")
    count = page.locator(".count")
    expect(count).to_have_text("1 line")
    page.evaluate(HOLD_THE_NEXT_ANSWER)
    for _ in range(2):
        page.get_by_role("button", name="Show", exact=True).click()
    stand_in.documents["/api/audit"]["lines"].append(AUDITED)
    page.get_by_role("button", name="Show", exact=True).click()
    expect(count).to_have_text("2 lines")
    page.evaluate(LET_IT_GO)
    expect(count).to_have_text("2 lines")


AUDITED = {
    "time": "2026-11-18T03:00:00.000Z",
    "user": "operator@example.com",
    "action": "redrive_channel",
    "channel": "billing",
    "node": "127.0.0.1:4151",
    "count": 10**6,
    "outcome": "refused",
    "remote": "192.0.2.100",
}


def test_neither_a_phone_nor_a_screen_needs_sideways_scrolling(page: Page, stand_in: StandIn) -> None:
    long_name = "a.topic.with.a.very.long.name." * 2
    policy = {"max_attempts": 5, "dead_letter_topic": long_name}
    empty = {"time": time.time(), "message": ""}
    progress = {"received": time.time(), "recent": [{"duration_ms": 1}] * 40, "row_count": 10**12, "bad_count": 3}
    stand_in.documents |= {
        "topics": topics_document(topic_line(long_name, message_count=10**12)),
        "topic": channel_document(channels=[channel_document(channel_name=long_name)]),
        "channel": channel_document(channel_name=long_name, policy=policy, nodes=[channel_document(node=long_name)]),
        "nodes": {"nodes": []} | empty,
        "node": {"node": long_name, "topics": [channel_document(topic_name=long_name, channels=[])]} | empty,
        "counter": {"stats": {}} | empty,
        "pipelines": {"pipelines": [REPORT | progress | {"query": long_name}]} | empty,
        "channels": {"channels": [channel_line(long_name)]} | empty,
        "/api/topics": {"topics": {long_name: ["c"]}, "message": ""},
        "/api/audit": {
            "lines": [AUDITED | {"topic": long_name, "detail": long_name}],
            "has_more": False,
            "has_file": True,
        },
        "/api/search": {"topics": [], "channels": [channel_line(long_name)], "nodes": [], "counts": {"channels": 1}},
        "/api/search/consumers": {"consumers": [], "count": 0},
    }
    pages = ("topics", "channels", "topics/t", "topics/t/c", "nodes", "nodes/n", "counter", "lookup", "pipelines")
    for target in (*pages, "audit", "search?q=a", "login"):
        page.goto(f"{stand_in.url}/{target}")
        expect(page.locator("#loading")).to_have_count(0)
        for width in (375, 1280):
            page.set_viewport_size({"width": width, "height": 812})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (target, width)
