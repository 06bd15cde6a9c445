"""Logging in, being refused, and what each role is offered, on a real cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from emberq.admin.access.password import hash_password
from tests.browser.chromium import Complaints
from tests.browser.cluster import Cluster, running_cluster

PASSWORD = "correct horse battery staple"
BASE_PATH = "/nsq"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An nsqadmin below a path of its own, with a user of each role."""
    folder = tmp_path_factory.mktemp("cluster")
    users = folder / "users"
    hashed = hash_password(PASSWORD)
    users.write_text("".join(f"{role[:3]}:{role}:{hashed}\n" for role in ("viewer", "operator", "admin")))
    with running_cluster(folder, f"--user-file={users}", f"--base-path={BASE_PATH}") as cluster:
        cluster.create("orders", "billing")
        yield cluster


def log_in(page: Page, cluster: Cluster, user: str, *, password: str = PASSWORD, path: str = "/topics") -> None:
    page.goto(f"{cluster.admin.url}{BASE_PATH}{path}")
    page.wait_for_url(re.compile(r"/nsq/login\?next="))
    page.get_by_label("Name").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def asked(page: Page, method: str, path: str, *, token: bool = True, body: Any = None) -> int:
    """The status of a request made by the page's own script."""
    script = """async ([method, path, hasToken, body]) => {
        const token = JSON.parse(document.documentElement.dataset.config).csrf_token;
        const headers = hasToken ? {"X-CSRF-Token": token} : {};
        return (await fetch(path, {method, headers, body: JSON.stringify(body)})).status;
    }"""
    status: int = page.evaluate(script, [method, f"{BASE_PATH}{path}", token, body or {}])
    return status


def test_who_is_not_logged_in_sees_nothing_and_then_the_page_that_was_asked_for(page: Page, cluster: Cluster) -> None:
    log_in(page, cluster, "adm", path="/topics/orders")
    page.wait_for_url(re.compile("/nsq/topics/orders$"))
    expect(page.get_by_role("heading", name="orders", level=1)).to_be_visible()
    expect(page.get_by_role("link", name="billing")).to_be_visible()
    expect(page.locator(".user")).to_have_text("adm")


def test_a_wrong_password_is_refused(page: Page, cluster: Cluster, complaints: Complaints) -> None:
    complaints.expect("401")
    log_in(page, cluster, "adm", password="wrong")
    expect(page.get_by_role("alert").filter(has_text="Name or password is wrong.")).to_be_visible()
    page.goto(f"{cluster.admin.url}{BASE_PATH}/topics")
    page.wait_for_url(re.compile("/nsq/login"))


def test_the_login_page_sends_nobody_to_another_site(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.admin.url}{BASE_PATH}/login?next=https://elsewhere.example/")
    page.get_by_label("Name").fill("adm")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(re.compile("/nsq/(topics)?$"))


def test_logging_out_ends_it(page: Page, cluster: Cluster) -> None:
    log_in(page, cluster, "vie")
    expect(page.locator("#live-state")).to_have_text("Live")
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(re.compile("/nsq/login"))
    page.goto(f"{cluster.admin.url}{BASE_PATH}/topics")
    page.wait_for_url(re.compile("/nsq/login"))


@pytest.mark.parametrize(
    ("user", "offered"),
    [
        ("vie", set()),
        ("ope", {"Pause", "Seek…", "Redrive…", "Peek"}),
        ("adm", {"Pause", "Seek…", "Redrive…", "Peek", "Empty…", "Delete…"}),
    ],
)
def test_a_role_is_offered_what_it_may_do(page: Page, cluster: Cluster, user: str, offered: set[str]) -> None:
    log_in(page, cluster, user, path="/topics/orders/billing")
    expect(page.locator("[data-figure=depth]")).to_have_text("0")
    labels = set(page.locator("main button:visible").all_text_contents())
    assert labels & {"Pause", "Seek…", "Redrive…", "Peek", "Empty…", "Delete…"} == offered


def test_what_a_role_may_not_do_is_refused_by_the_server_too(
    page: Page, cluster: Cluster, complaints: Complaints
) -> None:
    complaints.expect("403")
    log_in(page, cluster, "ope")
    page.wait_for_url(re.compile("/nsq/topics$"))
    assert asked(page, "DELETE", "/api/topics/orders") == 403
    assert asked(page, "POST", "/api/topics/orders", body={"action": "empty"}) == 403
    assert cluster.topic("orders") is not None


def test_a_request_without_the_token_is_refused(page: Page, cluster: Cluster, complaints: Complaints) -> None:
    complaints.expect("403")
    log_in(page, cluster, "adm")
    page.wait_for_url(re.compile("/nsq/topics$"))
    assert asked(page, "POST", "/api/topics/orders", token=False, body={"action": "pause"}) == 403
    assert asked(page, "POST", "/api/topics/orders", body={"action": "pause"}) == 200
    assert asked(page, "POST", "/api/topics/orders", body={"action": "unpause"}) == 200
