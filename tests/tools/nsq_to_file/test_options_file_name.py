"""What files are called."""

from __future__ import annotations

import socket
import time

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.tools.nsq_to_file.options import FileNameFormat, complete_template, format_time, host_part

SUNDAY_NS = 1_700_395_445 * NS_PER_SECOND  # 2023-11-19 12:04:05 UTC
DEFAULT_TEMPLATE = "<TOPIC>.<HOST><REV>.<DATETIME>.log"


def names_of(template: str, *, topic: str = "clicks", datetime_format: str = "%Y-%m-%d_%H") -> FileNameFormat:
    return FileNameFormat(template, datetime_format=datetime_format, topic=topic, host="web1", pid=42)


def test_every_token_is_replaced() -> None:
    name = names_of("<TOPIC>/<HOST>.<PID><REV>.<DATETIME>.log").at(SUNDAY_NS)
    assert name.with_revision(3) == "clicks/web1.42-000003.2023-11-19_12.log"


@pytest.mark.parametrize(
    ("topic", "text"), [(".", "%2E"), ("..", "%2E%2E"), ("...", "..."), (".a", ".a"), ("..#ephemeral", "..#ephemeral")]
)
def test_a_topic_is_never_the_name_of_a_folder_above(topic: str, text: str) -> None:
    assert names_of("<TOPIC>/x", topic=topic).at(SUNDAY_NS).with_revision(0) == f"{text}/x"


def test_what_looks_like_a_token_and_is_none_stays() -> None:
    assert names_of("<topic><NODE>.log").at(SUNDAY_NS).with_revision(0) == "<topic><NODE>.log"


def test_names_are_equal_until_the_datetime_changes() -> None:
    names = names_of(DEFAULT_TEMPLATE)
    assert names.at(SUNDAY_NS) == names.at(SUNDAY_NS + 3354 * NS_PER_SECOND)
    assert names.at(SUNDAY_NS) != names.at(SUNDAY_NS + 3355 * NS_PER_SECOND)


def test_a_million_revisions_get_a_seventh_digit() -> None:
    assert names_of("x<REV>").at(SUNDAY_NS).with_revision(1_000_000) == "x-1000000"


@pytest.mark.parametrize(
    ("directive", "text"),
    [
        ("%Y", "2023"),
        ("%y", "23"),
        ("%m", "11"),
        ("%B", "November"),
        ("%b", "Nov"),
        ("%d", "19"),
        ("%A", "Sunday"),
        ("%a", "Sun"),
        ("%H", "12"),
        ("%I", "12"),
        ("%p", "PM"),
        ("%M", "04"),
        ("%S", "05"),
        ("%Z", "UTC"),
        ("%z", "+0000"),
        ("%%", "%"),
    ],
)
def test_a_directive_of_the_datetime_format(directive: str, text: str) -> None:
    assert format_time(directive, SUNDAY_NS) == text


def test_other_directives_stand_for_themselves() -> None:
    assert format_time("%Q_%j_%F%%H_%", SUNDAY_NS) == "%Q_%j_%F%H_%"


def test_time_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XYZ-3:30")
    time.tzset()
    assert format_time("%H:%M %Z %z", SUNDAY_NS) == "15:34 XYZ +0330"


def test_gzip_files_end_in_gz_once() -> None:
    assert complete_template("a<REV>.log", has_revisions=True, is_gzip=True) == "a<REV>.log.gz"
    assert complete_template("a<REV>.log.gz", has_revisions=True, is_gzip=True) == "a<REV>.log.gz"


def test_the_revision_is_left_out_where_there_is_but_one_file() -> None:
    assert complete_template(DEFAULT_TEMPLATE, has_revisions=False, is_gzip=False) == "<TOPIC>.<HOST>.<DATETIME>.log"


def test_the_host_is_the_short_hostname_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "web1.example.net")
    assert host_part("") == "web1"
    assert host_part("blue") == "blue"
    assert host_part("<SHORT_HOST>+<HOSTNAME>") == "web1+web1.example.net"
