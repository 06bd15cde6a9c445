"""Answers that are sent from a file: over real sockets, to clients that are fast, slow or gone."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emberq.http.body import PIECE_BYTES, FileBody, FileSender
from emberq.http.router import HttpLimits
from tests.http.conftest import StartServer
from tests.http.harness import HttpHarness
from tests.http.site import FILE_POSITION
from tests.storage.journal.rig import open_files
from tests.support.raw_http_client import RawClient, request
from tests.support.waiting import wait_until

pytestmark = pytest.mark.loop("uvloop")

LENGTH = 9_000_000
"""More than the system keeps for a connection, and no multiple of a piece."""
CONTENT = b"head:" + bytes(range(256)) * (LENGTH // 256 + 1) + b"tail"
PART = CONTENT[FILE_POSITION : FILE_POSITION + LENGTH]
SMALL_BUFFER_BYTES = 8192
BUFFER_BYTES = 128 * 1024


@pytest.fixture
def path() -> Iterator[Path]:
    """On a disk: a file system in memory cannot say what is read without waiting."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder, "content")
        path.write_bytes(CONTENT)
        yield path


def offer(server: HttpHarness, path: Path, *, length: int = LENGTH) -> None:
    """Have `/file` send the file."""
    server.site.file_path = path
    server.site.file_length = length


@pytest.fixture
def site(server: HttpHarness, path: Path) -> Iterator[HttpHarness]:
    """A server that has the file; no test may leave it open."""
    offer(server, path)
    yield server
    wait_until(lambda: open_files(path.parent) == 0)


def test_a_part_of_a_file_is_sent_with_its_length(site: HttpHarness, client: RawClient) -> None:
    answer = client.ask("GET", "/file")
    assert (answer.status, answer.headers["content-length"]) == (200, str(LENGTH))
    assert answer.body == PART


def test_the_connection_goes_on_afterwards_and_keeps_the_order(site: HttpHarness, client: RawClient) -> None:
    client.send(request("GET", "/file") + request("GET", "/ping") + request("GET", "/file"))
    assert client.read_answer().body == PART
    assert client.read_answer().body == b"OK"
    assert client.read_answer().body == PART


def test_a_client_that_wants_to_close_gets_everything_first(site: HttpHarness, client: RawClient) -> None:
    answer = client.ask("GET", "/file", connection="close")
    assert answer.closes
    assert answer.body == PART
    assert client.is_closed_by_server()


def test_a_client_that_sends_no_more_gets_everything(site: HttpHarness, client: RawClient) -> None:
    client.send(request("GET", "/file", connection="close"))
    client.half_close()
    assert client.read_answer().body == PART
    assert client.is_closed_by_server()


def test_an_empty_part_is_an_empty_body(server: HttpHarness, client: RawClient, path: Path) -> None:
    offer(server, path, length=0)
    assert client.ask("GET", "/file").body == b""
    assert client.ask("GET", "/ping").body == b"OK"


def test_a_file_that_is_removed_meanwhile_is_sent_to_its_end(site: HttpHarness, path: Path) -> None:
    client = site.connect(receive_buffer_bytes=BUFFER_BYTES)
    client.send(request("GET", "/file"))
    site.settle()
    path.unlink()
    assert client.read_answer().body == PART


def test_a_file_that_cannot_be_opened_is_an_internal_error(site: HttpHarness, client: RawClient, path: Path) -> None:
    path.unlink()
    assert client.ask("GET", "/file").error == (500, "INTERNAL_ERROR")


def test_a_file_that_is_too_short_costs_the_connection(
    site: HttpHarness, client: RawClient, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="emberq")
    with path.open("r+b") as shortened:
        shortened.truncate(FILE_POSITION + 10)
    client.send(request("GET", "/file"))
    with pytest.raises((AssertionError, ConnectionResetError)):
        client.read_answer()
    assert ["an answer was cut off" in record.getMessage() for record in caplog.records] == [True]


