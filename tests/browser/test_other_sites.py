"""Pages of other sites in a real browser: the daemons refuse what they ask, and nsqadmin's own pages work.

`tests/attack/test_other_sites` sends what a browser is expected to send. Here the browser sends it.
"""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.browser.admin_process import AdminProcess
from tests.browser.chromium import OTHER_SITE, Complaints
from tests.browser.cluster import Cluster
from tests.browser.test_action import noted, open_dialog
from tests.support.threaded_http import Reply, ThreadedHttp
from tests.support.waiting import wait_until

PAGE = Reply(b"<!doctype html><title>Kittens</title><body></body>", headers={"Content-Type": "text/html"})

FORM = """url => {
    const frame = document.createElement("iframe")
    frame.name = `frame-${document.forms.length}`
    const form = Object.assign(document.createElement("form"), {
        method: "POST", action: url, enctype: "text/plain", target: frame.name,
    })
    form.append(Object.assign(document.createElement("input"), {name: '{"topic": "forged", "x": "', value: '"}'}))
    document.body.append(frame, form)
    form.submit()
}"""
BLIND = """async url => {
    await fetch(url, {method: "POST", mode: "no-cors", body: '{"topic": "forged"}'}).catch(() => {})
}"""
"""A request whose answer the page does not get to see."""
DELETION = """url => fetch(url, {method: "DELETE"}).then(answer => answer.status, () => "refused by the browser")"""
READING = """url => fetch(url).then(answer => answer.text(), () => "refused by the browser")"""


def status_of(page: Page, url: str, script: str) -> int:
    """How the daemon answers what a script in this page asks of it."""
    with page.expect_response(url) as answered:
        page.evaluate(script, url)
    return answered.value.status


def expect_refusal(page: Page, admin: AdminProcess, target: str, script: str) -> None:
    """The same of nsqadmin. It tells the browser to keep its answers from other sites, so they are seen in its log."""
    line = f" 403 POST {target} "
    before = admin.log.count(line)
    page.evaluate(script, f"{admin.url}{target}")
    wait_until(lambda: admin.log.count(line) > before)


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic with a message, which an attack is to delete."""
    cluster.create("precious", "channel")
    cluster.publish("precious", b"message")
    return "precious"


def test_pages_of_other_sites_change_nothing_and_our_own_work(
    page: Page, cluster: Cluster, topic: str, complaints: Complaints
) -> None:
    for expected in ("Failed to load resource", "blocked by CORS", "frame-ancestors", "Cross-Origin-Opener-Policy"):
        complaints.expect(expected)
    admin = cluster.admin.url.removeprefix("http://")
    changes = {
        cluster.nodes[0]: ["/pub?topic=forged", f"/topic/delete?topic={topic}", "/config/log_level"],
        cluster.lookupd: [f"/topic/delete?topic={topic}"],
    }
    admin_changes = ["/api/topics", f"/api/topics/{topic}"]
    readable = {cluster.nodes[0]: "/stats", cluster.lookupd: "/nodes", admin: "/api/topics"}

    with ThreadedHttp(lambda _request: PAGE) as site:
        for host in ("127.0.0.1", OTHER_SITE):
            page.goto(f"http://{host}:{site.port}/")
            for script in (FORM, BLIND):
                for address, targets in changes.items():
                    for target in targets:
                        assert status_of(page, f"http://{address}{target}", script) == 403, (host, target)
                for target in admin_changes:
                    expect_refusal(page, cluster.admin, target, script)
            assert page.evaluate(DELETION, f"http://{admin}/api/topics/{topic}") == "refused by the browser"
            for address, target in readable.items():
                assert page.evaluate(READING, f"http://{address}{target}") == "refused by the browser"

    for address, targets in (changes | {admin: admin_changes}).items():  # the other site's name now leads to the daemon
        site_url = f"http://{OTHER_SITE}:{address.rpartition(':')[2]}"
        page.goto(f"{site_url}/ping")
        for target in targets:
            assert status_of(page, f"{site_url}{target}", BLIND) == 403
        assert "UNKNOWN_HOST" in page.evaluate(READING, f"{site_url}{readable[address]}")

    assert cluster.topic("forged") is None
    assert cluster.depth(topic, "channel") == 1
    assert len(cluster.producers(topic)) == 2

    page.goto(f"http://{cluster.nodes[0]}/ping")
    assert status_of(page, f"http://{cluster.nodes[0]}/pub?topic={topic}", BLIND) == 200
    page.goto(f"http://localhost:{admin.rpartition(':')[2]}/topics")
    dialog = open_dialog(page, "Create topic…")
    dialog.get_by_label("Topic").fill("honest")
    dialog.get_by_role("button", name="Create").click()
    noted(page, "Created topic honest")
