"""Answering messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from emberq.client.message import Message, MessageBatch
from emberq.wire.frame import WireMessage


class Recorder:
    """Writes answers down."""

    def __init__(self, address: str = "nsqd:4150") -> None:
        self.address = address
        self.msg_timeout_ms = 60_000
        self.answers: list[object] = []

    def finish(self, messages: list[Message]) -> None:
        self.answers.append(("FIN", [message.body for message in messages]))

    def requeue(self, message: Message, *, delay_s: float | None, backoff: bool) -> None:
        self.answers.append(("REQ", message.body, delay_s, backoff))

    def touch(self, message: Message) -> None:
        self.answers.append(("TOUCH", message.body))

    def abandon(self, message: Message) -> None:
        self.answers.append(("abandoned", message.body))


def message(source: Recorder, body: bytes = b"body") -> Message:
    return Message(WireMessage(1, 2, b"0123456789abcdef", body), source, deadline_ns=9)


def test_a_message_has_what_was_sent_and_where_it_came_from() -> None:
    received = message(Recorder())
    assert (received.timestamp_ns, received.attempts, received.id, received.body, received.address) == (
        1,
        2,
        b"0123456789abcdef",
        b"body",
        "nsqd:4150",
    )


def test_only_the_first_answer_counts() -> None:
    source = Recorder()
    received = message(source)
    received.requeue(1.5, backoff=False)
    received.finish()
    received.requeue()
    received.touch()
    received.abandon()
    assert source.answers == [("REQ", b"body", 1.5, False)]


def test_a_message_can_be_touched_before_its_answer() -> None:
    source = Recorder()
    received = message(source)
    received.touch()
    received.touch()
    received.finish()
    assert source.answers == [("TOUCH", b"body"), ("TOUCH", b"body"), ("FIN", [b"body"])]


def test_a_batch_is_finished_in_one_go_per_nsqd() -> None:
    one, other = Recorder("one"), Recorder("other")
    batch = MessageBatch([message(one, b"a"), message(other, b"b"), message(one, b"c")])
    batch.finish()
    batch.finish()
    assert (one.answers, other.answers) == ([("FIN", [b"a", b"c"])], [("FIN", [b"b"])])


def test_a_batch_leaves_alone_what_is_answered() -> None:
    source = Recorder()
    batch = MessageBatch([message(source, b"a"), message(source, b"b"), message(source, b"c")])
    batch[1].finish()
    batch.requeue(0)
    assert source.answers == [("FIN", [b"b"]), ("REQ", b"a", 0, True), ("REQ", b"c", 0, True)]


def test_a_batch_gives_its_bodies() -> None:
    assert MessageBatch([message(Recorder(), b"a"), message(Recorder(), b"b")]).bodies == [b"a", b"b"]


@pytest.mark.parametrize("delay_s", ["1", float("nan"), True, [1]])
def test_a_delay_that_is_none_is_refused_and_the_message_can_still_be_answered(delay_s: Any) -> None:
    source = Recorder()
    answered = message(source)
    batch = MessageBatch([answered])
    for requeueable in (answered, batch):
        with pytest.raises((TypeError, ValueError), match="delay_s is"):
            requeueable.requeue(delay_s)
    assert not answered.is_answered
    answered.requeue(timedelta(minutes=2))
    assert source.answers == [("REQ", answered.body, 120.0, True)]