def test_no_more_is_read_than_a_slow_client_takes(site: HttpHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    read_bytes = 0
    preadv = os.preadv

    def count(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        nonlocal read_bytes
        size = preadv(fd, buffers, offset, flags)
        read_bytes += size
        return size

    monkeypatch.setattr(os, "preadv", count)
    client = site.connect(receive_buffer_bytes=SMALL_BUFFER_BYTES)
    client.send(request("GET", "/file"))
    client.read_exactly(1)
    site.settle()
    assert 0 < read_bytes < LENGTH
    assert site.connect().ask("GET", "/ping").body == b"OK"
    client.reset()


def test_a_client_that_reads_nothing_is_cut_off_in_time(start_server: StartServer, path: Path) -> None:
    server = start_server(limits=HttpLimits(write_timeout_ms=1000))
    offer(server, path)
    client = server.connect(receive_buffer_bytes=SMALL_BUFFER_BYTES)
    client.send(request("GET", "/file"))
    client.read_exactly(1)
    wait_until(lambda: _is_blocked(server))
    server.advance(ms=1000)
    with pytest.raises((AssertionError, ConnectionResetError)):
        client.read_answer()
    wait_until(lambda: open_files(path.parent) == 0)


def _is_blocked(server: HttpHarness) -> bool:
    server.settle()
    connections: set[Any] = server.server.connections
    return any(connection._holds & 2 for connection in connections)


@pytest.mark.parametrize("target", ["/file", "/file-later"])
def test_a_client_that_goes_away_leaves_no_file_open(site: HttpHarness, path: Path, target: str) -> None:
    client = site.connect(receive_buffer_bytes=SMALL_BUFFER_BYTES)
    client.send(request("GET", target))
    site.settle()
    client.reset()
    site.settle()
    site.open_gate()
    wait_until(lambda: open_files(path.parent) == 0)
    wait_until(lambda: site.call(lambda: site.server.connection_count) == 0)


def test_a_server_that_closes_sends_what_it_has_begun(site: HttpHarness) -> None:
    client = site.connect(receive_buffer_bytes=BUFFER_BYTES)
    client.send(request("GET", "/file"))
    client.read_exactly(1)
    site.call(site.server.close)
    rest = client.read_to_end()
    assert rest.endswith(PART[-1000:])
    assert len(rest) > LENGTH


# Reading.


async def _pieces(body: FileBody) -> list[bytes]:
    pieces = []
    while piece := await body.next_piece():
        pieces.append(bytes(piece))
    return pieces


@pytest.mark.parametrize("refusal", [errno.EAGAIN, errno.EOPNOTSUPP])
async def test_what_is_not_in_memory_is_read_in_a_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    def refuse(*_arguments: object) -> int:
        raise OSError(refusal, "would block")

    monkeypatch.setattr(os, "preadv", refuse)
    body = FileBody(path, position=FILE_POSITION, length=LENGTH)
    assert b"".join(await _pieces(body)) == PART
    body.close()


async def test_a_system_that_cannot_tell_reads_in_a_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emberq.http.body._NO_WAIT", None)
    body = FileBody(path, position=FILE_POSITION, length=PIECE_BYTES + 1)
    assert [len(piece) for piece in await _pieces(body)] == [PIECE_BYTES, 1]
    body.close()


async def test_the_half_of_a_piece_that_is_in_memory_comes_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset, flags: min(10, preadv(fd, buffers, offset, flags)))
    body = FileBody(path, position=FILE_POSITION, length=25)
    assert await _pieces(body) == [PART[:10], PART[10:20], PART[20:25]]
    body.close()


async def test_a_sender_that_is_cancelled_lets_go(path: Path) -> None:
    transport = _Transport()
    sender = FileSender(FileBody(path, position=0, length=LENGTH), transport)
    sender.pause()
    work = asyncio.ensure_future(sender.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert transport.is_aborted
    assert open_files(path.parent) == 0


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False

    def write(self, data: Any) -> None:
        """It goes nowhere."""

    def abort(self) -> None:
        self.is_aborted = True
