"""The load generator's requests against a server that follows a script."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from bench.connection import SILENCE_LIMIT_S, Address
from bench.crew import Tally
from bench.failure import LoadFailure
from bench.generator import Generators, Order
from tests.bench.support import needs_compiler

pytestmark = needs_compiler

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n1\r\nf\r\n0\r\n\r\n"
TOO_BIG = b'HTTP/1.1 413 Too Large\r\nContent-Length: 25\r\n\r\n{"message":"MSG_TOO_BIG"}'


@contextmanager
def scripted_server(*answers: bytes) -> Iterator[tuple[Address, list[bytes]]]:
    """Its address, and the first lines of its one connection's requests: each gets the next answer of the script."""
    requests: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        connection.settimeout(SILENCE_LIMIT_S)
        with connection, connection.makefile("rb") as lines:
            for answer in answers:
                requests.append(lines.readline().strip())
                length = 0
                while (line := lines.readline()) not in (b"\r\n", b""):
                    if line.startswith(b"Content-Length:"):
                        length = int(line.partition(b":")[2])
                lines.read(length)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SILENCE_LIMIT_S)
        thread = Thread(target=serve)
        thread.start()
        yield listener.getsockname(), requests
        thread.join()


def request(address: Address, target: str = "/ping", **settings: int | str) -> Tally:
    order = Order("request", {"address": "{}:{}".format(*address), "target": target, **settings})
    with Generators([order]) as generators:
        generators.assemble()
        (tally,) = generators.work()
        return tally


def test_each_request_waits_for_its_answer_and_is_counted() -> None:
    with scripted_server(OK, OK, OK) as (address, requests):
        assert request(address, requests=3).timed == 3
    assert requests == [b"GET /ping HTTP/1.1"] * 3


def test_each_post_counts_its_messages() -> None:
    with scripted_server(OK, OK) as (address, requests):
        tally = request(address, "/mpub", post=1, batch=200, requests=2, min=10, max=10)
    assert (tally.published, tally.timed, tally.body_bytes) == (400, 400, 4000)
    assert requests == [b"POST /mpub HTTP/1.1"] * 2


def test_a_target_may_have_the_number_of_its_request_in_it() -> None:
    with scripted_server(OK, OK) as (address, requests):
        request(address, "/topic/create?topic=t_#", post=1, requests=2)
    assert requests == [b"POST /topic/create?topic=t_0 HTTP/1.1", b"POST /topic/create?topic=t_1 HTTP/1.1"]


def test_an_answer_may_come_in_chunks() -> None:
    with scripted_server(CHUNKED, CHUNKED) as (address, _):
        assert request(address, requests=2).timed == 2


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([OK, TOO_BIG], "nsqd answered 413 .*MSG_TOO_BIG"),
        ([OK, OK + OK], "more than the one answer"),
        ([OK], "nsqd closed the connection|read: "),
        ([b"HTTP/1.1 200 OK\r\n\r\n"], "none of ours"),
    ],
)
def test_a_wrong_answer_ends_the_run(answers: list[bytes], words: str) -> None:
    with scripted_server(*answers) as (address, _), pytest.raises(LoadFailure, match=words):
        request(address, requests=3)
