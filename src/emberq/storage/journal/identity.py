"""journal.json: which journal this is.

    {"format":1,"uuid":"0b5f...","created":"2025-01-31T12:00:00Z"}

A journal that is deleted and made again is another journal with another uuid: offsets that readers and channels
remember mean nothing in it. Every segment repeats the uuid, so a lost file can be replaced.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from emberq.base.clock import NS_PER_SECOND
from emberq.storage.atomic import replace_file
from emberq.storage.journal.error import JournalOpenError

FILE_NAME = "journal.json"
FORMAT = 1


class Identity(NamedTuple):
    """What the file says."""

    uuid: UUID
    created: str


def identity_now(uuid: UUID, *, now_ns: int) -> Identity:
    """The identity of a journal that is made at this moment."""
    moment = datetime.fromtimestamp(now_ns // NS_PER_SECOND, UTC)
    return Identity(uuid, moment.strftime("%Y-%m-%dT%H:%M:%SZ"))


def save(directory: Path, identity: Identity) -> None:
    """Replace the file, fsynced; the folder is the caller's to sync. OSError if that fails."""
    document = {"format": FORMAT, "uuid": str(identity.uuid), "created": identity.created}
    replace_file(directory / FILE_NAME, json.dumps(document, separators=(",", ":")).encode() + b"\n")


def load(directory: Path) -> Identity | None:
    """The identity; None if the file is missing or damaged. JournalOpenError for a format of the future."""
    try:
        document = json.loads((directory / FILE_NAME).read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    match document:
        case {"format": int(version), "uuid": str(uuid), "created": str(created)}:
            if version != FORMAT:
                raise JournalOpenError(f"{directory} is a journal of format {version}, this version reads {FORMAT}")
            try:
                return Identity(UUID(uuid), created)
            except ValueError:
                return None
    return None
