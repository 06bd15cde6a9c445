"""Everything that can go wrong with the data folder, the journal included.

StorageError
├── DataPathError              the data folder cannot be opened or is in use
├── MetadataError              nsqd.dat cannot be read, understood or written
├── DiskWriteError             a disk queue did not store (all of) a batch
├── DamagedPositionError       a disk queue's meta file makes no sense
├── DamagedSegmentError        a data file holds no whole record where one should start
├── SyncError                  an explicit sync or close did not reach the disk
│   └── JournalSyncError       a sync failed; the journal takes nothing more until it is opened again
└── JournalError               something about a journal's folder
    ├── JournalBusyError       a part cannot be read before a search has ended that is under way
    │   └── JournalColdError   or before the disk has given it
    ├── JournalOpenError       it cannot be opened: files that cannot be read, or that make no sense together
    ├── JournalWriteError      an append was not stored, not even in part; a later one may be
    ├── DamagedSummaryError    an .idx file makes no sense; it is made anew
    └── DamagedCursorError     a cursor file makes no sense, or belongs to another journal
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


def os_error_text(operation: str, path: Path, error: OSError) -> str:
    """An operating system error as NSQ words it: `open /data/t.dat: permission denied`."""
    reason = error.strerror or str(error)
    return f"{operation} {path}: {reason[:1].lower()}{reason[1:]}"


class StorageError(Exception):
    """Something about the data folder went wrong. Its text is fit for a log line and for /ping."""


class DataPathError(StorageError):
    """The data folder cannot be opened, or another process holds it."""


class MetadataError(StorageError):
    """nsqd.dat cannot be read, understood or written."""


class DiskWriteError(StorageError):
    """A queue stored only the first `stored_count` records of a batch."""

    def __init__(self, message: str, *, stored_count: int) -> None:
        super().__init__(message)
        self.stored_count = stored_count


class SyncError(StorageError):
    """What was written may not survive a power failure."""


class DamagedPositionError(StorageError):
    """A queue's meta file does not have the three lines it should have."""


class DamagedSegmentError(StorageError):
    """A data file holds no whole record where one should start."""


# The journal.


class ColdPart(NamedTuple):
    """A stretch of a segment's file that is on the disk alone."""

    path: Path
    position: int
    length: int

    def holds(self, other: ColdPart) -> bool:
        """Whether the other one is a part of this."""
        is_within = self.position <= other.position and other.position + other.length <= self.position + self.length
        return is_within and self.path == other.path


class JournalError(StorageError):
    """Something about a journal's folder went wrong."""


class JournalBusyError(JournalError):
    """A part of the journal cannot be read before a search has ended that is under way."""


class JournalColdError(JournalBusyError):
    """What is to be read has been asked of the disk, and is not in memory yet."""

    def __init__(self, text: str, part: ColdPart) -> None:
        super().__init__(text)
        self.part = part


class JournalOpenError(JournalError):
    """The folder cannot be read, or its files make no sense together."""


class JournalWriteError(JournalError):
    """An append was not stored, not even in part."""


class DamagedSummaryError(JournalError):
    """An .idx file makes no sense."""


class DamagedCursorError(JournalError):
    """A cursor file makes no sense, or belongs to another journal."""


class JournalSyncError(SyncError):
    """What was appended may not survive a power failure, and how much of it is not known any more."""
