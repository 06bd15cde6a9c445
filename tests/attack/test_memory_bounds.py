"""A little that is compressed and large when it is not: messages that wait are in memory up to a number of bytes."""

from __future__ import annotations

from tests.conftest import StartNsqdProcess
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
