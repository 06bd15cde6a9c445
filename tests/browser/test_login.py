"""Logging in, being refused, and what each role is offered, on a real cluster; with scripts and without."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import Complaints, open_page
from tests.browser.cluster import JOURNALED, Cluster, dead_letter
from tests.support.admin_rig import user_file
from tests.support.waiting import wait_until

PASSWORD = "correct horse battery staple"
BASE_PATH = "/nsq"
USERS = {role[:3]: (role, PASSWORD) for role in ("viewer", "operator", "admin")}
OFFERED = f"{JOURNALED}.guarded"
"""A topic whose channel has a journal and a dead letter, and so all that a channel can be asked for."""
ACTIONS = {"Pause", "Seek…", "Redrive…", "Peek", "Set policy…", "Empty…", "Delete…"}


@pytest.fixture(scope="module")
def guarded(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster through an nsqadmin below a path of its own, with a user of each role; it has a topic `guarded`."""
    cluster.create("guarded", "channel")
    cluster.create(OFFERED, "channel")
    cluster.publish(OFFERED, dead_letter("guarded", "channel", "failed"))
    folder = tmp_path_factory.mktemp("guarded")
    users = user_file(folder, USERS)
    with cluster.with_admin(folder, f"--user-file={users}", f"--base-path={BASE_PATH}") as guarded:
        yield guarded


def url(cluster: Cluster, path: str) -> str:
    return f"{cluster.admin.url}{BASE_PATH}{path}"


def fill_in(page: Page, user: str, *, password: str = PASSWORD) -> None:
    page.get_by_label("Name").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def log_in(page: Page, cluster: Cluster, user: str, *, path: str = "/topics") -> None:
    """As the form does it; the page's cookies are its own from then on."""
    answer = page.request.post(url(cluster, "/login"), form={"user": user, "password": PASSWORD}, max_redirects=0)
    assert answer.status == 303
    page.goto(url(cluster, path))


def asked(page: Page, method: str, path: str, *, token: bool = True, body: Any = None) -> int:
    """The status of a request made by the page's own script."""
    script = """async ([method, path, hasToken, body]) => {
        const token = JSON.parse(document.documentElement.dataset.config).csrf_token;
        const headers = hasToken ? {"X-CSRF-Token": token} : {};
        return (await fetch(path, {method, headers, body: JSON.stringify(body)})).status;
    }"""
    status: int = page.evaluate(script, [method, f"{BASE_PATH}{path}", token, body or {}])
    return status


def test_who_is_not_logged_in_sees_nothing_and_then_the_page_that_was_asked_for(page: Page, guarded: Cluster) -> None:
    page.goto(url(guarded, "/topics/guarded"))
    page.wait_for_url(re.compile(r"/nsq/login\?next="))
    fill_in(page, "adm")
    page.wait_for_url(re.compile("/nsq/topics/guarded$"))
    expect(page.get_by_role("heading", name="guarded", level=1)).to_be_visible()
    expect(page.get_by_role("link", name="channel", exact=True)).to_be_visible()
    expect(page.locator(".user")).to_have_text("adm")


def test_a_wrong_password_is_refused(page: Page, guarded: Cluster, complaints: Complaints) -> None:
    complaints.expect("401")
    page.goto(url(guarded, "/login"))
    fill_in(page, "adm", password="wrong")
    expect(page.get_by_role("alert").filter(has_text="Name or password is wrong.")).to_be_visible()
    page.goto(url(guarded, "/topics"))
    page.wait_for_url(re.compile("/nsq/login"))


def test_without_scripts_the_form_logs_in_and_is_refused(
    browser: Browser, guarded: Cluster, complaints: Complaints
) -> None:
    with open_page(browser, java_script_enabled=False) as page:
        complaints.watch(page)
        page.goto(url(guarded, "/topics/guarded"))
        page.wait_for_url(re.compile(r"/nsq/login\?next="))
        fill_in(page, "adm", password="wrong")
        page.wait_for_url(re.compile(r"/nsq/login\?failed=true&next="))
        expect(page.get_by_role("alert").filter(has_text="Name or password is wrong.")).to_be_visible()
        fill_in(page, "adm")
        page.wait_for_url(re.compile("/nsq/topics/guarded$"))
        expect(page.get_by_role("heading", name="guarded", level=1)).to_be_visible()
        expect(page.locator(".user")).to_have_text("adm")
        expect(page.locator("#loading")).to_be_hidden()


def test_the_login_page_sends_nobody_to_another_site(page: Page, guarded: Cluster) -> None:
    page.goto(url(guarded, "/login?next=https://elsewhere.example/"))
    fill_in(page, "adm")
    page.wait_for_url(re.compile("/nsq/(topics)?$"))


def test_logging_out_ends_it(page: Page, guarded: Cluster) -> None:
    log_in(page, guarded, "vie")
    expect(page.locator("#live-state")).to_have_text("Live")
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(re.compile("/nsq/login"))
    page.goto(url(guarded, "/topics"))
    page.wait_for_url(re.compile("/nsq/login"))


def test_who_logs_out_asks_for_nothing_more(page: Page, guarded: Cluster) -> None:
    """The page is left at some time after the session's end: what it asks for in between would be refused."""
    log_in(page, guarded, "vie")
    expect(page.locator("#live-state")).to_have_text("Live")
    page.route("**/logout", lambda route: None)
    with page.expect_event("requestfailed", lambda request: "/api/live" in request.url):
        page.get_by_role("button", name="Log out").click()
    expect(page.locator("#live-state")).to_have_text(re.compile("^Paused"))  # and soon how old the figures are


@pytest.mark.parametrize(
    ("user", "withheld"),
    [("vie", ACTIONS), ("ope", {"Empty…", "Delete…"}), ("adm", set())],
)
def test_a_role_is_offered_what_it_may_do(page: Page, guarded: Cluster, user: str, withheld: set[str]) -> None:
    log_in(page, guarded, user, path=f"/topics/{OFFERED}/channel")
    expect(page.locator("[data-figure=depth]")).to_have_text("1")

    def offered() -> set[str]:
        return ACTIONS.intersection(page.locator("main button:visible").all_text_contents())

    wait_until(lambda: offered() == ACTIONS - withheld)


def test_what_a_role_may_not_do_is_refused_by_the_server_too(
    page: Page, guarded: Cluster, complaints: Complaints
) -> None:
    complaints.expect("403")
    log_in(page, guarded, "vie", path="/login")
    assert asked(page, "POST", "/api/topics/guarded/channel", body={"action": "clear_policy"}) == 403
    page.context.clear_cookies()
    log_in(page, guarded, "ope", path="/login")
    assert asked(page, "DELETE", "/api/topics/guarded") == 403
    assert asked(page, "POST", "/api/topics/guarded", body={"action": "empty"}) == 403
    assert guarded.topic("guarded") is not None


def test_a_request_without_the_token_is_refused(page: Page, guarded: Cluster, complaints: Complaints) -> None:
    complaints.expect("403")
    log_in(page, guarded, "adm", path="/login")
    assert asked(page, "POST", "/api/topics/guarded", token=False, body={"action": "pause"}) == 403
    assert asked(page, "POST", "/api/topics/guarded", body={"action": "pause"}) == 200
    assert asked(page, "POST", "/api/topics/guarded", body={"action": "unpause"}) == 200
