"""The data folder as a whole: its lock, nsqd.dat and channel-policies.json.

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
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from emberq.base.file import replace_file, sync_folder
from emberq.storage.error import DataPathError, MetadataError, StorageError, os_error_text

_log = logging.getLogger(__name__)


# The lock.


class DataPathLock:
    """Holds a data folder from `acquire` to `release`. The empty path is the current folder."""

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


# nsqd.dat.


class MetadataFile:
    """nsqd.dat as the daemon keeps it: read once, written whenever topics or channels come and go.

    Snapshots are written in the order in which they were taken, by any thread; an older one that comes late is not.
    """

    def __init__(self, path: Path, *, run: Callable[[Callable[[], None]], None]) -> None:
        self.path = path
        self._run = run
        """Runs a function soon, off the loop's thread."""
        self._lock = threading.Lock()
        self._taken = 0
        """Snapshots taken; counted by the loop's thread alone."""
        self._written = 0
        """The newest snapshot in the file; guarded by `_lock`."""

    def load(self) -> Metadata:
        """The topics and channels of the last run."""
        return load_metadata(self.path)

    def save(self, snapshot: Metadata) -> None:
        """Write the snapshot and return when it is on disk; StorageError if it cannot be."""
        self._taken += 1
        self._write(snapshot, self._taken)

    def save_soon(self, snapshot: Metadata) -> None:
        """Write the snapshot without waiting for the disk."""
        self._taken += 1
        number = self._taken
        self._run(lambda: self._write_or_log(snapshot, number))

    def _write_or_log(self, snapshot: Metadata, number: int) -> None:
        try:
            self._write(snapshot, number)
        except StorageError as failure:
            _log.error("failed to persist metadata - %s", failure)

    def _write(self, snapshot: Metadata, number: int) -> None:
        with self._lock:
            if number > self._written:
                save_metadata(self.path, snapshot)
                self._written = number


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


def load_metadata(path: Path) -> Metadata:
    """Read the file at `path`; no file is a fresh start."""
    try:
        content = path.read_bytes()
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


def save_metadata(path: Path, metadata: Metadata) -> None:
    """Replace the file at `path`; it is on the disk when this returns."""
    try:
        replace_file(path, encode(metadata))
        sync_folder(path.parent)
    except OSError as error:
        raise MetadataError(os_error_text("write", path, error)) from error


def encode(metadata: Metadata) -> bytes:
    """The bytes of the file."""
    topics = [
        {
            "name": topic.name,
            "paused": topic.paused,
            "channels": [{"name": channel.name, "paused": channel.paused} for channel in topic.channels] or None,
        }
        for topic in metadata.topics
    ]
    document = {"topics": topics or None, "version": metadata.version}
    return json.dumps(document, separators=(",", ":")).encode()


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


def save_policies(path: Path, entries: Iterable[PolicyEntry]) -> None:
    """Replace the file at `path`; it is on the disk when this returns. MetadataError if that fails."""
    entries = list(entries)
    assert all(entry.policy.max_attempts >= 1 for entry in entries)
    policies = [{"topic": entry.topic, "channel": entry.channel, **asdict(entry.policy)} for entry in entries]
    document = {"version": _VERSION, "policies": policies}
    try:
        replace_file(path, json.dumps(document, separators=(",", ":")).encode())
        sync_folder(path.parent)
    except OSError as error:
        raise MetadataError(os_error_text("write", path, error)) from error


def load_policies(path: Path) -> list[PolicyEntry]:
    """The policies in the file; none if there is no file. MetadataError if it cannot be read or makes no sense."""
    try:
        content = path.read_bytes()
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
