"""The body of an MPUB.

    offset  size  field
    0       4     body size, checked for its range alone: what counts is what follows
    4       4     number of messages
    8       …     each message: int32 size, body

The reference follows the embedded counts and ignores whether they add up to the body size, so we do; but the sum is
held to the same limit, because a client must not make a server hold more.

Most bodies hold messages of one size and have arrived in whole. `uniform_ends` recognises such a body by comparing
four strided slices, which costs nothing per message in Python; any other body is walked, size by size.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from emberq.wire import error
from emberq.wire.command import Publish
from emberq.wire.error import FatalError

_INT32 = struct.Struct(">i")
_SIZE_AND_COUNT_BYTES = 8
_MIN_MESSAGE_BYTES = 5


def uniform_ends(blob: bytes | bytearray, *, start: int, count: int) -> range | None:
    """Where `count` size-prefixed messages of one size end, counted from `start`, or None if they are not that.

    None also when `blob` does not hold all of them.
    """
    if len(blob) - start < 4:
        return None
    size: int = _INT32.unpack_from(blob, start)[0]
    stride = 4 + size
    stop = start + count * stride
    if size <= 0 or stop > len(blob):
        return None
    for byte in range(start, start + 4):
        if blob[byte:stop:stride] != blob[byte : byte + 1] * count:
            return None
    return range(stride, count * stride + 1, stride)


class MpubBody:
    """An MPUB's body while it arrives. Owned by the decoder."""

    def __init__(self, topic: str, *, max_msg_size: int, max_body_size: int) -> None:
        self._topic = topic
        self._max_msg_size = max_msg_size
        self._max_body_size = max_body_size
        self._buffer = bytearray()
        """What has arrived, from the body size on."""
        self._ends: list[int] = []
        """Where the messages walked so far end, counted from the first message."""
        self._walked = 0
        """How far the walk has come: the last of `_ends`, or 0."""

    def take_whole(self, buffer: bytes, start: int) -> tuple[Publish | None, int]:
        """The command, and where it ends, if all of it lies in `buffer` from `start` and has one message size."""
        if len(buffer) - start < _SIZE_AND_COUNT_BYTES:
            return None, start
        count = self._check_counts(buffer, start)
        start += _SIZE_AND_COUNT_BYTES
        ends = uniform_ends(buffer, start=start, count=count)
        if ends is None or not self._within_limits(ends):
            return None, start
        end = start + ends[-1]
        return Publish(b"MPUB", self._topic, buffer[start:end], ends, 1), end

    def extend(self, data: bytes) -> None:
        """Take in more of the body."""
        self._buffer += data

    def take(self) -> Publish | None:
        """The command, once its last message has arrived."""
        buffer = self._buffer
        if len(buffer) < 4:
            return None
        declared_bytes = self._check_body_size(buffer, 0)
        if len(buffer) < _SIZE_AND_COUNT_BYTES:
            return None
        count = self._check_counts(buffer, 0)
        if not self._ends and self._looks_uniform(count, declared_bytes):
            if len(buffer) < 4 + declared_bytes:
                return None
            ends: Sequence[int] | None = uniform_ends(buffer, start=_SIZE_AND_COUNT_BYTES, count=count)
            if ends is not None:
                return self._complete(ends)
        return self._complete(array("I", self._ends)) if self._walk(count) else None

    def rest(self) -> bytes:
        """What arrived behind the body; valid once `take` has returned the command."""
        return bytes(memoryview(self._buffer)[_SIZE_AND_COUNT_BYTES + self._walked :])

    def eof_error(self) -> FatalError:
        """What it means that nothing more will come."""
        arrived = len(self._buffer)
        if arrived < 4:
            return self._bad_body(b"MPUB failed to read body size")
        if arrived < _SIZE_AND_COUNT_BYTES:
            return self._bad_body(b"MPUB failed to read message count")
        try:
            self._walk(self._check_counts(self._buffer, 0))
        except FatalError as wrong:
            return wrong
        if arrived - _SIZE_AND_COUNT_BYTES - self._walked < 4:
            return self._bad_message(b"MPUB failed to read message(%d) body size" % len(self._ends))
        return self._bad_message(b"MPUB failed to read message body")

    def _complete(self, ends: Sequence[int]) -> Publish:
        self._walked = ends[-1]
        start = _SIZE_AND_COUNT_BYTES
        return Publish(b"MPUB", self._topic, bytes(memoryview(self._buffer)[start : start + ends[-1]]), ends, 1)

    def _check_body_size(self, buffer: bytes | bytearray, start: int) -> int:
        body_bytes: int = _INT32.unpack_from(buffer, start)[0]
        if body_bytes <= 0:
            raise self._bad_body(b"MPUB invalid body size %d" % body_bytes)
        if body_bytes > self._max_body_size:
            raise self._bad_body(b"MPUB body too big %d > %d" % (body_bytes, self._max_body_size))
        return body_bytes

    def _check_counts(self, buffer: bytes | bytearray, start: int) -> int:
        self._check_body_size(buffer, start)
        count: int = _INT32.unpack_from(buffer, start + 4)[0]
        if not 0 < count <= (self._max_body_size - 4) // _MIN_MESSAGE_BYTES:
            raise self._bad_body(b"MPUB invalid message count %d" % count)
        return count

    def _within_limits(self, ends: range) -> bool:
        return ends.step - 4 <= self._max_msg_size and 4 + ends[-1] <= self._max_body_size

    def _looks_uniform(self, count: int, declared_bytes: int) -> bool:
        """Whether the first size, if all had it, would add up to the body: then waiting for the whole body pays."""
        if len(self._buffer) < _SIZE_AND_COUNT_BYTES + 4:
            return False
        size: int = _INT32.unpack_from(self._buffer, _SIZE_AND_COUNT_BYTES)[0]
        return 0 < size <= self._max_msg_size and 4 + count * (4 + size) == declared_bytes

    def _walk(self, count: int) -> bool:
        """Go on from size to size; whether the last message was reached."""
        buffer, ends, position = self._buffer, self._ends, self._walked
        available = len(buffer) - _SIZE_AND_COUNT_BYTES
        largest = min(self._max_msg_size, self._max_body_size)
        last_end = self._max_body_size - 4
        unpack_from = _INT32.unpack_from
        while len(ends) < count and available - position >= 4:
            (size,) = unpack_from(buffer, _SIZE_AND_COUNT_BYTES + position)
            end = position + 4 + size
            if not 0 < size <= largest or end > last_end:
                raise self._size_error(index=len(ends), size=size, end=end)
            if end > available:
                break
            ends.append(end)
            position = end
        self._walked = position
        return len(ends) == count

    def _size_error(self, *, index: int, size: int, end: int) -> FatalError:
        if size <= 0:
            return self._bad_message(b"MPUB invalid message(%d) body size %d" % (index, size))
        if size > self._max_msg_size:
            return self._bad_message(b"MPUB message too big %d > %d" % (size, self._max_msg_size))
        return self._bad_body(b"MPUB body too big %d > %d" % (4 + end, self._max_body_size))

    def _bad_body(self, text: bytes) -> FatalError:
        return FatalError(error.BAD_BODY, text, topic=self._topic)

    def _bad_message(self, text: bytes) -> FatalError:
        return FatalError(error.BAD_MESSAGE, text, topic=self._topic)
