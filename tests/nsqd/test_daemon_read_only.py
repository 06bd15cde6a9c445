"""A start on a disk that is full: consumers drain what is there, and nsqd goes on by itself when there is room."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartNsqd
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.waiting import wait_until


class Disk:
    """Refuses writes while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        for name in ("write", "pwrite", "pwritev"):
            monkeypatch.setattr(os, name, self._unless_full(getattr(os, name)))

    def _unless_full(self, write: Callable[..., int]) -> Callable[..., int]:
        def checked(fd: int, *arguments: Any) -> int:
            if self.is_full and str(Path(f"/proc/self/fd/{fd}").readlink()).startswith("/"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(fd, *arguments)

        return checked


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def nsqd(start_nsqd: StartNsqd, disk: Disk) -> NsqdHarness:
    """Restarted on a full disk, with two messages in a journaled topic and in one on disk queues."""
    nsqd = start_nsqd(journal_topic=("^j",), mem_queue_size=0, min_free_bytes=0)
    for topic in ("j", "classic"):
        nsqd.create_channel(topic, "c")
        for body in (b"one", b"two"):
            nsqd.connect().pub(topic, body)
    nsqd.stop()
    disk.is_full = True
    nsqd.start()
    return nsqd


def read_only(nsqd: NsqdHarness) -> str:
    """Why it takes no messages: the temporary file of nsqd.dat could not be written."""
    return f"read-only for want of room: write {nsqd.data_path / 'nsqd.dat'}: no space left on device"


def test_ping_says_why_and_publishers_are_refused(nsqd: NsqdHarness, http: HttpClient) -> None:
    assert (http.get("/ping").status, http.get("/ping").text) == (500, f"NOK - {read_only(nsqd)}")
    for topic in (b"j", b"classic"):
        producer = nsqd.connect()
        producer.command(b"PUB " + topic, b"x")
        assert producer.read_frame().data.decode() == f"E_PUB_FAILED PUB failed {read_only(nsqd)}"
    assert http.post("/pub?topic=j", b"x").error == (503, "DISK_SPACE_LOW")


def test_consumers_drain_what_is_there(nsqd: NsqdHarness) -> None:
    for topic in ("j", "classic"):
        consumer = nsqd.consumer(topic, "c", rdy=2)
        for body in (b"one", b"two"):
            message = consumer.read_message()
            assert message.body == body
            consumer.fin(message)
        wait_until(lambda topic=topic: nsqd.channel(topic, "c").in_flight_count == 0)  # type: ignore[misc]


def test_it_goes_on_when_there_is_room_and_saves_what_was_finished_meanwhile(
    nsqd: NsqdHarness, disk: Disk, http: HttpClient
) -> None:
    consumer = nsqd.consumer("j", "c", rdy=2)
    for _ in range(2):
        consumer.fin(consumer.read_message())
    wait_until(lambda: nsqd.channel("j", "c").in_flight_count == 0)
    nsqd.advance(ms=20_000)
    assert http.get("/ping").status == 500
    disk.is_full = False

    def is_well() -> bool:
        nsqd.advance(ms=1000)
        return http.get("/ping").text == "OK"

    wait_until(is_well)
    consumer.close()
    nsqd.connect().pub("j", b"three")
    nsqd.connect().pub("new", b"x")

    def saved() -> list[str]:
        nsqd.advance(ms=1000)
        document = json.loads((nsqd.data_path / "nsqd.dat").read_bytes())
        return sorted(topic["name"] for topic in document["topics"])

    wait_until(lambda: saved() == ["classic", "j", "new"])
    nsqd.restart()
    consumer = nsqd.consumer("j", "c", rdy=2)
    assert consumer.read_message().body == b"three"


def test_changes_of_topics_are_saved_when_there_is_room_again(start_nsqd: StartNsqd, disk: Disk) -> None:
    nsqd = start_nsqd(min_free_bytes=0)
    disk.is_full = True
    nsqd.create_topic("t")
    nsqd.advance(ms=1000)
    wait_until(lambda: not list(nsqd.data_path.glob("*.tmp")))
    disk.is_full = False

    def saved() -> bool:
        nsqd.advance(ms=1000)
        return b'"name":"t"' in (nsqd.data_path / "nsqd.dat").read_bytes()

    wait_until(saved)
