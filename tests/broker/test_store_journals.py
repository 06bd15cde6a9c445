"""Which topics have a journal, and where it lies."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.broker.store import JournalSettings, JournalStore, SyncMode
from emberq.nsqd.options import NsqdOptions, journal_settings
from emberq.storage.journal.commit import Work, Workers
from emberq.wire.journal_batch import Bodies


def store_in(folder: Path, *, wanted: Callable[[str], bool] = lambda _name: False) -> JournalStore:
    return JournalStore(folder, JournalSettings(is_wanted=wanted), clock=ManualClock())


def test_no_topic_has_a_journal_unless_it_is_wanted(tmp_path: Path) -> None:
    default = JournalStore(tmp_path, JournalSettings(), clock=ManualClock())
    assert not default.has("t")
    assert not store_in(tmp_path).has("t")
    assert store_in(tmp_path, wanted=lambda name: name == "t").has("t")
    assert not store_in(tmp_path, wanted=lambda name: name == "t").has("u")


def test_a_topic_that_has_a_journal_keeps_it_when_it_is_no_longer_wanted(tmp_path: Path) -> None:
    store_in(tmp_path, wanted=lambda _name: True).open("t").journal.close()
    assert (tmp_path / "t.journal").is_dir()
    assert store_in(tmp_path).has("t")
    assert not store_in(tmp_path).has("u")


def test_an_ephemeral_topic_has_no_journal(tmp_path: Path) -> None:
    store = store_in(tmp_path, wanted=lambda _name: True)
    assert not store.has("t#ephemeral")
    (tmp_path / "t#ephemeral.journal").mkdir()
    assert not store.has("t#ephemeral")


def test_the_topics_that_have_a_journal_are_found_by_their_folders(tmp_path: Path) -> None:
    assert store_in(tmp_path).topic_names() == []
    for name in ("b.journal", "a.journal", "not a name.journal", "c.folder"):
        (tmp_path / name).mkdir()
    assert store_in(tmp_path).topic_names() == ["a", "b"]


def test_what_is_in_a_journal_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    folder = store.open("t")
    folder.journal.append(Bodies.of([b"a", b"b"]), timestamp_ns=1)
    folder.journal.close()
    assert store.open("t").journal.next_offset == 2


@pytest.mark.parametrize("is_given", [True, False])
def test_syncs_are_done_where_the_store_is_told_to_or_at_once(tmp_path: Path, is_given: bool) -> None:
    started: list[Work] = []
    handed_back: list[Work] = []
    store = (
        JournalStore(
            tmp_path,
            JournalSettings(),
            clock=ManualClock(),
            workers=Workers(start=started.append, hand_back=handed_back.append),
        )
        if is_given
        else store_in(tmp_path)
    )
    folder, told = store.open("t"), list[Exception | None]()
    folder.journal.append(Bodies.of([b"a"]), timestamp_ns=1)
    folder.commit.when_synced(1, told.append)
    if is_given:
        assert told == []
        (work,) = started
        work()
        assert told == []
        (end,) = handed_back
        end()
    assert told == [None]


def test_the_defaults_are_those_of_nsqd() -> None:
    of_options = journal_settings(NsqdOptions())
    settings = JournalSettings()
    assert (settings.sync, settings.config) == (of_options.sync, of_options.config)
    assert settings.sync is SyncMode.ALWAYS
    assert settings.sync_interval_ns == of_options.sync_interval_ns == 2 * NS_PER_SECOND


# Deleted journals.


class Sequence:
    """What is done, in the order in which the test lets it happen."""

    def __init__(self, folder: Path) -> None:
        self.synced: list[Work] = []
        self.removed: list[Work] = []
        self.journals = JournalStore(
            folder,
            JournalSettings(),
            clock=ManualClock(),
            workers=Workers(start=self.synced.append, start_removing=self.removed.append),
        )

    def sync(self) -> None:
        self.synced.pop()()

    def remove(self) -> None:
        self.removed.pop()()


def test_a_deleted_journal_is_synced_then_emptied_and_goes_when_nsqd_dat_is_saved(tmp_path: Path) -> None:
    steps, told = Sequence(tmp_path), list[Exception | None]()
    journals = steps.journals
    tombstone = journals.open("t").journal.delete()
    files = sorted(tombstone.iterdir())
    journals.bury(tombstone, told.append)
    assert not journals.has("t")
    assert journals.topic_names() == []
    assert (told, steps.removed) == ([], [])
    steps.sync()
    assert told == [None]
    assert sorted(tombstone.iterdir()) == files
    steps.remove()
    assert list(tombstone.iterdir()) == []
    journals.forget(journals.tombstones)
    steps.remove()
    assert list(tmp_path.iterdir()) == []
    assert journals.tombstones == []


def test_a_deletion_that_cannot_be_synced_is_told_and_no_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_fd: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    steps, told = Sequence(tmp_path), list[Exception | None]()
    tombstone = steps.journals.open("t").journal.delete()
    steps.journals.bury(tombstone, told.append)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fails)
        steps.sync()
    assert "input/output error" in str(told[0])
    assert steps.removed == []
    assert list(tombstone.iterdir())


def test_a_deleted_journal_that_was_not_removed_before_a_crash_is_removed_at_the_next_start(tmp_path: Path) -> None:
    journals = JournalStore(tmp_path, JournalSettings(), clock=ManualClock())
    kept = journals.open("kept").journal
    kept.close()
    foreign = tmp_path / "notes.journal.old.removed"
    foreign.mkdir()
    tombstone = journals.open("t").journal.delete()
    again = JournalStore(tmp_path, JournalSettings(), clock=ManualClock())
    again.find_leftovers()
    assert list(tombstone.iterdir()) == []
    assert [again.was_deleted(name) for name in ("t", "kept", "notes")] == [True, False, False]
    again.forget(again.tombstones)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.journal", "notes.journal.old.removed"]


def test_a_topic_that_was_made_anew_is_not_taken_for_deleted(tmp_path: Path) -> None:
    journals = store_in(tmp_path)
    journals.open("t").journal.delete()
    journals.open("t").journal.close()
    again = store_in(tmp_path)
    again.find_leftovers()
    assert not again.was_deleted("t")
