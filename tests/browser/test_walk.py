"""The walk of an operator through a cluster in trouble: one nsqd was killed, one hangs, and a consumer is slow.

Each question is asked on the first page, and answered within two clicks. Figures are held against what the nsqds say of
themselves; a figure that lacks a node says so, and no line falls as if messages had been worked off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.chromium import VIEWPORT
from tests.browser.cluster import Cluster, running_cluster
from tests.support.http_client import HttpClient
from tests.support.nsqd_process import NsqdProcess
from tests.support.waiting import wait_until

TOPIC, CHANNEL = "orders", "billing"
PAGES = (
    "/topics",
    f"/topics/{TOPIC}",
    "/nodes",
    "/counter",
    "/lookup",
    "/pipelines",
    "/dead_letters",
    "/alerts",
    "/audit",
)
HELD = 5
"""Messages that the slow consumer holds."""
MESSAGE_TIMEOUT_MS = 600_000
"""For how long it may hold them: longer than the walk takes, or others would be next in line."""
MAX_CLICKS = 2
RULES = '[[rule]]\nname = "Deep"\nwhen = "depth"\nabove = 3\n'


class Trouble:
    """Three nsqds with a topic each: `well` has a slow consumer, the others will be killed and hang."""

    def __init__(self, cluster: Cluster, killed: tuple[NsqdProcess, str], hung: tuple[NsqdProcess, str]) -> None:
        self.url = cluster.admin.url
        host, _, port = self.url.removeprefix("http://").partition(":")
        self._admin = HttpClient((host, int(port)))
        (self.well,) = cluster.nodes
        self.killed, self.killed_node = killed
        self.hung, self.hung_node = hung
        for node, count in ((self.well, 12), (self.killed_node, 5), (self.hung_node, 7)):
            cluster.ask(node, f"/topic/create?topic={TOPIC}")
            cluster.ask(node, f"/channel/create?topic={TOPIC}&channel={CHANNEL}")
            cluster.ask(node, f"/mpub?topic={TOPIC}", b"\n".join(b'{"order": %d}' % number for number in range(count)))
        self.slow = cluster.consumer(
            TOPIC, CHANNEL, rdy=HELD, client_id="slow", hostname="slow.example", msg_timeout=MESSAGE_TIMEOUT_MS
        )
        for _ in range(HELD):
            self.slow.read_message()

    def await_history(self) -> None:
        """The chart of the channel begins when nsqadmin has seen it; what happens before is not in sight there."""
        query = f"/api/history?topic={TOPIC}&channel={CHANNEL}"
        wait_until(lambda: len(self._admin.get(query).json()["points"]) > 1)

    def figures(self, node: str) -> dict[str, Any]:
        """What an nsqd says of the channel."""
        host, _, port = node.partition(":")
        answer = HttpClient((host, int(port))).get(f"/stats?format=json&topic={TOPIC}").json()
        channel: dict[str, Any] = answer["topics"][0]["channels"][0]
        return channel


@pytest.fixture
def trouble(tmp_path: Path) -> Iterator[Trouble]:
    """In a cluster of its own: the pages of the other one would show the node that is gone to the tests that follow."""
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    flags = (
        "--http-client-request-timeout=2s",
        "--http-client-connect-timeout=2s",
        "--history-interval=1s",
        f"--alert-rules-file={rules}",
    )
    with ExitStack() as running:
        cluster = running.enter_context(running_cluster(tmp_path, *flags, nsqd_count=1))
        nsqds = []
        for name in ("killed", "hung"):
            (tmp_path / name).mkdir()
            nsqds.append(running.enter_context(cluster.with_nsqd(tmp_path / name)))
        trouble = Trouble(cluster, *nsqds)
        yield trouble
        trouble.hung.go_on()


class Walk:
    """Questions that begin on the first page."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self._url = url
        self._clicks = 0

    def begin(self) -> None:
        self._clicks = 0
        self.page.goto(f"{self._url}/topics")

    def click(self, what: Locator) -> None:
        self._clicks += 1
        assert self._clicks <= MAX_CLICKS
        what.click()

    def row(self, table: str, text: str) -> Locator:
        rows = self.page.get_by_role("table", name=table).locator("tbody tr[data-key]")
        return rows.filter(has_text=text)

    def cell(self, table: str, of: Locator, heading: str) -> Locator:
        expect(of).to_be_visible()
        headings = self.page.get_by_role("table", name=table).locator("th").all_text_contents()
        return of.locator("td").nth(headings.index(heading))

    def to_the_channel(self) -> None:
        """By the alert on the first page."""
        self.begin()
        self.click(self.page.locator(".alerts").get_by_role("link", name=f"{TOPIC} / {CHANNEL}"))


