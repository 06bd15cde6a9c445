"""The pages as the server sends them."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from urllib.parse import quote

import pytest

from emberq.admin.access.user import Role
from emberq.admin.web.pages import page_routes
from emberq.http.message import Request, Response
from emberq.http.router import Match, Router
from tests.support.stand_in import FixedSite

PAGES = {
    "/": "topics",
    "/topics": "topics",
    "/topics/orders": "topic",
    "/topics/orders/billing": "channel",
    "/nodes": "nodes",
    "/nodes/127.0.0.1:4151": "node",
    "/counter": "counter",
    "/lookup": "lookup",
    "/pipelines": "pipelines",
    "/channels": "channels",
    "/alerts": "alerts",
    "/audit": "audit",
    "/dead_letters": "dead_letters",
    "/settings": "settings",
    "/search": "search",
    "/login": "login",
}
HOSTILE = """'"><script>alert(1)<!--" onload="x"""


class Reader(HTMLParser):
    """Collects the elements of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def asked(target: str, site: FixedSite | None = None) -> Response:
    found = Router(page_routes(site or FixedSite())).find("GET", Request("GET", target).path)
    assert isinstance(found, Match)
    answer = found.route.handler(Request("GET", target, params=found.params))
    assert isinstance(answer, Response)
    return answer


def read(target: str, site: FixedSite | None = None) -> Reader:
    return Reader(asked(target, site).body.decode())


@pytest.mark.parametrize(("target", "name"), PAGES.items())
def test_every_page_is_html_that_is_not_kept(target: str, name: str) -> None:
    answer = asked(target)
    assert (answer.status, answer.content_type) == (200, "text/html; charset=utf-8")
    assert dict(answer.headers)["Cache-Control"] == "no-store"
    assert Reader(answer.body.decode()).all("main")[0]["data-page"] == name


@pytest.mark.parametrize("target", PAGES)
def test_pages_hold_no_script_and_no_style_of_their_own(target: str) -> None:
    html = asked(target).body.decode()
    assert all("src" in script for script in Reader(html).all("script"))
    assert not re.search(r"<script[^>]*>[^<]", html)
    for tag, attributes in Reader(html).elements:
        assert tag != "style"
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]


@pytest.mark.parametrize("path", ["/topics/", "/topics/orders/", "/nodes/"])
def test_a_name_in_the_path_never_becomes_markup(path: str) -> None:
    page, harmless = read(path + quote(HOSTILE)), read(f"{path}name")
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in harmless.elements]
    assert [[*attributes] for _, attributes in page.elements] == [[*attributes] for _, attributes in harmless.elements]
    assert HOSTILE in page.all("main")[0].values()


def test_links_and_files_begin_with_the_base_path() -> None:
    page = read("/topics/orders", FixedSite(base_path="/nsq"))
    references = [link["href"] for link in (*page.all("a"), *page.all("link"))]
    references += [script["src"] for script in page.all("script")]
    assert len(references) > 10
    for reference in references:
        assert reference is not None
        assert reference.startswith(("/nsq/", "#"))


def test_scripts_are_told_what_the_visitor_may_do() -> None:
    config = json.loads(read("/topics", FixedSite(role=Role.OPERATOR)).all("html")[0]["data-config"] or "")
    assert "pause" in config["permissions"]
    assert "delete" not in config["permissions"]


def test_the_name_of_a_topic_is_escaped_in_links_to_it() -> None:
    links = [link["href"] for link in read("/topics/a%23ephemeral/b").all("a")]
    assert "/topics/a%23ephemeral" in links


def test_every_file_that_a_page_names_is_there() -> None:
    for target in PAGES:
        page = read(target)
        names = [link["href"] for link in page.all("link")] + [script["src"] for script in page.all("script")]
        for name in names:
            assert asked(name or "").status == 200


def test_the_current_page_is_marked_in_the_navigation() -> None:
    current = [link["href"] for link in read("/topics/orders/billing").all("a") if link.get("aria-current")]
    assert current == ["/topics"]


def test_who_is_logged_in_is_shown_and_may_log_out() -> None:
    html = asked("/topics", FixedSite(user="ada <admin>")).body.decode()
    assert "ada &lt;admin&gt;" in html
    assert "data-log-out" in html
    assert "data-log-out" not in asked("/topics").body.decode()


def test_the_login_page_asks_for_name_and_password_where_there_are_passwords() -> None:
    fields = {field["name"] for field in read("/login", FixedSite(has_passwords=True)).all("input")}
    assert fields == {"user", "password", "next"}


def test_the_login_page_points_to_the_proxy_where_there_are_none() -> None:
    assert not read("/login").all("input")
    assert b"through the proxy" in asked("/login").body


def test_the_login_page_works_without_scripts_and_says_that_the_last_try_failed() -> None:
    site = FixedSite(has_passwords=True, base_path="/nsq")
    page = read("/login?next=%2Fnsq%2Fnodes&failed=true", site)
    assert page.all("form")[0]["action"] == "/nsq/login"
    assert [field["value"] for field in page.all("input") if field["name"] == "next"] == ["/nsq/nodes"]
    assert b"Name or password is wrong." in asked("/login?failed=true", site).body


def test_every_field_has_a_label() -> None:
    page = read("/login", FixedSite(has_passwords=True))
    labelled = {label["for"] for label in page.all("label")}
    assert {field["id"] for field in page.all("input") if field["type"] != "hidden"} <= labelled
