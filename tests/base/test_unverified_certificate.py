"""TLS connections made by pyOpenSSL behave, for an event loop, like those of Python's ssl module.

Every test here runs on both kinds, so that the one is the measure of the other.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from emberq.base.tls import ServerTls
from emberq.nsqd.options import NsqdOptions
from tests.support.certificates import Authority
from tests.support.tls_pair import TlsPair, client_context

MESSAGE = bytes(range(256)) * 400
"""Longer than a TLS record can be."""


@pytest.fixture(params=["require-verify", "require"])
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> TlsPair:
    """A connection before its handshake."""
    authority = Authority(tmp_path, "authority")
    tls = ServerTls(
        NsqdOptions(
            tls_client_auth_policy=request.param,
            tls_root_ca_file=str(authority.path),
            **authority.issue("server").options(),
        )
    )
    tls.load()
    return TlsPair(tls.context, client_context(authority.path, certificate=authority.issue("client")))


def read_as_event_loops_do(pair: TlsPair) -> tuple[bytes, bool]:
    """Read while there is something to read; the plain bytes, and whether the stream has ended."""
    heard = b""
    try:
        while pair.server_incoming.pending or pair.server.pending():
            piece = pair.server.read(20_000)
            if not piece:
                return heard, True
            heard += piece
    except ssl.SSLWantReadError:
        pass
    return heard, False


def test_bytes_travel_both_ways(pair: TlsPair) -> None:
    pair.shake_hands()
    pair.say_to_server(MESSAGE)
    assert read_as_event_loops_do(pair) == (MESSAGE, False)
    answer = MESSAGE
    while answer:
        answer = answer[pair.server.write(answer) :]
    assert pair.heard_by_client() == MESSAGE


def test_part_of_a_record_is_not_yet_readable(pair: TlsPair) -> None:
    pair.shake_hands()
    pair.client.write(b"in two parts")
    record = pair.to_server.read()
    pair.server_incoming.write(record[:-1])
    with pytest.raises(ssl.SSLWantReadError):
        pair.server.read(100)
    pair.server_incoming.write(record[-1:])
    assert pair.server.read(100) == b"in two parts"


def test_what_arrives_with_the_end_of_the_handshake_is_not_forgotten(pair: TlsPair) -> None:
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.do_handshake()
    pair.carry()
    with pytest.raises(ssl.SSLWantReadError):
        pair.server.do_handshake()
    pair.carry()
    pair.client.do_handshake()
    pair.say_to_server(b"early bird")  # in one flight with the last words of the handshake
    pair.server.do_handshake()
    assert read_as_event_loops_do(pair) == (b"early bird", False)


def test_a_reader_that_asks_for_little_gets_the_rest_later(pair: TlsPair) -> None:
    pair.shake_hands()
    pair.say_to_server(b"abcdef")
    assert pair.server.read(4) == b"abcd"
    assert pair.server.pending() > 0
    assert pair.server.read(4) == b"ef"


def test_writing_leaves_what_arrived_where_the_event_loop_counts_it(pair: TlsPair) -> None:
    pair.shake_hands()
    pair.say_to_server(b"unread")
    waiting_bytes = pair.server_incoming.pending
    pair.server.write(b"meanwhile")
    assert pair.server_incoming.pending == waiting_bytes
    assert read_as_event_loops_do(pair) == (b"unread", False)


def test_the_last_words_and_the_goodbye_are_both_heard(pair: TlsPair) -> None:
    pair.shake_hands()
    pair.client.write(b"last words")
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.unwrap()
    pair.carry()
    assert read_as_event_loops_do(pair) == (b"last words", True)
    pair.server.unwrap()
    pair.carry()
    pair.client.unwrap()


def test_a_goodbye_waits_for_its_answer(pair: TlsPair) -> None:
    pair.shake_hands()
    with pytest.raises(ssl.SSLWantReadError):
        pair.server.unwrap()
    pair.carry()
    pair.client.unwrap()
    pair.carry()
    pair.server.unwrap()


def test_bytes_that_are_not_tls_end_the_handshake(pair: TlsPair) -> None:
    pair.server_incoming.write(b"PUB topic\n\x00\x00\x00\x01x")
    with pytest.raises(ssl.SSLError) as raised:
        pair.server.do_handshake()
    assert not isinstance(raised.value, ssl.SSLWantReadError)


def test_a_damaged_record_ends_the_connection(pair: TlsPair) -> None:
    pair.shake_hands()
    pair.client.write(b"to be damaged")
    record = bytearray(pair.to_server.read())
    record[-1] ^= 1
    pair.server_incoming.write(bytes(record))
    with pytest.raises(ssl.SSLError, match=r"(?i)bad.record.mac|record.layer.failure"):  # as OpenSSL has it
        pair.server.read(100)


def test_nothing_is_known_of_a_peer_before_the_handshake(pair: TlsPair) -> None:
    assert pair.server.cipher() is None


def test_what_was_agreed_is_known_after_the_handshake(pair: TlsPair) -> None:
    pair.shake_hands()
    assert pair.server.version() == pair.client.version()
    assert pair.server.cipher() == pair.client.cipher()
    assert pair.server.selected_alpn_protocol() is None
    assert pair.server.compression() is None
    certificate = pair.server.getpeercert()
    assert certificate is not None
    assert certificate["subject"] == ((("commonName", "client"),),)
