"""The settings of a made-up daemon: all can be read, two can be changed."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from emberq.base.flag import LOG_LEVEL
from emberq.base.log import ROOT, LogLevel
from emberq.base.settings import VERSION, Group, SettingTable
from emberq.http.live_config import LiveConfig, Lookupds
from emberq.http.message import HttpError

pytestmark = pytest.mark.usefixtures("process_as_before")

_GROUP = Group("All")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    log_level: LogLevel = _GROUP.declare(LOG_LEVEL, LogLevel.INFO, "what to log")  # noqa: RUF009 - it makes a field
    lookupd_address: tuple[str, ...] = _GROUP.strings("whom to tell", key="lookupds")
    name: str = _GROUP.text("me", "who it is")
    pause_ns: int = _GROUP.duration("2s", "how long to rest")
    password: str = _GROUP.text("secret", "what nobody may know")
    node_id: int = _GROUP.integer(7, "which one it is", key="")


class Daemon:
    """Has nsqlookupds whose addresses begin with a letter."""

    def __init__(self) -> None:
        self.lookupds: tuple[str, ...] = ("a:1",)
        self.config = LiveConfig(
            SettingTable("daemon", options_class=Options, command=(VERSION,)),
            Options(),
            lookupds=Lookupds(
                key="lookupds",
                read=lambda: self.lookupds,
                change=lambda addresses: setattr(self, "lookupds", addresses),
                accepts=lambda address: address[:1].isalpha(),
            ),
            shown_as={"password": len},
        )

    def shown(self, key: str) -> bytes:
        return self.config.show(key).body

    def refusal(self, key: str, body: bytes) -> tuple[int, str]:
        with pytest.raises(HttpError) as refused:
            self.config.change(key, body)
        return refused.value.status, str(refused.value)


@pytest.mark.parametrize(
    ("key", "body"), [("log_level", b"2"), ("lookupds", b'["a:1"]'), ("name", b"me"), ("pause", b"2000000000")]
)
def test_a_string_is_shown_as_it_is_and_everything_else_as_json(key: str, body: bytes) -> None:
    assert Daemon().shown(key) == body


def test_a_value_is_made_fit_to_be_shown_where_the_daemon_says_how() -> None:
    assert Daemon().shown("password") == b"6"


@pytest.mark.parametrize("key", ["nope", "", "pause_ns", "lookupd_address", "node_id", "version"])
def test_what_a_config_file_cannot_hold_is_no_option(key: str) -> None:
    daemon = Daemon()
    with pytest.raises(HttpError, match=r"^INVALID_OPTION$") as refused:
        daemon.config.show(key)
    assert refused.value.status == 400
    assert daemon.refusal(key, b"x") == (400, "INVALID_OPTION")


def test_the_log_level_is_changed_for_the_whole_process() -> None:
    daemon = Daemon()
    assert daemon.config.change("log_level", b"error").body == daemon.shown("log_level") == b"4"
    assert logging.getLogger(ROOT).level == logging.ERROR


def test_the_nsqlookupds_are_changed_where_the_daemon_holds_them() -> None:
    daemon = Daemon()
    assert daemon.config.change("lookupds", b'["b:2", "c:3"]').body == b'["b:2","c:3"]'
    assert daemon.lookupds == ("b:2", "c:3")


@pytest.mark.parametrize(
    ("key", "body"),
    [
        ("log_level", b"loud"),
        ("log_level", b"\xff"),
        ("lookupds", b"a:1"),
        ("lookupds", b'"a:1"'),
        ("lookupds", b'["b:1", null]'),
        ("lookupds", b'["b:1", ":2"]'),
        ("lookupds", b"[" * 100_000),
    ],
)
def test_a_value_that_does_not_fit_changes_nothing(key: str, body: bytes) -> None:
    daemon = Daemon()
    before = daemon.shown(key)
    assert daemon.refusal(key, body) == (400, "INVALID_VALUE")
    assert daemon.shown(key) == before


def test_a_value_must_be_there() -> None:
    assert Daemon().refusal("log_level", b"") == (413, "INVALID_VALUE")


def test_all_other_settings_cannot_be_changed() -> None:
    assert Daemon().refusal("name", b"you") == (400, "INVALID_OPTION")
