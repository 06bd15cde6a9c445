"""channel-policies.json: what becomes of messages that a channel cannot get rid of.

    {"version":1,"policies":[{"topic":"orders","channel":"billing","max_attempts":5,"dead_letter_topic":"orders.dead"}]}

nsqd.dat has no room for this: the Go nsqd writes it anew without what it does not know. It does not look at this file,
so policies are still here when a data folder comes back from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from emberq.storage.atomic import replace_file, sync_directory
from emberq.storage.errors import MetadataError, os_error_text

FILE_NAME = "channel-policies.json"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelPolicy:
    """When a message is given up, and where it goes then."""

    max_attempts: int
    """So often it is delivered."""
    dead_letter_topic: str


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A line of the file."""

    topic: str
    channel: str
    policy: ChannelPolicy


def save(path: Path, entries: Iterable[PolicyEntry]) -> None:
    """Replace the file at `path`; it is on the disk when this returns. MetadataError if that fails."""
    policies = [{"topic": entry.topic, "channel": entry.channel, **asdict(entry.policy)} for entry in entries]
    document = {"version": _VERSION, "policies": policies}
    try:
        replace_file(path, json.dumps(document, separators=(",", ":")).encode())
        sync_directory(path.parent)
    except OSError as error:
        raise MetadataError(os_error_text("write", path, error)) from error


def load(path: Path) -> list[PolicyEntry]:
    """What the file says; no file says nothing. MetadataError if it cannot be read or makes no sense."""
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
