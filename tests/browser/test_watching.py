"""What an operator watches: what is wrong and by which rules, nodes that leave, and how nodes are set up."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.cluster import Cluster, running_cluster

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
        expect(now.get_by_role("listitem")).to_have_count(1)  # it moves the rules when it comes
        page.get_by_role("button", name="Remove…").click()
        dialog.get_by_role("button", name="Remove").click()
        expect(now).to_contain_text("Nothing is wrong by these rules.")
        page.goto("about:blank")  # before nsqadmin goes


def test_an_alert_is_silenced_with_a_reason_until_the_operator_ends_it(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    cluster.create("alarmed", "known", "new")
    cluster.publish("alarmed", *[b"x"] * 5)
    with cluster.with_admin(tmp_path, f"--alert-rules-file={rules}", "--live-interval=100ms") as watched:
        page.goto(f"{watched.admin.url}/alerts")
        now, silences = (page.get_by_role("region", name=name) for name in ("Now", "Silences"))
        entry = now.get_by_role("listitem").filter(has_text="alarmed / known")
        entry.get_by_role("button", name="Silence…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("heading")).to_have_text("Silence Too deep of alarmed / known?")
        expect(dialog.get_by_label("For", exact=True)).to_have_value("2h")
        expect(dialog.get_by_role("button", name="Silence")).to_be_disabled()  # a silence needs a reason
        dialog.get_by_label("Reason").fill("I am on it")
        dialog.get_by_role("button", name="Silence").click()
        expect(page.locator("#notes")).to_contain_text(
            "Silenced rules Too deep, topics alarmed, channels known until 2"
        )
        expect(entry).to_contain_text("I am on it")
        expect(entry.get_by_role("button")).to_have_count(0)
        expect(silences.get_by_role("listitem")).to_contain_text("1 alert, until 2")
        expect(silences).to_contain_text("Without --history-path a restart of nsqadmin ends them.")
        expect(now.get_by_role("listitem").last).to_contain_text("known")  # what is not known yet comes first
        page.goto(f"{watched.admin.url}/topics")
        wrong = page.get_by_role("region", name="What is wrong")
        expect(wrong).to_contain_text("1 silenced")
        expect(wrong.get_by_role("listitem").filter(has_text="alarmed / new")).to_be_visible()
        expect(wrong.get_by_role("listitem").filter(has_text="alarmed / known")).to_have_count(0)
        page.goto(f"{watched.admin.url}/audit")
        lines = page.get_by_role("table", name="Audit log").locator("tbody tr[data-key]")
        expect(lines.filter(has_text="silence_alerts")).to_contain_text("for 2h0m0s: I am on it")
        page.goto(f"{watched.admin.url}/alerts")
        silences.get_by_role("button", name="End").click()
        expect(silences).to_contain_text("No alert is silenced.")
        silences.get_by_role("button", name="Silence…").click()
        dialog.get_by_label("Reason").fill("maintenance")
        dialog.get_by_label("Topics").fill("alarm*")
        dialog.get_by_role("button", name="Silence").click()
        expect(silences.get_by_role("listitem")).to_contain_text("topics alarm*: maintenance")
        expect(now.get_by_role("button", name="Silence…")).to_have_count(0)
        page.goto("about:blank")  # before nsqadmin goes


def test_a_node_that_was_drained_and_has_stopped_is_no_accident(page: Page, tmp_path: Path) -> None:
    with (
        running_cluster(tmp_path, "--live-interval=100ms") as cluster,
        cluster.with_nsqd(tmp_path) as (_, node),
    ):
        page.goto(f"{cluster.admin.url}/nodes/{node}")
        page.get_by_role("button", name="Drain…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Type the name to confirm").fill(node)
        page.route("**/api/view?*", lambda route: None)  # the page asks for the node once more, which may be gone
        dialog.get_by_role("button", name="Drain").click()
        expect(page.locator("#notes")).to_contain_text(f"Node {node} is being drained")  # or leaving would take it back
        page.goto(f"{cluster.admin.url}/nodes")
        page.unroute("**/api/view?*")
        absence = page.locator(f".absence[data-node='{node}']")
        expect(absence).to_contain_text("was drained, and has stopped.")
        absence.get_by_role("button", name="Dismiss").click()
        dialog.get_by_role("button", name="Dismiss").click()
        expect(absence).to_have_count(0)
        page.goto("about:blank")  # before nsqadmin goes


def test_a_node_is_drained_and_goes_on_again(page: Page, tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--live-interval=100ms") as cluster:  # one that has nothing else to hold
        node = cluster.nodes[0]
        cluster.create("leaving", "unread", nodes=(0,))
        cluster.publish("leaving", b"x")
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
        rows = page.get_by_role("table", name="Nodes").locator("tbody tr[data-key]")
        expect(rows.filter(has_text="draining")).to_have_count(1)
        expect(rows.filter(has_text="ready")).to_have_count(1)
        page.goto(f"{cluster.admin.url}/nodes/{node}")
        page.get_by_role("button", name="Cancel drain…").click()
        dialog.get_by_role("button", name="Cancel drain").click()
        expect(page.locator("#state")).to_have_text("ready")
        page.goto("about:blank")  # before nsqadmin goes


def test_settings_of_nodes_are_compared_and_taken_home_as_a_file(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/nodes")
    expect(page.get_by_text("2 nodes", exact=True)).to_be_visible()  # it moves the link when it comes
    page.get_by_role("link", name="Their settings").click()
    rows = page.get_by_role("table", name="Settings").locator("tbody tr[data-key]")
    expect(page.get_by_text("2 nodes, none differs")).to_be_visible()
    page.get_by_label("Which options").select_option("differing")
    row = rows.filter(has_text="data_path")
    expect(row).to_contain_text(f"on {cluster.nodes[1]}" if cluster.nodes[0] < cluster.nodes[1] else cluster.nodes[0])
    with page.expect_download() as download:
        page.get_by_role("button", name="Download the rows shown as CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0] == "Option,Most nodes,Others"
    assert any(line.startswith("data_path,") for line in lines)
    assert download.value.suggested_filename == "nsq-settings.csv"
