"""Pictures of the pages on a busy cluster, for the documentation.

`UPDATE_SCREENSHOTS=1 pytest tests/browser/test_screenshot.py` renews those in docs/images; otherwise they are made and
thrown away, which at least shows that they can be made.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import Complaints, open_page
from tests.browser.cluster import Cluster, dead_letter, running_cluster
from tests.browser.traffic import Traffic
from tests.support.pipeline_report import REPORT

IMAGES = Path(__file__).parents[2] / "docs" / "images"
IS_KEPT = bool(os.environ.get("UPDATE_SCREENSHOTS"))
HISTORY_S = 30.0 if IS_KEPT else 0.5
"""How long the charts are to reach back."""

DESKTOP = {"viewport": {"width": 1280, "height": 880}, "device_scale_factor": 1.5}
PHONE = {"viewport": {"width": 375, "height": 760}, "device_scale_factor": 2, "has_touch": True}
ORDERS = "orders.created"
RULES = """
[[rule]]
name = "No consumers"
when = "no_consumers"

[[rule]]
name = "Deep queue"
when = "depth"
above = 100
severity = "critical"

[[rule]]
name = "Node gone"
when = "node_gone"
severity = "critical"
"""
POLICY = b'{"max_attempts": 5, "dead_letter_topic": "orders.dead"}'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Busy for a while already."""
    # A journaled topic gives up messages only to another one.
    options = {"e2e_processing_latency_percentile": (0.99, 0.95), "journal_topic": (f"^{ORDERS}$", "^orders.dead$")}
    with (
        running_cluster(tmp_path_factory.mktemp("cluster"), **options) as cluster,
        Traffic(cluster.tcp_addresses),
    ):
        cluster.create("orders.dead", "review")
        letters = [dead_letter(ORDERS, "billing", f'{{"order": {number}}}') for number in range(4711, 4714)]
        cluster.publish("orders.dead", *letters)
        cluster.create("newsletter", "smtp")
        for node in (0, 1):
            cluster.post(node, "/topic/pause?topic=newsletter")
            cluster.post(node, f"/channel/policy?topic={ORDERS}&channel=billing", POLICY)
        report_progress(cluster)
        time.sleep(HISTORY_S)  # history takes time to happen
        yield cluster


def report_progress(cluster: Cluster) -> None:
    """As the queries of a pipeline do it."""
    well = {"watermark": "", "bad": {}, "failed_rules": {}, "samples": {}, "state_rows": 0, "lag": 0}
    both = {
        "graph": [
            *REPORT["graph"],
            {"name": "archive", "kind": "sink", "detail": "s3://clicks/per-minute", "uses": ["per_minute"]},
        ]
    }
    for batch in range(30):
        lag = round(120 + 100 * math.sin(batch / 4))
        counts = {"batch": batch, "duration_ms": round(900 + 400 * math.sin(batch / 3)), "lag": lag}
        archive = {"query": "archive", "batch": batch, "duration_ms": round(300 + 90 * math.sin(batch / 2))}
        for figures in (counts, archive | well):
            cluster.publish("emberq.pipelines", json.dumps(REPORT | both | figures).encode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if not IS_KEPT:
        return tmp_path
    IMAGES.mkdir(exist_ok=True)
    return IMAGES


PICTURES = [
    ("topics-light", "/topics", "light", DESKTOP),
    ("channel-dark", f"/topics/{ORDERS}/billing", "dark", DESKTOP),
    ("topics-phone", "/topics", "light", PHONE),
    ("channels-light", "/channels", "light", DESKTOP),
    ("topics-dark", "/topics", "dark", DESKTOP),
    ("topic-light", f"/topics/{ORDERS}", "light", DESKTOP),
    ("channel-phone", f"/topics/{ORDERS}/billing", "dark", PHONE),
    ("nodes-light", "/nodes", "light", DESKTOP),
    ("pipelines-light", "/pipelines", "light", DESKTOP),
    ("counter-dark", "/counter", "dark", DESKTOP),
]


@pytest.mark.parametrize(("name", "path", "theme", "device"), PICTURES if IS_KEPT else PICTURES[:3])
def test_pages(
    browser: Browser,
    cluster: Cluster,
    complaints: Complaints,
    folder: Path,
    *,
    name: str,
    path: str,
    theme: str,
    device: dict[str, Any],
) -> None:
    if path == "/pipelines":
        report_progress(cluster)  # or its queries would be silent by now
    with open_page(browser, color_scheme=theme, **device) as page, complaints.watching(page):
        page.goto(f"{cluster.admin.url}{path}")
        page.wait_for_selector("tbody tr[data-key], .pipeline")
        expect(page.locator("#live-state")).to_have_text("Live")
        settle(page)
        page.screenshot(path=folder / f"nsqadmin-{name}.png")


def test_dead_letters(browser: Browser, cluster: Cluster, complaints: Complaints, folder: Path) -> None:
    with open_page(browser, color_scheme="light", **DESKTOP) as page, complaints.watching(page):
        page.goto(f"{cluster.admin.url}/topics/orders.dead/review")
        expect(page.locator("[data-figure=depth]")).not_to_have_text("–")  # the first figures move the button
        page.get_by_role("button", name="Peek").click()
        expect(page.locator("#dead-letter-offer")).to_be_visible()
        settle(page)
        page.locator("#section-waiting-messages").evaluate("heading => heading.scrollIntoView()")
        page.screenshot(path=folder / "nsqadmin-dead-letters-light.png")


def test_what_can_be_done(browser: Browser, cluster: Cluster, complaints: Complaints, folder: Path) -> None:
    with open_page(browser, color_scheme="light", **DESKTOP) as page, complaints.watching(page):
        page.goto(f"{cluster.admin.url}/topics/{ORDERS}/billing")
        page.get_by_text("What would they do?").click()
        expect(page.locator("#harms li").first).to_contain_text("would get no messages")
        settle(page)
        page.screenshot(path=folder / "nsqadmin-actions-light.png")


def test_alerts(browser: Browser, cluster: Cluster, complaints: Complaints, folder: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    flags = (f"--alert-rules-file={rules}", f"--history-path={tmp_path / 'history'}", "--live-interval=200ms")
    with (
        cluster.with_admin(tmp_path, *flags) as watched,
        open_page(browser, color_scheme="light", **DESKTOP) as page,
        complaints.watching(page),
    ):
        page.goto(f"{watched.admin.url}/alerts")
        known = page.get_by_role("region", name="Now").get_by_role("listitem").filter(has_text="orders.dead / review")
        known.get_by_role("button", name="Silence…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Reason").fill("I look through them until noon")
        dialog.get_by_role("button", name="Silence").click()
        page.get_by_role("button", name="Dismiss").click()  # at once: the note goes by itself after some seconds
        expect(known).to_contain_text("silenced until")
        settle(page)
        page.screenshot(path=folder / "nsqadmin-alerts-light.png")
        page.goto("about:blank")  # before nsqadmin goes


def test_a_question(browser: Browser, cluster: Cluster, complaints: Complaints, folder: Path) -> None:
    with open_page(browser, color_scheme="light", **DESKTOP) as page, complaints.watching(page):
        page.goto(f"{cluster.admin.url}/topics/clicks")
        page.wait_for_selector("tbody tr[data-key]")
        settle(page)
        page.get_by_role("button", name="Delete…").click()
        page.get_by_role("dialog").get_by_role("textbox").fill("clicks")
        page.screenshot(path=folder / "nsqadmin-delete-light.png")


def settle(page: Page) -> None:
    """Let a few more figures come, so that sparklines have begun."""
    if IS_KEPT:
        page.wait_for_timeout(1_500)
