"""Messages as programs and people get to see them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from emberq.cli.tail import headline, message_document, renderable
from emberq.client import Message
from emberq.wire.frame import WireMessage


class Source:
    """Where the message came from; it takes no answers."""

    address = "10.0.0.1:4150"
    msg_timeout_ms = 60_000

    def finish(self, messages: list[Message]) -> None: ...

    def requeue(self, message: Message, *, delay_s: float | None, backoff: bool) -> None: ...

    def touch(self, message: Message) -> None: ...

    def abandon(self, message: Message) -> None: ...


def message(body: bytes, *, attempts: int = 1) -> Message:
    return Message(WireMessage(1_700_000_000_123_000_000, attempts, b"0123456789abcdef", body), Source(), deadline_ns=0)


def drawn(body: bytes) -> str:
    stream = io.StringIO()
    Console(file=stream, width=80, highlight=False).print(renderable(message(body)))
    _, _, rest = stream.getvalue().partition("\n")
    return rest


def test_a_program_gets_everything() -> None:
    assert message_document(message("ü".encode()), topic="t") == {
        "topic": "t",
        "id": "0123456789abcdef",
        "timestamp_ns": 1_700_000_000_123_000_000,
        "attempts": 1,
        "nsqd": "10.0.0.1:4150",
        "body": "ü",
    }


def test_a_body_that_is_not_text_is_base64() -> None:
    document = message_document(message(b"\xff\x00"), topic="t")
    assert document["body_base64"] == "/wA="
    assert "body" not in document


def test_the_headline_mentions_attempts_when_there_were_several() -> None:
    assert headline(message(b"x")) == "2023-11-14T22:13:20.123+00:00 0123456789abcdef from 10.0.0.1:4150"
    assert headline(message(b"x", attempts=3)).endswith(" attempt 3")


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"b": 1, "a": ["\xc3\xbc"]}', '{\n  "b": 1,\n  "a": [\n    "ü"\n  ]\n}\n'),
        (b"text [bold]x[/bold]\nline 2", "text [bold]x[/bold]\nline 2\n"),
        (b"12", "12\n"),
        (b"\x1b[31mred", "\\x1b[31mred\n"),
        (b"\xff\x1b", "\\xff\\x1b\n"),
    ],
)
def test_a_person_gets_what_can_be_shown_safely(body: bytes, shown: str) -> None:
    assert drawn(body) == shown
