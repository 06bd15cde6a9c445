"""The folder of one journaled topic: its journal, and a cursor for each channel.

    <topic>.journal/
        journal.json, *.log, *.idx      the journal
        topic.mark                      the first message that no channel may have yet; no file: there is none
        cursors/<channel>.cursor        what each channel has acknowledged
        cursors/<channel>.<generation>.acks     what has changed since that was written

A topic may be called `..`, so names never stand alone in a path.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from emberq.base.clock import Clock
from emberq.base.file import OS_FILES, Files, lacks_room
from emberq.storage.error import DamagedCursorError, StorageError, os_error_text
from emberq.storage.journal.commit import GroupCommit, Workers
from emberq.storage.journal.cursor import Cursor, load_cursor, save_cursor, to_bytes
from emberq.storage.journal.cursor_log import CURSOR_SUFFIX, CursorFile, Told, remove_leftovers
from emberq.storage.journal.journal import Journal
from emberq.storage.journal.segment import JournalConfig

FOLDER_SUFFIX = ".journal"
CURSORS = "cursors"
_MARK = "topic.mark"

log = logging.getLogger("emberq.storage")


def cursor_paths(directory: Path, *, fs: Files = OS_FILES) -> dict[str, Path]:
    """The files of the cursors in a topic's folder, by channel."""
    folder = directory / CURSORS
    names = fs.names(folder) if fs.is_folder(folder) else []
    return {name.removesuffix(CURSOR_SUFFIX): folder / name for name in names if name.endswith(CURSOR_SUFFIX)}


class JournalFolder:
    """The journal and the cursors of one topic, which owns it."""

    def __init__(
        self,
        path: Path,
        config: JournalConfig,
        *,
        clock: Clock,
        workers: Workers,
        fs: Files = OS_FILES,
    ) -> None:
        self._fs = fs
        self._workers = workers
        self._cursors = path / CURSORS
        self._mark = path / _MARK
        self.journal = Journal.open(path, config, clock=clock, workers=workers, fs=fs)
        self.commit = GroupCommit(self.journal, workers=workers)
        try:
            if not fs.is_folder(self._cursors):
                fs.create_folder(self._cursors)
                fs.sync_folder(path)
            remove_leftovers(self._cursors, fs=fs)
            fs.sync_folder(self._cursors)  # a process may have died between making a cursor and its sync
        except OSError as error:
            if not (self.journal.is_read_only and lacks_room(error)):
                self.journal.close()
                raise StorageError(os_error_text("create", self._cursors, error)) from error

    # Cursors of channels.

    def channel_names(self) -> list[str]:
        """The channels that have a cursor."""
        return sorted(cursor_paths(self._cursors.parent, fs=self._fs))

    def cursor_file(self, channel: str) -> CursorFile:
        """The file of the channel's cursor. A channel uses one such object at a time."""
        path = self._cursors / f"{channel}{CURSOR_SUFFIX}"
        return CursorFile(path, workers=self._workers, fs=self._fs)

    def cursor(self, channel: str, *, start_offset: int) -> Cursor:
        """The channel's cursor; a new one, at `start_offset`, is saved at once, so that a crash does not move it.

        If its file is damaged, the cursor starts at the oldest message: some come again, none is lost.
        """
        file = self.cursor_file(channel)
        try:
            cursor = file.load(journal=self.journal.uuid)
        except DamagedCursorError as damage:
            log.warning(
                "the cursor of %s in %s is damaged (%s); it starts at the oldest message kept",
                channel,
                self._cursors,
                damage,
            )
            cursor = Cursor(self.journal.uuid, low_water=self.journal.first_offset)
        if cursor is None:
            cursor = Cursor(self.journal.uuid, low_water=start_offset)
            file.save(cursor)
        return cursor

    def seen_offset(self) -> int:
        """The lowest offset above all that channels have seen; beyond the journal's end, if a power failure cut it."""
        seen = 0
        for name in self.channel_names():
            with contextlib.suppress(DamagedCursorError):
                cursor = self.cursor_file(name).load(journal=self.journal.uuid)
                if cursor is not None:
                    seen = max(seen, cursor.high_water)
        return seen

    def sync_cursors(self, told: Told) -> None:
        """Have the disk know which cursors there are, by another thread; `told` is called in this one."""

        def work() -> None:
            failure: StorageError | None = None
            try:
                self._fs.sync_folder(self._cursors)
            except OSError as error:
                failure = StorageError(os_error_text("sync", self._cursors, error))
            self._workers.hand_back(lambda: told(failure))

        self._workers.start(work)

    # The mark of the topic.

    def load_mark(self) -> int | None:
        """The first offset that no channel may have yet; None: there is none. The oldest, if the file is damaged."""
        try:
            mark = load_cursor(self._mark, journal=self.journal.uuid, fs=self._fs)
        except DamagedCursorError as damage:
            log.warning("%s is damaged (%s); everything is taken to be waiting", self._mark, damage)
            return self.journal.first_offset
        return None if mark is None else max(mark.low_water, self.journal.first_offset)

    def save_mark(self, offset: int) -> None:
        """Write the mark now. StorageError if that fails."""
        assert offset >= self.journal.first_offset
        save_cursor(self._mark, to_bytes(Cursor(self.journal.uuid, low_water=offset)), fs=self._fs)

    def remove_mark(self) -> None:
        """Remove the mark: channels may have everything. OSError if that fails."""
        self._fs.unlink(self._mark, missing_ok=True)
