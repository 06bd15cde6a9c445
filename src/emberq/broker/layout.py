"""The shapes that messages have in memory, each a type of its own: as they arrive, and as they are delivered.

Messages lie back to back in one buffer, and `ends` says where each of them ends. The layouts differ only in what stands
before the body:

    published   int32 size                                                       as it came in a PUB or MPUB
    replayed    nothing                                                          as it lies in a journal
    stored      int32 size, publish time, attempts, id                           as it lies in a disk queue
    framed      int32 size, int32 frame type, publish time, attempts, id         as it goes to a consumer

Messages arrive `Published` (or replayed) or `Recorded`. The first delivery makes `Framed` of that. Some have the layout
of frames from the start: `Gathered`, to which single publishes are added as they come; `Lone`, one message on its own;
and `Large`, one message whose body is too big to be copied.

When all messages have one size, `ends` is a `range`, and a whole buffer gets another layout by a few operations in C:
cut by slices, joined, and what differs from message to message written by columns (a slice whose step is the message's
size). Otherwise a loop does it.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from emberq.base.compiled import mypyc_attr
from emberq.storage.backend import Records
from emberq.wire.command import FIN_LINE_BYTES, FIN_PREFIX
from emberq.wire.frame import (
    ATTEMPTS_OFFSET,
    BODY_OFFSET,
    FRAME_HEADER,
    ID_BYTES,
    ID_OFFSET,
    MAX_ATTEMPTS,
    MESSAGE,
)

PUBLISHED_HEADER: Final = struct.Struct(">i")
PUBLISHED_HEADER_BYTES: Final = 4
STORED_HEADER: Final = struct.Struct(">iqH16s")
STORED_HEADER_BYTES: Final = 4 + BODY_OFFSET
FRAMED_HEADER: Final = struct.Struct(">iiqH16s")
FRAMED_HEADER_BYTES: Final = 8 + BODY_OFFSET

_FRAME_ATTEMPTS: Final = 8 + ATTEMPTS_OFFSET
FRAME_ID_START: Final = 8 + ID_OFFSET
FRAME_ID_STOP: Final = 8 + ID_OFFSET + ID_BYTES
"""Where the id stands in a message frame."""
_STORED_ATTEMPTS: Final = 4 + ATTEMPTS_OFFSET
_STORED_ID: Final = 4 + ID_OFFSET

MAX_BATCH_COUNT = 4096  # the ids of a batch differ in their last three hexadecimal digits alone
_SEQUENCES = tuple(b"%03x" % n for n in range(MAX_BATCH_COUNT))
"""The last three digits of an id, for each sequence number."""
_SEQUENCE_DIGITS = tuple(b"".join(_SEQUENCES)[digit::3] for digit in range(3))
"""The same, digit by digit."""
SIZES = tuple(n.to_bytes(4) for n in range(4096))
"""The size fields of small messages, for each size."""
_FRAME_HEADS = tuple(FRAME_HEADER.pack(size, MESSAGE) for size in range(4096))
"""What their frames begin with."""
_ONCE: Final = b"\0\1"
"""The attempts of a message that is delivered for the first time."""
_VIEWED_BYTES: Final = 8 * 1024
"""A part of a batch from this size on is sent without being copied."""
_ATTEMPTS = struct.Struct(">H")
_MESSAGE_HEAD = struct.Struct(">iqH")
_RECORD_HEAD = struct.Struct(">qH")


class _IdText:
    """Ids as text. Those of one moment share all digits but the last three, so the others are not made again."""

    __slots__ = ("_leading", "_leading_text")

    def __init__(self) -> None:
        self._leading = -1
        self._leading_text = b""

    def of(self, number: int) -> bytes:
        leading = number >> 12
        if leading != self._leading:
            self._leading = leading
            self._leading_text = b"%013x" % leading
        return self._leading_text + _SEQUENCES[number & 0xFFF]


_ids: Final = _IdText()

NO_ID: Final = -1
"""Instead of the first id: the ids are not consecutive."""


# Items back to back in one buffer.


def uniform_range(*, size: int, count: int) -> range:
    """The `ends` of `count` items of `size` bytes."""
    return range(size, size * count + 1, size)


def start_of(ends: Sequence[int], index: int) -> int:
    """Where item `index` starts."""
    return ends[index - 1] if index else 0


def sub_ends(ends: Sequence[int], start: int, stop: int) -> Sequence[int]:
    """The `ends` of items `start` to `stop` alone."""
    if isinstance(ends, range):
        return ends[: stop - start]
    offset = start_of(ends, start)
    return [end - offset for end in ends[start:stop]]


def moved_ends(ends: Sequence[int], start: int, stop: int, added: int) -> Sequence[int]:
    """The `ends` of items `start` to `stop` alone, each of which became longer by `added` bytes."""
    if isinstance(ends, range):
        return uniform_range(size=ends.step + added, count=stop - start)
    offset = start_of(ends, start) - added
    moved: list[int] = []
    for index in range(start, stop):
        moved.append(ends[index] - offset)
        offset -= added
    return moved


def write_column(data: bytearray, ends: Sequence[int], *, offset: int, column: bytes) -> None:
    """Write one byte of `column` into each item, at `offset` from the item's start."""
    if isinstance(ends, range):
        data[offset :: ends.step] = column
        return
    position = 0
    for byte, end in zip(column, ends, strict=True):
        data[position + offset] = byte
        position = end


