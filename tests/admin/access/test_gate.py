"""What a request shows of who sent it. (What follows from that is tested through sockets, in `test_login`.)"""

from __future__ import annotations

from typing import Any

import pytest

from emberq.admin.access.gate import COOKIE, Gate, basic_user, cookie, counted_address, is_secure
from emberq.admin.access.user import Role
from emberq.admin.options import AdminOptions
from emberq.base.clock import ManualClock
from emberq.http.message import Request
from tests.support.admin_rig import basic


def request(*, is_tls: bool = False, **headers: str) -> Request:
    named = {name.replace("_", "-").lower().encode(): value.encode("latin-1") for name, value in headers.items()}
    return Request("GET", "/", headers=named, remote_address="127.0.0.1:5000", is_tls=is_tls)


async def gate(**options: Any) -> Gate:
    """Made in a loop, as it must be."""
    return Gate(AdminOptions(lookupd_http_address=("127.0.0.1:4161",), **options), clock=ManualClock())


@pytest.mark.parametrize(
    ("sent", "value"),
    [
        ("", ""),
        (f"{COOKIE}=abc", "abc"),
        (f"other=1; {COOKIE}=abc; more=2", "abc"),
        (f"x{COOKIE}=abc", ""),
        (COOKIE, ""),
        (f"{COOKIE}=a=b", "a=b"),
    ],
)
def test_a_cookie_is_found_among_others(sent: str, value: str) -> None:
    assert cookie(request(Cookie=sent), COOKIE) == value


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        (basic("joe", "p:w"), "joe"),
        (basic("joe", "x").replace("Basic", "bAsIc"), "joe"),
        ("Basic", ""),
        ("Basic \xff", ""),
        ("Bearer x", ""),
        ("Basic am9l", ""),  # no colon
    ],
)
def test_a_user_is_found_in_basic_credentials(sent: str, name: str) -> None:
    assert basic_user(request(Authorization=sent)) == name


def test_a_proxy_may_speak_tls_for_us() -> None:
    assert is_secure(request(is_tls=True))
    assert is_secure(request(X_Scheme="https"))
    assert is_secure(request(X_Forwarded_Proto="https"))
    assert not is_secure(request())


async def test_without_admin_users_everybody_is_an_admin() -> None:
    visitor = (await gate()).visitor(request(Authorization=basic("joe", "x")))
    assert visitor is not None
    assert (visitor.name, visitor.role, visitor.is_known) == ("joe", Role.ADMIN, False)


async def test_an_admin_user_is_named_by_the_header_to_the_letter() -> None:
    guarded = await gate(admin_user=("ada",), acl_http_header="X-User")
    for name, role in (("ada", Role.ADMIN), ("Ada", Role.VIEWER), ("ada,eve", Role.VIEWER), ("", Role.VIEWER)):
        visitor = guarded.visitor(request(X_User=name))
        assert visitor is not None
        assert visitor.role is role


@pytest.mark.parametrize(
    ("remote", "forwarded", "address"),
    [
        ("127.0.0.1:5", None, "127.0.0.1"),
        ("10.0.0.5:5", "203.0.113.7", "203.0.113.7"),
        ("10.0.0.5:5", "203.0.113.7:4000", "203.0.113.7"),
        ("10.0.0.5:5", "[2001:db8::1]:4000", "2001:db8::1"),
        ("10.0.0.5:5", "2001:db8::1", "2001:db8::1"),
        ("10.0.0.5:5", "198.51.100.1, 203.0.113.7", "203.0.113.7"),
        ("10.0.0.5:5", "198.51.100.1, 203.0.113.7, 10.0.1.1, 172.16.0.1", "203.0.113.7"),
        ("10.0.0.5:5", "10.0.0.6", "10.0.0.6"),
        ("10.0.0.5:5", "unknown", "10.0.0.5"),
        ("10.0.0.5:5", "203.0.113.7, unknown", "10.0.0.5"),
        ("10.0.0.5:5", "", "10.0.0.5"),
        ("203.0.113.9:5", "198.51.100.1", "203.0.113.9"),
        ("[::ffff:10.0.0.5]:5", "203.0.113.7", "203.0.113.7"),
        ("@", "203.0.113.7", ""),
    ],
)
async def test_a_known_proxy_says_where_a_request_comes_from(remote: str, forwarded: str | None, address: str) -> None:
    guarded = await gate(forwarding_proxy_cidr=("10.0.0.0/8",), trusted_proxy_cidr=("172.16.0.0/12",))
    headers = {} if forwarded is None else {b"x-forwarded-for": forwarded.encode()}
    assert guarded.client_address(Request("GET", "/", headers=headers, remote_address=remote)) == address


@pytest.mark.parametrize(
    ("address", "counted"),
    [("10.0.0.1", "10.0.0.1"), ("2001:db8::1", "2001:db8::/64"), ("2001:db8::ffff:1", "2001:db8::/64"), ("", "")],
)
def test_a_client_is_counted_by_its_network(address: str, counted: str) -> None:
    assert counted_address(address) == counted


async def test_live_views_are_counted_by_address_where_no_name_is_proved() -> None:
    assert (await gate()).viewer(request(X_Forwarded_User="ada")) == "address 127.0.0.1"
    vouched = await gate(trusted_proxy_cidr=("127.0.0.0/8",))
    assert vouched.viewer(request(X_Forwarded_User="ada")) == "user ada"
