"""What is said on one connection to an nsqlookupd, from the first byte to the last, without I/O.

    begin()                     magic and IDENTIFY leave; nothing else does until the answer is here
    its answer                  a snapshot of all that exists is taken, its registrations are next
    add(command)                comes after them, in order
    output()                    the commands that may leave now: at most WINDOW of them wait for their answers

So a change is told exactly once: if it happened before the snapshot it is in it, and `add` ignores it; if it happened
later it is queued. Commands are not sent one by one, each after the answer to the last: with 100,000 channels that
would take 100,000 round trips.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from emberq.lookupd.protocol import NsqdIdentity
from emberq.nsqd.lookup.protocol import (
    MAGIC,
    AnswerError,
    AnswerReader,
    LookupdInfo,
    TopicAndChannels,
    check_ok,
    identify,
    parse_info,
    registrations,
)

WINDOW = 500
"""Commands that may wait for their answers: many per round trip, and no more than some 70 kB in our buffers."""
MAX_QUEUED = 100_000
"""Changes that may wait behind them. Beyond it is quicker to begin anew from a fresh snapshot."""

Snapshot = Callable[[], Iterable[TopicAndChannels]]


class FallenBehind(Exception):
    """More changes wait than nsqlookupd can be told of; the conversation should be begun anew."""


class Conversation:
    """Owned by the peer whose connection it is; given up with the connection."""

    def __init__(self, identity: NsqdIdentity, *, snapshot: Snapshot, max_answer_bytes: int) -> None:
        self.info: LookupdInfo | None = None
        """Who the nsqlookupd is; None until it answered IDENTIFY."""
        self.awaited_count = 0
        """Commands whose answers have not come."""
        self._identity = identity
        self._snapshot = snapshot
        self._reader = AnswerReader(max_bytes=max_answer_bytes)
        self._registrations: Iterator[bytes] = iter(())
        """What is left of the snapshot."""
        self._changes: deque[bytes] = deque()

    def begin(self) -> bytes:
        """The first bytes to send."""
        self.awaited_count = 1
        return MAGIC + identify(self._identity)

    def add(self, command: bytes) -> None:
        """Say this too, after all that waits; FallenBehind if that is too much."""
        if self.info is None:
            return  # the snapshot will have it
        if len(self._changes) >= MAX_QUEUED:
            raise FallenBehind(f"more than {MAX_QUEUED} changes wait to be registered")
        self._changes.append(command)

    def output(self) -> bytes:
        """What may be sent now; empty if nothing."""
        if self.info is None:
            return b""
        room = WINDOW - self.awaited_count
        commands = list(islice(self._registrations, room))
        while self._changes and len(commands) < room:
            commands.append(self._changes.popleft())
        self.awaited_count += len(commands)
        return b"".join(commands)

    def receive(self, data: bytes) -> int:
        """Take in what came and return how many commands it answered; AnswerError if it answers none as it should."""
        answered_count = 0
        for answer in self._reader.feed(data):
            self._take(answer)
            answered_count += 1
        return answered_count

    def _take(self, answer: bytes) -> None:
        if not self.awaited_count:
            raise AnswerError("it answered what was not asked")
        if self.info is None:
            self.info = parse_info(answer)
            self._registrations = registrations(tuple(self._snapshot()))
        else:
            check_ok(answer)
        self.awaited_count -= 1
