"""What is wrong stands on the first page, and the rules that say so can be changed on a page of their own."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.cluster import Cluster

RULES = '[[rule]]\nname = "Too deep"\nwhen = "depth"\nabove = 2\nseverity = "critical"\ntopic = "alarm*"\n'


def test_what_is_wrong_is_seen_and_a_rule_is_changed(page: Page, cluster: Cluster, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    cluster.create("alarming", "calm", "wild")
    cluster.publish("alarming", *[b"x"] * 5)
    with cluster.with_admin(tmp_path, f"--alert-rules-file={rules}", "--live-interval=100ms") as watched:
        page.goto(f"{watched.admin.url}/topics")
        wrong = page.get_by_role("region", name="What is wrong")
        expect(wrong.get_by_role("listitem")).to_have_count(2)
        expect(wrong).to_contain_text("Too deep: alarming / calm, 5 messages wait")
        wrong.get_by_role("link", name="All alerts and rules").click()
        now = page.get_by_role("region", name="Now")
        expect(now.get_by_role("listitem")).to_have_count(2)
        page.get_by_role("button", name="Edit…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_label("Severity")).to_have_value("critical")
        dialog.get_by_label("Above").fill("4")
        dialog.get_by_label("Channels").fill("w*")
        dialog.get_by_role("button", name="Save").click()
        expect(now.get_by_role("listitem")).to_have_count(1)
        expect(now).to_contain_text("alarming / wild")
        expect(page.get_by_role("region", name="Resolved lately")).to_contain_text("alarming / calm")
        assert 'channel = "w*"' in rules.read_text()
        page.goto(f"{watched.admin.url}/topics")
        expect(wrong.get_by_role("listitem")).to_have_count(1)
        page.goto(f"{watched.admin.url}/alerts")
        page.get_by_role("button", name="Remove…").click()
        dialog.get_by_role("button", name="Remove").click()
        expect(now).to_contain_text("Nothing is wrong by these rules.")


def test_a_node_is_drained_and_goes_on_again(page: Page, cluster: Cluster, tmp_path: Path) -> None:
    with cluster.with_nsqd(tmp_path) as (_, node):
        cluster.ask(node, "/pub?topic=leaving", b"x")
        cluster.ask(node, "/channel/create?topic=leaving&channel=unread")
        page.goto(f"{cluster.admin.url}/nodes/{node}")
        page.get_by_role("button", name="Drain…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("1 message in 1 topic have to be worked off, by 0 consumers.")
        expect(dialog).to_contain_text("1 channel without consumers, or paused: leaving / unread")
        dialog.get_by_label("Type the name to confirm").fill(node)
        dialog.get_by_role("button", name="Drain").click()
        expect(page.locator("#notes")).to_contain_text(f"Node {node} is being drained; it holds 1 message in 1 topic.")
        expect(page.locator("#state")).to_have_text("draining")
        page.goto(f"{cluster.admin.url}/nodes")
        row = page.get_by_role("row").filter(has_text="draining")
        expect(row).to_have_count(1)
        page.goto(f"{cluster.admin.url}/nodes/{node}")
        page.get_by_role("button", name="Cancel drain…").click()
        dialog.get_by_role("button", name="Cancel drain").click()
        expect(page.locator("#state")).to_have_text("ready")
        cluster.ask(node, "/topic/delete?topic=leaving")
