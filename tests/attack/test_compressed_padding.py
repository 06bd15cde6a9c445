"""A compressed stream in which there is nothing, or next to nothing: to read it takes time, of which others get theirs.

Each stream is legal. Until a client has sent all of it, another one publishes, and is answered soon each time.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import cast

import pytest

from tests.conftest import StartNsqdProcess
from tests.support.nsqd_process import NsqdProcess
from tests.support.raw_client import Client
from tests.support.stream_upgrade import TranslatedSocket, start_deflate, start_snappy
from tests.wire import reference_snappy as snappy

STREAM_BYTES = 16 * 1024 * 1024
ATTACKERS = 3
PUBLISHES = 20
MAX_WAIT_S = 1.0
"""So long nsqd works at most until it has answered. Generous: a publish takes less than a millisecond, and took five
seconds when one client could hold up all."""


def bits(*fields: tuple[int, int]) -> str:
    """Numbers of so many bits each, the lowest bit first, as deflate has them."""
    return "".join(f"{value:0{width}b}"[::-1] for value, width in fields)


def empty_dynamic_blocks() -> bytes:
    """Two blocks of deflate that each describe a Huffman code and then hold nothing: much work for few bytes.

    The code has one symbol, the end of the block. Its description is written in a code for 18 (many zeros), 1 and 0.
    """
    lengths_of_the_code = {18: 1, 1: 2, 0: 2}
    order = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1)
    head = bits((0, 1), (2, 2), (0, 5), (0, 5), (len(order) - 4, 4))
    head += bits(*((lengths_of_the_code.get(symbol, 0), 3) for symbol in order))
    many_zeros, zero, one = "0", "10", "11"
    lengths = many_zeros + bits((138 - 11, 7)) + many_zeros + bits((118 - 11, 7)) + one + zero
    end_of_block = "0"
    block = head + lengths + end_of_block
    return int((2 * block)[::-1], 2).to_bytes(len(block) * 2 // 8, "little")


def one_command_in_many_chunks() -> bytes:
    return b"".join(snappy.uncompressed_chunk(bytes([letter])) for letter in b"NOP\n")


STREAMS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "padding": ("snappy", lambda: snappy.chunk(snappy.PADDING, b"")),
    "padding of a byte": ("snappy", lambda: snappy.chunk(snappy.PADDING, b"x")),
    "identifiers": ("snappy", lambda: snappy.IDENTIFIER),
    "empty chunks": ("snappy", lambda: snappy.uncompressed_chunk(b"")),
    "chunks of a byte": ("snappy", one_command_in_many_chunks),
    "empty stored blocks": ("deflate", lambda: b"\x00\x00\x00\xff\xff"),
    "empty dynamic blocks": ("deflate", empty_dynamic_blocks),
}


@contextmanager
def sending(client: Client, data: bytes) -> Iterator[None]:
    """Sends this in a thread, until all is sent or the connection is closed."""
    below = cast(TranslatedSocket, client.socket).below

    def send() -> None:
        with suppress(OSError):
            below.sendall(data)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        below.shutdown(socket.SHUT_RDWR)
        thread.join()


def attacker(nsqd: NsqdProcess, compression: str) -> Client:
    client = nsqd.connect()
    client.identify(**{compression: True})
    start_snappy(client) if compression == "snappy" else start_deflate(client)
    return client


@pytest.mark.parametrize("name", STREAMS)
def test_others_are_served_meanwhile(start_nsqd_process: StartNsqdProcess, name: str) -> None:
    compression, make = STREAMS[name]
    unit = make()
    stream = unit * (STREAM_BYTES // len(unit))
    nsqd = start_nsqd_process()
    bystander = nsqd.connect()
    bystander.pub("t", b"before")
    with ExitStack() as attacks:
        for _ in range(ATTACKERS):
            attacks.enter_context(sending(attacker(nsqd, compression), stream))
        waits_s = []
        for _ in range(PUBLISHES):
            start_s = nsqd.worked_s
            bystander.pub("t", b"meanwhile")
            waits_s.append(nsqd.worked_s - start_s)
        assert max(waits_s) < MAX_WAIT_S


def test_what_comes_behind_much_padding_is_executed(start_nsqd_process: StartNsqdProcess) -> None:
    client = attacker(start_nsqd_process(), "snappy")
    cast(TranslatedSocket, client.socket).below.sendall(snappy.chunk(snappy.PADDING, b"") * 100_000)
    client.pub("t", b"at last")
