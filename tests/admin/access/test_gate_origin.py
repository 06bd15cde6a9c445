"""Requests that another site had a browser make."""

from __future__ import annotations

import pytest

from emberq.admin.access.gate import is_from_elsewhere
from emberq.http.message import Request


def request(**headers: str) -> Request:
    named = {name.replace("_", "-").lower().encode(): value.encode() for name, value in headers.items()}
    return Request("POST", "/api/topics", headers=named)


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
