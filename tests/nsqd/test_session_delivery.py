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
from tests.support.waiting import wait_until

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


def test_a_consumer_that_holds_nearly_all_it_wants_gets_more_together(
    nsqd: NsqdHarness, consumer: DeflatedConsumer
) -> None:
    """One free place in a hundred is not filled at once, but filled it is; many free places are filled at once."""
    nsqd.connect().mpub("t", [b"%03d" % number for number in range(300)])
    consumer.client.rdy(100)
    messages = consumer.read_messages(100)
    consumer.client.fin(messages[0])
    assert consumer.read_messages(1)[0].body == b"100"
    consumer.count_writes()
    consumer.client.send(b"".join(b"FIN %b\n" % message.id for message in messages[1:51]))
    assert [message.body for message in consumer.read_messages(50)] == [b"%03d" % number for number in range(101, 151)]
    assert consumer.count_writes() == 1


@pytest.mark.parametrize("wanted", [100, 300])
def test_fins_that_come_one_by_one_all_count(nsqd: NsqdHarness, wanted: int) -> None:
    """Whether nsqd rests between them or not."""
    bodies = [b"%04d" % number for number in range(2 * wanted)]
    nsqd.connect().mpub("t", bodies)
    client = nsqd.consumer("t", "c", rdy=wanted)
    seen = []
    for _ in range(len(bodies)):
        message = client.read_message()
        seen.append(message.body)
        client.fin(message)
        nsqd.advance(ms=1)
    assert seen == bodies
    wait_until(lambda: nsqd.channel("t", "c").in_flight_count == 0)


def test_what_comes_during_a_rest_is_answered_behind_it(nsqd: NsqdHarness) -> None:
    nsqd.connect().mpub("t", [b"%03d" % number for number in range(200)])
    client = nsqd.consumer("t", "c", rdy=100)
    first, second, *_ = client.read_messages(100)
    client.fin(first)
    wait_until(lambda: nsqd.channel("t", "c").in_flight_count == 100)
    client.send(b"REQ %b 0\n" % second.id)
    client.send(b"CLS\n")
    frames = [client.read_frame() for _ in range(3)]
    assert [(frame.type, frame.data[-3:]) for frame in frames] == [
        (MESSAGE, b"100"),
        (MESSAGE, b"101"),
        (RESPONSE, b"AIT"),
    ]


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
