"""Requests that another site had a browser make, and names that are not ours."""

from __future__ import annotations

import pytest

from emberq.http import browser as module
from emberq.http.browser import BrowserGuard, host_in, is_from_browser, is_from_elsewhere
from emberq.http.message import Request


def request(method: str = "POST", **headers: str) -> Request:
    named = {name.replace("_", "-").lower().encode(): value.encode() for name, value in headers.items()}
    return Request(method, "/api/topics", headers=named)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "admin:4171", "Origin": "http://admin:4171"},
        {"Host": "ADMIN:4171", "Origin": "http://admin:4171"},
        {"Host": "admin", "Origin": "http://admin"},
        {"Host": "admin", "Origin": "https://admin:443"},
        {"Host": "admin:80", "Origin": "http://admin"},
        {"Host": "[::1]:4171", "Origin": "http://[::1]:4171"},
        {"Host": "10.0.0.1:4171", "X_Forwarded_Host": "admin.example", "Origin": "https://admin.example"},
        {"Host": "admin", "Sec_Fetch_Site": "same-origin"},
        {"Host": "admin", "Sec_Fetch_Site": "none"},
    ],
)
def test_programs_and_our_own_pages_are_not_from_elsewhere(headers: dict[str, str]) -> None:
    assert not is_from_elsewhere(request(**headers))


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "admin:4171", "Origin": "http://evil:4171"},
        {"Host": "admin:4171", "Origin": "http://admin:4172"},
        {"Host": "admin:4171", "Origin": "http://admin"},
        {"Host": "admin:4171", "Origin": "null"},
        {"Host": "admin:4171", "Origin": ""},
        {"Host": "admin:4171", "Origin": "http://admin:4171@evil"},
        {"Host": "admin:4171", "Origin": "ftp://admin:4171"},
        {"Host": "admin:4171", "Origin": "http://admin:port"},
        {"Host": "", "Origin": "http://"},
        {"Origin": "http://admin:4171"},
        {"Host": "admin", "Sec_Fetch_Site": "cross-site"},
        {"Host": "admin", "Sec_Fetch_Site": "same-site"},
    ],
)
def test_other_sites_are(headers: dict[str, str]) -> None:
    assert is_from_elsewhere(request(**headers))


LINK = {"Host": "admin", "Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}


@pytest.mark.parametrize(
    ("method", "headers", "is_foreign"),
    [
        ("GET", LINK, False),
        ("POST", LINK, True),
        ("GET", LINK | {"Sec_Fetch_Dest": "iframe"}, True),
        ("GET", LINK | {"Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "image"}, True),
        ("GET", LINK | {"Origin": "http://evil"}, True),
    ],
)
def test_a_link_may_be_followed_from_anywhere(method: str, headers: dict[str, str], is_foreign: bool) -> None:
    assert is_from_elsewhere(request(method, **headers)) is is_foreign


@pytest.mark.parametrize(
    ("headers", "is_browser"),
    [
        ({}, False),
        ({"User_Agent": "Mozilla/5.0 (Windows NT; en-US) WindowsPowerShell/5.1"}, False),
        (
            {"User_Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 HeadlessChrome/156.0.0.0 Safari/537.36"},
            True,
        ),
        ({"Accept_Language": "*", "Sec_Fetch_Mode": "cors", "User_Agent": "node"}, False),
        ({"Accept_Language": ""}, True),
        ({"Accept_Language": "en"}, True),
        ({"Origin": "null"}, True),
        ({"Sec_Fetch_Site": "none"}, True),
    ],
)
def test_browsers_are_told_from_programs(headers: dict[str, str], is_browser: bool) -> None:
    assert is_from_browser(request(**headers)) is is_browser


@pytest.mark.parametrize(
    ("address", "host"),
    [("0.0.0.0:4151", "0.0.0.0"), (":4151", ""), ("[::1]:4151", "[::1]"), ("q1:http", "q1"), ("/run/nsqd", "")],
)
def test_what_is_listened_on_has_a_host(address: str, host: str) -> None:
    assert host_in(address) == host


def test_the_log_is_told_of_a_name_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOLD", 2)
    guard = BrowserGuard(())
    for host in ("a.example", "a.example:80", "b\x1b.example", "c.example"):
        assert guard(request(Host=host, Accept_Language="en")) is not None
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert '"a.example"' in told[0]
    assert "\x1b" not in told[1]
