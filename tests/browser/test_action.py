"""Every action that pages offer, carried out on a real cluster; the nsqds are asked whether it was."""

from __future__ import annotations

import re
from itertools import count

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.chromium import Complaints
from tests.browser.cluster import JOURNALED, Cluster, dead_letter
from tests.support.waiting import wait_until

HOSTILE_BODY = "<img src=x onerror=alert(1)><script>alert(2)</script>"

_number = count(1)


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic of the test's own, on both nodes, with a channel."""
    name = f"topic-{next(_number)}"
    cluster.create(name, "channel")
    return name


def loaded(page: Page) -> None:
    """The first figures are there: when they come they move buttons, also from under a click."""
    expect(page.locator("#loading")).to_have_count(0)


def open_dialog(page: Page, button: str) -> Locator:
    loaded(page)
    page.get_by_role("button", name=button, exact=True).first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    return dialog


def confirm_by_name(page: Page, button: str, name: str) -> None:
    """Press a button that asks for the name; nothing else will do."""
    dialog = open_dialog(page, button)
    submit = dialog.locator("button[type=submit]")
    expect(submit).to_be_disabled()
    field = dialog.get_by_role("textbox")
    field.fill(f"{name}x")
    expect(submit).to_be_disabled()
    field.fill(name)
    submit.click()


def noted(page: Page, text: str) -> None:
    expect(page.locator(".note").filter(has_text=text)).to_be_visible()


