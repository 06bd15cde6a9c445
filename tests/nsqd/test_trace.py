"""The debug log of client connections, in lines and with its bounds."""

from __future__ import annotations

import logging

import pytest

from emberq.nsqd.trace import MAX_SHOWN, Trace, command_lines, shown
from emberq.wire.command import (
    Auth,
    Cls,
    Command,
    DeferredPublish,
    Fin,
    Identify,
    Nop,
    NumberedPublish,
    Publish,
    Rdy,
    Req,
    Sub,
    Touch,
)
from emberq.wire.frame import FRAME_HEADER, HEARTBEAT, MESSAGE, WireMessage, encode_message

ID = b"0123456789abcdef"


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        (Identify(b'{"client_id":"c"}'), ["IDENTIFY"]),
        (Sub("t", "c"), ["SUB t c"]),
        (Rdy(7), ["RDY 7"]),
        (Fin(b"FIN 0123456789abcdef\nFIN fedcba9876543210\n"), ["FIN 0123456789abcdef", "FIN fedcba9876543210"]),
        (Fin(b"FIN 0123456789abcd\xff\xfe\n"), ["FIN 0123456789abcd\\xff\\xfe"]),
        (Req(ID, 250), ["REQ 0123456789abcdef 250"]),
        (Touch(ID), ["TOUCH 0123456789abcdef"]),
        (Publish(b"PUB", "t", b"", (), 2), ["PUB t", "PUB t"]),
        (Publish(b"MPUB", "t", b"", (), 1), ["MPUB t"]),
        (NumberedPublish(b"PUB", "t", b"", (), 9), ["PUB t 9"]),
        (DeferredPublish("t", 100, b""), ["DPUB t 100"]),
        (Nop(), ["NOP"]),
        (Cls(), ["CLS"]),
        (Auth(b"s3cret"), ["AUTH"]),
    ],
)
def test_a_command_is_shown_as_the_client_sent_it_without_its_body(command: Command, lines: list[str]) -> None:
    assert list(command_lines(command)) == lines


def test_what_a_client_sent_is_shown_up_to_a_bound() -> None:
    assert shown(b"x" * MAX_SHOWN) == "x" * MAX_SHOWN
    assert shown(b"x" * (MAX_SHOWN + 5)) == "x" * MAX_SHOWN + "... (5 bytes more)"
    assert shown(b"\xffa") == "\\xffa"


def test_each_message_frame_is_a_line_with_the_start_of_its_body(caplog: pytest.LogCaptureFixture) -> None:
    def message(body: bytes) -> bytes:
        data = encode_message(WireMessage(0, 1, ID, body))
        return FRAME_HEADER.pack(4 + len(data), MESSAGE) + data

    with caplog.at_level(logging.DEBUG, "emberq"):
        Trace().delivered("1.2.3.4:5", message(b"small") + HEARTBEAT + message(b"x" * (MAX_SHOWN + 1)) + message(b""))
    start = "PROTOCOL(V2): writing msg(0123456789abcdef) to client(1.2.3.4:5) - "
    assert [record.getMessage() for record in caplog.records] == [
        start + "small",
        start + "x" * MAX_SHOWN + "... (1 bytes more)",
        start,
    ]


@pytest.mark.parametrize(("level", "is_on"), [(logging.INFO, False), (logging.DEBUG, True)])
def test_it_is_on_if_debug_lines_are_shown(level: int, is_on: bool, caplog: pytest.LogCaptureFixture) -> None:
    trace = Trace()
    assert not trace.is_on
    with caplog.at_level(level, "emberq"):
        trace.refresh()
    assert trace.is_on is is_on
