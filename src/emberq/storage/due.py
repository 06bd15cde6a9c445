"""The side file of due times.

A record on disk has no field for when it is due, so a deferred message that goes through a disk queue at shutdown
would be delivered at once afterwards. Its due time is kept beside the queue, in a file of its own, which the Go nsqd
does not look at (for it such a message is simply due):

    <name>.diskqueue.due.dat

    emberq-due 1 <kind>\\n
    <id, 32 hex digits> <nanoseconds, decimal> <crc32 of what stands before it on the line, 8 hex digits>\\n
    ...

The kind says what the numbers are: `due` is a moment (wall clock, since the Unix epoch), for messages of a channel;
`delay` is a duration that has not begun to run, for messages that still wait in a topic.

Each line vouches for itself, so damage costs the due times on the damaged lines only. Those messages are delivered
too early, which is better than not starting.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from zlib import crc32

from emberq.storage.atomic import replace_file, sync_directory
from emberq.storage.errors import StorageError, os_error_text

Kind = Literal["due", "delay"]

log = logging.getLogger("emberq.storage")

_LINE = re.compile(rb"(([0-9a-f]{32}) (\d{1,19})) ([0-9a-f]{8})")


def save(path: Path, due_ns_by_id: Mapping[bytes, int], *, kind: Kind = "due") -> None:
    """Replace the file, fsynced; an empty mapping removes it. StorageError if that fails."""
    try:
        if due_ns_by_id:
            lines = [_header(kind), *(_line(message_id, ns) for message_id, ns in due_ns_by_id.items())]
            replace_file(path, b"".join(lines))
        else:
            path.unlink(missing_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise StorageError(os_error_text("write", path, error)) from error


def load(path: Path, *, kind: Kind = "due") -> dict[bytes, int]:
    """What the file says, as far as it can be read; nothing if there is no file."""
    try:
        header, *lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning("cannot read the due times in %s - %s", path, error)
        return {}
    if header != _header(kind):
        log.warning("ignoring the due times in %s, which is not a file of kind %r", path, kind)
        return {}
    due_ns_by_id: dict[bytes, int] = {}
    for line in lines:
        match = _LINE.fullmatch(line.rstrip(b"\n"))
        if match is not None and int(match[4], 16) == crc32(match[1]):
            due_ns_by_id[bytes.fromhex(match[2].decode())] = int(match[3])
    damaged = len(lines) - len(due_ns_by_id)
    if damaged:
        log.warning("%d of %d due times in %s are damaged and ignored", damaged, len(lines), path)
    return due_ns_by_id


def _header(kind: Kind) -> bytes:
    return b"emberq-due 1 %s\n" % kind.encode()


def _line(message_id: bytes, ns: int) -> bytes:
    content = b"%s %d" % (message_id.hex().encode(), ns)
    return b"%s %08x\n" % (content, crc32(content))
