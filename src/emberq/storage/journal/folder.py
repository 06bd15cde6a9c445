"""The folder of one journaled topic: its journal, and a cursor for each channel.

    <topic>.journal/
        journal.json, *.log, *.idx      the journal
        topic.mark                      where the messages begin that no channel may have yet
        cursors/<channel>.cursor        what each channel has done

A topic may be called `..`, so names never stand alone in a path.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from emberq.base.clock import Clock
from emberq.storage.atomic import sync_directory
from emberq.storage.errors import StorageError, os_error_text
from emberq.storage.journal.commit import GroupCommit, Work
from emberq.storage.journal.config import JournalConfig
from emberq.storage.journal.cursor import Cursor
from emberq.storage.journal.cursor_file import load_cursor, save_cursor, to_bytes
from emberq.storage.journal.error import DamagedCursorError
from emberq.storage.journal.journal import Journal

FOLDER_SUFFIX = ".journal"
_CURSOR_SUFFIX = ".cursor"
_MARK = "topic.mark"

log = logging.getLogger("emberq.storage")


class JournalFolder:
    """Opened by its topic, which owns it. `start` and `hand_back` are those of `GroupCommit`."""

    def __init__(
        self,
        path: Path,
        config: JournalConfig,
        *,
        clock: Clock,
        start: Callable[[Work], object],
        hand_back: Callable[[Work], object],
    ) -> None:
        self._start = start
        self._hand_back = hand_back
        self._cursors = path / "cursors"
        self._mark = path / _MARK
        self.journal = Journal.open(path, config, clock=clock)
        self.commit = GroupCommit(self.journal, start=start, hand_back=hand_back)
        try:
            if not self._cursors.is_dir():
                self._cursors.mkdir()
                sync_directory(path)
        except OSError as error:
            raise StorageError(os_error_text("create", self._cursors, error)) from error

    # Cursors of channels.

    def channel_names(self) -> list[str]:
        """The channels that have a cursor."""
        return sorted(path.name.removesuffix(_CURSOR_SUFFIX) for path in self._cursors.glob(f"*{_CURSOR_SUFFIX}"))

    def cursor(self, channel: str, *, start_offset: int) -> Cursor:
        """The channel's cursor; a new one, at `start_offset`, is saved at once, so that a crash does not move it.

        In place of a damaged one there is one at the oldest message: some come again, none is lost.
        """
        path = self._cursor_path(channel)
        try:
            cursor = load_cursor(path, journal=self.journal.uuid)
        except DamagedCursorError as damage:
            log.warning("%s is damaged (%s); the channel starts at the oldest message kept", path, damage)
            cursor = Cursor(self.journal.uuid, low_water=self.journal.first_offset)
        if cursor is None:
            cursor = Cursor(self.journal.uuid, low_water=start_offset)
            self.save_cursor(channel, cursor)
        return cursor

    def save_cursor(self, channel: str, cursor: Cursor) -> None:
        """Write it now."""
        save_cursor(self._cursor_path(channel), to_bytes(cursor))

    def save_cursor_soon(self, channel: str, cursor: Cursor, told: Callable[[StorageError | None], None]) -> None:
        """Write it as it is now, in another thread; `told` is called in this one."""
        path, content = self._cursor_path(channel), to_bytes(cursor)

        def work() -> None:
            failure: StorageError | None = None
            try:
                save_cursor(path, content)
            except StorageError as error:
                failure = error
            finally:
                self._hand_back(lambda: told(failure))

        self._start(work)

    def remove_cursor(self, channel: str) -> None:
        """The channel is no more."""
        self._cursor_path(channel).unlink(missing_ok=True)

    def _cursor_path(self, channel: str) -> Path:
        return self._cursors / f"{channel}{_CURSOR_SUFFIX}"

    # The mark of the topic.

    def load_mark(self) -> int:
        """The first offset that no channel may have yet, as last saved; the oldest if it never was."""
        with contextlib.suppress(DamagedCursorError):
            mark = load_cursor(self._mark, journal=self.journal.uuid)
            if mark is not None:
                return max(mark.low_water, self.journal.first_offset)
        return self.journal.first_offset

    def save_mark(self, offset: int) -> None:
        """Write it now."""
        save_cursor(self._mark, to_bytes(Cursor(self.journal.uuid, low_water=offset)))
