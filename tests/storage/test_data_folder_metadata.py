"""nsqd.dat, byte for byte."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.storage.data_folder import (
    ChannelMeta,
    Metadata,
    MetadataFile,
    TopicMeta,
    encode,
    load_metadata,
    save_metadata,
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
    save_metadata(path, Metadata(version="1.3.0"))
    assert path.read_bytes() == b'{"topics":null,"version":"1.3.0"}'


def test_the_file_is_compact_json_with_null_for_empty_lists(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.dat"
    save_metadata(path, TWO_TOPICS)
    assert path.read_bytes() == TWO_TOPICS_BYTES


def test_the_new_file_is_in_the_folder_for_good_when_metadata_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def seen_fsync(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").resolve())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    save_metadata(tmp_path / "nsqd.dat", TWO_TOPICS)
    assert synced[-1] == tmp_path


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.dat"
    save_metadata(path, TWO_TOPICS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_saving_replaces_the_file_and_leaves_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.dat"
    save_metadata(path, Metadata(version="1.2.0"))
    save_metadata(path, TWO_TOPICS)
    assert [found.name for found in tmp_path.iterdir()] == ["nsqd.dat"]
    assert load_metadata(path) == TWO_TOPICS


def test_saving_where_one_cannot_write_says_why(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "nsqd.dat"
    with pytest.raises(MetadataError, match=f"write {path}: no such file or directory"):
        save_metadata(path, TWO_TOPICS)


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


class Soon:
    """What is to be run off the loop's thread, until the test runs it."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def file(self, path: Path) -> MetadataFile:
        return MetadataFile(path, run=self.jobs.append)


def test_a_saved_snapshot_is_loaded_by_the_next_run(tmp_path: Path) -> None:
    soon = Soon()
    file = soon.file(tmp_path / "nsqd.dat")
    assert file.load() == Metadata()
    file.save(TWO_TOPICS)
    file.save(Metadata(version="2"))
    assert soon.jobs == []
    assert soon.file(tmp_path / "nsqd.dat").load() == Metadata(version="2")


def test_a_snapshot_that_is_to_be_saved_soon_is_written_off_the_loops_thread(tmp_path: Path) -> None:
    soon = Soon()
    file = soon.file(tmp_path / "nsqd.dat")
    file.save_soon(TWO_TOPICS)
    assert file.load() == Metadata()
    for job in soon.jobs:
        job()
    assert file.load() == TWO_TOPICS


def test_an_older_snapshot_that_comes_late_is_not_written(tmp_path: Path) -> None:
    soon = Soon()
    file = soon.file(tmp_path / "nsqd.dat")
    file.save_soon(Metadata(version="1"))
    file.save_soon(Metadata(version="2"))
    for job in reversed(soon.jobs):
        job()
    assert file.load() == Metadata(version="2")
    file.save(Metadata(version="3"))
    for job in soon.jobs:
        job()
    assert file.load() == Metadata(version="3")


def test_a_snapshot_that_cannot_be_written_soon_is_logged_and_the_next_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    soon = Soon()
    file = soon.file(tmp_path / "missing" / "nsqd.dat")
    file.save_soon(TWO_TOPICS)
    (job,) = soon.jobs
    job()
    assert "failed to persist metadata" in caplog.text
    with pytest.raises(MetadataError):
        file.save(TWO_TOPICS)
    (tmp_path / "missing").mkdir()
    file.save(TWO_TOPICS)
    assert file.load() == TWO_TOPICS
