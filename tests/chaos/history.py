"""The history of a run: one record for each event, as the clients and the machinery of faults saw it, with its time.

    12.034817   publish   always-log   -       3.17    -            before its bytes leave
    12.036204   ok        always-log   -       3.17    -            nsqd has confirmed it
    12.036911   deliver   always-log   fast    3.17    00...2a 1    with this id, at this attempt
    12.037020   fin       always-log   fast    3.17    -            a FIN was written

A record is a line of six columns with tabs between them: seconds since the start, what happened, topic, channel,
message, and details. A message is named by its key: number of the publisher, point, serial number. The body follows
from topic and key, so a body that was changed on its way has no key, and shows as one that was never published.

The file is the whole truth about a run: `checking` judges it, and `report` draws it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Self
from zlib import crc32

NONE = "-"
"""Stands in a column that says nothing."""
DAMAGED = "damaged"
"""The key of a body that no publisher of the run can have made."""
MIN_FILLER_BYTES = 20
FILLER_SPAN_BYTES = 400
"""Bodies are of mixed sizes, and long enough for new segments to begin now and then."""


class Kind(StrEnum):
    """What can happen."""

    PUBLISH = "publish"
    OK = "ok"
    REFUSED = "refused"
    """No confirmation came: the message may be stored or not."""
    DELIVER = "deliver"
    FIN = "fin"
    LATE = "late"
    """The consumer had done its work when the connection was gone or the time was over: the message may come again."""
    LETTER = "letter"
    """nsqd has given the message up, and its dead letter has come."""
    REQUEUE = "requeue"
    DISCONNECT = "disconnect"
    """A consumer has lost its connection: FINs that were under way may be lost with it."""
    KILL = "kill"
    STOP = "stop"
    START = "start"
    FAULT = "fault"
    HEALED = "healed"
    STORED = "stored"
    """The message is in the journal at this offset: read when the run was over."""
    LEFT = "left"
    """So many messages a channel still had when the run was over."""
    MEMORY = "memory"
    """The resident bytes of an nsqd."""


class Event(NamedTuple):
    """One record. `topic` is the name of the nsqd where the event concerns all of it."""

    time_s: float
    kind: Kind
    topic: str
    channel: str = NONE
    key: str = NONE
    detail: str = NONE


class History:
    """Writes the events of a run to a file as they happen; a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w")
        self._start_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._file.close()

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start_s

    def note(self, kind: Kind, topic: str, channel: str = NONE, key: str = NONE, detail: str = NONE) -> None:
        """Write down what happens now."""
        self._file.write(f"{self.now_s:.6f}\t{kind}\t{topic}\t{channel}\t{key}\t{detail}\n")

    def events(self) -> Iterator[Event]:
        """All events so far, in their order."""
        self._file.flush()
        return read_history(self.path)


def read_history(path: Path) -> Iterator[Event]:
    """The events in a file."""
    with path.open() as file:
        for line in file:
            time_s, kind, topic, channel, key, detail = line.rstrip("\n").split("\t")
            yield Event(float(time_s), Kind(kind), topic, channel, key, detail)


# Bodies.


def body_of(topic: str, key: str) -> bytes:
    """The body of a message: its topic, its key, a checksum of both and some filling."""
    name = f"{topic} {key}".encode()
    checksum = crc32(name)
    return b"%s %08x %s" % (name, checksum, b"." * (MIN_FILLER_BYTES + checksum % FILLER_SPAN_BYTES))


def key_of(topic: str, body: bytes) -> str:
    """The key of a message that came from this topic; DAMAGED if no publisher has made this body."""
    parts = body.split(b" ", 2)
    key = parts[1].decode("ascii", "replace") if len(parts) == 3 else ""
    return key if key and body == body_of(topic, key) else DAMAGED
