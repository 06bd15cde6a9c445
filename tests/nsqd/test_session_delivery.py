"""What arrives together is answered together: the commands of one packet make one delivery, whatever they are.

With deflate each write of nsqd ends in a mark of its own, so that writes can be counted from outside.
"""

from __future__ import annotations

import socket
from typing import cast

import pytest

from tests.support.harness import NsqdHarness
from tests.support.raw_client import MESSAGE, RESPONSE, Client, Message, parse_message
from tests.support.stream_upgrade import TranslatedSocket, start_deflate

END_OF_WRITE = b"\x00\x00\xff\xff"


class RecordedSocket:
    """A socket that keeps what was received."""

    def __init__(self, below: socket.socket) -> None:
        self._below = below
        self.received = b""

    def recv(self, size: int) -> bytes:
        data = self._below.recv(size)
        self.received += data
        return data

    def sendall(self, data: bytes) -> None:
        self._below.sendall(data)

    def fileno(self) -> int:
        return self._below.fileno()

    def close(self) -> None:
        self._below.close()

    def count_writes(self) -> int:
        """How often nsqd has written since this was last asked."""
        received, self.received = self.received, b""
        return received.count(END_OF_WRITE)


class DeflatedConsumer:
    """A consumer that knows how often nsqd wrote to it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        client.identify(deflate=True)
        start_deflate(client)
        translated = cast(TranslatedSocket, client.socket)
        self._recorded = RecordedSocket(translated.below)
        translated.below = cast(socket.socket, self._recorded)
        client.sub("t", "c")

    def read_messages(self, count: int) -> list[Message]:
        messages: list[Message] = []
        while len(messages) < count:
            frame = self.client.read_frame()
            if frame.type == MESSAGE:
                messages.append(parse_message(frame.data))
        return messages

    def count_writes(self) -> int:
        return self._recorded.count_writes()


@pytest.fixture
def consumer(nsqd: NsqdHarness) -> DeflatedConsumer:
    return DeflatedConsumer(nsqd.connect())


def test_a_packet_of_mixed_answers_makes_one_delivery(nsqd: NsqdHarness, consumer: DeflatedConsumer) -> None:
    nsqd.connect().mpub("t", [b"%03d" % number for number in range(80)])
    consumer.client.rdy(40)
    messages = consumer.read_messages(40)
    consumer.count_writes()
    answers = [b"REQ %b 0\n" if number % 5 == 0 else b"FIN %b\n" for number in range(40)]
    consumer.client.send(b"".join(line % message.id for line, message in zip(answers, messages, strict=True)))
    again = consumer.read_messages(40)
    assert consumer.count_writes() == 1
    assert {message.body for message in messages} != {message.body for message in again}


def test_windows_that_open_step_by_step_make_one_delivery(nsqd: NsqdHarness, consumer: DeflatedConsumer) -> None:
    nsqd.connect().mpub("t", [b"%03d" % number for number in range(30)])
    consumer.count_writes()
    consumer.client.send(b"".join(b"RDY %d\n" % count for count in range(1, 21)))
    consumer.read_messages(20)
    assert consumer.count_writes() == 1


@pytest.mark.parametrize("answered", [b"PUB other\n\x00\x00\x00\x01x", b"CLS\n"])
def test_messages_leave_before_the_answer_to_a_later_command(nsqd: NsqdHarness, answered: bytes) -> None:
    nsqd.connect().mpub("t", [b"first", b"second"])
    client = nsqd.consumer("t", "c")
    client.send(b"RDY 2\n" + answered)
    assert [client.read_frame().type for _ in range(3)] == [MESSAGE, MESSAGE, RESPONSE]


def test_what_a_client_gives_back_as_it_leaves_goes_to_the_others_at_once(nsqd: NsqdHarness) -> None:
    nsqd.connect().mpub("t", [b"first"])
    leaving = nsqd.consumer("t", "c", rdy=1)
    message = leaving.read_message()
    waiting = nsqd.consumer("t", "c", rdy=1)
    leaving.send(b"REQ %b 0\n" % message.id)
    leaving.close()
    assert waiting.read_message().body == b"first"
