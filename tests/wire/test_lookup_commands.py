"""Bytes in, commands out: what is decoded, what is refused, and that packets may be cut anywhere."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.wire.error import FatalError
from emberq.wire.lookup import (
    MAX_BODY_BYTES,
    MAX_LINE_BYTES,
    Command,
    LookupDecoder,
    LookupIdentify,
    Ping,
    Register,
    Unregister,
    response,
)
from tests.lookupd.rig import COMPLETE, new_peer

BODY = json.dumps(COMPLETE).encode()
IDENTIFY = b"IDENTIFY\n" + struct.pack(">i", len(BODY)) + BODY
IDENTIFIED = LookupIdentify(new_peer().identity)


def decode(*packets: bytes) -> list[Command]:
    """The commands in these packets, which must be right."""
    decoder = LookupDecoder()
    return [command for packet in packets for command in decoder.receive(packet)]


def decode_until_error(*packets: bytes, eof: bool = False) -> tuple[list[Command], bytes]:
    """The commands before the error, and its data."""
    decoder = LookupDecoder()
    commands: list[Command] = []
    try:
        for packet in packets:
            commands.extend(decoder.receive(packet))
        if eof:
            decoder.eof()
    except FatalError as wrong:
        return commands, wrong.data
    pytest.fail("nothing was refused")


def refusal_of(data: bytes, *, eof: bool = False) -> bytes:
    return decode_until_error(b"  V1" + data, eof=eof)[1]


def test_every_command_is_decoded() -> None:
    lines = b"REGISTER t\nREGISTER t c\nUNREGISTER t c#ephemeral\nUNREGISTER t\nPING\n"
    assert decode(b"  V1PING\n" + IDENTIFY + lines) == [
        Ping(),
        IDENTIFIED,
        Register("t", None),
        Register("t", "c"),
        Unregister("t", "c#ephemeral"),
        Unregister("t", None),
        Ping(),
    ]


@pytest.mark.parametrize("line", [b"PING", b"  PING\t", b"PING\r", b"PING and more"])
def test_white_space_around_a_line_and_superfluous_words_do_not_count(line: bytes) -> None:
    assert decode(b"  V1" + line + b"\n") == [Ping()]


@pytest.mark.parametrize("params", [b"t", b"t ", b"t  ", b"t  c"])
def test_an_empty_channel_is_none(params: bytes) -> None:
    assert decode(b"  V1" + IDENTIFY + b"REGISTER " + params + b"\n")[-1] == Register("t", None)


def test_what_follows_the_channel_is_ignored() -> None:
    assert decode(b"  V1" + IDENTIFY + b"REGISTER t c more\n")[-1] == Register("t", "c")


@given(cuts=st.lists(st.integers(0, len(IDENTIFY) + 40), max_size=8))
def test_packets_may_be_cut_anywhere(cuts: list[int]) -> None:
    stream = b"  V1PING\n" + IDENTIFY + b"REGISTER topic channel\nPING\n"
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    packets = [stream[start:end] for start, end in pairwise(edges)]
    assert decode(*packets) == [Ping(), IDENTIFIED, Register("topic", "channel"), Ping()]


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_garbage_is_refused_or_awaited_but_never_crashes(packets: list[bytes]) -> None:
    decoder = LookupDecoder()
    with suppress(FatalError):
        for packet in (b"  V1", *packets):
            list(decoder.receive(packet))
        decoder.eof()


def test_another_magic_is_refused_when_it_is_whole() -> None:
    assert decode(b"  V") == []
    assert decode_until_error(b"GE", b"T / HTTP/1.1\r\n") == ([], b"E_BAD_PROTOCOL")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"", b"E_INVALID invalid command "),
        (b"ping", b"E_INVALID invalid command ping"),
        (b"\xff\x00 x", b"E_INVALID invalid command \xff\x00"),
        (b"REGISTER t", b"E_INVALID client must IDENTIFY"),
        (b"UNREGISTER", b"E_INVALID client must IDENTIFY"),
    ],
)
def test_what_is_refused_before_identify(line: bytes, text: bytes) -> None:
    assert refusal_of(line + b"\n") == text


@pytest.mark.parametrize("verb", [b"REGISTER", b"UNREGISTER"])
@pytest.mark.parametrize(
    ("params", "text"),
    [
        (b"", b"E_INVALID %b insufficient number of params"),
        (b" bad$ c$", b"E_BAD_TOPIC %b topic name 'bad$' is not valid"),
        (b"  c", b"E_BAD_TOPIC %b topic name '' is not valid"),
        (b" t c$", b"E_BAD_CHANNEL %b channel name 'c$' is not valid"),
        (b" " + b"x" * 65, b"E_BAD_TOPIC %b topic name '" + b"x" * 65 + b"' is not valid"),
        (b" *", b"E_BAD_TOPIC %b topic name '*' is not valid"),
    ],
)
def test_what_is_refused_after_identify(verb: bytes, params: bytes, text: bytes) -> None:
    assert refusal_of(IDENTIFY + verb + params + b"\n") == text % verb


def test_commands_before_an_error_count() -> None:
    assert decode_until_error(b"  V1PING\nPING\nPONG\nPING\n") == (
        [Ping(), Ping()],
        b"E_INVALID invalid command PONG",
    )


def test_a_second_identify_is_refused_before_its_body() -> None:
    assert refusal_of(IDENTIFY + b"IDENTIFY\n") == b"E_INVALID cannot IDENTIFY again"


def test_a_line_is_bounded() -> None:
    assert decode(b"  V1PING" + b" " * (MAX_LINE_BYTES - 5) + b"\n") == [Ping()]
    assert decode(b"  V1" + b"x" * (MAX_LINE_BYTES - 1)) == []
    too_long = b"E_INVALID command longer than 4096 bytes"
    assert refusal_of(b"x" * MAX_LINE_BYTES) == too_long
    assert refusal_of(b"PING" + b" " * MAX_LINE_BYTES + b"\n") == too_long


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (-1, b"E_BAD_BODY IDENTIFY invalid body size -1"),
        (-(1 << 31), b"E_BAD_BODY IDENTIFY invalid body size -2147483648"),
        (MAX_BODY_BYTES + 1, b"E_BAD_BODY IDENTIFY body too big 65537 > 65536"),
        (0, b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    ],
)
def test_a_body_is_bounded(size: int, text: bytes) -> None:
    assert refusal_of(b"IDENTIFY\n" + struct.pack(">i", size)) == text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"IDENTIFY\n", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\0\0\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\0\0\0\5ab", b"E_BAD_BODY IDENTIFY failed to read body"),
    ],
)
def test_a_client_that_ends_inside_a_body_is_told(data: bytes, text: bytes) -> None:
    assert refusal_of(data, eof=True) == text


@pytest.mark.parametrize("data", [b"", b"  V", b"  V1PIN", b"  V1PING\n"])
def test_a_client_may_end_anywhere_else(data: bytes) -> None:
    decoder = LookupDecoder()
    list(decoder.receive(data))
    decoder.eof()


def test_an_answer_is_its_size_and_its_data() -> None:
    assert response(b"OK") == b"\0\0\0\2OK"
