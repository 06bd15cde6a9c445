"""Bounds on what one client makes nsqd keep in memory, or parse at one go."""

from __future__ import annotations

import struct

import pytest

from tests.conftest import StartNsqdProcess
from tests.support.harness import NsqdHarness
from tests.support.raw_client import ERROR
from tests.support.stream_upgrade import start_deflate

MEGABYTE = 1024 * 1024
COUNT = 160


def test_what_a_small_stream_unfolds_to_goes_to_disk(start_nsqd_process: StartNsqdProcess) -> None:
    nsqd = start_nsqd_process(f"--mem-queue-bytes={8 * MEGABYTE}")
    before = nsqd.rss_bytes
    client = nsqd.connect()
    client.identify(deflate=True)
    start_deflate(client)
    for _ in range(COUNT // 4):
        client.mpub("t", [bytes(MEGABYTE)] * 4)
    assert nsqd.rss_bytes - before < COUNT * MEGABYTE / 2
    consumer = nsqd.consumer("t", "c", rdy=1)
    for _ in range(COUNT):
        message = consumer.read_message()
        assert message.body == bytes(MEGABYTE)
        consumer.fin(message)


@pytest.mark.parametrize("verb", [b"IDENTIFY", b"AUTH"])
def test_what_a_stranger_says_of_itself_is_refused_by_its_size(nsqd: NsqdHarness, verb: bytes) -> None:
    client = nsqd.connect()
    client.send(verb + b"\n" + struct.pack(">i", 5 * MEGABYTE))
    frame = client.read_frame()
    assert (frame.type, frame.data) == (ERROR, b"E_BAD_BODY %b body too big 5242880 > 65536" % verb)
    client.expect_closed()
