"""A file system in memory that remembers everything, and can say what a crash at any moment may have left.

`SimulatedFiles` is a `Files`. Every operation has a number, its moment. Of every page of a file, of the size of
every file and of the names in every folder it keeps all versions, each with the moment it was made, and the moments at
which syncs brought them to the disk. So one run of a program is a recording, from which any number of crashes at any
moment are derived:

    killed(moment)              the process died: nothing is lost, but what was not synced still is not
    power_cut(moment, choice)   the machine died: one of the states that a real file system may leave

What a power cut may leave:

    a page (4 KiB)       the version that was synced last, or any version made since, each page for itself; its sectors
                         (512 bytes) may even be of two of these versions
    the size of a file   likewise; where no page has arrived there are zeros
    names in a folder    those of the last sync of the folder, and the first so many changes since; or, as on file
                         systems that do not keep the order, any of the changes since; but removals, and changes of
                         the same name, in order

A sync that is made to fail leaves pages clean, as on Linux: the next sync does not bring them to the disk, and reports
nothing. Only what is written again afterwards is. In a process that starts later such a page may be what it was before,
because the operating system dropped it from memory.

Either way nothing of a file is in memory then until it is read: readers that would wait for the disk are told so.

`Fault`s are injected errors: EIO, ENOSPC, writes that take only a part, syncs that fail. `spoil` makes a page that
cannot be read, and `is_full` a disk on which no file can become longer.
"""

from __future__ import annotations

import enum
import errno
import os
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE_BYTES = 4096
SECTOR_BYTES = 512
ROOT = Path("/data")
_ROOT_DEPTH = len(ROOT.parts)


@dataclass
class Fault:
    """An error to come: the calls of `operation` on names that end with `suffix` fail, behind the first `after`."""

    operation: str
    error: int = errno.EIO
    suffix: str = ""
    after: int = 0
    count: int = 1
    """How many calls fail before it is over."""
    taken_bytes: int = 0
    """Of a write: how much is taken. If it is any, that is a short write instead of an error."""

    def strikes(self, operation: str, name: str) -> bool:
        if operation != self.operation or not name.endswith(self.suffix) or self.count <= 0:
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.count -= 1
        return True


Names = dict[str, "File | Folder | None"]
"""A change of a folder: what each of these names stands for afterwards."""


