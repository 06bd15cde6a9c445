"""Load over HTTP against a server that follows a script."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from bench.connection import SILENCE_LIMIT_S, Address
from bench.failure import LoadFailure, Miscounted, ServerRefused
from bench.publisher import LockstepPost

REQUEST = b"POST / HTTP/1.1\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"
TOO_BIG = b'HTTP/1.1 413 Too Large\r\nContent-Length: 25\r\n\r\n{"message":"MSG_TOO_BIG"}'


@contextmanager
def scripted_server(*answers: bytes) -> Iterator[tuple[Address, list[bytes]]]:
    """Its address, and the requests of its one connection: each gets the next answer of the script."""
    requests: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(SILENCE_LIMIT_S)
            for answer in answers:
                requests.append(connection.recv(len(REQUEST), socket.MSG_WAITALL))
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SILENCE_LIMIT_S)
        thread = Thread(target=serve)
        thread.start()
        yield listener.getsockname(), requests
        thread.join()


def plan(address: Address, *, repeats: int) -> LockstepPost:
    return LockstepPost(address=address, request=REQUEST, messages=200, repeats=repeats, connections=1)


def test_each_post_waits_for_its_answer_and_counts_its_messages() -> None:
    with scripted_server(OK, OK, OK) as (address, requests):
        tally = plan(address, repeats=3).open().run()
    assert (tally.published, tally.timed) == (600, 600)
    assert requests == [REQUEST] * 3


def test_a_refused_post_ends_the_run() -> None:
    with scripted_server(OK, TOO_BIG) as (address, _), pytest.raises(ServerRefused, match=r"413 .*MSG_TOO_BIG"):
        plan(address, repeats=3).open().run()


def test_an_answer_too_many_ends_the_run() -> None:
    with scripted_server(OK, OK + OK) as (address, _), pytest.raises(Miscounted, match="2 answers where one was due"):
        plan(address, repeats=3).open().run()


def test_a_connection_that_is_not_kept_alive_ends_the_run() -> None:
    with scripted_server(OK) as (address, _), pytest.raises((LoadFailure, ConnectionError)):
        plan(address, repeats=2).open().run()
