"""Pausing, deleting, ephemeral names, and a disk that fails (rows 113-124, 278)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.harness import NsqdHarness
from tests.support.raw_client import Client
from tests.support.waiting import wait_until


def block_disk(nsqd: NsqdHarness, topic: str) -> Path:
    """Make a new topic unable to write: a folder stands where its data file should be, which not even root can open."""
    nsqd.create_topic(topic)
    obstacle = nsqd.data_path / f"{topic}.diskqueue.000000.dat"
    obstacle.mkdir()
    return obstacle


@pytest.mark.conformance(113, 114)
def test_a_paused_channel_holds_its_messages(nsqd: NsqdHarness, client: Client) -> None:
    consumer = nsqd.consumer("t", "c", rdy=1)
    consumer.frames_until_now()
    nsqd.pause_channel("t", "c")
    client.pub("t", b"held")
    assert consumer.messages_until_now() == []
    channel = nsqd.channel("t", "c")
    assert (channel.paused, channel.depth, channel.backend_depth) == (True, 1, 0)
    nsqd.unpause_channel("t", "c")
    message = consumer.read_message()
    assert message.body == b"held"
    consumer.fin(message)
    client.pub("t", b"free")
    assert consumer.read_message().body == b"free"


@pytest.mark.conformance(115)
def test_a_paused_topic_keeps_messages_from_its_channels(nsqd: NsqdHarness, client: Client) -> None:
    nsqd.create_channel("t", "c")
    nsqd.pause_topic("t")
    client.pub("t", b"held")
    assert (nsqd.topic("t").depth, nsqd.channel("t", "c").depth) == (1, 0)
    nsqd.unpause_topic("t")
    wait_until(lambda: (nsqd.topic("t").depth, nsqd.channel("t", "c").depth) == (0, 1))


@pytest.mark.conformance(116)
def test_one_name_is_one_topic(nsqd: NsqdHarness) -> None:
    nsqd.connect().pub("t", b"from one")
    nsqd.connect().pub("t", b"from another")
    nsqd.connect().pub("u", b"elsewhere")
    assert (nsqd.topic("t").message_count, nsqd.topic("u").message_count) == (2, 1)
    assert nsqd.call(lambda: nsqd.broker.topic("t") is nsqd.broker.find_topic("t"))


@pytest.mark.conformance(117)
def test_without_its_last_channel_a_topic_keeps_messages(nsqd: NsqdHarness, client: Client) -> None:
    nsqd.create_channel("t", "c")
    nsqd.delete_channel("t", "c")
    client.pub("t", b"waiting")
    assert not nsqd.has_channel("t", "c")
    assert nsqd.topic("t").depth == 1


@pytest.mark.conformance(118)
@pytest.mark.nsqd(mem_queue_size=0)
def test_a_deleted_topic_takes_its_channels_and_files_along(nsqd: NsqdHarness) -> None:
    nsqd.create_channel("t", "c")
    nsqd.connect().mpub("t", [b"on disk"] * 3)
    nsqd.pause_topic("t")
    nsqd.connect().mpub("t", [b"on disk"] * 3)
    wait_until(lambda: len(list(nsqd.data_path.glob("t*.diskqueue.000000.dat"))) == 2)
    nsqd.delete_topic("t")
    wait_until(lambda: not nsqd.has_topic("t") and not list(nsqd.data_path.glob("t*")))


@pytest.mark.conformance(119)
def test_the_first_channel_receives_what_waited_in_the_topic(nsqd: NsqdHarness, client: Client) -> None:
    client.pub("t", b"early")
    assert nsqd.topic("t").depth == 1
    nsqd.create_channel("t", "c")
    wait_until(lambda: (nsqd.topic("t").depth, nsqd.channel("t", "c").depth) == (0, 1))
    assert nsqd.consumer("t", "c", rdy=1).read_message().body == b"early"


@pytest.mark.nsqd(mem_queue_size=0)
def test_without_a_memory_queue_messages_go_through_the_disk_in_order(nsqd: NsqdHarness) -> None:
    consumer = nsqd.consumer("t", "c", rdy=100)
    producer = nsqd.connect()
    for number in range(100):
        producer.pub("t", b"%d" % number)
    assert [message.body for message in consumer.read_messages(100)] == [b"%d" % number for number in range(100)]
    assert nsqd.channel("t", "c").depth == 0


def test_a_deferral_begins_when_the_channel_receives_the_message(nsqd: NsqdHarness, client: Client) -> None:
    client.dpub("t", 200, b"later")
    nsqd.advance(ms=1000)
    assert nsqd.topic("t").depth == 1
    consumer = nsqd.consumer("t", "c", rdy=1)
    wait_until(lambda: nsqd.channel("t", "c").deferred_count == 1)
    nsqd.advance(ms=199)
    assert consumer.messages_until_now() == []
    nsqd.advance(ms=101)
    assert consumer.read_message().body == b"later"


def test_emptying_a_topic_leaves_its_channels_alone(nsqd: NsqdHarness, client: Client) -> None:
    nsqd.create_channel("t", "c")
    client.pub("t", b"in the channel")
    wait_until(lambda: nsqd.channel("t", "c").depth == 1)
    nsqd.pause_topic("t")
    client.mpub("t", [b"in the topic"] * 2)
    assert nsqd.topic("t").depth == 2
    nsqd.empty_topic("t")
    assert (nsqd.topic("t").depth, nsqd.channel("t", "c").depth) == (0, 1)


@pytest.mark.conformance(120)
def test_ephemeral_channel_and_topic_leave_with_the_last_client(nsqd: NsqdHarness) -> None:
    first = nsqd.consumer("t#ephemeral", "c#ephemeral")
    last = nsqd.consumer("t#ephemeral", "c#ephemeral")
    first.close()
    wait_until(lambda: nsqd.channel("t#ephemeral", "c#ephemeral").client_count == 1)
    last.close()
    wait_until(lambda: not nsqd.has_topic("t#ephemeral"))


@pytest.mark.conformance(120)
def test_an_ephemeral_channel_leaves_a_normal_topic_behind(nsqd: NsqdHarness) -> None:
    nsqd.consumer("t", "c#ephemeral").close()
    wait_until(lambda: not nsqd.has_channel("t", "c#ephemeral"))
    assert nsqd.has_topic("t")


@pytest.mark.conformance(121)
@pytest.mark.nsqd(mem_queue_size=2)
def test_an_ephemeral_channel_drops_what_exceeds_its_memory(nsqd: NsqdHarness) -> None:
    nsqd.create_channel("t", "c#ephemeral")
    producer = nsqd.connect()
    for _ in range(5):
        producer.pub("t", b"x")
    channel = nsqd.channel("t", "c#ephemeral")
    assert (channel.depth, channel.backend_depth, channel.message_count) == (2, 0, 5)


@pytest.mark.conformance(122)
@pytest.mark.nsqd(mem_queue_size=2)
def test_a_failing_disk_fails_the_publish_and_the_health(nsqd: NsqdHarness) -> None:
    obstacle = block_disk(nsqd, "t")
    producer = nsqd.connect()
    producer.pub("t", b"in memory")
    producer.pub("t", b"in memory")
    assert nsqd.health() is None
    producer.command(b"PUB t", b"on disk")
    error = producer.read_frame()
    assert error.data.startswith(b"E_PUB_FAILED PUB failed ")
    producer.expect_eof()
    assert nsqd.health()
    assert nsqd.topic("t").message_count == 2
    obstacle.rmdir()
    nsqd.connect().pub("t", b"on disk")
    assert nsqd.health() is None
    assert nsqd.topic("t").depth == 3


@pytest.mark.conformance(123)
@pytest.mark.nsqd(mem_queue_size=2)
def test_a_failing_disk_fails_a_batch_but_keeps_what_was_stored_before(nsqd: NsqdHarness) -> None:
    obstacle = block_disk(nsqd, "t")
    producer = nsqd.connect()
    producer.command(b"MPUB t", b"\x00\x00\x00\x03" + b"\x00\x00\x00\x01x" * 3)
    error = producer.read_frame()
    assert error.data.startswith(b"E_MPUB_FAILED MPUB failed ")
    producer.expect_eof()
    assert nsqd.health()
    assert (nsqd.topic("t").depth, nsqd.topic("t").message_count) == (2, 2)
    obstacle.rmdir()
    nsqd.connect().mpub("t", [b"x"] * 3)
    assert nsqd.health() is None
    assert nsqd.topic("t").depth == 5


@pytest.mark.conformance(124)
def test_deleting_a_channel_disconnects_its_consumers(nsqd: NsqdHarness) -> None:
    consumer = nsqd.consumer("t", "c", rdy=1)
    bystander = nsqd.consumer("t", "d", rdy=1)
    nsqd.delete_channel("t", "c")
    consumer.expect_eof()
    nsqd.connect().pub("t", b"hello")
    assert bystander.read_message().body == b"hello"


@pytest.mark.conformance(124)
def test_deleting_a_topic_disconnects_the_consumers_of_its_channels(nsqd: NsqdHarness) -> None:
    consumers = [nsqd.consumer("t", name) for name in ("c", "d")]
    nsqd.delete_topic("t")
    for consumer in consumers:
        consumer.expect_eof()
    nsqd.connect().pub("t", b"begun anew")
    assert nsqd.topic("t").channels == ()


@pytest.mark.conformance(278)
def test_a_client_that_publishes_and_subscribes_is_seen_as_both(nsqd: NsqdHarness) -> None:
    both = nsqd.consumer("t", "c", client_id="both")
    both.pub("u", b"x")
    nsqd.consumer("t", "c", client_id="silent")
    assert sorted(client.client_id for client in nsqd.channel("t", "c").clients) == ["both", "silent"]
    assert [client.client_id for client in nsqd.producers()] == ["both"]
