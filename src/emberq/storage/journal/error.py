"""The exceptions of the journal.

StorageError
+-- JournalError              something about a journal's folder
|   +-- JournalOpenError      it cannot be opened: files that cannot be read, or that make no sense together
|   +-- JournalWriteError     an append was not stored, not even in part; a later one may be
|   +-- DamagedSummaryError   an .idx file makes no sense; it is made anew
|   +-- DamagedCursorError    a cursor file makes no sense, or belongs to another journal
+-- SyncError
    +-- JournalSyncError      a sync failed; the journal takes nothing more until it is opened again
"""

from __future__ import annotations

from emberq.storage.errors import StorageError, SyncError


class JournalError(StorageError):
    """Something about a journal's folder went wrong."""


class JournalOpenError(JournalError):
    """The folder cannot be read, or its files make no sense together."""


class JournalWriteError(JournalError):
    """An append was not stored, not even in part."""


class DamagedSummaryError(JournalError):
    """An .idx file makes no sense."""


class DamagedCursorError(JournalError):
    """A cursor file makes no sense, or belongs to another journal."""


class JournalSyncError(SyncError):
    """What was appended may not survive a power failure, and nobody can tell any more how much of it."""
