"""nsqd.dat, byte for byte."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.base.clock import ManualClock
from emberq.base.timers import Timers
from emberq.storage.data_folder import (
    PORTION_ENTRIES,
    REST_FACTOR,
    ChannelMeta,
    Metadata,
    MetadataFile,
    MetaEntry,
    TopicMeta,
    encoded,
    load_metadata,
    metadata_of,
)
from emberq.storage.error import MetadataError

TWO_TOPICS = Metadata(
    topics=(TopicMeta("t", channels=(ChannelMeta("c", paused=True),)), TopicMeta("u")), version="1.3.0"
)
TWO_TOPICS_BYTES = (
    b'{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":true}]},'
    b'{"name":"u","paused":false,"channels":null}],"version":"1.3.0"}'
)


@pytest.mark.conformance(125)
def test_a_fresh_broker_writes_null_for_its_topics(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.dat"
    path.write_bytes(encode(Metadata(version="1.3.0")))
    assert path.read_bytes() == b'{"topics":null,"version":"1.3.0"}'


def test_the_file_is_compact_json_with_null_for_empty_lists(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.dat"
    path.write_bytes(encode(TWO_TOPICS))
    assert path.read_bytes() == TWO_TOPICS_BYTES


def test_the_file_is_in_the_folder_for_good_when_it_is_saved(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def seen_fsync(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").resolve())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    daemon.file.save()
    assert synced[-1] == daemon.file.path.parent


def test_only_the_owner_may_read_the_file(daemon: Daemon) -> None:
    daemon.file.save()
    assert stat.S_IMODE(daemon.file.path.stat().st_mode) == 0o600


def test_saving_replaces_the_file_and_leaves_no_temporary_one(daemon: Daemon) -> None:
    daemon.file.save()
    daemon.entries.append(MetaEntry("t", None, False))
    daemon.file.save()
    assert [found.name for found in daemon.file.path.parent.iterdir()] == ["nsqd.dat"]
    assert daemon.saved() == ["t"]


def test_saving_where_one_cannot_write_says_why(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "nsqd.dat"
    with pytest.raises(MetadataError, match=f"write {path}: no such file or directory"):
        Daemon(path).file.save()


def test_a_missing_file_is_a_fresh_start(tmp_path: Path) -> None:
    assert load_metadata(tmp_path / "nsqd.dat") == Metadata()


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        '{"topics":null}',
        '{"topics":[],"version":null}',
        '{"topics":[],"version":"","extra":{"deep":[1]}}',
    ],
)
def test_missing_and_null_lists_and_unknown_keys_are_accepted(tmp_path: Path, content: str) -> None:
    path = tmp_path / "nsqd.dat"
    path.write_text(content)
    assert load_metadata(path) == Metadata()


def test_a_topic_needs_no_more_than_its_name(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.dat"
    path.write_text('{"topics":[{"name":"t","id":7,"channels":[{"name":"c"}]},{"name":"u","channels":null}]}')
    assert load_metadata(path).topics == (TopicMeta("t", channels=(ChannelMeta("c"),)), TopicMeta("u"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"topics":\n[\n}',
        b"\xff\xfe",
        b"[]",
        b'{"topics":{}}',
        b'{"topics":["t"]}',
        b'{"topics":[{"name":5}]}',
        b'{"topics":[{"name":"t","paused":1}]}',
        b'{"topics":[{"name":"t","channels":"c"}]}',
        b'{"topics":[{"name":"t","channels":[null,"c"]}]}',
        b'{"version":1}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_makes_no_sense_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "nsqd.dat"
    path.write_bytes(content)
    with pytest.raises(MetadataError) as refusal:
        load_metadata(path)
    assert str(refusal.value).startswith(f"failed to parse metadata in {path} - ")
    assert "\n" not in str(refusal.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match="failed to read metadata"):
        load_metadata(tmp_path)


def encode(metadata: Metadata) -> bytes:
    """The bytes of the file with this content."""
    entries: list[MetaEntry] = []
    for topic in metadata.topics:
        entries.append(MetaEntry(topic.name, None, topic.paused))
        entries += [MetaEntry(topic.name, channel.name, channel.paused) for channel in topic.channels]
    assert metadata_of(entries, metadata.version) == metadata
    return b"".join(encoded(entries, metadata.version))


names = st.text("abcXYZ019._-#", min_size=1, max_size=12)
topics = st.builds(
    TopicMeta,
    names,
    st.booleans(),
    st.lists(st.builds(ChannelMeta, names, st.booleans()), max_size=3).map(tuple),
)


@given(st.builds(Metadata, st.lists(topics, max_size=3).map(tuple), names))
def test_what_is_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, metadata: Metadata) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.dat"
    path.write_bytes(encode(metadata))
    assert load_metadata(path) == metadata


# The file as the daemon keeps it.


class Daemon:
    """What the file needs of a daemon. The other thread runs, and the loop's gets back, when the test says so."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.timers = Timers()
        self.jobs: list[Callable[[], None]] = []
        self.handed_back: list[Callable[[], None]] = []
        self.entries: list[MetaEntry] = []
        self.taken_count = 0
        """How many entries saves have taken."""
        self.file = MetadataFile(
            path,
            version="1.3.0",
            entries=self._entries,
            run=self.jobs.append,
            hand_back=self.handed_back.append,
            clock=self.clock,
            timers=self.timers,
        )

    def _entries(self) -> Iterator[MetaEntry]:
        for entry in list(self.entries):
            self.taken_count += 1
            yield entry

    def create(self, *topics: str) -> None:
        self.entries += [MetaEntry(topic, None, False) for topic in topics]
        self.file.save_soon()

    def turn(self) -> None:
        """One turn of the loop."""
        handed_back, self.handed_back[:] = list(self.handed_back), []
        for callback in handed_back:
            callback()
        self.timers.run_due(self.clock.monotonic_ns())

    def run_jobs(self) -> None:
        jobs, self.jobs[:] = list(self.jobs), []
        for job in jobs:
            job()

    def saved(self) -> list[str]:
        return [topic.name for topic in self.file.load().topics]


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    return Daemon(tmp_path / "nsqd.dat")