def read_column(data: bytes, ends: Sequence[int], *, offset: int) -> bytes:
    """One byte of each item, the one at `offset` from the item's start."""
    if isinstance(ends, range):
        return data[offset :: ends.step]
    return bytes([data[start_of(ends, index) + offset] for index in range(len(ends))])


def _write_attempts(data: bytearray, ends: Sequence[int], *, offset: int, attempts: int) -> None:
    high, low = divmod(attempts & MAX_ATTEMPTS, 256)
    write_column(data, ends, offset=offset, column=bytes([high]) * len(ends))
    write_column(data, ends, offset=offset + 1, column=bytes([low]) * len(ends))


def _write_sequence(data: bytearray, ends: Sequence[int], *, offset: int, first_id: int) -> None:
    """Write the last digits of consecutive ids, the first of which stands in every item at `offset`."""
    first = first_id & 0xFFF
    for digit, digits in enumerate(_SEQUENCE_DIGITS):
        column = digits[first : first + len(ends)]
        write_column(data, ends, offset=offset + ID_BYTES - 3 + digit, column=column)


def _replace_heads(data: bytes, ends: Sequence[int], start: int, stop: int, *, cut: int, head: bytes) -> bytearray:
    """Items of one size, `start` to `stop`, each with `head` instead of its first `cut` bytes."""
    size = ends[0]
    first = start * size + cut
    rests = [data[position : position + size - cut] for position in range(first, stop * size, size)]
    joined = bytearray(head)
    joined += head.join(rests)
    return joined


def _consecutive_ids(first_id: int, count: int) -> list[bytes]:
    """So many ids from this one on; they differ in their last three digits alone."""
    leading = b"%013x" % (first_id >> 12)
    first = first_id & 0xFFF
    return [leading + digits for digits in _SEQUENCES[first : first + count]]


def _fin_lines(ids: Sequence[bytes]) -> bytes:
    return b"FIN %b\n" % b"\nFIN ".join(ids) if ids else b""


# Shapes.


