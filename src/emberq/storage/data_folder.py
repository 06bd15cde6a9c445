"""The data folder as a whole: its lock, left-over files, nsqd.dat and channel-policies.json.

The lock is an exclusive `flock` on the folder itself, so it leaves no lock file behind and goes with the process. The
Go nsqd locks the same way: the two exclude each other. The folder must exist; it is never created, because a mistyped
path must not start an empty broker.

nsqd.dat tells which topics and channels exist, and which of them are paused. It is compact JSON without a newline at
the end, in which an empty list is `null`:

    {"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":true}]}],"version":"1.3.0"}
    {"topics":null,"version":"1.3.0"}

Any value may be `null` or missing when it is read, and unknown keys are ignored. Whether the names are valid is for the
broker to check.

channel-policies.json tells after how many attempts a channel gives up a message, and where it goes then:

    {"version":1,"policies":[{"topic":"orders","channel":"billing","max_attempts":5,"dead_letter_topic":"orders.dead"}]}

It is a file of its own because the Go nsqd drops keys of nsqd.dat that it does not know. It ignores this file, so
policies survive when a data folder is used by it in between.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.file import OS_FILES, Files, remove_temporary_files, replace_file
from emberq.base.timers import Timers
from emberq.storage.error import DataPathError, MetadataError, StorageError, os_error_text

_log = logging.getLogger(__name__)


# The lock.


class DataPathLock:
    """Holds a data folder from `acquire` to `release`. The empty path is the current folder.

    It asks the operating system itself, not a `Files`: a lock is between processes, and no crash leaves one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock at once, or raise DataPathError."""
        if self._fd is not None:
            raise RuntimeError("the data path is locked by this very object")
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            text = os_error_text("open", self._path, error)
            raise DataPathError(f"failed to lock data-path: {text}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            reason = (error.strerror or str(error)).lower()
            raise DataPathError(
                f"failed to lock data-path: cannot flock directory {self._path} - {reason}"
                " (possibly in use by another instance of nsqd)"
            ) from error
        self._fd = fd

    def release(self) -> None:
        """Let other processes have the folder; does nothing when the lock is not held."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


# Left-over files.

_REPLACED = (".diskqueue.meta.dat", ".diskqueue.due.dat")


def remove_leftovers(data_path: Path, *, fs: Files = OS_FILES) -> None:
    """Remove the files that were to replace others in the data folder when an earlier run died. A failure is logged."""
    try:
        remove_temporary_files(
            data_path, lambda name: name in (METADATA_FILE, POLICY_FILE) or name.endswith(_REPLACED), fs=fs
        )
    except OSError as error:
        _log.warning("left-over files were not removed - %s", os_error_text("remove", data_path, error))


# nsqd.dat.

METADATA_FILE = "nsqd.dat"


class MetaEntry(NamedTuple):
    """A line of nsqd.dat, so to speak: a topic (`channel` None), or a channel of the topic whose entry came last."""

    topic: str
    channel: str | None
    paused: bool


PORTION_ENTRIES = 1000
"""How many topics and channels are written down in one turn of the event loop: a few milliseconds of work."""
REST_FACTOR = 3
"""After a save, that many times as long as it took passes before the next: a burst of changes must not keep the loop
busy with writing down all topics again and again."""

RETRY_NS = 5 * NS_PER_SECOND
"""When a save failed, for example because the disk is full, it is tried again so much later."""

Told = Callable[[StorageError | None], None]
"""Called with None when the file is on the disk, or with the reason why it is not."""


