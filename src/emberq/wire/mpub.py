"""The body of an MPUB while it arrives.

    offset  size  field
    0       4     body size, checked for its range alone
    4       4     number of messages
    8       …     each message: int32 size, body

The reference follows the count and the sizes of messages, and ignores whether they add up to the body size. So do we;
but their sum is held to the same limit, because a client must not make a server hold more.

Most bodies hold messages of one size. `uniform_count` recognises these by four strided slices, without any work per
message in Python. From the first message of another size on, a body is walked, size by size.
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


def uniform_count(blob: bytes | bytearray, *, start: int, count: int, size: int) -> int:
    """How many messages in a row from `start`, at most `count`, have this size and are complete."""
    stride = 4 + size
    count = min(count, (len(blob) - start) // stride)
    for column, digit in enumerate(_INT32.pack(size)):
        digits = blob[start + column : start + count * stride : stride]
        count -= len(digits.lstrip(bytes((digit,))))
    return count


class MpubBody:
    """An MPUB's body while it arrives. Owned by the decoder."""

    def __init__(self, topic: str, *, max_msg_size: int, max_body_size: int) -> None:
        self._topic = topic
        self._max_msg_size = max_msg_size
        self._max_body_size = max_body_size
        self._buffer = bytearray()
        """What has arrived, from the body size on."""
        self._uniform = 0
        """How many messages of the first one's size have arrived, before any of another size."""
        self._ends = array("I")
        """Where all messages so far end, counted from the first; empty while they have one size."""
        self._walked = 0
        """Where the last of them ends."""

    def begin(self, buffer: bytes, start: int) -> tuple[Publish | None, int]:
        """The command and where it ends, if all of it lies in `buffer` from `start`; else all from there is taken in.

        FatalError as soon as the bytes show that it is wrong.
        """
        if len(buffer) - start >= _SIZE_AND_COUNT_BYTES:
            command = self._take_uniform(buffer, start)
            if command is not None:
                return command, start + _SIZE_AND_COUNT_BYTES + len(command.blob)
            # Up to the declared size first: then what follows need not be copied.
            declared_end = start + 4 + self._check_body_size(buffer, start)
            self.extend(buffer[start:declared_end])
            command = self.take()
            if command is not None:
                return command, start + _SIZE_AND_COUNT_BYTES + self._walked
            if declared_end >= len(buffer):
                return None, len(buffer)
            start = declared_end
        self.extend(buffer[start:])
        command = self.take()
        return command, len(buffer) if command is None else len(buffer) - len(self.rest())

    def _take_uniform(self, buffer: bytes, start: int) -> Publish | None:
        count = self._check_counts(buffer, start)
        start += _SIZE_AND_COUNT_BYTES
        size = self._first_size(buffer, start)
        if size is None:
            return None
        stride = 4 + size
        end = start + count * stride
        if end > len(buffer) or 4 + end - start > self._max_body_size:
            return None
        if count > 1:
            for byte in range(start, start + 4):
                if buffer[byte:end:stride] != buffer[byte : byte + 1] * count:
                    return None
        return Publish(b"MPUB", self._topic, buffer[start:end], range(stride, end - start + 1, stride), 1)

    def extend_to_declared(self, data: bytes) -> int:
        """Take in more, up to the end that the body size declares; how many bytes that was."""
        buffer = self._buffer
        if len(buffer) < 4:
            buffer += data
            return len(data)
        missing_bytes = max(0, 4 + int.from_bytes(buffer[:4]) - len(buffer))
        buffer += data[:missing_bytes] if missing_bytes < len(data) else data
        return min(missing_bytes, len(data))

    def extend(self, data: bytes) -> None:
        """Take in more of the body."""
        self._buffer += data

    def take(self) -> Publish | None:
        """The command, once its last message has arrived."""
        buffer = self._buffer
        if len(buffer) < 4:
            return None
        self._check_body_size(buffer, 0)
        if len(buffer) < _SIZE_AND_COUNT_BYTES:
            return None
        count = self._check_counts(buffer, 0)
        if not self._ends:
            uniform_ends = self._pass_uniform(count)
            if len(uniform_ends) == count:
                return self._complete(uniform_ends)
            if uniform_ends and not self._size_changes():
                return None
            self._ends.extend(uniform_ends)
        return self._complete(self._ends) if self._walk(count) else None

    def rest(self) -> bytes:
        """What arrived behind the body; valid once `take` has returned the command."""
        return bytes(memoryview(self._buffer)[_SIZE_AND_COUNT_BYTES + self._walked :])

    def eof_error(self) -> FatalError:
        """What an end of the stream means here; valid once `take` has returned None."""
        arrived = len(self._buffer)
        if arrived < 4:
            return self._bad_body(b"MPUB failed to read body size")
        if arrived < _SIZE_AND_COUNT_BYTES:
            return self._bad_body(b"MPUB failed to read message count")
        if arrived - _SIZE_AND_COUNT_BYTES - self._walked < 4:
            index = len(self._ends) or self._uniform
            return self._bad_message(b"MPUB failed to read message(%d) body size" % index)
        return self._bad_message(b"MPUB failed to read message body")

    def _complete(self, ends: Sequence[int]) -> Publish:
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

    def _first_size(self, buffer: bytes | bytearray, start: int) -> int | None:
        """The size of the first message, if it is there and valid."""
        size = int.from_bytes(buffer[start : start + 4])  # a negative one reads as too big
        return size if len(buffer) - start >= 4 and 0 < size <= self._max_msg_size else None

    def _pass_uniform(self, count: int) -> range:
        """Step over the messages that have the first one's size; where they end."""
        size = self._first_size(self._buffer, _SIZE_AND_COUNT_BYTES)
        if size is None:
            return range(0)
        fitting = min(count, (self._max_body_size - 4) // (4 + size))
        start = _SIZE_AND_COUNT_BYTES + self._walked
        self._uniform += uniform_count(self._buffer, start=start, count=fitting - self._uniform, size=size)
        self._walked = self._uniform * (4 + size)
        return range(4 + size, self._walked + 1, 4 + size)

    def _size_changes(self) -> bool:
        """Whether the next message has another size than the first, or goes beyond the limit."""
        first, start = _SIZE_AND_COUNT_BYTES, _SIZE_AND_COUNT_BYTES + self._walked
        next_size = self._buffer[start : start + 4]
        if len(next_size) < 4:
            return False
        end = self._walked + self._walked // self._uniform
        return next_size != self._buffer[first : first + 4] or 4 + end > self._max_body_size

    def _walk(self, count: int) -> bool:
        """Walk from size to size as far as the bytes go; whether the last message was reached."""
        buffer, ends, position = self._buffer, self._ends, self._walked
        available = len(buffer) - _SIZE_AND_COUNT_BYTES
        largest = min(self._max_msg_size, self._max_body_size)
        last_end = self._max_body_size - 4
        unpack_from = _INT32.unpack_from
        while len(ends) < count and available - position >= 4:
            (size,) = unpack_from(buffer, _SIZE_AND_COUNT_BYTES + position)
            end = position + 4 + size
            if not 0 < size <= largest or end > last_end:
                self._walked = position
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