class Choice:
    """Which of the legal states a power cut leaves. Everything follows from the seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._newest = self._random.choice((0.0, 0.2, 0.5, 0.8, 0.95, 1.0))
        """How likely it is that a page has arrived as it was last."""
        self._torn = self._random.choice((0.0, 0.0, 0.1))
        self._keeps_order = self._random.random() < 0.7
        """Whether changes of a folder reach the disk in their order."""

    def version(self, count: int) -> int:
        """Which of `count` versions: 0 is the one that was synced."""
        if self._random.random() < self._newest:
            return count - 1
        return self._random.randrange(count)

    def changes(self, changes: Sequence[Names], synced: int) -> list[Names]:
        """Which changes of a folder are there, of which the first `synced` must be."""
        if self._random.random() < self._newest:
            return list(changes)
        if self._keeps_order:
            return list(changes[: self._random.randint(synced, len(changes))])
        kept = list(changes[:synced])
        missing: set[str] = set()
        removals_left = self._random.randint(0, len(changes))
        for names in changes[synced:]:
            is_removal = not any(names.values())
            removals_left -= is_removal
            is_there = removals_left >= 0 if is_removal else self._random.random() < 0.5
            if is_there and missing.isdisjoint(names):
                kept.append(names)
            else:
                missing.update(names)
                removals_left = -1 if is_removal else removals_left
        return kept

    def mixed(self, versions: Sequence[bytes]) -> bytes:
        """A page, made of one of its versions or torn between two."""
        one = versions[self.version(len(versions))]
        if len(versions) == 1 or self._random.random() >= self._torn:
            return one
        other = versions[self.version(len(versions))]
        cut = SECTOR_BYTES * self._random.randint(0, PAGE_BYTES // SECTOR_BYTES)
        return one.ljust(PAGE_BYTES, b"\0")[:cut] + other.ljust(PAGE_BYTES, b"\0")[cut:]


@dataclass
class Cell:
    """Something that reaches the disk as one: a page, the size of a file, the names in a folder."""

    moments: list[int] = field(default_factory=list)
    """When each version was made."""
    versions: list[Any] = field(default_factory=list)
    synced: list[tuple[int, int]] = field(default_factory=list)
    """At which moment which version was on the disk for sure."""
    cleaned: list[int] = field(default_factory=list)
    """When the operating system took it for written, rightly or not."""

    @classmethod
    def durable(cls, value: Any, moment: int = 0) -> Cell:
        """One that is on the disk."""
        return cls([moment], [value], [(moment, 0)], [moment])

    def change(self, value: Any, moment: int) -> None:
        self.moments.append(moment)
        self.versions.append(value)

    def sync(self, moment: int, *, fails: bool = False) -> None:
        if not self.cleaned or self.moments[-1] > self.cleaned[-1]:
            self.cleaned.append(moment)
            if not fails:
                self.synced.append((moment, len(self.versions) - 1))

    def newest(self, moment: int) -> int:
        """The number of the version at that moment."""
        return bisect_right(self.moments, moment) - 1

    def oldest(self, moment: int) -> int:
        """The number of the version that was on the disk for sure."""
        return self.synced[bisect_right(self.synced, (moment, 1 << 60)) - 1][1]

    def candidates(self, moment: int) -> list[Any]:
        """The versions that a power cut at that moment may leave."""
        return self.versions[self.oldest(moment) : self.newest(moment) + 1]

    def until(self, moment: int) -> Cell:
        """What it was at that moment, with all that had not reached the disk."""
        newest, oldest = self.newest(moment), self.oldest(moment)
        cleaned = self.cleaned[bisect_right(self.cleaned, moment) - 1]
        return Cell(
            self.moments[oldest : newest + 1],
            self.versions[oldest : newest + 1],
            [(self.moments[oldest], 0)],
            [cleaned],
        )

    @property
    def is_on_disk(self) -> bool:
        """Whether a power cut now would leave what is there."""
        return all(version == self.versions[-1] for version in self.versions[self.synced[-1][1] :])

    @property
    def may_be_dropped(self) -> bool:
        """Whether a sync failed, so that the version on the disk may be another than the one in memory."""
        return self.moments[-1] <= self.cleaned[-1] and self.synced[-1][1] < len(self.versions) - 1


class File:
    """A file, whatever its name: its content now, and the versions of its pages and its size."""

    def __init__(self, name: str, moment: int) -> None:
        self.name = name
        """For faults and errors; its latest name."""
        self.data = bytearray()
        self.unreadable: set[int] = set()
        """The numbers of pages that cannot be read until they are written as a whole."""
        self.in_memory: set[int] = set()
        """The numbers of pages that were written or read since the last crash."""
        self.size = Cell.durable(0, moment)
        self.pages: dict[int, Cell] = {}

    def check_readable(self, position: int, end: int) -> None:
        """EIO if a page between the two is spoiled."""
        end = min(end, len(self.data))
        if any(position < (page + 1) * PAGE_BYTES and page * PAGE_BYTES < end for page in self.unreadable):
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.name)

    def check_writable(self, position: int, end: int) -> None:
        """To write a part of a page, the system reads the rest of it first."""
        for edge in (position, end):
            if edge % PAGE_BYTES:
                self.check_readable(edge - edge % PAGE_BYTES, edge - edge % PAGE_BYTES + PAGE_BYTES)
        self.unreadable -= set(range(-(-position // PAGE_BYTES), end // PAGE_BYTES))

    def cells(self) -> Iterable[Cell]:
        yield self.size
        yield from self.pages.values()

    def write(self, content: bytes, position: int, moment: int) -> None:
        end = position + len(content)
        if len(self.data) <= end:  # also for a page that is written again: its arrival brings the size along
            self.data.extend(bytes(end - len(self.data)))
            self.size.change(end, moment)
        self.data[position:end] = content
        self._note_pages(position, end, moment)
        self.in_memory.update(_pages(position, end))

    def truncate(self, size: int, moment: int) -> None:
        before = len(self.data)
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))
        self.size.change(size, moment)
        self._note_pages(min(size, before), max(size, before), moment)

    def _note_pages(self, start: int, end: int, moment: int) -> None:
        for number in range(start // PAGE_BYTES, (max(start, end - 1)) // PAGE_BYTES + 1):
            page = self.pages.setdefault(number, Cell.durable(b"", 0))
            page.change(bytes(self.data[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]), moment)

    def after_power_cut(self, moment: int, choice: Choice) -> File:
        sizes: list[int] = self.size.candidates(moment)
        size = sizes[choice.version(len(sizes))]
        content = bytearray(size)
        for number, page in sorted(self.pages.items()):
            start = number * PAGE_BYTES
            chosen = choice.mixed(page.candidates(moment))[: max(0, size - start)]
            content[start : start + len(chosen)] = chosen
        made = File.on_disk(self.name, bytes(content))
        made.unreadable = set(self.unreadable)
        return made

    @classmethod
    def on_disk(cls, name: str, content: bytes) -> File:
        """A file all of which is on the disk."""
        made = cls(name, 0)
        made.data[:] = content
        made.size = Cell.durable(len(content))
        for start in range(0, len(content), PAGE_BYTES):
            made.pages[start // PAGE_BYTES] = Cell.durable(content[start : start + PAGE_BYTES])
        return made

    def after_kill(self, moment: int, choice: Choice) -> File:
        made = File(self.name, 0)
        made.unreadable = set(self.unreadable)
        made.size = self.size.until(moment)
        made.pages = {number: page.until(moment) for number, page in self.pages.items()}
        size: int = made.size.versions[-1]
        made.data[:] = bytes(size)
        for number, page in sorted(made.pages.items()):
            content: bytes = page.versions[-1]
            if page.may_be_dropped:
                content = choice.mixed(page.versions)
                page.change(content, page.moments[-1])
            start = number * PAGE_BYTES
            chosen = content[: max(0, size - start)]
            made.data[start : start + len(chosen)] = chosen
        return made


def _pages(position: int, end: int) -> range:
    """The numbers of the pages between the two."""
    return range(position // PAGE_BYTES, -(-end // PAGE_BYTES))


class Folder:
    """A folder: the changes of its names, in order, as one cell whose versions are how many there were."""

    def __init__(self, moment: int = 0) -> None:
        self.entries: dict[str, File | Folder] = {}
        self.changes: list[Names] = []
        self.count = Cell.durable(0, moment)

    def change(self, names: Names, moment: int) -> None:
        self.changes.append(names)
        self.count.change(len(self.changes), moment)
        _apply(self.entries, names)


def _apply(entries: dict[str, File | Folder], names: Names) -> None:
    for name, entry in names.items():
        entries.pop(name, None)
        if entry is not None:
            entries[name] = entry


class Sync(enum.Enum):
    """When a sync takes place."""

    NOW = enum.auto()
    NEVER = enum.auto()
    """As if the program had forgotten it."""
    BEHIND_THE_NEXT = enum.auto()
    """As if the program had it and the one that follows in the wrong order."""


class SimulatedFiles:
    """The file system. `ROOT` is there from the start."""

    def __init__(self, *, boot: int = 1, when_synced: Callable[[], Sync] = lambda: Sync.NOW) -> None:
        self.moment = 0
        """How many operations there have been."""
        self.first_moment = 0
        """The moment at which this began, with what a crash left."""
        self.faults: list[Fault] = []
        self.is_full = False
        """Whether no file can become longer. What is there can be written over, and removed."""
        self.failed_syncs = 0
        """How many syncs of files have failed."""
        self._boot = boot
        self._when_synced = when_synced
        """Asked at each sync."""
        self._late_syncs: list[Callable[[], None]] = []
        self._root = Folder()
        self._open: dict[int, File] = {}
        self._next_fd = 1000

    # Crashes.

    def power_cut(self, moment: int, choice: Choice) -> SimulatedFiles:
        """What the machine finds when it starts again; all of it is on the disk."""
        made = SimulatedFiles(boot=self._boot + 1, when_synced=self._when_synced)
        made._root = _folder_after_power_cut(self._root, moment, choice)
        return made

    def killed(self, moment: int, choice: Choice) -> SimulatedFiles:
        """What the next process finds; what was not on the disk is not there either."""
        made = SimulatedFiles(boot=self._boot, when_synced=self._when_synced)
        made.moment = made.first_moment = moment
        made._root = _folder_after_kill(self._root, moment, choice, {})
        return made

    def unsynced_names(self, folder: Path) -> set[str]:
        """The names in a folder that a power cut could bring back, or take away."""
        found = self._folder(folder)
        synced: int = found.count.versions[found.count.synced[-1][1]]
        return set().union(*found.changes[synced:])

    def unsynced_files(self, folder: Path) -> set[str]:
        """The names of the files in a folder of which a power cut could take something away."""
        return {
            name
            for name, entry in self._folder(folder).entries.items()
            if isinstance(entry, File) and not all(cell.is_on_disk for cell in entry.cells())
        }

    @property
    def open_count(self) -> int:
        """Descriptors that were not closed."""
        return len(self._open)

    # Files, by descriptor.

    def open(self, path: Path, flags: int) -> int:
        self._begin("open", path.name)
        folder = self._folder(path.parent)
        file = folder.entries.get(path.name)
        if file is None:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT, path)
            file = File(path.name, self.moment)
            folder.change({path.name: file}, self.moment)
        elif flags & os.O_EXCL:
            raise _error(errno.EEXIST, path)
        elif isinstance(file, Folder):
            raise _error(errno.EISDIR, path)
        return self._descriptor(file)

    def close(self, fd: int) -> None:
        del self._open[fd]

    def discard(self, fd: int, *, in_haste: bool = False) -> None:
        self.close(fd)

    def duplicate(self, fd: int) -> int:
        self._begin("duplicate", self._open[fd].name)
        return self._descriptor(self._open[fd])

    def read(self, fd: int, size: int, position: int) -> bytes:
        file = self._open[fd]
        self._begin("read", file.name)
        end = min(position + size, len(file.data))
        file.check_readable(position, end)
        file.in_memory.update(_pages(position, end))
        return bytes(file.data[position:end])

    def is_in_memory(self, fd: int, size: int, position: int) -> bool:
        file = self._open[fd]
        return file.in_memory.issuperset(_pages(position, min(position + size, len(file.data))))

    @property
    def patient(self) -> SimulatedFiles:
        return self

    def write(self, fd: int, content: bytes | memoryview, position: int) -> int:
        file = self._open[fd]
        taken = self._begin_write(file, bytes(content))
        if self.is_full and position + len(taken) > len(file.data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
        file.check_writable(position, position + len(taken))
        file.write(taken, position, self.moment)
        return len(taken)

    def write_parts(self, fd: int, parts: Sequence[bytes | bytearray], position: int) -> int:
        return self.write(fd, b"".join(parts), position)

    def size(self, fd: int) -> int:
        return len(self._open[fd].data)

    def truncate(self, fd: int, size: int) -> None:
        self._begin("truncate", self._open[fd].name)
        self._open[fd].check_writable(size, size)
        self._open[fd].truncate(size, self.moment)

    def sync(self, fd: int) -> None:
        file = self._open[fd]
        self._sync(lambda: self._sync_file(file))

    def _sync(self, sync: Callable[[], None]) -> None:
        match self._when_synced():
            case Sync.NOW:
                sync()
                late, self._late_syncs = self._late_syncs, []
                for each in late:
                    each()
            case Sync.BEHIND_THE_NEXT:
                self._late_syncs.append(sync)

    def _sync_file(self, file: File) -> None:
        try:
            self._begin("sync", file.name)
        except OSError:
            self.failed_syncs += 1
            for cell in file.cells():
                cell.sync(self.moment, fails=True)
            raise
        for cell in file.cells():
            cell.sync(self.moment)

    def sync_data(self, fd: int) -> None:
        self.sync(fd)

    # Files and folders, by name.

    def read_file(self, path: Path) -> bytes:
        file = self._file(path)
        file.check_readable(0, len(file.data))
        return bytes(file.data)

    def file_size(self, path: Path) -> int:
        return len(self._file(path).data)

    def exists(self, path: Path) -> bool:
        return self._find(path) is not None

    def is_folder(self, path: Path) -> bool:
        return isinstance(self._find(path), Folder)

    def names(self, folder: Path) -> list[str]:
        return list(self._folder(folder).entries)

    def rename(self, source: Path, target: Path) -> None:
        self._begin("rename", source.name)
        assert source.parent == target.parent, "a rename between folders is not needed here"
        folder = self._folder(source.parent)
        entry = folder.entries.get(source.name)
        if entry is None:
            raise _error(errno.ENOENT, source)
        if isinstance(folder.entries.get(target.name), Folder):
            raise _error(errno.EISDIR, target)
        if isinstance(entry, File):
            entry.name = target.name
        folder.change({source.name: None, target.name: entry}, self.moment)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        self._begin("unlink", path.name)
        if missing_ok and not self._is_file_in_the_way(path) and not self.exists(path):
            return
        folder = self._folder(path.parent)
        entry = folder.entries.get(path.name)
        if isinstance(entry, Folder):
            raise _error(errno.EISDIR, path)
        if entry is None:
            raise _error(errno.ENOENT, path)
        folder.change({path.name: None}, self.moment)

    def create_folder(self, path: Path) -> None:
        self._begin("create_folder", path.name)
        if self.exists(path):
            raise _error(errno.EEXIST, path)
        self._folder(path.parent).change({path.name: Folder(self.moment)}, self.moment)

    def delete_folder(self, path: Path) -> None:
        self._begin("delete_folder", path.name)
        if self._folder(path).entries:
            raise _error(errno.ENOTEMPTY, path)
        self._folder(path.parent).change({path.name: None}, self.moment)

    def sync_folder(self, path: Path) -> None:
        folder = self._folder(path)
        self._sync(lambda: self._sync_names(folder, path))

    def _sync_names(self, folder: Folder, path: Path) -> None:
        self._begin("sync_folder", path.name)
        folder.count.sync(self.moment)

    def boot_id(self) -> str:
        return f"boot {self._boot}"

    # For tests that damage files.

    def flip(self, path: Path, position: int) -> None:
        """Change one bit, on the disk too."""
        file = self._file(path)
        content = bytearray(file.data)
        content[position] ^= 1
        damaged = File.on_disk(file.name, bytes(content))
        file.data, file.size, file.pages = damaged.data, damaged.size, damaged.pages

    def spoil(self, path: Path, position: int) -> None:
        """Let the page at this position be one that cannot be read."""
        self._file(path).unreadable.add(position // PAGE_BYTES)

    # Within.

    def _begin(self, operation: str, name: str) -> None:
        self.moment += 1
        for fault in self.faults:
            if fault.strikes(operation, name):
                raise OSError(fault.error, os.strerror(fault.error), name)

    def _begin_write(self, file: File, content: bytes) -> bytes:
        """How much of it is taken."""
        self.moment += 1
        for fault in self.faults:
            if fault.strikes("write", file.name):
                if not fault.taken_bytes:
                    raise OSError(fault.error, os.strerror(fault.error), file.name)
                return content[: fault.taken_bytes]
        return content

    def _descriptor(self, file: File) -> int:
        self._next_fd += 1
        self._open[self._next_fd] = file
        return self._next_fd

    def _find(self, path: Path) -> File | Folder | None:
        entry: File | Folder | None = self._root
        assert path.parts[:_ROOT_DEPTH] == ROOT.parts
        for name in path.parts[_ROOT_DEPTH:]:
            if not isinstance(entry, Folder):
                return None
            entry = entry.entries.get(name)
        return entry

    def _is_file_in_the_way(self, path: Path) -> bool:
        """Whether something above it is no folder."""
        return path != ROOT and (isinstance(self._find(path.parent), File) or self._is_file_in_the_way(path.parent))

    def _missing(self, path: Path) -> OSError:
        return _error(errno.ENOTDIR if self._is_file_in_the_way(path) else errno.ENOENT, path)

    def _file(self, path: Path) -> File:
        entry = self._find(path)
        if entry is None:
            raise self._missing(path)
        if isinstance(entry, Folder):
            raise _error(errno.EISDIR, path)
        return entry

    def _folder(self, path: Path) -> Folder:
        entry = self._find(path)
        if entry is None:
            raise self._missing(path)
        if isinstance(entry, File):
            raise _error(errno.ENOTDIR, path)
        return entry


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


def _folder_after_power_cut(folder: Folder, moment: int, choice: Choice) -> Folder:
    count = folder.count
    done = folder.changes[: count.versions[count.newest(moment)]]
    entries: dict[str, File | Folder] = {}
    for names in choice.changes(done, count.versions[count.oldest(moment)]):
        _apply(entries, names)
    made = Folder()
    for name, entry in entries.items():
        if isinstance(entry, File):
            made.change({name: entry.after_power_cut(moment, choice)}, 0)
        else:
            made.change({name: _folder_after_power_cut(entry, moment, choice)}, 0)
    made.count = Cell.durable(len(made.changes))
    return made


Known = dict[int, "File | Folder"]


def _folder_after_kill(folder: Folder, moment: int, choice: Choice, known: Known) -> Folder:
    made = Folder()
    made.count = folder.count.until(moment)
    for names in folder.changes[: folder.count.versions[folder.count.newest(moment)]]:
        copied = {name: _entry_after_kill(entry, moment, choice, known) for name, entry in names.items()}
        made.changes.append(copied)
        _apply(made.entries, copied)
    return made


def _entry_after_kill(entry: File | Folder | None, moment: int, choice: Choice, known: Known) -> File | Folder | None:
    if entry is None:
        return None
    if id(entry) not in known:
        if isinstance(entry, File):
            known[id(entry)] = entry.after_kill(moment, choice)
        else:
            known[id(entry)] = _folder_after_kill(entry, moment, choice, known)
    return known[id(entry)]
