"""A node that is killed or hangs is not taken for work that was done, on any page."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

from emberq.admin.web.pages import PAGES
from tests.browser.cluster import Cluster, running_cluster
from tests.support.http_client import HttpClient
from tests.support.nsqd_process import NsqdProcess
from tests.support.waiting import wait_until

TOPIC, CHANNEL = "orders", "billing"
HELD = 5
"""Messages in the node that goes away; the other one has none."""
GAP_S = 4.0
"""As long as four points of the history."""
IMPATIENT = ("--http-client-request-timeout=1s", "--http-client-connect-timeout=1s")


class Pair:
    """A cluster of two nodes, of which one is a process that can be killed or hang."""

    def __init__(self, cluster: Cluster, nsqd: NsqdProcess, node: str) -> None:
        self.url = cluster.admin.url
        self.nsqd = nsqd
        self.node = node
        for address in (*cluster.nodes, node):
            cluster.ask(address, f"/topic/create?topic={TOPIC}")
            cluster.ask(address, f"/channel/create?topic={TOPIC}&channel={CHANNEL}")
        cluster.ask(node, f"/mpub?topic={TOPIC}", b"\n".join([b"order"] * HELD))
        wait_until(self._is_seen, interval_s=0.1)  # or a node that goes would have held nothing, or never been there

    def _is_seen(self) -> bool:
        host, _, port = self.url.removeprefix("http://").partition(":")
        answer = HttpClient((host, int(port))).get(f"/api/history?topic={TOPIC}&channel={CHANNEL}").json()
        return any(point["depth"] == HELD for point in answer["points"])

    def unseen_s(self, page: Page) -> float:
        """For how long the history has had no point of the channel; ever, if there is none."""
        answer = page.request.get(f"{self.url}/api/history?topic={TOPIC}&channel={CHANNEL}").json()
        return time.time() - max((float(point["time"]) for point in answer["points"]), default=0.0)


@contextmanager
def running_pair(folder: Path, *flags: str) -> Iterator[Pair]:
    with running_cluster(folder, *flags, nsqd_count=1) as cluster, cluster.with_nsqd(folder) as (nsqd, node):
        try:
            yield Pair(cluster, nsqd, node)
        finally:
            nsqd.go_on()  # or it could not be stopped


def rows(page: Page, table: str) -> Locator:
    return page.get_by_role("table", name=table).locator("tbody tr[data-key]")


def absence(page: Page, node: str) -> Locator:
    return page.locator("#absent").get_by_text(node)


def depth_chart(page: Page) -> Locator:
    return page.get_by_role("img", name=re.compile("^Depth:"))


def test_a_node_that_was_killed_stays_with_what_it_held_until_it_is_dismissed(page: Page, tmp_path: Path) -> None:
    with running_pair(tmp_path, *IMPATIENT) as pair:
        page.goto(f"{pair.url}/nodes")
        expect(rows(page, "Nodes").filter(has_text=pair.node.rpartition(":")[2])).to_be_visible()
        expect(rows(page, "Nodes")).to_have_count(2)
        pair.nsqd.kill()
        gone = rows(page, "Nodes").filter(has_text="gone")
        expect(gone).to_contain_text(str(HELD))
        expect(rows(page, "Nodes")).to_have_count(2)
        names = {"topic": TOPIC, "channel": CHANNEL, "node": pair.node}
        for path in sorted({*PAGES, f"/search?q={TOPIC}"} - {"/login"}):
            page.goto(f"{pair.url}{path.format(**names)}")
            expect(page.locator("#absent")).to_contain_text("is gone. It was last heard of at ")
            expect(page.locator("#absent")).to_contain_text(f"with {HELD} messages in 1 topic")
        page.goto(f"{pair.url}/nodes")
        page.get_by_role("button", name=f"Dismiss {pair.node}").click()
        page.get_by_role("dialog").get_by_role("button", name="Dismiss").click()
        expect(absence(page, pair.node)).to_have_count(0)
        expect(rows(page, "Nodes")).to_have_count(1)
        page.goto("about:blank")  # before nsqadmin goes


def test_a_backlog_that_vanished_with_its_node_is_marked_in_the_chart(page: Page, tmp_path: Path) -> None:
    with running_pair(tmp_path, *IMPATIENT) as pair:
        page.goto(f"{pair.url}/topics/{TOPIC}/{CHANNEL}")
        expect(depth_chart(page)).to_have_attribute("aria-label", re.compile(f"now {HELD},"))
        expect(depth_chart(page).locator(".chart-line")).to_have_attribute("d", re.compile("M.*L"))
        pair.nsqd.kill()
        expect(depth_chart(page)).to_have_attribute("aria-label", re.compile(f"; {pair.node} gone at "))
        page.goto("about:blank")  # before nsqadmin goes


def test_a_node_that_hangs_is_named_and_leaves_a_gap(page: Page, tmp_path: Path) -> None:
    with running_pair(tmp_path, *IMPATIENT) as pair:
        page.goto(f"{pair.url}/topics/{TOPIC}/{CHANNEL}")
        line = depth_chart(page).locator(".chart-line")
        expect(line).to_have_attribute("d", re.compile("M.*L"))
        wait_until(lambda: pair.unseen_s(page) < GAP_S, interval_s=0.1)
        pair.nsqd.hang()
        expect(depth_chart(page)).to_have_attribute("aria-label", re.compile("now –"))
        expect(page.locator("#absent")).to_contain_text("does not answer.")
        expect(absence(page, pair.node)).to_be_visible()
        page.goto(f"{pair.url}/topics")
        expect(rows(page, "Topics").filter(has_text=TOPIC)).to_contain_text("incomplete")
        page.goto(f"{pair.url}/topics/{TOPIC}/{CHANNEL}")
        expect(absence(page, pair.node)).to_be_visible()
        wait_until(lambda: pair.unseen_s(page) > GAP_S, interval_s=0.1)
        pair.nsqd.go_on()
        expect(absence(page, pair.node)).to_have_count(0)
        page.reload()  # what the server remembers has the gap, too
        expect(depth_chart(page)).to_have_attribute("aria-label", re.compile(f"now {HELD},"))
        expect(line).to_have_attribute("d", re.compile("M.*M"))  # and no line through what nobody saw
        page.goto("about:blank")  # before nsqadmin goes


def test_figures_that_wait_for_a_node_say_how_old_they_are(page: Page, tmp_path: Path) -> None:
    with running_pair(tmp_path, "--http-client-request-timeout=1m") as pair:
        page.goto(f"{pair.url}/topics")
        expect(page.locator("#live-state")).to_have_text("Live")
        pair.nsqd.hang()
        expect(page.locator("#live-state")).to_have_text(re.compile(r"\d s old$"))
        pair.nsqd.go_on()
        expect(page.locator("#live-state")).to_have_text("Live")
        page.goto("about:blank")  # before nsqadmin goes
