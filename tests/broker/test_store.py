"""Which files belong to which topic or channel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from emberq.base.clock import ManualClock
from emberq.base.timers import Timers
from emberq.broker.store import DiskStore
from emberq.storage.backend import DiskLimits
from emberq.storage.data_folder import ChannelPolicy, PolicyEntry
from emberq.storage.disk_queue_sync import Syncer
from tests.broker.rig import Message, stored
from tests.broker.simulated_disk import joined

MESSAGE = Message(timestamp_ns=1, attempts=0, id=b"0123456789abcdef", body=b"x")


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    syncer = Syncer(clock=ManualClock(), timers=Timers(), inline=True)
    return DiskStore(tmp_path, limits=DiskLimits(), syncer=syncer)


@pytest.mark.parametrize("name", ["t", "t:c", "t#ephemeral:c"])
def test_a_normal_topic_or_channel_keeps_its_messages_in_files_of_its_name(
    store: DiskStore, tmp_path: Path, name: str
) -> None:
    queue = store.backend(name)
    queue.put(joined([stored(MESSAGE)]))
    queue.close()
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.diskqueue.000000.dat",
        f"{name}.diskqueue.meta.dat",
    }
    again = store.backend(name)
    assert again.depth == 1
    again.close()


@pytest.mark.parametrize("name", ["t#ephemeral", "t:c#ephemeral", "t#ephemeral:c#ephemeral"])
def test_an_ephemeral_topic_or_channel_has_no_files(store: DiskStore, tmp_path: Path, name: str) -> None:
    queue = store.backend(name)
    queue.put(joined([stored(MESSAGE)]))
    store.save_times(name, "due", {MESSAGE.id: 7})
    queue.close()
    assert store.backend(name).depth == 0
    assert store.load_times(name, "due") == {}
    assert list(tmp_path.iterdir()) == []


def test_times_are_kept_beside_the_messages_until_there_are_none(store: DiskStore, tmp_path: Path) -> None:
    store.save_times("t:c", "due", {MESSAGE.id: 7})
    store.save_times("t", "delay", {MESSAGE.id: 8})
    assert {path.name for path in tmp_path.iterdir()} == {"t:c.diskqueue.due.dat", "t.diskqueue.due.dat"}
    assert store.load_times("t:c", "due") == {MESSAGE.id: 7}
    assert store.load_times("t", "delay") == {MESSAGE.id: 8}
    store.save_times("t:c", "due", {})
    assert store.load_times("t:c", "due") == {}
    assert {path.name for path in tmp_path.iterdir()} == {"t.diskqueue.due.dat"}


def test_a_moment_is_not_taken_for_a_delay(store: DiskStore) -> None:
    store.save_times("t", "delay", {MESSAGE.id: 8})
    assert store.load_times("t", "due") == {}


def test_the_queues_that_earlier_runs_left_are_found_by_topic(store: DiskStore) -> None:
    for name in ("t", "t:c", "t:d", "tt", "u:c"):
        queue = store.backend(name)
        queue.put(joined([stored(MESSAGE)]))
        queue.close()
    assert store.left_queues("t") == ["t", "t:c", "t:d"]
    assert store.left_queues("u") == ["u:c"]
    assert store.left_queues("none") == []


def test_a_queue_that_was_deleted_is_not_left(store: DiskStore) -> None:
    queue = store.backend("t")
    queue.put(joined([stored(MESSAGE)]))
    assert store.left_queues("t") == ["t"]
    queue.delete()
    assert store.left_queues("t") == []


def test_policies_are_kept_for_the_next_run(store: DiskStore, tmp_path: Path) -> None:
    assert store.load_policies() == []
    entries = [PolicyEntry("t", "c", ChannelPolicy(max_attempts=3, dead_letter_topic="dead"))]
    store.save_policies(entries)
    assert store.load_policies() == entries
    assert [path.name for path in tmp_path.iterdir()] == ["channel-policies.json"]


class Later:
    """A syncer that does everything when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.work: list[Callable[[], None]] = []
        syncer = Syncer(clock=ManualClock(), timers=Timers(), inline=True)
        monkeypatch.setattr(syncer, "run", lambda work, *, urgent=False: self.work.append(work))
        self.store = DiskStore(tmp_path, limits=DiskLimits(), syncer=syncer)

    def work_off(self) -> None:
        work, self.work[:] = list(self.work), []
        for do in work:
            do()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Later:
    return Later(monkeypatch, tmp_path)


def test_there_is_nothing_to_do_for_times_that_never_were(later: Later) -> None:
    assert later.store.load_times("t:c", "due") == {}
    later.store.save_times("t:c", "due", {})
    assert later.work == []


def test_times_that_are_to_be_removed_are_not_found_any_more(later: Later, tmp_path: Path) -> None:
    later.store.save_times("t:c", "due", {MESSAGE.id: 7})
    later.work_off()
    later.store.save_times("t:c", "due", {})
    assert later.store.load_times("t:c", "due") == {}
    later.store.save_times("t:c", "due", {})
    assert len(later.work) == 1
    later.work_off()
    assert list(tmp_path.iterdir()) == []


def test_times_that_cannot_be_saved_are_logged(
    store: DiskStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "t:c.diskqueue.due.dat").mkdir()
    store.save_times("t:c", "due", {MESSAGE.id: 7})
    assert "failed to write due times to disk" in caplog.text


def test_a_queue_whose_files_are_to_be_removed_is_not_left(later: Later) -> None:
    queue = later.store.backend("t")
    queue.put(joined([stored(MESSAGE)]))
    later.work_off()
    assert later.store.left_queues("t") == ["t"]
    queue.delete()
    assert later.store.left_queues("t") == []
    later.work_off()
    assert later.store.left_queues("t") == []


def test_the_next_owner_of_a_name_drops_what_the_last_one_has_not_dropped_yet(later: Later, tmp_path: Path) -> None:
    before = later.store.backend("t:c")
    before.put(joined([stored(MESSAGE)] * 3))
    later.work_off()
    queue = later.store.backend("t:c")
    assert (before.depth, queue.depth) == (0, 0)
    queue.put(joined([stored(MESSAGE)]))
    before.delete()
    later.work_off()
    assert queue.depth == 1
    assert {path.name for path in tmp_path.iterdir()} == {"t:c.diskqueue.meta.dat", "t:c.diskqueue.000001.dat"}
