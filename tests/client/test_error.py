"""The exceptions of the client, and which of them an error of nsqd becomes."""

from __future__ import annotations

import copy
import pickle

import pytest

from emberq.client.error import (
    MAX_SHOWN_CHARACTERS,
    AuthError,
    BadRequestError,
    ConnectError,
    ConnectionLostError,
    HandlerTimeoutError,
    HandshakeError,
    MessageTooLargeError,
    NotExecutedError,
    NotInFlightError,
    NsqError,
    PublishError,
    RequestTimeoutError,
    ServerError,
    server_error,
    shown,
)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'E_BAD_TOPIC PUB topic name "a b" is not valid', BadRequestError),
        (b"E_INVALID RDY count 3000 out of range 0-2500", BadRequestError),
        (b"E_BAD_MESSAGE PUB message too big 2 > 1", MessageTooLargeError),
        (b"E_BAD_BODY MPUB body too big 1148 > 1000", MessageTooLargeError),
        (b"E_BAD_MESSAGE MPUB invalid message(5) body size 0", BadRequestError),
        (b"E_UNAUTHORIZED AUTH no authorizations found", AuthError),
        (b"E_AUTH_FIRST AUTH required before PUB", AuthError),
        (b"E_PUB_FAILED PUB failed exiting", PublishError),
        (b"E_MPUB_FAILED MPUB failed exiting", PublishError),
        (b"E_SUB_FAILED SUB failed exiting", ServerError),
        (b"E_OF_THE_FUTURE whatever", ServerError),
    ],
)
def test_an_error_frame_becomes_the_exception_that_says_what_to_do(data: bytes, kind: type[ServerError]) -> None:
    error = server_error(data)
    assert type(error) is kind
    assert str(error) == data.decode()
    assert error.is_fatal


@pytest.mark.parametrize("command", ["FIN", "REQ", "TOUCH"])
def test_only_late_answers_to_a_message_leave_the_connection_open(command: str) -> None:
    error = server_error(f"E_{command}_FAILED {command} 0123456789abcdef failed ID not in flight".encode())
    assert isinstance(error, NotInFlightError)
    assert not error.is_fatal
    assert error.code == f"E_{command}_FAILED"
    assert error.text.endswith("ID not in flight")


def test_an_error_may_echo_bytes_that_are_no_text() -> None:
    assert str(server_error(b"E_INVALID invalid command \xff")) == "E_INVALID invalid command \\xff"


def test_an_error_may_be_a_bare_code() -> None:
    error = server_error(b"E_BAD_PROTOCOL")
    assert (error.code, error.text, str(error)) == ("E_BAD_PROTOCOL", "", "E_BAD_PROTOCOL")


def test_a_refusal_for_its_size_tells_size_and_limit() -> None:
    error = server_error(b"E_BAD_MESSAGE PUB message too big 105 > 100")
    assert isinstance(error, MessageTooLargeError)
    assert (error.size_bytes, error.limit_bytes) == (105, 100)


def test_code_that_knows_nothing_of_nsq_can_catch_them() -> None:
    assert isinstance(ConnectError("h:1", "refused"), ConnectionError)
    assert isinstance(ConnectionLostError("h:1", "gone"), ConnectionError)
    assert isinstance(RequestTimeoutError("late"), TimeoutError)
    assert isinstance(HandlerTimeoutError("long"), TimeoutError)
    for error in (ConnectError("h:1", "refused"), ConnectionLostError("h:1", "gone"), RequestTimeoutError("late")):
        assert isinstance(error, NsqError)
    assert str(ConnectError("h:1", "refused")) == "h:1: refused"


@pytest.mark.parametrize(
    "error",
    [
        ConnectError("h:1", "refused"),
        HandshakeError("h:1", "HTTP"),
        ConnectionLostError("h:1", "gone"),
        NotExecutedError("h:1", "gone"),
        RequestTimeoutError("late"),
        server_error(b"E_BAD_TOPIC PUB topic"),
        server_error(b"E_BAD_MESSAGE PUB message too big 2 > 1"),
    ],
)
def test_every_error_can_be_copied_and_travels_between_processes(error: NsqError) -> None:
    error.add_note("on the way")
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(twin), str(twin), twin.__dict__) == (type(error), str(error), error.__dict__)


def test_what_a_peer_said_is_not_endless_when_it_is_escaped() -> None:
    assert len(shown("\0" * MAX_SHOWN_CHARACTERS)) == MAX_SHOWN_CHARACTERS + len("...")
    assert shown("x" * MAX_SHOWN_CHARACTERS) == "x" * MAX_SHOWN_CHARACTERS