def test_create_a_topic_with_a_channel(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/topics")
    dialog = open_dialog(page, "Create topic…")
    dialog.get_by_label("Topic").fill("created")
    dialog.get_by_label("Channel").fill("first")
    dialog.get_by_role("button", name="Create").click()
    noted(page, "Created channel created / first")
    expect(page.get_by_role("link", name="created")).to_be_visible()


def test_create_and_delete_an_inactive_topic_on_the_lookup_page(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}/lookup")
    loaded(page)
    page.get_by_role("textbox", name="Topic").fill("forgotten")
    page.get_by_role("textbox", name="Channel").fill("c")
    page.get_by_role("button", name="Create").click()
    noted(page, "Created")
    entry = page.locator(".inactive-topic").filter(has_text="forgotten")
    expect(entry).to_be_visible()
    entry.get_by_role("button", name="Delete…").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("forgotten")
    dialog.get_by_role("button", name="Delete").click()
    expect(entry).to_have_count(0)


def test_a_name_that_is_refused(page: Page, cluster: Cluster, complaints: Complaints) -> None:
    complaints.expect("400")
    page.goto(f"{cluster.admin.url}/lookup")
    loaded(page)
    page.get_by_role("textbox", name="Topic").fill("no spaces, please")
    page.get_by_role("button", name="Create").click()
    noted(page, "the name of a topic has 1 to 64 letters")


@pytest.mark.parametrize("of", ["topic", "channel"])
def test_pause_and_unpause(page: Page, cluster: Cluster, topic: str, of: str) -> None:
    page.goto(f"{cluster.admin.url}/topics/{topic}" + ("/channel" if of == "channel" else ""))

    def paused() -> list[bool]:
        if of == "topic":
            return [bool((cluster.topic(topic, node=node) or {}).get("paused")) for node in (0, 1)]
        return [bool((cluster.channel(topic, "channel", node=node) or {}).get("paused")) for node in (0, 1)]

    open_dialog(page, "Pause").get_by_role("button", name="Pause").click()
    expect(page.locator("#state")).to_have_text("paused")
    wait_until(lambda: paused() == [True, True])
    open_dialog(page, "Unpause").get_by_role("button", name="Unpause").click()
    expect(page.locator("#state")).to_be_hidden()
    wait_until(lambda: paused() == [False, False])


def test_a_question_can_be_declined(page: Page, cluster: Cluster, topic: str) -> None:
    page.goto(f"{cluster.admin.url}/topics/{topic}")
    dialog = open_dialog(page, "Pause")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    open_dialog(page, "Delete…")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    found = cluster.topic(topic)
    assert found is not None
    assert not found["paused"]


def test_empty_a_channel(page: Page, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, b"1", b"2", node=0)
    cluster.publish(topic, b"3", node=1)
    page.goto(f"{cluster.admin.url}/topics/{topic}/channel")
    expect(page.locator("[data-figure=depth]")).to_have_text("3")
    confirm_by_name(page, "Empty…", "channel")
    noted(page, f"Emptied channel {topic} / channel.")
    expect(page.locator("[data-figure=depth]")).to_have_text("0")
    assert cluster.depth(topic, "channel") == 0


def test_empty_a_topic(page: Page, cluster: Cluster) -> None:
    cluster.create("without.channels")
    cluster.publish("without.channels", b"1", b"2")
    page.goto(f"{cluster.admin.url}/topics/without.channels")
    expect(page.locator("[data-figure=depth]")).to_have_text("2")
    confirm_by_name(page, "Empty…", "without.channels")
    expect(page.locator("[data-figure=depth]")).to_have_text("0")


def test_a_question_says_of_what_and_how_much(page: Page, cluster: Cluster, topic: str) -> None:
    consumers = [cluster.consumer(topic, "channel", rdy=rdy, hostname=f"host-{rdy}") for rdy in (1, 0)]
    cluster.publish(topic, b"1", b"2", b"3")
    consumers[0].read_message()
    page.goto(f"{cluster.admin.url}/topics/{topic}/channel")
    expect(page.locator("[data-figure=in-flight]")).to_have_text("1")
    expect(page.locator("[data-figure=clients]")).to_have_text("2")
    asked = "3 messages are dropped: 2 waiting, 1 in flight."
    for button in ("Empty…", "Delete…"):
        dialog = open_dialog(page, button)
        expect(dialog.get_by_role("heading")).to_have_text(f"{button[:-1]} channel {topic} / channel?")
        expect(dialog).to_contain_text(asked)
        if button == "Delete…":
            expect(dialog).to_contain_text("2 consumers are disconnected: host-0, host-1.")
        dialog.get_by_role("button", name="Cancel").click()
        expect(dialog).to_have_count(0)
    page.goto(f"{cluster.admin.url}/topics/{topic}")
    expect(page.locator("[data-figure=depth]")).to_have_text("2")
    dialog = open_dialog(page, "Delete…")
    expect(dialog).to_contain_text(asked)
    expect(dialog).to_contain_text("1 channel: channel.")
    expect(dialog).to_contain_text("2 consumers are disconnected.")


def test_to_empty_a_journaled_channel_can_be_undone_and_says_so(page: Page, cluster: Cluster) -> None:
    topic = f"{JOURNALED}.emptied"
    cluster.create(topic, "reader")
    cluster.publish(topic, b"1", b"2")
    page.goto(f"{cluster.admin.url}/topics/{topic}/reader")
    expect(page.locator("[data-figure=depth]")).to_have_text("2")
    dialog = open_dialog(page, "Empty…")
    expect(dialog).to_contain_text("2 messages are skipped")
    expect(dialog).to_contain_text("They stay in the journal")
    expect(dialog).not_to_contain_text("cannot be undone")


def test_delete_a_channel(page: Page, cluster: Cluster, topic: str) -> None:
    page.goto(f"{cluster.admin.url}/topics/{topic}/channel")
    confirm_by_name(page, "Delete…", "channel")
    page.wait_for_url(re.compile(f"/topics/{topic}$"))
    noted(page, f"Deleted channel {topic} / channel.")
    assert cluster.channel(topic, "channel", node=0) is None
    assert cluster.channel(topic, "channel", node=1) is None


def test_delete_a_topic(page: Page, cluster: Cluster, topic: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 600})  # in sight, the journal is asked for even when it is gone
    page.goto(f"{cluster.admin.url}/topics/{topic}")
    confirm_by_name(page, "Delete…", topic)
    page.wait_for_url(re.compile("/topics$"))
    noted(page, f"Deleted topic {topic}.")
    assert cluster.topic(topic, node=0) is None
    assert cluster.topic(topic, node=1) is None