class MetadataFile:
    """nsqd.dat as the daemon keeps it: read once, written whenever topics or channels come and go. Owned by the daemon.

    A save in the background takes the entries in portions, so that many topics do not hold up the loop, and has them
    written by another thread. Changes that come meanwhile wait for one more save, however many they are: only the
    newest state counts.
    """

    def __init__(
        self,
        path: Path,
        *,
        version: str,
        entries: Callable[[], Iterator[MetaEntry]],
        run: Callable[[Callable[[], None]], None],
        hand_back: Callable[[Callable[[], None]], None],
        clock: Clock,
        timers: Timers,
        fs: Files = OS_FILES,
    ) -> None:
        self.path = path
        self._fs = fs
        self._version = version
        self._entries = entries
        """All topics and channels. It copes with changes while it is half read."""
        self._run = run
        """Runs a function soon, off the loop's thread."""
        self._hand_back = hand_back
        """Runs a function soon, in the loop's thread; called from the other one."""
        self._clock = clock
        self._alarm = timers.alarm(self._go_on)
        """Rings when a save is to begin, and for each of its portions."""
        self._is_due = False
        """Whether something changed since the latest save began."""
        self._is_saving = False
        self._began_ns = 0
        self._rested_ns = 0
        """When the next save may begin."""
        self._rest: Iterator[bytes] = iter(())
        """What a save that has begun has still to take."""
        self._content: list[bytes] = []
        """What it has taken."""
        self._told: list[Told] = []
        """Wait for the save that has begun."""
        self._told_by_next: list[Told] = []
        self._lock = threading.Lock()
        self._taken = 0
        """Saves begun; counted by the loop's thread alone."""
        self._written = 0
        """The newest save in the file; guarded by `_lock`."""
        self.on_saved: Callable[[], None] = lambda: None
        """Called in the loop's thread when the file is on the disk, as `entries` was at the last question."""

    def load(self) -> Metadata:
        """The topics and channels of the last run."""
        return load_metadata(self.path, fs=self._fs)

    def save(self) -> None:
        """Write the file and return when it is on the disk; StorageError if it cannot be."""
        self._taken += 1
        self._write(b"".join(encoded(self._entries(), self._version)), self._taken)
        self.on_saved()

    def save_soon(self, told: Told | None = None) -> None:
        """Write the file without holding up the loop; then call `told`, in the loop's thread."""
        self._is_due = True
        if told is not None:
            self._told_by_next.append(told)
        if not self._is_saving:
            self._begin_when_rested()

    def _begin_when_rested(self) -> None:
        """In the next turn of the loop at the earliest: once for all changes of this one."""
        now_ns = self._clock.monotonic_ns()
        is_awaited = bool(self._told_by_next)
        self._alarm.set(now_ns if is_awaited else max(now_ns, self._rested_ns))

    def _go_on(self) -> None:
        """Take a portion, and give the whole to the other thread when it is complete."""
        if not self._is_saving:
            self._begin()
        portion = list(islice(self._rest, PORTION_ENTRIES))
        self._content += portion
        if len(portion) == PORTION_ENTRIES:
            self._alarm.set(self._clock.monotonic_ns())
            return
        content, self._content = self._content, []
        number = self._taken
        self._run(lambda: self._write_or_log(content, number))

    def _begin(self) -> None:
        self._is_saving = True
        self._is_due = False
        self._told, self._told_by_next = self._told_by_next, []
        self._began_ns = self._clock.monotonic_ns()
        self._taken += 1
        self._rest = encoded(self._entries(), self._version)

    def _write_or_log(self, content: list[bytes], number: int) -> None:
        """In the other thread."""
        failure: StorageError | None = None
        try:
            self._write(b"".join(content), number)
        except StorageError as error:
            failure = error
            _log.error("failed to persist metadata - %s", error)
        self._hand_back(lambda: self._end(failure))

    def _write(self, content: bytes, number: int) -> None:
        with self._lock:
            if number > self._written:  # else one that began later was faster
                _log.info("NSQ: persisting topic/channel metadata to %s", self.path)
                _replace_durably(self.path, content, fs=self._fs)
                self._written = number

    def _end(self, failure: StorageError | None) -> None:
        self._is_saving = False
        now_ns = self._clock.monotonic_ns()
        self._rested_ns = now_ns + REST_FACTOR * (now_ns - self._began_ns)
        if failure is not None:
            self._is_due = True
            self._rested_ns = max(self._rested_ns, now_ns + RETRY_NS)
        told, self._told = self._told, []
        if failure is None:
            self.on_saved()
        for tell in told:
            tell(failure)
        if self._is_due:
            self._begin_when_rested()


@dataclass(frozen=True, slots=True)
class ChannelMeta:
    """A channel in the file."""

    name: str
    paused: bool = False


@dataclass(frozen=True, slots=True)
class TopicMeta:
    """A topic in the file."""

    name: str
    paused: bool = False
    channels: tuple[ChannelMeta, ...] = ()


@dataclass(frozen=True, slots=True)
class Metadata:
    """The whole file. `version` is the version of the nsqd that wrote it."""

    topics: tuple[TopicMeta, ...] = ()
    version: str = ""


