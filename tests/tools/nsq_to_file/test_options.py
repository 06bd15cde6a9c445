"""The flags of nsq_to_file: their defaults, what follows from them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.base.log import LogLevel
from emberq.base.settings import OptionsError
from emberq.tools.nsq_to_file.options import SETTINGS, ToFileOptions

ENOUGH: dict[str, Any] = {"topic": ("t",), "nsqd_tcp_address": ("127.0.0.1:4150",)}


def test_defaults_are_those_of_nsq() -> None:
    options = ToFileOptions(**ENOUGH).validated()
    assert options.channel == "nsq_to_file"
    assert options.max_in_flight == 200
    assert options.output_dir == "/tmp"
    assert options.datetime_format == "%Y-%m-%d_%H"
    assert options.filename_format == "<TOPIC>.<HOST><REV>.<DATETIME>.log"
    assert (options.gzip, options.gzip_level, options.skip_empty_files) == (False, 6, False)
    assert (options.rotate_size, options.rotate_interval_ns) == (0, 0)
    assert options.sync_interval_ns == 30 * NS_PER_SECOND
    assert options.topic_refresh_ns == 60 * NS_PER_SECOND
    assert options.http_client_connect_timeout_ns == 2 * NS_PER_SECOND
    assert options.http_client_request_timeout_ns == 5 * NS_PER_SECOND
    assert options.log_threshold is LogLevel.INFO
    assert options.log_prefix == "[nsq_to_file] "


def test_flags_are_read_by_their_names() -> None:
    given = SETTINGS.load(
        ["--topic=a", "--topic=b", "-gzip", "--rotate-interval=1m30s", "--sync-interval", "5s", "--rotate-size=0x10"]
    )
    assert given.options == {
        "topic": ("a", "b"),
        "gzip": True,
        "rotate_interval_ns": 90 * NS_PER_SECOND,
        "sync_interval_ns": 5 * NS_PER_SECOND,
        "rotate_size": 16,
    }


def test_options_of_the_client_that_do_not_exist_are_ignored() -> None:
    given = SETTINGS.load(["--consumer-opt=nope,1", "--consumer-opt=max_attempts,7", "--consumer-opt=snappy,perhaps"])
    assert [(option.name, option.value) for option in given.options["consumer_opt"]] == [("max_attempts", 7)]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"log_level": "loud"}, "--log-level is invalid"),
        ({"channel": ""}, "--channel is required"),
        ({"channel": "a b"}, "--channel is invalid"),
        ({"http_client_connect_timeout_ns": 0}, "--http-client-connect-timeout should be positive"),
        ({"http_client_request_timeout_ns": -1}, "--http-client-request-timeout should be positive"),
        ({"sync_interval_ns": 0}, "--sync-interval should be positive"),
        ({"topic_refresh_ns": 0}, "--topic-refresh should be positive"),
        ({"nsqd_tcp_address": ()}, "--nsqd-tcp-address or --lookupd-http-address required."),
        (
            {"lookupd_http_address": ("127.0.0.1:4161",)},
            "use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
        ({"nsqd_tcp_address": ("h:99999",)}, "--nsqd-tcp-address is invalid: port 99999 is above 65535"),
        (
            {"nsqd_tcp_address": (), "lookupd_http_address": ("host",)},
            "--lookupd-http-address is invalid: nsqlookupd address 'host': missing port or host; write 'host:4161'",
        ),
        ({"gzip_level": 0}, "invalid --gzip-level value (0), should be 1-9"),
        ({"gzip_level": 10}, "invalid --gzip-level value (10), should be 1-9"),
        ({"topic": ()}, "--topic or --topic-pattern required"),
        (
            {"topic": (), "topic_pattern": "x"},
            "--lookupd-http-address must be specified when no --topic specified",
        ),
        ({"topic": ("a b",)}, "--topic is invalid: a b"),
        ({"topic_pattern": "(("}, "--topic-pattern is invalid: (("),
        ({"topic_pattern": "(?=look)ahead"}, "--topic-pattern is invalid: (?=look)ahead"),
        ({"rotate_size": -1}, "--rotate-size must be at least 0, not -1"),
        ({"rotate_interval_ns": -1}, "--rotate-interval must be at least 0s, not -1ns"),
    ],
)
def test_options_that_cannot_work_are_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(OptionsError) as refused:
        ToFileOptions(**(ENOUGH | changes)).validated()
    assert str(refused.value) == complaint


@pytest.mark.parametrize("several", [{"gzip": True}, {"rotate_size": 1}, {"rotate_interval_ns": 1}, {"work_dir": "/w"}])
def test_several_files_of_one_name_need_a_revision(several: dict[str, Any]) -> None:
    options = ENOUGH | several | {"output_dir": "/o"}
    assert "<REV>" in ToFileOptions(**options).validated().template
    with pytest.raises(OptionsError) as refused:
        ToFileOptions(**options, filename_format="<TOPIC>.log").validated()
    assert str(refused.value) == "missing <REV> in --filename-format when gzip, rotation, or work dir enabled"


def test_one_file_of_a_name_has_no_revision() -> None:
    assert ToFileOptions(**ENOUGH).validated().template == "<TOPIC>.<HOST>.<DATETIME>.log"


def test_a_work_dir_is_one_only_if_it_is_another_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    same = ToFileOptions(**ENOUGH, output_dir=str(tmp_path), work_dir=f"{tmp_path}/link/")
    other = ToFileOptions(**ENOUGH, output_dir=str(tmp_path), work_dir=f"{tmp_path}/work")
    assert (same.has_work_dir, other.has_work_dir) == (False, True)