def absence(page: Page, node: str) -> Locator:
    return page.locator("#absent .absence").filter(has_text=node)


def chart(page: Page, name: str) -> Locator:
    return page.get_by_role("img", name=re.compile(f"^{name}:"))


def test_each_question_is_answered_within_two_clicks(page: Page, trouble: Trouble) -> None:
    walk = Walk(page, trouble.url)
    walk.begin()
    expect(walk.row("Topics", TOPIC)).to_contain_text("24")  # 12 of which 5 are in flight, 5 and 7
    _a_node_is_killed(walk, trouble)
    _a_node_hangs(walk, trouble)
    _nothing_is_cut_off(page, trouble)
    _which(walk, trouble)
    _who_is_slow(walk, trouble)
    _since_when(walk, trouble)
    _what_is_in_it(walk)
    _what_can_i_do(walk, trouble)
    _the_node_is_back(walk, trouble)
    _the_killed_one_is_dismissed(walk, trouble)
    page.goto("about:blank")  # before nsqadmin goes


def _a_node_is_killed(walk: Walk, trouble: Trouble) -> None:
    page = walk.page
    expect(chart(page, "Depth").locator(".chart-line")).to_have_attribute("d", re.compile("M.*L"))
    trouble.await_history()
    trouble.killed.kill()
    gone = absence(page, trouble.killed_node)
    expect(gone).to_contain_text("is gone. It was last heard of at ")
    expect(gone).to_contain_text("with 5 messages in 1 topic, and 0 consumers")
    label = re.compile(f"; {trouble.killed_node} gone at ")
    expect(chart(page, "Depth")).to_have_attribute("aria-label", label)
    assert (chart(page, "Depth").get_attribute("aria-label") or "").count(f"{trouble.killed_node} gone at ") == 1
    expect(chart(page, "Depth").locator(".chart-event")).not_to_have_count(0)
    for path in (*PAGES, f"/nodes/{trouble.killed_node}"):
        page.goto(f"{trouble.url}{path}")
        expect(absence(page, trouble.killed_node)).to_be_visible()
    expect(page.get_by_role("button", name="Drain…")).to_be_hidden()  # there is no such node
    page.goto(f"{trouble.url}/nodes")
    expect(walk.cell("Nodes", walk.row("Nodes", "gone"), "Lookupds")).to_have_text("–")
    walk.begin()


def _a_node_hangs(walk: Walk, trouble: Trouble) -> None:
    page = walk.page
    trouble.hung.hang()
    silent = absence(page, trouble.hung_node)
    expect(silent).to_contain_text("does not answer.")
    expect(silent.get_by_role("button")).to_have_count(0)
    expect(page.locator("main")).to_have_attribute("data-incomplete", "")
    expect(chart(page, "Depth")).to_have_attribute("aria-label", re.compile("^Depth: now –"))
    expect(page.locator("[data-figure=net]")).to_have_text("–")
    topic = walk.row("Topics", TOPIC)
    expect(topic).to_contain_text("incomplete")
    expect(topic.get_by_role("link", name=TOPIC, exact=True)).to_be_visible()  # whatever else is said of it
    expect(page.locator("#banner")).to_be_hidden()  # that a node is silent is said once
    page.goto(f"{trouble.url}/nodes")
    expect(walk.row("Nodes", "silent")).to_contain_text("–")


