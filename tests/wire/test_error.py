"""Errors carry the data of the frame that tells them."""

from __future__ import annotations

import pytest

from emberq.wire import error
from emberq.wire.error import ClientError, FatalError, ProtocolError, SilentClose


@pytest.mark.parametrize(
    ("wrong", "data"),
    [
        (FatalError(error.BAD_PROTOCOL), b"E_BAD_PROTOCOL"),
        (FatalError(error.INVALID, b"invalid command "), b"E_INVALID invalid command "),
        (FatalError(error.INVALID, b"invalid command \xff\x00"), b"E_INVALID invalid command \xff\x00"),
        (ClientError(error.FIN_FAILED, b"FIN x failed"), b"E_FIN_FAILED FIN x failed"),
    ],
)
def test_the_data_is_the_code_and_the_text_as_they_are(wrong: ProtocolError, data: bytes) -> None:
    assert wrong.data == data


@pytest.mark.parametrize(
    "name",
    [
        "BAD_PROTOCOL",
        "INVALID",
        "BAD_BODY",
        "BAD_TOPIC",
        "BAD_CHANNEL",
        "BAD_MESSAGE",
        "IDENTIFY_FAILED",
        "AUTH_DISABLED",
        "AUTH_FIRST",
        "AUTH_FAILED",
        "UNAUTHORIZED",
        "SUB_FAILED",
        "PUB_FAILED",
        "MPUB_FAILED",
        "DPUB_FAILED",
        "FIN_FAILED",
        "REQ_FAILED",
        "TOUCH_FAILED",
    ],
)
def test_a_code_is_spelled_as_the_protocol_does(name: str) -> None:
    code = getattr(error, name)
    assert code == f"E_{name}".encode()
    assert ProtocolError(code).data == code


def test_an_error_can_be_shown_whatever_bytes_it_echoes() -> None:
    assert str(FatalError(error.INVALID, b"invalid command \xff\xc3\xa9")) == "E_INVALID invalid command \\xffé"


def test_only_an_error_of_the_command_leaves_the_connection_open() -> None:
    assert not issubclass(ClientError, FatalError)
    assert issubclass(SilentClose, FatalError)


def test_a_fatal_error_may_leave_a_topic_behind() -> None:
    assert FatalError(error.BAD_BODY, b"MPUB failed").topic is None
    assert FatalError(error.BAD_BODY, b"MPUB failed", topic="t").topic == "t"
    assert SilentClose("garbage").topic is None
