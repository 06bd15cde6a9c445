"""Which topics are journaled, and where their folders are."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.storage.journal.commit import Work
from emberq.storage.journal.config import JournalConfig
from emberq.storage.journal.folder import FOLDER_SUFFIX, JournalFolder
from emberq.wire.name import is_ephemeral, is_valid_name


class SyncMode(enum.StrEnum):
    """When a published message counts as stored."""

    ALWAYS = "always"
    """When it is on the disk. Nobody sees it before."""
    INTERVAL = "interval"
    """When the operating system has it, which writes it to the disk at intervals."""
    NEVER = "never"
    """When the operating system has it, which writes it to the disk as it likes."""


@dataclass(frozen=True)
class JournalSettings:
    """What is the same for every journaled topic."""

    is_wanted: Callable[[str], bool] = lambda _name: False
    """Whether a new topic of that name is journaled. One that has a journal stays so."""
    sync: SyncMode = SyncMode.ALWAYS
    sync_interval_ns: int = 2 * NS_PER_SECOND
    config: JournalConfig = field(default_factory=JournalConfig)


def run_here(work: Work) -> None:
    """Do it now, in this thread."""
    work()


class JournalStore:
    """The journals in a data folder. `start` runs work in another thread, `hand_back` in the broker's."""

    def __init__(
        self,
        data_path: Path,
        settings: JournalSettings,
        *,
        clock: Clock,
        start: Callable[[Work], object] = run_here,
        hand_back: Callable[[Work], object] = run_here,
    ) -> None:
        self.settings = settings
        self._data_path = data_path
        self._clock = clock
        self._start = start
        self._hand_back = hand_back

    def has(self, topic: str) -> bool:
        """Whether this topic is journaled, or is to be once it exists."""
        return not is_ephemeral(topic) and (self._folder(topic).is_dir() or self.settings.is_wanted(topic))

    def topic_names(self) -> list[str]:
        """The topics that have a journal."""
        names = (path.name.removesuffix(FOLDER_SUFFIX) for path in self._data_path.glob(f"*{FOLDER_SUFFIX}"))
        return sorted(name for name in names if is_valid_name(name))

    def open(self, topic: str) -> JournalFolder:
        """Open a topic's folder, or make one. StorageError if that cannot be done."""
        return JournalFolder(
            self._folder(topic),
            self.settings.config,
            clock=self._clock,
            start=self._start,
            hand_back=self._hand_back,
        )

    def _folder(self, topic: str) -> Path:
        return self._data_path / f"{topic}{FOLDER_SUFFIX}"
