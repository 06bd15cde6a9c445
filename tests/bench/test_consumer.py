"""The consuming load against a scripted nsqd: it FINs all it gets, and takes no wrong count for a right one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from bench import consumer, frame
from bench.consumer import Consume, FinMixer
from bench.crew import Tally
from bench.failure import LoadFailure, Miscounted, ServerRefused
from tests.bench.test_frame import HEARTBEAT_FRAME, fin, message


class ScriptedNsqd:
    """Serves one connection: the handshake, then prepared bytes on RDY, then CLOSE_WAIT on CLS."""

    def __init__(self) -> None:
        self.deliveries = b""
        self.hangs_up = False  # after the deliveries
        self.heard: list[bytes] = []  # the commands that came after RDY
        self._client: socket.socket | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    def consume(self, messages: int, *, shuffled: bool = False) -> Tally:
        self._thread.start()
        host, port = self._listener.getsockname()
        plan = Consume(address=(host, port), topic="t", channels=("c",), messages=messages, shuffled=shuffled)
        return plan.open().run()

    def close(self) -> None:
        if self._client is not None:
            with suppress(OSError):
                self._client.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        self._client, _ = self._listener.accept()
        with self._client as client, client.makefile("rb") as commands, suppress(OSError):
            commands.readline()  # the magic and IDENTIFY
            commands.read(int.from_bytes(commands.read(4), "big"))
            client.sendall(frame.response(b"{}"))
            commands.readline()  # SUB
            client.sendall(frame.OK_FRAME)
            commands.readline()  # RDY
            client.sendall(self.deliveries)
            if self.hangs_up:
                return
            for command in commands:
                self.heard.append(command)
                if command == b"CLS\n":
                    client.sendall(frame.response(frame.CLOSE_WAIT))


@pytest.fixture
def scripted_nsqd() -> Iterator[ScriptedNsqd]:
    scripted = ScriptedNsqd()
    yield scripted
    scripted.close()


def test_every_message_is_finished_and_then_the_consumer_takes_its_leave(scripted_nsqd: ScriptedNsqd) -> None:
    scripted_nsqd.deliveries = b"".join(message(number) for number in range(500))
    assert scripted_nsqd.consume(500).delivered == 500
    assert scripted_nsqd.heard == [*(fin(number) for number in range(500)), b"CLS\n"]


def test_a_heartbeat_among_the_messages_is_answered(scripted_nsqd: ScriptedNsqd) -> None:
    scripted_nsqd.deliveries = message(1) + HEARTBEAT_FRAME + message(2)
    assert scripted_nsqd.consume(2).delivered == 2
    assert sorted(scripted_nsqd.heard) == [b"CLS\n", fin(1), fin(2), b"NOP\n"]


def test_shuffled_fins_come_in_another_order_but_all_of_them(scripted_nsqd: ScriptedNsqd) -> None:
    fins = [fin(number) for number in range(3000)]
    scripted_nsqd.deliveries = b"".join(message(number) for number in range(3000))
    assert scripted_nsqd.consume(3000, shuffled=True).delivered == 3000
    *heard, last = scripted_nsqd.heard
    assert last == b"CLS\n"
    assert heard != fins
    assert sorted(heard) == fins


def test_a_message_too_many_is_a_failure(scripted_nsqd: ScriptedNsqd) -> None:
    scripted_nsqd.deliveries = message(1) + message(2) + message(3)
    with pytest.raises(Miscounted, match="c: 3 of 2"):
        scripted_nsqd.consume(2)


def test_a_message_that_never_comes_is_a_failure(scripted_nsqd: ScriptedNsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "SILENCE_LIMIT_S", 0.05)
    scripted_nsqd.deliveries = message(1)
    with pytest.raises(Miscounted, match="c: 1 of 2"):
        scripted_nsqd.consume(2)


def test_a_second_delivery_is_a_failure(scripted_nsqd: ScriptedNsqd) -> None:
    scripted_nsqd.deliveries = message(1) + message(2, attempts=2)
    with pytest.raises(Miscounted, match="1 of 2 messages did not come for the first time"):
        scripted_nsqd.consume(2)


def test_an_error_frame_is_a_failure(scripted_nsqd: ScriptedNsqd) -> None:
    text = b"E_FIN_FAILED FIN 0000000000000001 failed ID not in flight"
    scripted_nsqd.deliveries = message(1) + frame.HEADER.pack(len(text) + 4, frame.ERROR) + text
    with pytest.raises(ServerRefused, match="E_FIN_FAILED"):
        scripted_nsqd.consume(2)


def test_a_server_that_goes_away_is_a_failure(scripted_nsqd: ScriptedNsqd) -> None:
    scripted_nsqd.deliveries = message(1)
    scripted_nsqd.hangs_up = True
    with pytest.raises((LoadFailure, ConnectionError)):
        scripted_nsqd.consume(2)


def test_the_mixer_keeps_some_fins_back_and_gives_all_in_the_end() -> None:
    fins = [fin(number) for number in range(1500)]
    mixer = FinMixer()
    assert mixer.mix(b"".join(fins[:10])) == b""
    let_go = mixer.mix(b"".join(fins[10:])) + mixer.rest()
    assert sorted(let_go.splitlines(keepends=True)) == fins
    assert mixer.rest() == b""
