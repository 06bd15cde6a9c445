"""Publishing to journaled topics over real connections, with a disk that is slow, fails or is full.

A publish is answered when its messages are on the disk, and answers leave in the order of the commands, whatever kind
of topic each is for.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import StartNsqd
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.raw_client import ERROR, RESPONSE, Client, Frame, mpub_body
from tests.support.waiting import wait_until

OK = Frame(RESPONSE, b"OK")
JOURNALED = ("^j",)
"""Topics that begin with j are journaled, the others are classic."""


class Disk:
    """Stands between the journals and the disk: syncs wait or fail, and writes are refused, as the test wants."""

    def __init__(self) -> None:
        self._may_sync = threading.Event()
        self._may_sync.set()
        self._sync_failure: OSError | None = None
        self._waiting_count = 0
        self.is_full = False
        self._fdatasync = os.fdatasync
        self._pwritev = os.pwritev

    def hold(self) -> None:
        """Syncs that begin from here on do not end."""
        self._may_sync.clear()

    def go_on(self) -> None:
        """Syncs end again."""
        self._may_sync.set()

    def fail(self) -> None:
        """Syncs end, with an error."""
        self._sync_failure = OSError(errno.EIO, os.strerror(errno.EIO))
        self._may_sync.set()

    def await_sync(self) -> None:
        """Return when a sync is waiting to end."""
        wait_until(lambda: self._waiting_count > 0)

    def fdatasync(self, fd: int) -> None:
        self._waiting_count += 1
        assert self._may_sync.wait(10)
        self._waiting_count -= 1
        if self._sync_failure is not None:
            raise self._sync_failure
        self._fdatasync(fd)

    def pwritev(self, fd: int, parts: Sequence[bytes], position: int) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._pwritev(fd, parts, position)


@pytest.fixture
def disk(start_nsqd: StartNsqd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """The disk of the journals. Not held any more when nsqd stops."""
    disk = Disk()
    monkeypatch.setattr(os, "fdatasync", disk.fdatasync)
    monkeypatch.setattr(os, "pwritev", disk.pwritev)
    yield disk
    disk.go_on()


@pytest.fixture
def nsqd(start_nsqd: StartNsqd, disk: Disk) -> NsqdHarness:
    """nsqd with journaled and classic topics, which exist, with a channel each."""
    nsqd = start_nsqd(journal_topic=JOURNALED)
    for topic in ("journaled", "classic"):
        nsqd.create_channel(topic, "c")
    return nsqd


def expect_silence(nsqd: NsqdHarness, client: Client) -> None:
    """The server has executed what was sent, and has nothing to say yet."""
    nsqd.settle()
    assert not client.has_input()


# A slow disk.


@pytest.mark.parametrize(
    ("line", "body"),
    [
        (b"PUB journaled", b"one"),
        (b"MPUB journaled", mpub_body([b"one", b"two"])),
        (b"DPUB journaled 1", b"one"),
        (b"PUB journaled", b"x" * 100_000),
    ],
)
def test_a_publish_is_answered_when_it_is_on_the_disk(
    nsqd: NsqdHarness, client: Client, disk: Disk, line: bytes, body: bytes
) -> None:
    disk.hold()
    client.command(line, body)
    disk.await_sync()
    expect_silence(nsqd, client)
    disk.go_on()
    client.expect_ok()


def test_nobody_sees_a_message_that_is_not_on_the_disk(nsqd: NsqdHarness, client: Client, disk: Disk) -> None:
    consumer = nsqd.consumer("journaled", "c", rdy=10)
    disk.hold()
    client.command(b"PUB journaled", b"one")
    disk.await_sync()
    expect_silence(nsqd, consumer)
    assert nsqd.topic("journaled").message_count == 0
    disk.go_on()
    assert consumer.read_message().body == b"one"
    client.expect_ok()


def test_publishes_that_arrive_during_a_sync_share_the_next(nsqd: NsqdHarness, client: Client, disk: Disk) -> None:
    disk.hold()
    others = [nsqd.connect() for _ in range(5)]
    for publisher in (client, *others):
        publisher.command(b"PUB journaled", b"one")
    disk.await_sync()
    nsqd.settle()
    disk.go_on()
    for publisher in (client, *others):
        publisher.expect_ok()
    assert nsqd.channel("journaled", "c").depth == 6


def test_a_classic_topic_does_not_wait_for_the_disk_of_another_client(
    nsqd: NsqdHarness, client: Client, disk: Disk
) -> None:
    disk.hold()
    client.command(b"PUB journaled", b"one")
    disk.await_sync()
    nsqd.connect().pub("classic", b"two")
    expect_silence(nsqd, client)
    disk.go_on()
    client.expect_ok()


def test_answers_to_pipelined_publishes_leave_in_order(nsqd: NsqdHarness, client: Client, disk: Disk) -> None:
    disk.hold()
    client.command(b"PUB journaled", b"one")
    client.command(b"PUB classic", b"two")
    client.command(b"MPUB jother", mpub_body([b"three"]))
    client.command(b"DPUB classic 10", b"four")
    client.command(b"PUB bad$topic", b"five")
    disk.await_sync()
    expect_silence(nsqd, client)
    assert nsqd.channel("classic", "c").depth == 1
    disk.go_on()
    refusal = Frame(ERROR, b'E_BAD_TOPIC PUB topic name "bad$topic" is not valid')
    assert client.frames_until_eof() == [OK, OK, OK, OK, refusal]


def test_more_publishes_than_may_wait_are_all_answered(nsqd: NsqdHarness, client: Client, disk: Disk) -> None:
    disk.hold()
    commands = b"".join(b"PUB journaled\n\0\0\0\4%04d" % number for number in range(3000))
    sender = threading.Thread(target=client.send, args=(commands,))
    sender.start()
    disk.await_sync()
    disk.go_on()
    for _ in range(3000):
        client.expect_ok()
    sender.join()
    assert nsqd.channel("journaled", "c").depth == 3000


def test_a_subscription_waits_behind_the_publishes_before_it(nsqd: NsqdHarness, client: Client, disk: Disk) -> None:
    disk.hold()
    client.command(b"PUB journaled", b"one")
    client.command(b"SUB journaled late")
    client.command(b"RDY 1")
    disk.await_sync()
    expect_silence(nsqd, client)
    disk.go_on()
    client.expect_ok()
    client.expect_ok()
    assert client.messages_until_now() == []
    nsqd.connect().pub("journaled", b"two")
    assert client.read_message().body == b"two"


def test_messages_go_on_while_a_publish_waits(nsqd: NsqdHarness, disk: Disk) -> None:
    nsqd.connect().mpub("classic", [b"one", b"two"])
    client = nsqd.consumer("classic", "c")
    disk.hold()
    client.command(b"PUB journaled", b"three")
    disk.await_sync()
    client.rdy(1)
    first = client.read_message()
    client.fin(first)
    assert client.read_message().body == b"two"
    disk.go_on()
    client.expect_ok()


# Connections that end.


def test_a_client_that_sends_no_more_is_still_answered(nsqd: NsqdHarness, client: Client, disk: Disk) -> None:
    disk.hold()
    client.command(b"PUB journaled", b"one")
    client.half_close()
    disk.await_sync()
    expect_silence(nsqd, client)
    disk.go_on()
    assert client.frames_until_eof() == [OK]
    assert nsqd.channel("journaled", "c").depth == 1


def test_a_client_that_ends_behind_a_waiting_subscription_is_still_answered(
    nsqd: NsqdHarness, client: Client, disk: Disk
) -> None:
    disk.hold()
    client.command(b"PUB journaled", b"one")
    client.command(b"SUB journaled c")
    disk.await_sync()
    nsqd.settle()
    client.half_close()
    nsqd.settle()
    disk.go_on()
    assert client.frames_until_eof() == [OK, OK]


def test_a_client_that_vanishes_has_published_all_the_same(nsqd: NsqdHarness, client: Client, disk: Disk) -> None:
    disk.hold()
    client.command(b"PUB journaled", b"one")
    disk.await_sync()
    client.reset()
    nsqd.settle()
    disk.go_on()
    wait_until(lambda: nsqd.channel("journaled", "c").depth == 1)


def test_a_topic_that_is_deleted_meanwhile_makes_nobody_ill(nsqd: NsqdHarness, client: Client, disk: Disk) -> None:
    disk.hold()
    client.command(b"PUB journaled", b"one")
    disk.await_sync()
    client.command(b"PUB journaled", b"two")
    nsqd.settle()
    disk.go_on()
    nsqd.delete_topic("journaled")
    client.read_frame()
    client.read_frame()
    assert nsqd.health() is None


def test_what_was_on_its_way_when_nsqd_stops_is_there_after_a_restart(
    nsqd: NsqdHarness, client: Client, disk: Disk
) -> None:
    disk.hold()
    client.command(b"PUB journaled", b"one")
    disk.await_sync()
    disk.go_on()
    nsqd.restart()
    assert nsqd.channel("journaled", "c").depth == 1


# A disk that fails.


def test_a_failed_sync_is_the_publishers_to_know(nsqd: NsqdHarness, client: Client, disk: Disk) -> None:
    disk.hold()
    client.command(b"PUB journaled", b"one")
    disk.await_sync()
    disk.fail()
    (answer,) = client.frames_until_eof()
    assert answer.type == ERROR
    assert answer.data.startswith(b"E_PUB_FAILED PUB failed the journal of journaled: sync ")
    assert nsqd.channel("journaled", "c").depth == 0


@pytest.mark.parametrize("line", [b"PUB classic", b"PUB jother"])
def test_no_answer_overtakes_a_refusal(nsqd: NsqdHarness, client: Client, disk: Disk, line: bytes) -> None:
    """An OK ahead of the error would be taken for that of the message that is not stored."""
    disk.hold()
    client.command(b"PUB journaled", b"one")
    client.command(line, b"two")
    disk.await_sync()
    nsqd.settle()
    disk.fail()
    first, *_ = client.frames_until_eof()
    assert first.type == ERROR


def test_a_journal_that_failed_to_sync_takes_no_more_but_gives(nsqd: NsqdHarness, client: Client, disk: Disk) -> None:
    client.pub("journaled", b"stored")
    disk.hold()
    client.command(b"PUB journaled", b"not stored")
    disk.await_sync()
    disk.fail()
    client.frames_until_eof()
    assert nsqd.health() is not None
    assert HttpClient(nsqd.http_address).get("/ping").status == 500
    late = nsqd.connect()
    late.command(b"PUB journaled", b"late")
    (refusal,) = late.frames_until_eof()
    assert refusal.data.startswith(b"E_PUB_FAILED PUB failed the journal of journaled: sync ")
    assert nsqd.consumer("journaled", "c", rdy=10).read_message().body == b"stored"


def test_http_is_answered_when_it_is_on_the_disk(nsqd: NsqdHarness, disk: Disk) -> None:
    disk.hold()
    statuses: list[int] = []
    http = HttpClient(nsqd.http_address)
    request = threading.Thread(target=lambda: statuses.append(http.post("/pub?topic=journaled", b"one").status))
    request.start()
    disk.await_sync()
    nsqd.settle()
    assert statuses == []
    disk.go_on()
    request.join(5)
    assert statuses == [200]


def test_http_is_told_of_a_failed_sync(nsqd: NsqdHarness, disk: Disk) -> None:
    disk.fail()
    assert HttpClient(nsqd.http_address).post("/mpub?topic=journaled", b"one\ntwo").status == 503


# A disk that is full.


def test_a_full_disk_refuses_publishes_and_goes_on_giving(nsqd: NsqdHarness, client: Client, disk: Disk) -> None:
    client.mpub("journaled", [b"one", b"two"])
    disk.is_full = True
    client.command(b"PUB journaled", b"three")
    (answer,) = client.frames_until_eof()
    assert answer.type == ERROR
    assert answer.data.startswith(b"E_PUB_FAILED PUB failed the journal of journaled: write ")
    assert answer.data.endswith(b": no space left on device")
    assert nsqd.health() is not None
    consumer = nsqd.consumer("journaled", "c", rdy=10)
    assert [message.body for message in consumer.read_messages(2)] == [b"one", b"two"]
    disk.is_full = False
    nsqd.connect().pub("journaled", b"four")
    assert consumer.read_message().body == b"four"
    assert nsqd.health() is None


def test_nothing_of_a_refused_publish_is_left(nsqd: NsqdHarness, client: Client, disk: Disk) -> None:
    disk.is_full = True
    client.command(b"MPUB journaled", mpub_body([b"one", b"two"]))
    client.frames_until_eof()
    disk.is_full = False
    nsqd.restart()
    assert nsqd.channel("journaled", "c").depth == 0


# Which topics are journaled.


def test_a_topic_that_has_a_journal_keeps_it(nsqd: NsqdHarness, client: Client) -> None:
    client.pub("journaled", b"one")
    nsqd.restart(journal_topic=())
    nsqd.connect().pub("journaled", b"two")
    consumer = nsqd.consumer("journaled", "c", rdy=10)
    ids = [message.id for message in consumer.read_messages(2)]
    assert ids == [b"%016x" % 0, b"%016x" % 1]


def test_ephemeral_topics_are_never_journaled(nsqd: NsqdHarness, client: Client, data_path: Path) -> None:
    client.pub("j#ephemeral", b"one")
    assert [path.name for path in data_path.glob("*.journal")] == ["journaled.journal"]
