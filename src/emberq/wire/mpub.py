"""The body of an MPUB, in one packet or in many.

    offset  size  field
    0       4     body size, checked for its range alone
    4       4     number of messages
    8       …     each message: int32 size, body

The reference follows the count and the sizes of messages, and ignores whether they add up to the body size. So do we;
but their sum is held to the same limit, because a client must not make a server hold more.

A body is checked by one walk from size to size, whether it comes in one packet or in many. Many bodies hold messages of
one size. While they do, four strided slices of a packet show all sizes in it, without any work per message in Python.
From the first message of another size on, the walk goes message by message. Mixed messages that are all in one packet,
as most are, need no body that remembers how far it has come: `mixed_ends`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from emberq.wire import error
from emberq.wire.body import ArrivingBody, read_size, signed, sized_ends
from emberq.wire.command import Command, NumberedPublish, Publish
from emberq.wire.error import FatalError

if TYPE_CHECKING:
    from mypy_extensions import i64

HEAD_BYTES: Final = 8  # body size and count
_MIN_MESSAGE_BYTES: Final = 5


def check_head(buffer: bytes, start: int, *, topic: str, max_body_size: int) -> int:
    """The number of messages that the head at `start` names; -1 if it has not arrived, or FatalError if it is wrong."""
    arrived_bytes = len(buffer) - start
    if arrived_bytes >= 4:
        _check_body_size(signed(read_size(buffer, start)), topic=topic, max_body_size=max_body_size)
    if arrived_bytes < HEAD_BYTES:
        return -1
    return _checked_count(signed(read_size(buffer, start + 4)), topic=topic, max_body_size=max_body_size)


def is_head_of_one(buffer: bytes, start: int, *, max_body_size: int) -> bool:
    """Whether the head at `start` is of one message that goes to the end of `buffer`."""
    if start + HEAD_BYTES + _MIN_MESSAGE_BYTES > len(buffer):
        return False
    size = read_size(buffer, start)
    return size == len(buffer) - start - 4 and size <= max_body_size and read_size(buffer, start + 4) == 1


def mixed_ends(packet: bytes, start: int, count: int, *, max_msg_size: int, max_body_size: int) -> array[int] | None:
    """Where each of `count` messages ends, from `start` on, if all are in this packet and nothing is wrong with them.

    A short way for what comes most; None sends it the long way, by `MpubBody`, which is also the shorter one for
    messages of one size.
    """
    if start + 4 > len(packet) or read_size(packet, start - HEAD_BYTES) > len(packet) - start + 4:
        return None
    size = read_size(packet, start)
    second = start + 4 + size
    if second + 4 > len(packet) or read_size(packet, second) == size:
        return None
    ends = sized_ends(packet, start, shortest=1, longest=max_msg_size, max_count=count, max_bytes=max_body_size - 4)
    return array("I", ends) if len(ends) == count else None


def head_cut_off(arrived_bytes: int, *, topic: str) -> FatalError:
    """What it means that the stream ends after so many bytes of the head."""
    what = b"body size" if arrived_bytes < 4 else b"message count"
    return FatalError(error.BAD_BODY, b"MPUB failed to read %b" % what, topic=topic)


def _check_body_size(size: int, *, topic: str, max_body_size: int) -> None:
    if size <= 0:
        raise FatalError(error.BAD_BODY, b"MPUB invalid body size %d" % size, topic=topic)
    if size > max_body_size:
        raise FatalError(error.BAD_BODY, b"MPUB body too big %d > %d" % (size, max_body_size), topic=topic)


def _checked_count(count: int, *, topic: str, max_body_size: int) -> int:
    if not 0 < count <= (max_body_size - 4) // _MIN_MESSAGE_BYTES:
        raise FatalError(error.BAD_BODY, b"MPUB invalid message count %d" % count, topic=topic)
    return count


def messages_of(body: bytes, *, topic: str, max_msg_size: int, max_body_size: int) -> tuple[bytes, Sequence[int]]:
    """The messages of a body that is all there, from its count on, and where each ends; or FatalError."""
    _check_body_size(len(body), topic=topic, max_body_size=max_body_size)
    if len(body) < 4:
        raise head_cut_off(4, topic=topic)
    count = _checked_count(signed(read_size(body, 0)), topic=topic, max_body_size=max_body_size)
    mpub = MpubBody(topic, count, max_msg_size=max_msg_size, max_body_size=max_body_size)
    end = mpub.end_in(body, 4)
    if end < 0:
        mpub.keep(body, 4, len(body))
        raise mpub.eof_error()
    return body[4:end], mpub.ends()


class MpubBody(ArrivingBody):
    """The messages of an MPUB, behind its head. Positions are counted from the first message on."""

    def __init__(
        self, topic: str, count: int, *, max_msg_size: int, max_body_size: int, sequence: int | None = None
    ) -> None:
        super().__init__()
        self._topic = topic
        self._count = count
        self._max_msg_size = max_msg_size
        self._max_body_size = max_body_size
        self._sequence = sequence
        """Its number, if it has one."""
        self._stride = 0
        """What the first message takes, once its size is there."""
        self._walked = 0
        """How many messages the walk has seen: a message is seen with its size."""
        self._next = 0
        """Where the last of them ends, and the next size begins."""
        self._ends: array[int] | None = None
        """Where each of them ends, once there was another size. An array, for it may wait for the rest of the body."""
        self._cut_size = b""
        """What the last packet held of a size that it cut in two."""

    def end_in(self, packet: bytes, start: int) -> int:
        base = self.arrived_bytes - start  # what to subtract from a position to find it in the packet
        if self._cut_size:
            size = self._cut_size + packet[start : start + 4 - len(self._cut_size)]
            self._walk(size, self._next)
            if len(size) < 4:
                self._cut_size = size
                return -1
            self._cut_size = b""
        self._walk(packet, base)
        end = self._next - base
        if self._walked < self._count:
            self._cut_size = packet[end:] if end < len(packet) else b""
            return -1
        return end if end <= len(packet) else -1

    def ends(self) -> Sequence[int]:
        """Where each message ends; valid once the end of the last is known."""
        if self._ends is not None:
            return self._ends
        return range(self._stride, self._next + 1, self._stride)

    def command(self, body: bytes) -> Command:
        if self._sequence is None:
            return Publish(b"MPUB", self._topic, body, self.ends(), 1)
        return NumberedPublish(b"MPUB", self._topic, body, self.ends(), self._sequence)

    def eof_error(self) -> FatalError:
        if 0 <= self.arrived_bytes - self._next < 4:
            return self._bad_message(b"MPUB failed to read message(%d) body size" % self._walked)
        return self._bad_message(b"MPUB failed to read message body")

    # The walk.

    def _walk(self, packet: bytes, base: int) -> None:
        """See all the messages whose sizes lie in this packet, which begins at position `base`."""
        if self._ends is not None or self._pass_uniform(packet, base):
            self._walk_mixed(packet, base)

    def _pass_uniform(self, packet: bytes, base: int) -> bool:
        """Step over messages of the first one's size; whether another size comes behind them."""
        if not self._stride:
            if self._next - base + 4 > len(packet):
                return False
            first_size = read_size(packet, self._next - base)
            if not 0 < first_size <= self._max_msg_size or first_size > self._max_body_size - 8:
                return True
            self._stride = self._next = 4 + first_size
            self._walked = 1
        stride, start = self._stride, self._next - base
        if self._walked == self._count or start + 4 > len(packet):
            return False
        if read_size(packet, start) != stride - 4:
            return True
        count = min((len(packet) - start - 4) // stride + 1, self._count - self._walked)
        count = min(count, (self._max_body_size - 4 - self._next) // stride)
        if not count:
            return True  # one more of this size goes beyond the limit
        for column in range(start, start + 4):
            digit = packet[column : column + 1]
            digits = packet[column : column + (count - 1) * stride + 1 : stride]
            if digits != digit * count:
                count -= len(digits.lstrip(digit))
        self._walked += count
        self._next += count * stride
        return self._walked < self._count and self._next - base + 4 <= len(packet)

    def _walk_mixed(self, packet: bytes, base: int) -> None:
        """Walk from size to size. The hot loop for messages of mixed sizes; compiled, its integers are native."""
        known = self._ends
        ends: list[int] = []
        if known is None and self._walked:
            ends = [self._stride] if self._walked == 1 else list(self.ends())
        position: i64 = self._next - base
        last: i64 = len(packet) - 4
        left: i64 = self._count - self._walked
        largest: i64 = self._max_msg_size
        limit: i64 = self._max_body_size - 4 - base
        offset: i64 = base
        is_wrong = False
        while left > 0 and position <= last:
            size: i64 = packet[position]
            size = size << 8 | packet[position + 1]
            size = size << 8 | packet[position + 2]
            size = size << 8 | packet[position + 3]
            end: i64 = position + 4 + size
            if size == 0 or size > largest or end > limit:
                is_wrong = True
                break
            ends.append(end + offset)
            position = end
            left -= 1
        if known is None:
            self._ends = array("I", ends)
        else:
            known.extend(ends)
        self._next = position + offset
        self._walked = self._count - left
        if is_wrong:
            raise self._size_error(signed(read_size(packet, position)))

    def _size_error(self, size: int) -> FatalError:
        """What is wrong with the next message, which has this size."""
        if size <= 0:
            return self._bad_message(b"MPUB invalid message(%d) body size %d" % (self._walked, size))
        if size > self._max_msg_size:
            return self._bad_message(b"MPUB message too big %d > %d" % (size, self._max_msg_size))
        text = b"MPUB body too big %d > %d" % (4 + self._next + 4 + size, self._max_body_size)
        return FatalError(error.BAD_BODY, text, topic=self._topic)

    def _bad_message(self, text: bytes) -> FatalError:
        return FatalError(error.BAD_MESSAGE, text, topic=self._topic)