def load_metadata(path: Path, *, fs: Files = OS_FILES) -> Metadata:
    """Read the file at `path`; no file is a fresh start."""
    try:
        content = fs.read_file(path)
    except FileNotFoundError:
        return Metadata()
    except OSError as error:
        text = os_error_text("open", path, error)
        raise MetadataError(f"failed to read metadata from {path} - {text}") from error
    try:
        return _metadata(json.loads(content))
    except (ValueError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise MetadataError(f"failed to parse metadata in {path} - {reason}") from error


def encoded(entries: Iterable[MetaEntry], version: str) -> Iterator[bytes]:
    """The bytes of the file, piece by piece: about one for each entry."""
    before_topic, before_channel, end_of_topic = '{"topics":[', "", ""
    for topic, channel, paused in entries:
        fields = f'{{"name":{json.dumps(channel or topic)},"paused":{"true" if paused else "false"}'
        if channel is None:
            yield f'{end_of_topic}{before_topic}{fields},"channels":'.encode()
            before_topic, before_channel, end_of_topic = ",", "[", "null}"
        else:
            yield f"{before_channel}{fields}}}".encode()
            before_channel, end_of_topic = ",", "]}"
    topics_end = '{"topics":null' if not end_of_topic else f"{end_of_topic}]"
    yield f'{topics_end},"version":{json.dumps(version)}}}'.encode()


def metadata_of(entries: Iterable[MetaEntry], version: str) -> Metadata:
    """The entries as one snapshot."""
    topics: list[tuple[MetaEntry, list[ChannelMeta]]] = []
    for entry in entries:
        if entry.channel is None:
            topics.append((entry, []))
        else:
            topics[-1][1].append(ChannelMeta(entry.channel, entry.paused))
    return Metadata(
        topics=tuple(TopicMeta(entry.topic, entry.paused, tuple(channels)) for entry, channels in topics),
        version=version,
    )


def _replace_durably(path: Path, content: bytes, *, fs: Files) -> None:
    """Replace the file at `path`; it is on the disk when this returns."""
    try:
        replace_file(path, content, fs=fs)
        fs.sync_folder(path.parent)
    except OSError as error:
        raise MetadataError(os_error_text("write", path, error)) from error


def _metadata(document: object) -> Metadata:
    fields = _typed(document, dict, "the document")
    topics = _typed(fields.get("topics"), list, "topics")
    return Metadata(
        topics=tuple(_topic(topic) for topic in topics),
        version=_typed(fields.get("version"), str, "version"),
    )


def _topic(document: object) -> TopicMeta:
    fields = _typed(document, dict, "a topic")
    channels = _typed(fields.get("channels"), list, "channels")
    return TopicMeta(
        name=_typed(fields.get("name"), str, "a topic's name"),
        paused=_typed(fields.get("paused"), bool, "paused"),
        channels=tuple(_channel(channel) for channel in channels),
    )


def _channel(document: object) -> ChannelMeta:
    fields = _typed(document, dict, "a channel")
    return ChannelMeta(
        name=_typed(fields.get("name"), str, "a channel's name"),
        paused=_typed(fields.get("paused"), bool, "paused"),
    )


def _typed(value: object, wanted: type, what: str) -> Any:
    """`value` if it is of the wanted type, that type's empty value for null; else TypeError."""
    if value is None:
        return wanted()
    if not isinstance(value, wanted):
        raise TypeError(f"{what} is of type {type(value).__name__}, not {wanted.__name__}")
    return value


# channel-policies.json.

POLICY_FILE = "channel-policies.json"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelPolicy:
    """After how many attempts a message is given up, and where it goes then."""

    max_attempts: int
    dead_letter_topic: str


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """The policy of one channel."""

    topic: str
    channel: str
    policy: ChannelPolicy


def save_policies(path: Path, entries: Iterable[PolicyEntry], *, fs: Files = OS_FILES) -> None:
    """Replace the file at `path`; it is on the disk when this returns. MetadataError if that fails."""
    entries = list(entries)
    assert all(entry.policy.max_attempts >= 1 for entry in entries)
    policies = [{"topic": entry.topic, "channel": entry.channel, **asdict(entry.policy)} for entry in entries]
    document = {"version": _VERSION, "policies": policies}
    _replace_durably(path, json.dumps(document, separators=(",", ":")).encode(), fs=fs)


def load_policies(path: Path, *, fs: Files = OS_FILES) -> list[PolicyEntry]:
    """The policies in the file; none if there is no file. MetadataError if it cannot be read or makes no sense."""
    try:
        content = fs.read_file(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise MetadataError(os_error_text("open", path, error)) from error
    try:
        return _entries(json.loads(content))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise MetadataError(f"failed to parse policies in {path} - {reason}") from error


def _entries(document: dict[str, Any]) -> list[PolicyEntry]:
    if document["version"] != _VERSION:
        raise ValueError(f"version {document['version']!r} is not known")
    return [_entry(fields) for fields in document["policies"]]


def _entry(fields: dict[str, Any]) -> PolicyEntry:
    topic, channel, dead_letter_topic = fields["topic"], fields["channel"], fields["dead_letter_topic"]
    max_attempts = fields["max_attempts"]
    if not all(isinstance(name, str) for name in (topic, channel, dead_letter_topic)):
        raise TypeError("a name is no text")
    if type(max_attempts) is not int or max_attempts < 1:
        raise ValueError(f"max_attempts is {max_attempts!r}")
    return PolicyEntry(topic, channel, ChannelPolicy(max_attempts=max_attempts, dead_letter_topic=dead_letter_topic))