def test_what_was_saved_is_loaded_by_the_next_run(daemon: Daemon) -> None:
    assert daemon.file.load() == Metadata()
    daemon.entries = [MetaEntry("t", None, False), MetaEntry("t", "c", True), MetaEntry("u", None, False)]
    daemon.file.save()
    assert daemon.jobs == []
    assert daemon.file.load() == TWO_TOPICS


def test_what_is_to_be_saved_soon_is_written_off_the_loops_thread_once_for_all_changes_of_a_turn(
    daemon: Daemon,
) -> None:
    daemon.create("t")
    daemon.create("u")
    daemon.turn()
    assert daemon.saved() == []
    (job,) = daemon.jobs
    job()
    assert daemon.saved() == ["t", "u"]
    daemon.turn()
    daemon.turn()
    assert daemon.jobs == [job]


def test_of_the_changes_that_come_during_a_save_only_the_newest_state_waits(daemon: Daemon) -> None:
    for number in range(100):
        daemon.create(f"t{number}")
        daemon.turn()
    assert (len(daemon.jobs), daemon.taken_count) == (1, 1), "one snapshot of one topic is all that is held"
    daemon.run_jobs()
    assert daemon.saved() == ["t0"]
    daemon.turn()
    daemon.turn()
    daemon.run_jobs()
    assert len(daemon.saved()) == 100
    assert daemon.taken_count == 101


def test_many_topics_are_written_down_in_many_turns_of_the_loop(daemon: Daemon) -> None:
    daemon.create(*(f"t{number}" for number in range(2 * PORTION_ENTRIES + 10)))
    taken = []
    while not daemon.jobs:
        daemon.turn()
        taken.append(daemon.taken_count)
    assert taken == [PORTION_ENTRIES, 2 * PORTION_ENTRIES, 2 * PORTION_ENTRIES + 10]
    daemon.run_jobs()
    assert len(daemon.saved()) == 2 * PORTION_ENTRIES + 10


def test_a_slow_save_is_followed_by_a_rest_unless_a_caller_waits(daemon: Daemon) -> None:
    daemon.create("t")
    daemon.turn()
    daemon.create("u")
    daemon.clock.advance(ms=100)
    daemon.run_jobs()
    daemon.turn()
    daemon.clock.advance(ms=100 * REST_FACTOR - 1)
    daemon.create("v")
    daemon.turn()
    assert daemon.jobs == []
    daemon.clock.advance(ms=1)
    daemon.turn()
    daemon.run_jobs()
    assert daemon.saved() == ["t", "u", "v"]
    daemon.clock.advance(ms=100)
    daemon.turn()
    outcomes: list[object] = []
    daemon.file.save_soon(outcomes.append)
    daemon.turn()
    daemon.run_jobs()
    assert outcomes == []
    daemon.turn()
    assert outcomes == [None]


def test_a_caller_is_told_of_the_save_that_began_after_its_call(daemon: Daemon) -> None:
    outcomes: list[object] = []
    daemon.create("t")
    daemon.turn()
    daemon.entries[0] = MetaEntry("t", None, True)
    daemon.file.save_soon(outcomes.append)
    daemon.run_jobs()
    daemon.turn()
    assert outcomes == []
    daemon.turn()
    daemon.run_jobs()
    daemon.turn()
    assert outcomes == [None]
    assert daemon.file.load().topics == (TopicMeta("t", paused=True),)


def test_an_older_save_that_comes_late_is_not_written(daemon: Daemon) -> None:
    daemon.create("t")
    daemon.turn()
    daemon.entries.clear()
    daemon.file.save()
    daemon.run_jobs()
    assert daemon.saved() == []


def test_a_save_that_fails_is_logged_and_the_next_is_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    daemon = Daemon(tmp_path / "missing" / "nsqd.dat")
    outcomes: list[object] = []
    daemon.file.save_soon(outcomes.append)
    daemon.create("t")
    daemon.turn()
    daemon.run_jobs()
    daemon.turn()
    assert isinstance(outcomes[0], MetadataError)
    assert "failed to persist metadata" in caplog.text
    with pytest.raises(MetadataError):
        daemon.file.save()
    (tmp_path / "missing").mkdir()
    daemon.file.save()
    assert daemon.saved() == ["t"]
