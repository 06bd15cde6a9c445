"""The bytes of the V1 protocol."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.wire.lookup import (
    AnswerError,
    LookupAnswerReader,
    LookupdInfo,
    NsqdIdentity,
    check_ok,
    identify,
    parse_channels,
    parse_info,
    registration,
    registrations,
)
from tests.nsqd.scripted_lookupd import framed


def test_identify_carries_everything_a_consumer_needs_to_know() -> None:
    command = identify(
        NsqdIdentity(
            broadcast_address="h",
            hostname="box",
            tcp_port=1,
            http_port=2,
            version="1.3.0",
            topology_region="r",
            topology_zone="z",
        )
    )
    assert command.startswith(b"IDENTIFY\n")
    (size,) = struct.unpack_from(">i", command, 9)
    assert len(command) == 13 + size
    assert json.loads(command[13:]) == {
        "broadcast_address": "h",
        "hostname": "box",
        "tcp_port": 1,
        "http_port": 2,
        "version": "1.3.0",
        "topology_region": "r",
        "topology_zone": "z",
    }


@pytest.mark.parametrize(
    ("channel", "exists", "command"),
    [
        (None, True, b"REGISTER t\n"),
        ("c", True, b"REGISTER t c\n"),
        (None, False, b"UNREGISTER t\n"),
        ("c#ephemeral", False, b"UNREGISTER t c#ephemeral\n"),
    ],
)
def test_what_comes_is_registered_and_what_goes_is_unregistered(
    channel: str | None, exists: bool, command: bytes
) -> None:
    assert registration(topic="t", channel=channel, exists=exists) == command


def test_a_topic_is_registered_by_itself_only_if_it_has_no_channels() -> None:
    commands = registrations([("a", ()), ("b", ("x", "y#ephemeral"))])
    assert list(commands) == [b"REGISTER a\n", b"REGISTER b x\n", b"REGISTER b y#ephemeral\n"]


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(1, 9)))
def test_answers_are_the_same_however_they_are_cut(answers: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(map(framed, answers))
    reader = LookupAnswerReader(max_bytes=20)
    received: list[bytes] = []
    for size in sizes:
        received += reader.feed(stream[:size])
        stream = stream[size:]
    assert received + reader.feed(stream) == answers


@pytest.mark.parametrize("size", [-1, 21, 2**31 - 1, -(2**31)])
def test_a_size_that_cannot_be_is_refused_before_its_bytes_come(size: int) -> None:
    with pytest.raises(AnswerError, match=f"an answer of {size} bytes"):
        LookupAnswerReader(max_bytes=20).feed(struct.pack(">i", size))


def test_an_answer_as_large_as_allowed_is_taken() -> None:
    assert LookupAnswerReader(max_bytes=20).feed(framed(b"x" * 20)) == [b"x" * 20]


def test_an_error_is_quoted() -> None:
    check_ok(b"OK")
    with pytest.raises(AnswerError, match='it answered "E_INVALID client must IDENTIFY"'):
        check_ok(b"E_INVALID client must IDENTIFY")


def test_a_long_answer_is_quoted_in_part() -> None:
    with pytest.raises(AnswerError) as raised:
        check_ok(b"\xff" * 5000)
    assert len(str(raised.value)) < 2000


def test_the_answer_to_identify_says_where_http_is() -> None:
    answer = b'{"broadcast_address":"::1","hostname":"x","http_port":4161,"tcp_port":4160,"version":"1.3.0"}'
    assert parse_info(answer) == LookupdInfo(broadcast_address="::1", http_port=4161, version="1.3.0", tcp_port=4160)
    assert parse_info(answer).http_address == "[::1]:4161"


@pytest.mark.parametrize(
    "answer",
    [b"{}", b'{"broadcast_address":"","http_port":1}', b'{"broadcast_address":"h"}']
    + [b'{"broadcast_address":"h","http_port":%d}' % port for port in (0, -1, 65536)],
)
def test_an_nsqlookupd_that_does_not_say_where_its_http_is_has_none(answer: bytes) -> None:
    assert parse_info(answer).http_address is None


@pytest.mark.parametrize(
    "answer",
    [
        b"E_INVALID",
        b"OK",
        b"",
        b"[]",
        b"null",
        b'{"broadcast_address":1}',
        b'{"http_port":"1"}',
        b'{"http_port":true}',
        b'{"version":null}',
        b"\xff",
        b"[" * 9000,
    ],
)
def test_any_other_answer_to_identify_is_refused(answer: bytes) -> None:
    with pytest.raises(AnswerError):
        parse_info(answer)


def test_channels_that_can_be_created_are_those_that_are_valid_and_not_ephemeral() -> None:
    assert parse_channels({"channels": ["a", "b#ephemeral", "c", "no such name", ""]}) == ["a", "c"]
    assert parse_channels({"channels": []}) == []
    assert parse_channels({"channels": None}) == []


@pytest.mark.parametrize("document", [None, [], {}, {"channels": 1}, {"channels": "ab"}, {"channels": ["a", 1]}])
def test_an_answer_that_lists_no_channels_is_refused(document: Any) -> None:
    with pytest.raises(AnswerError):
        parse_channels(document)