@mypyc_attr(acyclic=True)
class Shape:
    """Some messages in a buffer.

    Abstract, but no ABC: at each delivery it is asked whether a shape is one of frames. Where it is not compiled, a
    metaclass would answer that, and take ten times as long.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def ends(self) -> Sequence[int]:
        """Where each message ends."""

    @abstractmethod
    def framed(self) -> Frames:
        """The same messages in the layout of frames; itself, if that is what it has."""

    @abstractmethod
    def records(self, start: int, stop: int, attempts: int) -> Records:
        """Messages `start` to `stop` as a disk queue stores them, each showing `attempts`."""

    @abstractmethod
    def ids(self, start: int, stop: int) -> list[bytes]:
        """The ids of messages `start` to `stop`."""

    @abstractmethod
    def published_ns(self, index: int) -> int:
        """When message `index` was published."""

    @property
    def is_of_one_moment(self) -> bool:
        """Whether all its messages are known to have been published together."""
        return False

    @abstractmethod
    def body_bytes(self, start: int, stop: int) -> int:
        """The size of the bodies of messages `start` to `stop`."""


@mypyc_attr(acyclic=True, free_list_len=1)
class Published(Shape):
    """Messages as they came from a publisher, or from a journal. Their ids are consecutive, their time is one."""

    __slots__ = ("_cut", "_data", "_ends", "_first_id", "_timestamp_ns")

    def __init__(
        self, data: bytes, ends: Sequence[int], first_id: int, timestamp_ns: int, cut: int = PUBLISHED_HEADER_BYTES
    ) -> None:
        """`cut` is how many bytes stand before each body: the int32 size, or nothing in a journal."""
        self._data = data
        self._ends = ends
        self._first_id = first_id
        self._timestamp_ns = timestamp_ns
        self._cut = cut

    @property
    def ends(self) -> Sequence[int]:
        return self._ends

    def framed(self) -> Frames:
        data, ends, cut = self._data, self._ends, self._cut
        first_id, count = self._first_id, len(ends)
        if count == 1:
            return Lone(lone_frame(data, first_id, self._timestamp_ns, cut))
        added = FRAMED_HEADER_BYTES - cut
        if isinstance(ends, range):
            size = ends.step
            head = FRAMED_HEADER.pack(size + added - 4, MESSAGE, self._timestamp_ns, 1, b"%016x" % first_id)
            framed = _replace_heads(data, ends, 0, count, cut=cut, head=head)
            new_ends = uniform_range(size=size + added, count=count)
            _write_sequence(framed, new_ends, offset=FRAME_ID_START, first_id=first_id)
            return Framed(bytes(framed), ends, added, first_id, self._timestamp_ns)
        parts = self._with_heads(0, count, _MESSAGE_HEAD.pack(MESSAGE, self._timestamp_ns, 1), added)
        return Framed(b"".join(parts), ends, added, first_id, self._timestamp_ns)

    def records(self, start: int, stop: int, attempts: int) -> Records:
        data, ends, cut = self._data, self._ends, self._cut
        first_id, attempts = self._first_id + start, attempts & MAX_ATTEMPTS
        added = STORED_HEADER_BYTES - cut
        if isinstance(ends, range):
            size = ends.step
            head = STORED_HEADER.pack(size + added - 4, self._timestamp_ns, attempts, b"%016x" % first_id)
            stored = _replace_heads(data, ends, start, stop, cut=cut, head=head)
            new_ends = uniform_range(size=size + added, count=stop - start)
            if stop - start > 1:
                _write_sequence(stored, new_ends, offset=_STORED_ID, first_id=first_id)
            return Records(bytes(stored), new_ends)
        parts = self._with_heads(start, stop, _RECORD_HEAD.pack(self._timestamp_ns, attempts), added)
        return Records(b"".join(parts), moved_ends(ends, start, stop, added))

    def _with_heads(self, start: int, stop: int, head: bytes, added: int) -> list[bytes]:
        """Messages `start` to `stop` with a size, `head` and the id before each body, in pieces."""
        data, ends, cut, sizes, sequences = self._data, self._ends, self._cut, SIZES, _SEQUENCES
        first_id = self._first_id + start
        head += b"%013x" % (first_id >> 12)
        sequence = first_id & 0xFFF
        position = ends[start - 1] if start else 0
        parts = [head] * (4 * (stop - start))  # where the others stand is overwritten: cheaper than to append all
        place = 0
        for end in ends[start:stop]:
            size = end - position + added - 4
            parts[place] = sizes[size] if size < 4096 else PUBLISHED_HEADER.pack(size)
            parts[place + 2] = sequences[sequence]
            parts[place + 3] = data[position + cut : end]
            sequence += 1
            position = end
            place += 4
        return parts

    def ids(self, start: int, stop: int) -> list[bytes]:
        return _consecutive_ids(self._first_id + start, stop - start)

    def published_ns(self, index: int) -> int:  # noqa: ARG002 - all were published together
        return self._timestamp_ns

    @property
    def is_of_one_moment(self) -> bool:
        return True

    def body_bytes(self, start: int, stop: int) -> int:
        return start_of(self._ends, stop) - start_of(self._ends, start) - self._cut * (stop - start)


def lone_frame(data: bytes, first_id: int, timestamp_ns: int, cut: int = PUBLISHED_HEADER_BYTES) -> bytes:
    """The frame of one published message, shown as tried once."""
    size = len(data) - cut + FRAMED_HEADER_BYTES - 4
    return FRAMED_HEADER.pack(size, MESSAGE, timestamp_ns, 1, _ids.of(first_id)) + data[cut:]


@mypyc_attr(acyclic=True)
class Recorded(Shape):
    """Messages as they came from a disk queue, each with a header of its own."""

    __slots__ = ("_data", "_ends")

    def __init__(self, data: bytes, ends: Sequence[int]) -> None:
        self._data = data
        self._ends = ends

    @property
    def ends(self) -> Sequence[int]:
        return self._ends

    def framed(self) -> Frames:
        ends = self._ends
        if not isinstance(ends, range):
            return Framed(b"".join(self._with_heads()), ends, 4, NO_ID, 0)
        head = FRAME_HEADER.pack(ends.step, MESSAGE)
        framed = _replace_heads(self._data, ends, 0, len(ends), cut=4, head=head)
        _write_attempts(framed, moved_ends(ends, 0, len(ends), 4), offset=_FRAME_ATTEMPTS, attempts=1)
        return Framed(bytes(framed), ends, 4, NO_ID, 0)

    def _with_heads(self) -> list[bytes]:
        """The frames of all messages, shown as tried once, in pieces."""
        data, ends, heads = self._data, self._ends, _FRAME_HEADS
        parts = [_ONCE] * (4 * len(ends))  # as in `Published`
        place = position = 0
        for end in ends:
            size = end - position
            attempts = position + _STORED_ATTEMPTS
            parts[place] = heads[size] if size < 4096 else FRAME_HEADER.pack(size, MESSAGE)
            parts[place + 1] = data[position + 4 : attempts]
            parts[place + 3] = data[attempts + 2 : end]
            position = end
            place += 4
        return parts

    def records(self, start: int, stop: int, attempts: int) -> Records:
        data = bytearray(self._data[start_of(self._ends, start) : self._ends[stop - 1]])
        ends = sub_ends(self._ends, start, stop)
        _write_attempts(data, ends, offset=_STORED_ATTEMPTS, attempts=attempts)
        return Records(bytes(data), ends)

    def ids(self, start: int, stop: int) -> list[bytes]:
        data, ends = self._data, self._ends
        starts = [start_of(ends, index) + _STORED_ID for index in range(start, stop)]
        return [data[position : position + ID_BYTES] for position in starts]

    def published_ns(self, index: int) -> int:
        position = start_of(self._ends, index) + 4
        return int.from_bytes(self._data[position : position + ATTEMPTS_OFFSET], signed=True)

    def body_bytes(self, start: int, stop: int) -> int:
        header_bytes = STORED_HEADER_BYTES * (stop - start)
        return start_of(self._ends, stop) - start_of(self._ends, start) - header_bytes

    def shared_attempts(self) -> int:
        """How often every message had been tried when it was stored; -1 if they differ."""
        data, ends, place = self._data, self._ends, _STORED_ATTEMPTS
        high, low = data[place], data[place + 1]
        if isinstance(ends, range):
            columns = data[place :: ends.step], data[place + 1 :: ends.step]
            is_shared = columns == (bytes([high]) * len(ends), bytes([low]) * len(ends))
            return high << 8 | low if is_shared else -1
        for end in ends:
            if data[place] != high or data[place + 1] != low:
                return -1
            place = end + _STORED_ATTEMPTS
        return high << 8 | low

    def attempts(self) -> Sequence[int]:
        """How often each message had been tried when it was stored."""
        high = read_column(self._data, self._ends, offset=_STORED_ATTEMPTS)
        low = read_column(self._data, self._ends, offset=_STORED_ATTEMPTS + 1)
        return [most << 8 | least for most, least in zip(high, low, strict=True)]


@mypyc_attr(acyclic=True)
class Frames(Shape):
    """Messages as they go to consumers, shown as tried once."""

    __slots__ = ()

    def framed(self) -> Frames:
        return self

    @abstractmethod
    def frames(self, start: int, stop: int, attempts: int) -> bytes:
        """The message frames of messages `start` to `stop`, each showing `attempts`."""

    @abstractmethod
    def frame_ends(self, start: int, stop: int) -> Sequence[int]:
        """Where each frame of messages `start` to `stop` ends in `frames`."""

    @abstractmethod
    def first_id(self) -> int:
        """The first id, if the ids are consecutive and end in a sequence number; else NO_ID."""

    def add_frames(self, pieces: list[bytes | memoryview], start: int, stop: int, attempts: int) -> int:
        """Append what `frames` gives to `pieces`, without copying what is large; returns how many bytes that is."""
        frames = self.frames(start, stop, attempts)
        pieces.append(frames)
        return len(frames)

    def fin_lines(self, start: int, stop: int) -> bytes:
        """`FIN <id>` of messages `start` to `stop`, one line after the other."""
        return _fin_lines(self.ids(start, stop))

    def records(self, start: int, stop: int, attempts: int) -> Records:
        frames, ends = self.frames(start, stop, attempts), self.frame_ends(start, stop)
        pack = PUBLISHED_HEADER.pack
        if isinstance(ends, range):
            data = _replace_heads(frames, ends, 0, len(ends), cut=FRAME_HEADER.size, head=pack(ends.step - 8))
            return Records(bytes(data), moved_ends(ends, 0, len(ends), -4))
        parts: list[bytes] = []
        position = 0
        for end in ends:
            parts.append(pack(end - position - 8))
            parts.append(frames[position + 8 : end])
            position = end
        return Records(b"".join(parts), moved_ends(ends, 0, len(ends), -4))


@mypyc_attr(acyclic=True, free_list_len=1)
class Framed(Frames):
    """Messages that were published, or came from the disk, together."""

    __slots__ = ("_added", "_data", "_ends", "_fin_lines", "_first_id", "_timestamp_ns")

    def __init__(self, data: bytes, ends: Sequence[int], added: int, first_id: int, timestamp_ns: int) -> None:
        """`ends` is where messages ended when they arrived; since then each became longer by `added` bytes.

        `timestamp_ns` is when all were published, if their ids are consecutive.
        """
        self._data = data
        self._ends = ends
        self._added = added
        self._first_id = first_id
        self._timestamp_ns = timestamp_ns
        self._fin_lines = b""
        """Of all messages: built once for all channels."""

    @property
    def ends(self) -> Sequence[int]:
        return self._ends

    def first_id(self) -> int:
        return self._first_id

    def frame_ends(self, start: int, stop: int) -> Sequence[int]:
        return moved_ends(self._ends, start, stop, self._added)

    def _start(self, index: int) -> int:
        return self._ends[index - 1] + self._added * index if index else 0

    def frames(self, start: int, stop: int, attempts: int) -> bytes:
        is_all = stop - start == len(self._ends)  # a slice of all would be a copy
        frames = self._data if is_all else self._data[self._start(start) : self._start(stop)]
        if attempts == 1:
            return frames
        patched = bytearray(frames)
        _write_attempts(patched, self.frame_ends(start, stop), offset=_FRAME_ATTEMPTS, attempts=attempts)
        return bytes(patched)

    def add_frames(self, pieces: list[bytes | memoryview], start: int, stop: int, attempts: int) -> int:
        count = stop - start
        if attempts == 1 and 1 < count < len(self._ends):
            begin, end = self._start(start), self._start(stop)
            if end - begin >= _VIEWED_BYTES:
                pieces.append(memoryview(self._data)[begin:end])
                return end - begin
        return super().add_frames(pieces, start, stop, attempts)

    def body_bytes(self, start: int, stop: int) -> int:
        return self._start(stop) - self._start(start) - FRAMED_HEADER_BYTES * (stop - start)

    def fin_lines(self, start: int, stop: int) -> bytes:
        if not self._fin_lines:
            self._fin_lines = self._all_fin_lines()
        return self._fin_lines[start * FIN_LINE_BYTES : stop * FIN_LINE_BYTES]

    def _all_fin_lines(self) -> bytes:
        count = len(self._ends)
        if self._first_id == NO_ID:
            return _fin_lines(self.ids(0, count))
        lines = bytearray(b"FIN %016x\n" % self._first_id) * count
        ends = uniform_range(size=FIN_LINE_BYTES, count=count)
        _write_sequence(lines, ends, offset=len(FIN_PREFIX), first_id=self._first_id)
        return bytes(lines)

    def ids(self, start: int, stop: int) -> list[bytes]:
        if self._first_id != NO_ID:
            return _consecutive_ids(self._first_id + start, stop - start)
        data, ends, added = self._data, self._ends, self._added
        if isinstance(ends, range):
            size = ends.step + added
            first = start * size + FRAME_ID_START
            return [data[position : position + ID_BYTES] for position in range(first, stop * size, size)]
        ids: list[bytes] = []
        position = self._start(start)
        for index in range(start, stop):
            ids.append(data[position + FRAME_ID_START : position + FRAME_ID_STOP])
            position = ends[index] + added * (index + 1)
        return ids

    def published_ns(self, index: int) -> int:
        return _time_in(self._data, self._start(index)) if self._first_id == NO_ID else self._timestamp_ns

    @property
    def is_of_one_moment(self) -> bool:
        return self._first_id != NO_ID


@mypyc_attr(acyclic=True)
class Gathered(Frames):
    """Single publishes that wait together: each is added as it comes, and channels share them. Its ids only rise."""

    __slots__ = ("_ends", "_frames", "size")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._ends = array("I")
        self.size = 0
        """How many bytes it holds."""

    @property
    def ends(self) -> Sequence[int]:
        return self._ends

    def add(self, frame: bytes) -> None:
        """Append a message."""
        self._frames.append(frame)
        self.size += len(frame)
        self._ends.append(self.size)

    def first_id(self) -> int:
        return NO_ID

    def frame_ends(self, start: int, stop: int) -> Sequence[int]:
        return sub_ends(self._ends, start, stop)

    def frames(self, start: int, stop: int, attempts: int) -> bytes:
        frames = self._frames[start] if stop - start == 1 else b"".join(self._frames[start:stop])
        if attempts == 1:
            return frames
        patched = bytearray(frames)
        _write_attempts(patched, self.frame_ends(start, stop), offset=_FRAME_ATTEMPTS, attempts=attempts)
        return bytes(patched)

    def ids(self, start: int, stop: int) -> list[bytes]:
        return [frame[FRAME_ID_START:FRAME_ID_STOP] for frame in self._frames[start:stop]]

    def index_of(self, message_id: bytes) -> int:
        """Which message has this id, if one has."""
        return bisect_left(self._frames, message_id, key=_id_in)

    def published_ns(self, index: int) -> int:
        return _time_in(self._frames[index], 0)

    def body_bytes(self, start: int, stop: int) -> int:
        return start_of(self._ends, stop) - start_of(self._ends, start) - FRAMED_HEADER_BYTES * (stop - start)


@mypyc_attr(acyclic=True, free_list_len=1)
class Lone(Frames):
    """One message on its own: it was published alone, or has left the others because of its own fate."""

    __slots__ = ("_frame",)

    def __init__(self, frame: bytes) -> None:
        self._frame = frame

    @property
    def ends(self) -> Sequence[int]:
        return (len(self._frame),)

    def first_id(self) -> int:
        return NO_ID

    def frame_ends(self, start: int, stop: int) -> Sequence[int]:  # noqa: ARG002 - there is only one
        return self.ends

    def body_bytes(self, start: int, stop: int) -> int:
        return (len(self._frame) - FRAMED_HEADER_BYTES) * (stop - start)

    def frames(self, start: int, stop: int, attempts: int) -> bytes:  # noqa: ARG002 - as above
        frame = self._frame
        if attempts == 1:
            return frame
        return b"".join(
            (frame[:_FRAME_ATTEMPTS], _ATTEMPTS.pack(attempts & MAX_ATTEMPTS), frame[_FRAME_ATTEMPTS + 2 :])
        )

    def records(self, start: int, stop: int, attempts: int) -> Records:
        frame = self.frames(start, stop, attempts)
        record = PUBLISHED_HEADER.pack(len(frame) - 8) + frame[8:]
        return Records(record, uniform_range(size=len(record), count=1))

    def ids(self, start: int, stop: int) -> list[bytes]:  # noqa: ARG002 - as above
        return [self._frame[FRAME_ID_START:FRAME_ID_STOP]]

    def published_ns(self, index: int) -> int:  # noqa: ARG002 - as above
        return _time_in(self._frame, 0)


@mypyc_attr(acyclic=True)
class Large(Frames):
    """One message whose body is so big that it is sent from where it arrived."""

    __slots__ = ("_blob", "_cut", "_first_id", "_timestamp_ns")

    def __init__(self, blob: bytes, first_id: int, timestamp_ns: int, cut: int = PUBLISHED_HEADER_BYTES) -> None:
        """The body stands in `blob` behind `cut` bytes."""
        self._blob = blob
        self._first_id = first_id
        self._timestamp_ns = timestamp_ns
        self._cut = cut

    @property
    def ends(self) -> Sequence[int]:
        return (len(self._blob) - self._cut + FRAMED_HEADER_BYTES,)

    def first_id(self) -> int:
        return NO_ID

    def frame_ends(self, start: int, stop: int) -> Sequence[int]:  # noqa: ARG002 - there is only one
        return self.ends

    def body_bytes(self, start: int, stop: int) -> int:
        return (len(self._blob) - self._cut) * (stop - start)

    def _header(self, attempts: int) -> bytes:
        size = len(self._blob) - self._cut + FRAMED_HEADER_BYTES - 4
        attempts &= MAX_ATTEMPTS
        return FRAMED_HEADER.pack(size, MESSAGE, self._timestamp_ns, attempts, b"%016x" % self._first_id)

    def frames(self, start: int, stop: int, attempts: int) -> bytes:  # noqa: ARG002 - as above
        return b"".join((self._header(attempts), memoryview(self._blob)[self._cut :]))

    def add_frames(self, pieces: list[bytes | memoryview], start: int, stop: int, attempts: int) -> int:  # noqa: ARG002
        header = self._header(attempts)
        pieces.append(header)
        pieces.append(memoryview(self._blob)[self._cut :])
        return len(header) + len(self._blob) - self._cut

    def records(self, start: int, stop: int, attempts: int) -> Records:  # noqa: ARG002 - as above
        header = self._header(attempts)
        size = PUBLISHED_HEADER.pack(len(self._blob) - self._cut + BODY_OFFSET)
        record = b"".join((size, header[8:], memoryview(self._blob)[self._cut :]))
        return Records(record, uniform_range(size=len(record), count=1))

    def ids(self, start: int, stop: int) -> list[bytes]:  # noqa: ARG002 - as above
        return [b"%016x" % self._first_id]

    def published_ns(self, index: int) -> int:  # noqa: ARG002 - as above
        return self._timestamp_ns


def _id_in(frame: bytes) -> bytes:
    return frame[FRAME_ID_START:FRAME_ID_STOP]


def _time_in(data: bytes, position: int) -> int:
    """The publish time in the frame at `position`."""
    return int.from_bytes(data[position + 8 : position + 16], signed=True)
