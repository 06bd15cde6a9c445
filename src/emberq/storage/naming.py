"""How the files and the log lines of one disk queue are named.

    <name>.diskqueue.000000.dat        data (see segment), numbered from 0 with six digits or more
    <name>.diskqueue.000000.dat.bad    a data file that was found damaged and set aside
    <name>.diskqueue.meta.dat          where reading and writing stand (see position)
    <name>.diskqueue.due.dat           due times of deferred messages (see due)

`<name>` is the topic, or `topic:channel`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

_PROBE_SPAN = 64
"""Up to this many file names are asked for one by one; beyond it the folder is listed once instead."""


class QueueFiles:
    """The names of one queue's files."""

    def __init__(self, data_path: Path, name: str) -> None:
        self.folder = data_path
        self.meta = data_path / f"{name}.diskqueue.meta.dat"
        self.due = data_path / f"{name}.diskqueue.due.dat"
        self._name = name

    @staticmethod
    def names_in(data_path: Path) -> list[str]:
        """The names of all queues in a folder that have a meta file; none if there is no folder."""
        suffix = ".diskqueue.meta.dat"
        return [path.name.removesuffix(suffix) for path in data_path.glob(f"*{suffix}")]

    def data(self, number: int) -> Path:
        """The data file with this number."""
        return self.folder / f"{self._name}.diskqueue.{number:06d}.dat"

    def bad(self, number: int) -> Path:
        """Where that data file goes when it turns out to be damaged."""
        return self.folder / f"{self._name}.diskqueue.{number:06d}.dat.bad"

    def existing(self, *, first: int, last: int) -> list[int]:
        """The numbers from `first` to `last`, both included, whose data files exist; in order."""
        if last - first < _PROBE_SPAN:
            return [number for number in range(first, last + 1) if self.data(number).exists()]
        return [number for number in self.all_existing() if first <= number <= last]

    def all_existing(self) -> list[int]:
        """The numbers of all data files that exist, in order."""
        layout = re.compile(re.escape(self._name) + r"\.diskqueue\.(\d{6,18})\.dat")
        with os.scandir(self.folder) as entries:
            matches = [layout.fullmatch(entry.name) for entry in entries]
        return sorted(int(match[1]) for match in matches if match is not None)


class QueueLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that puts the name of one queue before each line."""

    def __init__(self, logger: logging.Logger, *, name: str) -> None:
        super().__init__(logger)
        self._prefix = f"DISKQUEUE({name}) ".replace("%", "%%")

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return self._prefix + msg, kwargs