def test_tombstone_a_topic_on_one_node(page: Page, cluster: Cluster, topic: str) -> None:
    page.goto(f"{cluster.admin.url}/topics/{topic}")
    row = page.get_by_role("table", name="Nodes").locator("tbody tr[data-key]").filter(has_text=cluster.nodes[1])
    row.get_by_role("button", name="Tombstone").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill(topic)
    dialog.get_by_role("button", name="Tombstone").click()
    noted(page, f"Tombstoned topic {topic}")
    expect(row).to_have_count(0)
    assert cluster.topic(topic, node=0) is not None
    assert cluster.topic(topic, node=1) is None


def test_publish_and_peek(page: Page, cluster: Cluster, topic: str) -> None:
    page.goto(f"{cluster.admin.url}/topics/{topic}")
    expect(page.locator("[data-figure=messages]")).to_have_text("0")
    page.get_by_label("Body").fill(HOSTILE_BODY)
    page.get_by_role("button", name="Publish").click()
    noted(page, f"Published to {topic}")
    wait_until(lambda: cluster.depth(topic, "channel") == 1)
    page.goto(f"{cluster.admin.url}/topics/{topic}/channel")
    loaded(page)
    page.get_by_role("button", name="Peek").click()
    expect(page.locator(".message pre")).to_have_text(HOSTILE_BODY)
    assert page.locator(".message img, .message script").count() == 0
    assert cluster.depth(topic, "channel") == 1


def test_publish_a_message_for_later(page: Page, cluster: Cluster, topic: str) -> None:
    page.goto(f"{cluster.admin.url}/topics/{topic}")
    expect(page.locator("[data-figure=messages]")).to_have_text("0")
    page.get_by_label("Body").fill("later")
    page.get_by_label("Deferred by").fill("60000")
    page.get_by_role("button", name="Publish").click()
    noted(page, "Published")

    def deferred() -> int:
        return sum((cluster.channel(topic, "channel", node=node) or {})["deferred_count"] for node in (0, 1))

    wait_until(lambda: deferred() == 1)


def test_an_empty_message_is_refused(page: Page, cluster: Cluster, topic: str, complaints: Complaints) -> None:
    complaints.expect("400")
    page.goto(f"{cluster.admin.url}/topics/{topic}")
    expect(page.locator("[data-figure=messages]")).to_have_text("0")  # before, the form may move, and be hidden again
    page.get_by_role("button", name="Publish").click()
    noted(page, "MSG_EMPTY")


def test_seek_to_the_beginning_to_the_end_and_to_a_time(page: Page, cluster: Cluster) -> None:
    topic = f"{JOURNALED}.seek"
    cluster.create(topic, "reader")
    cluster.publish(topic, b"1", b"2", b"3")
    page.goto(f"{cluster.admin.url}/topics/{topic}/reader")
    depth = page.locator("[data-figure=depth]")
    expect(depth).to_have_text("3")
    places = (
        ("latest", "", "0"),
        ("earliest", "", "3"),
        ("time", "2099-01-01T00:00:30", "0"),
        ("time", "2020-01-01T00:00", "3"),
    )
    for position, moment, left in places:
        dialog = open_dialog(page, "Seek…")
        dialog.get_by_label("To", exact=True).select_option(position)
        if moment:
            dialog.get_by_label("Time").fill(moment)
        dialog.get_by_label("Type the channel").fill("reader")
        dialog.get_by_role("button", name="Move").click()
        expect(depth).to_have_text(left)


