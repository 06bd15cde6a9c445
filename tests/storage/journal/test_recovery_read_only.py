"""Journals that are opened on a full disk: they can be read, and take messages as soon as there is room."""

from __future__ import annotations

import pytest

from emberq.base.clock import ManualClock
from emberq.storage.error import JournalError, JournalOpenError, JournalWriteError
from emberq.storage.journal.journal import Journal
from emberq.storage.journal.segment import JournalConfig
from emberq.wire.journal_batch import Bodies
from tests.crash.simulated_files import ROOT, SimulatedFiles
from tests.storage.journal.rig import read_all

FOLDER = ROOT / "topic.journal"
FIRST = FOLDER / "00000000000000000000.log"


def opened(fs: SimulatedFiles, *, seen_unsynced: bool = False) -> Journal:
    config = JournalConfig(is_seen_unsynced=seen_unsynced)
    return Journal.open(FOLDER, config, clock=ManualClock(), fs=fs)


def append(journal: Journal, *bodies: bytes) -> int:
    return journal.append(Bodies.of(bodies), timestamp_ns=1).base_offset


def damaged(fs: SimulatedFiles) -> int:
    """Leave a journal of two messages behind which something lies that a reader may have seen; how long the file is."""
    journal = opened(fs)
    append(journal, b"a")
    append(journal, b"b")
    journal.sync()
    size = journal.total_bytes
    fd = fs.open(FIRST, 0)
    fs.write(fd, b"EqB1" * 1000, size)
    fs.close(fd)
    return size


def test_a_journal_on_a_full_disk_can_be_read_and_is_left_alone() -> None:
    fs = SimulatedFiles()
    size = damaged(fs)
    fs.is_full = True
    before = {name: fs.read_file(FOLDER / name) for name in fs.names(FOLDER)}
    journal = opened(fs)
    assert journal.is_read_only
    assert "no space left on device" in str(journal.problem)
    assert read_all(journal) == ([b"a", b"b"], [])
    assert (journal.next_offset, journal.total_bytes) == (2, size)
    with pytest.raises(JournalWriteError, match="no space left on device"):
        append(journal, b"c")
    journal.trim(before_offset=2, now_ns=1 << 60)
    journal.close()
    assert {name: fs.read_file(FOLDER / name) for name in fs.names(FOLDER)} == before
    assert fs.open_count == 1  # of the journal that crashed


def test_a_read_only_journal_takes_messages_when_there_is_room() -> None:
    fs = SimulatedFiles()
    damaged(fs)
    fs.is_full = True
    journal = opened(fs)
    with pytest.raises(JournalError, match="no space left on device"):
        journal.reopen()
    assert read_all(journal) == ([b"a", b"b"], [])
    fs.is_full = False
    journal.reopen()
    assert (journal.is_read_only, journal.problem) == (False, None)
    offset = append(journal, b"c")
    assert offset > 2, "the garbage may have been messages that a reader knows"
    journal.sync()
    assert read_all(journal)[0] == [b"a", b"b", b"c"]
    assert journal.jumps() == [(2, offset)]
    journal.close()
    assert fs.open_count == 1


@pytest.mark.parametrize("is_closed", [True, False])
def test_offsets_that_cannot_be_reserved_make_a_journal_read_only(is_closed: bool) -> None:
    fs = SimulatedFiles()
    journal = opened(fs)
    append(journal, b"a")
    journal.sync()
    if is_closed:
        journal.close()
    fs.is_full = True
    full = opened(fs, seen_unsynced=True)
    assert full.is_read_only
    assert read_all(full) == ([b"a"], [])
    fs.is_full = False
    full.reopen()
    assert append(full, b"b") == 1


def test_a_sound_journal_needs_no_room_to_be_opened() -> None:
    fs = SimulatedFiles()
    journal = opened(fs)
    append(journal, b"a")
    journal.close()
    fs.is_full = True
    again = opened(fs)
    assert not again.is_read_only
    with pytest.raises(JournalWriteError, match="no space left on device"):
        append(again, b"b")
    fs.is_full = False
    assert append(again, b"b") == 1


def test_a_new_journal_on_a_full_disk_is_refused() -> None:
    fs = SimulatedFiles()
    fs.is_full = True
    with pytest.raises(JournalOpenError, match="no space left on device"):
        opened(fs)
