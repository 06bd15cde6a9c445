"""Messages on their way from nsqd to a file, and their FINs on the way back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from emberq.base.clock import ManualClock
from emberq.client.config import ConsumerConfig
from emberq.client.consumer import Consumer
from emberq.tools.nsq_to_file.files import TopicFiles
from emberq.tools.nsq_to_file.options import FileNameFormat, ToFileOptions
from emberq.tools.nsq_to_file.program import TopicArchiver
from tests.client.scripted_nsqd import ScriptedNsqd
from tests.support.loop import advance
from tests.support.waiting import PATIENCE_S, until

SYNC_INTERVAL_S = 5.0


class HeldDisk(TopicFiles):
    """A disk that does nothing until it is let go."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.is_busy = threading.Event()
        self.let_go = threading.Event()

    def append(self, bodies: Sequence[bytes], *, sync: bool) -> bool:
        self.is_busy.set()
        self.let_go.wait(PATIENCE_S)
        return super().append(bodies, sync=sync)


class Rig:
    """An archiver of the topic `t`, on a scripted nsqd; all its messages go to `path`."""

    def __init__(self, nsqd: ScriptedNsqd, path: Path, *, max_in_flight: int, files: type[TopicFiles]) -> None:
        self.nsqd = nsqd
        self.path = path
        self.threads = ThreadPoolExecutor(1)
        options = ToFileOptions(output_dir=str(path.parent), filename_format=path.name)
        names = FileNameFormat(options.template, datetime_format="", topic="t", host="h", pid=1)
        self.files = files(names, options, clock=ManualClock(), label="[t/c]")
        config = ConsumerConfig(max_in_flight=max_in_flight)
        self.archiver = TopicArchiver(
            Consumer("t", "c", nsqd_addresses=[nsqd.address], config=config),
            self.files,
            sync_interval_s=SYNC_INTERVAL_S,
            threads=self.threads,
            label="[t/c]",
        )

    @property
    def finished_count(self) -> int:
        return self.nsqd.commands.count("FIN")

    async def written(self, content: bytes) -> None:
        """Wait until exactly this is in the file."""
        await until(lambda: self.path.exists() and self.path.read_bytes() == content)

    async def finished(self, count: int) -> None:
        """Wait until so many messages are finished."""
        await until(lambda: self.finished_count == count)


@asynccontextmanager
async def archiving(
    path: Path, *, max_in_flight: int = 100, files: type[TopicFiles] = TopicFiles
) -> AsyncIterator[Rig]:
    async with ScriptedNsqd() as nsqd:
        rig = Rig(nsqd, path, max_in_flight=max_in_flight, files=files)
        running = asyncio.create_task(rig.archiver.run())
        await until(lambda: f"RDY {max_in_flight}" in nsqd.commands)
        yield rig
        await rig.archiver.stop()
        await running
        rig.threads.shutdown()


async def test_a_message_is_written_at_once_and_finished_at_the_next_tick(tmp_path: Path) -> None:
    async with archiving(tmp_path / "f") as rig:
        rig.nsqd.send(b"one")
        rig.nsqd.send(b"two")
        await rig.written(b"one\ntwo\n")
        assert rig.finished_count == 0
        advance(SYNC_INTERVAL_S)
        await rig.finished(2)


async def test_messages_are_finished_without_a_tick_when_nsqd_waits_for_it(tmp_path: Path) -> None:
    async with archiving(tmp_path / "f", max_in_flight=10) as rig:
        for _ in range(7):
            rig.nsqd.send(b"x")
        await rig.written(b"x\n" * 7)
        assert rig.finished_count == 0
        rig.nsqd.send(b"x")  # 0.85 times max_in_flight
        await rig.finished(8)


async def test_nothing_is_finished_before_it_is_synced(tmp_path: Path) -> None:
    async with archiving(tmp_path / "f", max_in_flight=1, files=HeldDisk) as rig:
        assert isinstance(rig.files, HeldDisk)
        rig.nsqd.send(b"x")
        await until(rig.files.is_busy.is_set)
        advance(SYNC_INTERVAL_S)
        await asyncio.sleep(0)  # the tick has to wait for the disk
        assert rig.finished_count == 0
        rig.files.let_go.set()
        await rig.finished(1)


async def test_stopping_syncs_and_finishes_what_came(tmp_path: Path) -> None:
    async with archiving(tmp_path / "f") as rig:
        rig.nsqd.send(b"x")
        await rig.written(b"x\n")
        await rig.archiver.stop()
        assert rig.nsqd.commands[-2:] == ["CLS", "FIN"]
        assert rig.archiver.failure is None


async def test_stopping_waits_for_a_disk_that_is_busy(tmp_path: Path) -> None:
    async with archiving(tmp_path / "f", files=HeldDisk) as rig:
        assert isinstance(rig.files, HeldDisk)
        rig.nsqd.send(b"x")
        await until(rig.files.is_busy.is_set)
        stopping = asyncio.create_task(rig.archiver.stop())
        await until(lambda: "CLS" in rig.nsqd.commands)
        rig.files.let_go.set()
        await stopping
        assert rig.path.read_bytes() == b"x\n"
        assert rig.nsqd.commands[-1] == "FIN"


async def test_reopening_finishes_what_was_written_and_begins_a_new_file(tmp_path: Path) -> None:
    async with archiving(tmp_path / "f") as rig:
        rig.nsqd.send(b"before")
        await rig.written(b"before\n")
        rig.path.rename(tmp_path / "away")
        rig.archiver.reopen()
        await rig.finished(1)
        rig.nsqd.send(b"after")
        await rig.written(b"after\n")
        assert (tmp_path / "away").read_bytes() == b"before\n"


async def test_a_full_disk_ends_it_and_messages_go_back() -> None:
    async with archiving(Path("/dev/full"), max_in_flight=1) as rig:
        rig.nsqd.send(b"x")
        await until(lambda: rig.archiver.failure is not None)
        await rig.archiver.stop()
        assert str(rig.archiver.failure) == "/dev/full: No space left on device"
        assert rig.finished_count == 0
        assert f"REQ {1:016x} 0" in rig.nsqd.lines


async def test_a_failure_between_messages_ends_it_too(tmp_path: Path) -> None:
    async with archiving(tmp_path / "folder" / "f") as rig:
        (tmp_path / "folder").write_bytes(b"not a folder")
        advance(SYNC_INTERVAL_S)
        await until(lambda: rig.archiver.failure is not None)
        await rig.archiver.stop()
        assert str(rig.archiver.failure) == f"{tmp_path}/folder: Not a directory"


async def test_messages_of_a_lost_connection_are_written_and_come_again(tmp_path: Path) -> None:
    async with archiving(tmp_path / "f") as rig:
        rig.nsqd.send(b"x")
        await rig.written(b"x\n")
        rig.nsqd.drop_connections()
        await until(lambda: rig.nsqd.commands.count("RDY 100") >= 2)
        rig.nsqd.send(b"x")
        await rig.written(b"x\nx\n")
        advance(SYNC_INTERVAL_S)
        await rig.finished(1)


@pytest.mark.parametrize("count", [1, 30])
async def test_more_messages_than_may_be_in_flight_do_not_wait_for_a_tick(tmp_path: Path, count: int) -> None:
    async with archiving(tmp_path / "f", max_in_flight=1) as rig:
        for _ in range(count):
            rig.nsqd.send(b"x")
        await rig.finished(count)
        assert rig.path.read_bytes() == b"x\n" * count