def _nothing_is_cut_off(page: Page, trouble: Trouble) -> None:
    is_wide = "(element) => element.scrollWidth > element.clientWidth"
    for width in (1280, 375):
        page.set_viewport_size({"width": width, "height": 900})
        for path in (*PAGES, f"/nodes/{trouble.well}"):
            page.goto(f"{trouble.url}{path}")
            expect(absence(page, trouble.hung_node)).to_be_visible()
            expect(page.locator("#loading")).to_have_count(0)
            assert not page.locator("html").evaluate(is_wide), f"{path} has to be scrolled sideways at {width}"
            if width == 1280:
                assert not page.locator("nav[aria-label=Pages]").evaluate(is_wide), path
    page.set_viewport_size(VIEWPORT)


def _which(walk: Walk, trouble: Trouble) -> None:
    walk.begin()
    walk.click(walk.page.get_by_role("link", name="Channels", exact=True))
    found = walk.row("Channels", f"{TOPIC} / {CHANNEL}")
    own = trouble.figures(trouble.well)
    expect(walk.cell("Channels", found, "Depth").locator(".figure")).to_have_text(f"≥ {own['depth']}")
    expect(found).to_contain_text("nothing finishes")
    assert own["oldest_age_ms"] > 0
    expect(walk.cell("Channels", found, "Oldest")).to_have_text(re.compile(r"^\d"))  # told by nsqd, and not reckoned
    first = walk.page.get_by_role("table", name="Channels").locator("tbody tr[data-key]").first
    expect(first).to_contain_text(f"{TOPIC} / {CHANNEL}")


def _who_is_slow(walk: Walk, trouble: Trouble) -> None:
    walk.to_the_channel()
    slow = walk.row("Consumers", "slow.example")
    expect(slow).to_contain_text("never")
    expect(slow).to_contain_text(trouble.well)
    (own,) = trouble.figures(trouble.well)["clients"]
    expect(walk.cell("Consumers", slow, "In flight")).to_have_text(str(own["in_flight_count"]))
    expect(walk.cell("Consumers", slow, "Address")).to_have_text(own["remote_address"])


def _since_when(walk: Walk, trouble: Trouble) -> None:
    walk.to_the_channel()
    for event in (f"{trouble.killed_node} gone", f"{trouble.hung_node} silent"):
        expect(chart(walk.page, "Depth")).to_have_attribute("aria-label", re.compile(f"; {event} at "))


def _what_is_in_it(walk: Walk) -> None:
    walk.to_the_channel()
    expect(walk.page.locator("[data-figure=oldest]")).not_to_have_text("–")  # the first figures move the button
    walk.click(walk.page.get_by_role("button", name="Peek", exact=True))
    expect(walk.page.locator(".pager .count")).to_have_text("1 to 7 of 7")
    expect(walk.page.locator(".message pre").first).to_contain_text('"order": 5')


def _what_can_i_do(walk: Walk, trouble: Trouble) -> None:
    walk.to_the_channel()
    walk.click(walk.page.get_by_text("What would they do?"))
    own = trouble.figures(trouble.well)
    total = own["depth"] + own["in_flight_count"]
    entries = walk.page.locator("#harms li:visible")
    expect(entries.nth(0)).to_contain_text("1 consumer would get no messages")
    expect(entries.nth(1)).to_contain_text(f"{total} messages are dropped")


def _the_node_is_back(walk: Walk, trouble: Trouble) -> None:
    walk.begin()
    trouble.hung.go_on()
    expect(absence(walk.page, trouble.hung_node)).to_have_count(0)
    own = [trouble.figures(node) for node in (trouble.well, trouble.hung_node)]
    expect(walk.row("Topics", TOPIC)).to_contain_text(str(sum(each["depth"] for each in own)))
    expect(chart(walk.page, "Depth")).to_have_attribute("aria-label", re.compile(r"^Depth: now \d"))


def _the_killed_one_is_dismissed(walk: Walk, trouble: Trouble) -> None:
    page, node = walk.page, trouble.killed_node
    walk.click(page.get_by_role("link", name="Nodes", exact=True))
    expect(walk.row("Nodes", "gone")).to_contain_text("5")
    walk.click(page.get_by_role("button", name=f"Dismiss {node}"))
    page.get_by_role("dialog").get_by_role("button", name="Dismiss").click()
    expect(page.locator(".note").filter(has_text=f"Dismissed node {node}")).to_be_visible()
    expect(absence(page, node)).to_have_count(0)
    expect(walk.row("Nodes", "gone")).to_have_count(0)