def test_a_seek_to_an_offset_names_its_node(page: Page, cluster: Cluster) -> None:
    topic = f"{JOURNALED}.offset"
    cluster.create(topic, "reader")
    cluster.publish(topic, b"1", b"2", b"3")
    page.goto(f"{cluster.admin.url}/topics/{topic}/reader")
    expect(page.locator("[data-figure=depth]")).to_have_text("3")
    dialog = open_dialog(page, "Seek…")
    dialog.get_by_label("To", exact=True).select_option("offset")
    dialog.get_by_label("On", exact=True).select_option(cluster.nodes[0])  # others do not have that offset
    dialog.get_by_label("Offset").fill("2")
    dialog.get_by_label("Type the channel").fill("reader")
    dialog.get_by_role("button", name="Move").click()
    expect(page.locator("[data-figure=depth]")).to_have_text("1")


def test_what_a_seek_would_do_is_said_before_it_is_done(page: Page, cluster: Cluster) -> None:
    topic = f"{JOURNALED}.foretold"
    cluster.create(topic, "reader")
    cluster.publish(topic, b"1", b"2", b"3")
    page.goto(f"{cluster.admin.url}/topics/{topic}/reader")
    dialog = open_dialog(page, "Seek…")
    expect(dialog.get_by_role("heading")).to_have_text(f"Move channel {topic} / reader")
    submit, foretold = dialog.locator("button[type=submit]"), dialog.get_by_role("status")
    dialog.get_by_label("Type the channel").fill("reader")
    expect(dialog.get_by_label("Time")).to_have_value("")  # now would skip all that waits
    expect(submit).to_be_disabled()
    dialog.get_by_label("Time").fill("2099-01-01T00:00:00")
    expect(foretold).to_have_text("3 messages are skipped; 0 will wait.")
    expect(submit).to_be_enabled()
    dialog.get_by_label("Time").fill("")
    expect(submit).to_be_disabled()
    dialog.get_by_label("To", exact=True).select_option("latest")
    expect(foretold).to_have_text("3 messages are skipped; 0 will wait.")
    submit.click()
    noted(page, f"Moved channel {topic} / reader to latest")
    expect(page.locator("[data-figure=depth]")).to_have_text("0")
    dialog = open_dialog(page, "Seek…")
    dialog.get_by_label("To", exact=True).select_option("earliest")
    expect(dialog.get_by_role("status")).to_have_text("3 messages come again; 3 will wait.")


def test_seek_is_offered_where_there_is_a_journal(page: Page, cluster: Cluster, topic: str) -> None:
    with page.expect_response(re.compile(f"/api/journal/{topic}$")):
        page.goto(f"{cluster.admin.url}/topics/{topic}/channel")
        expect(page.get_by_role("button", name="Delete…")).to_be_visible()
        expect(page.get_by_role("button", name="Seek…")).to_have_count(0)
    expect(page.get_by_role("button", name="Seek…")).to_have_count(0)


def test_dead_letters_are_recognised_and_redriven(page: Page, cluster: Cluster, topic: str) -> None:
    dead = f"{topic}.dead"
    cluster.create(dead, "review")
    cluster.publish(dead, dead_letter(topic, "channel", "one"), dead_letter(topic, "channel", "two"))
    page.goto(f"{cluster.admin.url}/topics/{dead}/review")
    loaded(page)
    page.get_by_role("button", name="Peek").click()
    expect(page.locator(".message pre")).to_have_text(["one", "two"])
    expect(page.locator(".dead-letter").first).to_contain_text(f"{topic} / channel")
    page.locator("#dead-letter-offer button").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    noted(page, f"Redrove 2 messages of {dead} / review; none waits.")
    assert cluster.depth(dead, "review") == 0
    assert cluster.depth(topic, "channel") == 2


def test_a_redrive_says_what_went_what_waits_and_what_could_not(page: Page, cluster: Cluster, topic: str) -> None:
    dead = f"{topic}.dead"
    cluster.create(dead, "review")
    letters = [dead_letter(topic, "channel", str(number)) for number in range(4)]
    cluster.publish(dead, b"no envelope", *letters)
    page.goto(f"{cluster.admin.url}/topics/{dead}/review")
    dialog = open_dialog(page, "Redrive…")
    expect(dialog.get_by_role("heading")).to_have_text(f"Redrive channel {dead} / review")
    expect(dialog).to_contain_text("5 messages wait here.")
    submit, count = dialog.locator("button[type=submit]"), dialog.get_by_label("At most")
    expect(count).to_have_value("5")
    for refused in ("", "0", "10001"):
        count.fill(refused)
        expect(submit).to_be_disabled()
    count.fill("3")
    submit.click()
    noted(page, f"Redrove 3 messages of {dead} / review; 2 still wait; 1 could not go: no dead letter.")


