"""The daemon and its files: what it waits for, and what it does while others are served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from emberq.broker.broker import PORTION_CHANNELS
from emberq.nsqd.daemon import Nsqd
from emberq.nsqd.options import NsqdOptions
from emberq.storage.error import MetadataError
from tests.broker.rig import published


def new_nsqd(data_path: Path) -> Nsqd:
    options = NsqdOptions(
        data_path=str(data_path), tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", mem_queue_size=0
    )
    return Nsqd(options)


@pytest.fixture
async def nsqd(tmp_path: Path) -> AsyncIterator[Nsqd]:
    daemon = new_nsqd(tmp_path)
    await daemon.start()
    yield daemon
    await daemon.stop()


def saved_topics(data_path: Path) -> dict[str, int]:
    """The topics in nsqd.dat, with the number of their channels."""
    topics = json.loads((data_path / "nsqd.dat").read_bytes())["topics"] or []
    return {topic["name"]: len(topic["channels"] or []) for topic in topics}


class Turns:
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self.count += 1
        self._handle = self._loop.call_soon(self._turn)

    def end(self) -> int:
        self._handle.cancel()
        return self.count


async def test_a_topic_of_many_channels_on_disk_is_deleted_in_many_turns_and_its_files_are_gone_then(
    nsqd: Nsqd, tmp_path: Path
) -> None:
    topic = nsqd.broker.topic("t")
    for number in range(5 * PORTION_CHANNELS):
        topic.channel(f"c{number}")
    topic.publish(*published([b"abc"]))
    turns = Turns()
    deleted = asyncio.get_running_loop().create_future()
    nsqd.broker.delete_topic("t").when_settled(deleted.set_result)
    assert await deleted is None
    assert turns.end() >= 4
    await nsqd.files_removed()
    assert not list(tmp_path.glob("t*"))
    await nsqd.metadata_saved()
    assert saved_topics(tmp_path) == {}


async def test_a_burst_of_changes_is_saved_by_few_writes(
    nsqd: Nsqd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed: list[Path] = []
    rename = Path.rename

    def seen_rename(path: Path, target: Path) -> Path:
        renamed.append(target)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", seen_rename)
    go_on = asyncio.Event()
    in_the_way = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait() -> None:
        loop.call_soon_threadsafe(in_the_way.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()

    nsqd._syncer.run(wait, urgent=True)
    await in_the_way.wait()
    topic = nsqd.broker.topic("t")
    for number in range(300):
        topic.channel(f"c{number}")
        await asyncio.sleep(0)
    go_on.set()
    await nsqd.metadata_saved()
    assert saved_topics(tmp_path) == {"t": 300}
    assert renamed.count(tmp_path / "nsqd.dat") <= 3


async def test_metadata_that_cannot_be_saved_is_a_failure_and_no_end(nsqd: Nsqd, tmp_path: Path) -> None:
    moved = tmp_path.with_name(f"{tmp_path.name}-away")
    tmp_path.rename(moved)
    with pytest.raises(MetadataError, match="no such file or directory"):
        await nsqd.metadata_saved()
    moved.rename(tmp_path)
    nsqd.broker.topic("t")
    await nsqd.metadata_saved()
    assert saved_topics(tmp_path) == {"t": 0}


async def test_a_topic_that_is_being_deleted_when_nsqd_stops_does_not_come_back(tmp_path: Path) -> None:
    nsqd = new_nsqd(tmp_path)
    await nsqd.start()
    for number in range(2 * PORTION_CHANNELS):
        nsqd.broker.topic("t").channel(f"c{number}")
    nsqd.broker.topic("t").publish(*published([b"abc"]))
    nsqd.broker.topic("kept")
    nsqd.broker.delete_topic("t")
    await nsqd.stop()
    assert saved_topics(tmp_path) == {"kept": 0}
    assert {path.name for path in tmp_path.iterdir()} == {"nsqd.dat", "kept.diskqueue.meta.dat"}


async def test_nsqd_dat_names_a_deleted_channel_as_long_as_it_has_files(
    nsqd: Nsqd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else, after a crash, a consumer of a new topic of that name would get what was deleted."""
    rename = Path.rename
    saves: list[tuple[set[str], set[str]]] = []

    def seen_rename(path: Path, target: Path) -> Path:
        renamed = rename(path, target)
        if target.name == "nsqd.dat":
            topics = json.loads(target.read_bytes())["topics"] or []
            named = {channel["name"] for topic in topics for channel in topic["channels"] or []}
            saves.append(({path.name.split(".")[0].partition(":")[2] for path in tmp_path.glob("t:*")}, named))
        return renamed

    for number in range(5 * PORTION_CHANNELS):
        nsqd.broker.topic("t").channel(f"c{number}")
    nsqd.broker.topic("t").publish(*published([b"abc"]))
    await nsqd.metadata_saved()
    monkeypatch.setattr(Path, "rename", seen_rename)
    settled: list[object] = []
    nsqd.broker.delete_topic("t").when_settled(settled.append)
    while not settled:
        await nsqd.metadata_saved()
    await nsqd.metadata_saved()
    assert len(saves) >= 2
    assert all(with_files <= named for with_files, named in saves)
    assert saves[-1] == (set(), set())
