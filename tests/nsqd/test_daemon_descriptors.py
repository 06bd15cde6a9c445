"""More journaled topics than the process may have files open."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from emberq.storage.journal import segment
from tests.conftest import StartNsqd
from tests.support.http_client import HttpClient

LIMIT = 64
TOPICS = 100
FEW_FILES = SimpleNamespace(
    RLIMIT_NOFILE=resource.RLIMIT_NOFILE, RLIM_INFINITY=resource.RLIM_INFINITY, getrlimit=lambda _: (LIMIT, LIMIT)
)
"""What journals are told. Connections are not: this process has more files open than that."""


def open_segments(data_path: Path) -> int:
    """How many descriptors this process holds on the files of journals."""
    held = 0
    for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the descriptor of the listing is among them
        with suppress(FileNotFoundError):
            path = Path(f"/proc/self/fd/{fd}").readlink()
            held += path.suffix == ".log" and path.parent.parent == data_path
    return held


def test_topics_without_number_are_published_to_and_consumed(
    start_nsqd: StartNsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "resource", FEW_FILES)
    nsqd = start_nsqd(journal=True)
    http = HttpClient(nsqd.http_address)
    for turn in (b"first", b"second"):
        for number in range(TOPICS):
            assert http.post(f"/pub?topic=t{number}", turn).text == "OK"
            assert open_segments(nsqd.data_path) <= LIMIT // 2
    nsqd.restart()
    for number in range(0, TOPICS, 9):
        consumer = nsqd.consumer(f"t{number}", "c", rdy=2)
        assert [consumer.read_message().body for _ in range(2)] == [b"first", b"second"]
        consumer.close()
    assert open_segments(nsqd.data_path) <= LIMIT // 2
