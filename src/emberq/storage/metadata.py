"""nsqd.dat: which topics and channels exist, and which of them are paused.

Compact JSON without a newline at the end, where an empty list is `null`:

    {"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":true}]}],"version":"1.3.0"}
    {"topics":null,"version":"1.3.0"}

A reader takes `null` or nothing for any value, and ignores keys it does not know. Whether the names are valid, and
what to do about those that are not, is the broker's business.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberq.storage.atomic import replace_file, sync_directory
from emberq.storage.errors import MetadataError, os_error_text

FILE_NAME = "nsqd.dat"


@dataclass(frozen=True, slots=True)
class ChannelMeta:
    """A channel as the file remembers it."""

    name: str
    paused: bool = False


@dataclass(frozen=True, slots=True)
class TopicMeta:
    """A topic as the file remembers it."""

    name: str
    paused: bool = False
    channels: tuple[ChannelMeta, ...] = ()


@dataclass(frozen=True, slots=True)
class Metadata:
    """The whole file. `version` is the version of the nsqd that wrote it."""

    topics: tuple[TopicMeta, ...] = ()
    version: str = ""


def load(path: Path) -> Metadata:
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


def save(path: Path, metadata: Metadata) -> None:
    """Replace the file at `path`; it is on the disk when this returns."""
    try:
        replace_file(path, encode(metadata))
        sync_directory(path.parent)
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
