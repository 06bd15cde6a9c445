"""Guessing passwords of nsqadmin: the guesser is stopped, and other users are not locked out with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from emberq.admin.access import user
from emberq.base.clock import ManualClock
from tests.support.admin_rig import AdminThread, basic, user_file
from tests.support.cluster_rig import DEAD
from tests.support.http_client import Answer

PROXY = ("127.0.0.0/8",)
USERS = {"ada": ("admin", "lovelace"), "tom": ("viewer", "t")}


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of them; to check a name that is not in it takes as little time as to check one that is."""
    monkeypatch.setattr(user, "COST_LOG2", 2)
    return str(user_file(tmp_path, USERS))


@pytest.fixture
def admin(users: str) -> Iterator[AdminThread]:
    """Behind a proxy that it does not know of, on this machine."""
    with AdminThread(lookupd_http_address=(DEAD,), user_file=users, clock=ManualClock()) as running:
        yield running


@pytest.fixture
def proxied(users: str) -> Iterator[AdminThread]:
    """Behind a proxy on this machine that says where its clients are."""
    options = {"user_file": users, "forwarding_proxy_cidr": PROXY}
    with AdminThread(lookupd_http_address=(DEAD,), clock=ManualClock(), **options) as running:
        yield running


def log_in(admin: AdminThread, name: str, password: str, **headers: str) -> Answer:
    return admin.post("/login", {"user": name, "password": password}, **headers)


def guess(admin: AdminThread, name: str, count: int, **headers: str) -> int:
    """The status of the last of so many wrong passwords."""
    for number in range(count):
        status = log_in(admin, name, f"guess {number}", **headers).status
    return status


def test_a_guesser_does_not_lock_out_other_users_of_the_same_address(admin: AdminThread) -> None:
    assert guess(admin, "tom", 6) == 429
    assert log_in(admin, "ada", "lovelace").status == 200
    assert log_in(admin, "tom", "t").error == (429, "TOO_MANY_TRIES")


def test_a_guesser_of_many_names_is_stopped_and_known_users_are_not(admin: AdminThread) -> None:
    assert log_in(admin, "ada", "lovelace").status == 200
    statuses = [log_in(admin, f"name {number}", "x").status for number in range(51)]
    assert statuses == [401] * 50 + [429]
    assert log_in(admin, "tom", "t").status == 429  # who has not been here before
    assert log_in(admin, "ada", "lovelace").status == 200


def test_a_guesser_with_an_account_is_stopped_all_the_same(admin: AdminThread) -> None:
    for _ in range(5):
        guess(admin, "ada", 1)
        assert log_in(admin, "tom", "t").status == 200
    assert log_in(admin, "ada", "lovelace").error == (429, "TOO_MANY_TRIES")


def test_behind_a_known_proxy_each_client_counts_for_itself(proxied: AdminThread) -> None:
    assert guess(proxied, "ada", 6, X_Forwarded_For="203.0.113.7") == 429
    assert log_in(proxied, "ada", "lovelace", X_Forwarded_For="203.0.113.8").status == 200
    shown = {"Authorization": basic("ada", "lovelace"), "X_Forwarded_For": "203.0.113.9"}
    assert proxied.get("/topics", **shown).status == 200


@pytest.mark.parametrize(
    "forged",
    [
        "198.51.100.{}, 203.0.113.7",  # the client begins the header, the proxy adds to it
        "198.51.100.{}, 203.0.113.7, 127.0.0.9",  # two proxies
        "nonsense{}, 203.0.113.7:5000",
    ],
)
def test_a_guesser_cannot_forge_its_address(proxied: AdminThread, forged: str) -> None:
    statuses = [log_in(proxied, "ada", "x", X_Forwarded_For=forged.format(number)).status for number in range(6)]
    assert statuses == [401] * 5 + [429]
    assert log_in(proxied, "ada", "lovelace", X_Forwarded_For="203.0.113.7").status == 429


def test_the_addresses_of_one_network_count_together(proxied: AdminThread) -> None:
    statuses = [log_in(proxied, "ada", "x", X_Forwarded_For=f"2001:db8::{number}").status for number in range(6)]
    assert statuses == [401] * 5 + [429]
    assert log_in(proxied, "ada", "lovelace", X_Forwarded_For="2001:db8:0:1::1").status == 200


def test_where_no_proxy_is_known_the_header_says_nothing(admin: AdminThread) -> None:
    statuses = [log_in(admin, "ada", "x", X_Forwarded_For=f"203.0.113.{number}").status for number in range(6)]
    assert statuses == [401] * 5 + [429]
