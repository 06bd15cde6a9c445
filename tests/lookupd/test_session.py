"""A connection as an nsqd meets it, beyond what the conformance table asks."""

from __future__ import annotations

import logging
import socket
import struct

import pytest

from tests.support.lookupd_harness import LookupdHarness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.lookupd(broadcast_address="lookupd.example")

OK = b"\0\0\0\2OK"


def test_identify_is_answered_with_who_nsqlookupd_is(lookupd: LookupdHarness) -> None:
    assert lookupd.connect().identify() == {
        "broadcast_address": "lookupd.example",
        "hostname": socket.gethostname(),
        "http_port": lookupd.daemon.http_address[1],
        "tcp_port": lookupd.daemon.tcp_address[1],
        "version": "1.3.0-emberq",
    }


def test_commands_in_one_packet_are_answered_in_order(lookupd: LookupdHarness) -> None:
    client = lookupd.nsqd()
    client.send(b"PING\nREGISTER t c\nNOPE\nREGISTER u\n")
    assert [client.read() for _ in range(3)] == [b"OK", b"OK", b"E_INVALID invalid command NOPE"]
    client.expect_closed()
    assert lookupd.topics() == ["t"]


def test_an_error_ends_all_registrations(lookupd: LookupdHarness) -> None:
    client = lookupd.nsqd("t")
    assert client.command("NOPE").startswith(b"E_INVALID")
    client.expect_closed()
    wait_until(lambda: lookupd.nodes() == [])
    assert lookupd.lookup("t")["producers"] == []


@pytest.mark.parametrize("size", [-1, 1 << 30])
def test_a_body_of_impossible_size_is_refused_at_once(lookupd: LookupdHarness, size: int) -> None:
    client = lookupd.connect()
    client.send(b"IDENTIFY\n" + struct.pack(">i", size))
    assert client.read().startswith(b"E_BAD_BODY IDENTIFY ")
    client.expect_closed()


def test_a_client_that_stops_inside_a_body_is_told(lookupd: LookupdHarness) -> None:
    client = lookupd.connect()
    client.send(b"IDENTIFY\n\0\0\0\x09{")
    client.half_close()
    assert client.read() == b"E_BAD_BODY IDENTIFY failed to read body"
    client.expect_closed()


def test_a_client_that_stops_inside_a_line_is_just_gone(lookupd: LookupdHarness) -> None:
    client = lookupd.connect()
    client.send(b"PIN")
    client.half_close()
    client.expect_closed()


def test_a_client_that_does_not_read_is_not_read_from_until_it_does(lookupd: LookupdHarness) -> None:
    client = lookupd.connect(receive_buffer_bytes=4096)
    client.ping()
    lookupd.call(lambda: shrink_send_buffers(lookupd))
    client.send(b"PING\n" * 30_000)
    wait_until(lambda: lookupd.call(lambda: is_anybody_waiting(lookupd)))
    assert lookupd.get("/ping").status == 200
    assert client.read_exactly(30_000 * len(OK)) == OK * 30_000
    client.ping()


def test_a_client_that_does_not_take_its_last_answer_is_cut_off(lookupd: LookupdHarness) -> None:
    client = lookupd.connect(receive_buffer_bytes=4096)
    client.identify()
    lookupd.call(lambda: shrink_send_buffers(lookupd))
    client.send(b"PING\n" * 10_000 + b"NOPE\n")  # not yet so much that nsqlookupd would stop reading
    wait_until(lambda: lookupd.call(lambda: is_anybody_closing(lookupd)))
    lookupd.advance(ms=4_999)
    assert len(lookupd.nodes()) == 1
    lookupd.advance(ms=1)
    wait_until(lambda: lookupd.nodes() == [])


def shrink_send_buffers(lookupd: LookupdHarness) -> None:
    """Let the system hold little of what is sent, so that the rest waits in nsqlookupd."""
    for session in lookupd.daemon._context.sessions:
        session._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def is_anybody_waiting(lookupd: LookupdHarness) -> bool:
    return any(not session._transport.is_reading() for session in lookupd.daemon._context.sessions)


def is_anybody_closing(lookupd: LookupdHarness) -> bool:
    return any(session._closing for session in lookupd.daemon._context.sessions)


def test_unregistering_a_topic_that_still_has_channels_is_worth_a_warning(
    lookupd: LookupdHarness, caplog: pytest.LogCaptureFixture
) -> None:
    client = lookupd.nsqd()
    client.register("t", "c")
    with caplog.at_level(logging.WARNING, "emberq.lookupd"):
        client.unregister("t")
    assert [record.getMessage() for record in caplog.records] == [
        f"client({client.address}) unexpected UNREGISTER category:channel key:t subkey:c"
    ]