def test_redrive_is_offered_where_dead_letters_wait(page: Page, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, b"an ordinary message")
    with page.expect_response(re.compile(f"/api/redrive/{topic}/channel")):
        page.goto(f"{cluster.admin.url}/topics/{topic}/channel")
        expect(page.get_by_role("button", name="Delete…")).to_be_visible()
        expect(page.get_by_role("button", name="Redrive…")).to_have_count(0)
    expect(page.get_by_role("button", name="Redrive…")).to_have_count(0)


def test_a_policy_is_set_leads_to_the_dead_letters_and_is_cleared(page: Page, cluster: Cluster, topic: str) -> None:
    page.goto(f"{cluster.admin.url}/topics/{topic}/channel")
    policy = page.locator("[data-figure=policy]")
    expect(policy).to_contain_text("No policy: a message is delivered until a consumer finishes it.")
    dialog = open_dialog(page, "Set policy…")
    expect(dialog.get_by_label("Then to topic")).to_have_value(f"{topic}.dead")
    dialog.get_by_label("Deliveries at most").fill("1")
    dialog.get_by_role("button", name="Set policy").click()
    noted(page, f"Set the policy of channel {topic} / channel")
    expect(policy).to_contain_text(f"After 1 delivery without success a message goes to topic {topic}.dead.")
    set_on = [(cluster.channel(topic, "channel", node=node) or {}).get("policy") for node in (0, 1)]
    assert set_on == [{"max_attempts": 1, "dead_letter_topic": f"{topic}.dead"}] * 2
    page.get_by_role("heading", name="Dead letters").scroll_into_view_if_needed()
    expect(page.get_by_text(f"no node has topic {topic}.dead")).to_be_visible()

    cluster.publish(topic, b"poison")
    consumer = cluster.consumer(topic, "channel", rdy=1)
    consumer.req(consumer.read_message(), 0)
    wait_until(lambda: cluster.topic(f"{topic}.dead") is not None)
    expect(policy).to_contain_text("1 message so far.")
    page.get_by_role("button", name="Create channel review").click()
    link = page.get_by_role("link", name=f"{topic}.dead / review")
    expect(link.locator("xpath=..")).to_contain_text("1 message waiting")
    before = link.element_handle()
    for _ in range(2):  # the page has looked again, and shown what it found the time before
        page.wait_for_event("response", lambda response: response.url.endswith(f"/api/topics/{topic}.dead"))
    assert before.is_visible(), "what has not changed was made anew, and a click or the focus would be lost"
    link.click()
    expect(page.locator("[data-figure=depth]")).to_have_text("1")
    page.get_by_role("button", name="Peek").click()
    expect(page.locator(".dead-letter")).to_contain_text(f"{topic} / channel")
    page.goto(f"{cluster.admin.url}/topics/{topic}/channel")

    dialog = open_dialog(page, "Clear policy…")
    dialog.get_by_role("button", name="Clear policy").click()
    noted(page, f"Cleared the policy of channel {topic} / channel")
    expect(policy).to_contain_text("No policy:")
    assert (cluster.channel(topic, "channel") or {}).get("policy") is None


def test_a_policy_that_cannot_be_is_refused(page: Page, cluster: Cluster, topic: str, complaints: Complaints) -> None:
    complaints.expect("400")
    page.goto(f"{cluster.admin.url}/topics/{topic}/channel")
    dialog = open_dialog(page, "Set policy…")
    dialog.get_by_label("Then to topic").fill(topic)
    dialog.get_by_role("button", name="Set policy").click()
    noted(page, "DEAD_LETTER_CYCLE")
