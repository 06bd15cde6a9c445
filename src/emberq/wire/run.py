"""Short ways for what clients send most: runs of FIN and of PUB, REQ and RDY as every client spells them.

Commands are decoded in runs, so that nothing is paid per message that can be paid per packet. But clients also write
each FIN by itself, and answer with FIN and REQ in turn. So what may be a run is found by the first letters of its
lines, and checked in a few passes over all of it.

Here is no error: what is not plain goes the long way, by `line`, which takes it or tells what is wrong with it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from emberq.wire.body import read_size
from emberq.wire.command import FIN_LINE_BYTES, FIN_PREFIX, Publish, Req

if TYPE_CHECKING:
    from mypy_extensions import i64

_FEW_FINS: Final = 8  # the first check is of so many lines
_WINDOW_GROWTH: Final = 4  # each further one of so many times as many: what only looks like a run costs little
_MANY_FINS: Final = 512  # and of so many at most
_DIGITS_ALIKE: Final = bytes.maketrans(b"0123456789abcdef", b"0" * 16)
_ALIKE_LINE: Final = FIN_PREFIX + b"0" * 16 + b"\n"
_ID_END: Final = 20  # in the lines of FIN and REQ, whose names have one length
_REQ_PREFIX: Final = b"REQ "
_RDY_PREFIX: Final = b"RDY "
_MAX_DIGITS: Final = 18  # so many fit 64 bits
_F: Final = 0x46
_SPACE: Final = 0x20
_LF: Final = 0x0A
_ZERO: Final = 0x30
_NINE: Final = 0x39


# FIN.


def is_fin(line: bytes) -> bool:
    """Whether these 21 bytes are a plain `FIN <id>\\n`. An id of letters and digits holds no separator."""
    return line.startswith(FIN_PREFIX) and line[_ID_END] == _LF and line[4:_ID_END].isalnum()


def take_fins(buffer: bytes, start: int) -> bytes:
    """The plain FIN lines in a row from `start`; none if the first is not plain."""
    end = start + FIN_LINE_BYTES
    if end + FIN_LINE_BYTES > len(buffer) or buffer[end] != _F:  # there is one at most
        first = buffer[start:end]
        return first if len(first) == FIN_LINE_BYTES and is_fin(first) else b""
    end = start
    window = _FEW_FINS
    while True:
        letters = buffer[end : end + window * FIN_LINE_BYTES : FIN_LINE_BYTES]
        count = len(letters) - len(letters.lstrip(b"F"))
        if end + count * FIN_LINE_BYTES > len(buffer):
            count -= 1  # the last has not arrived in whole
        if not count:
            break
        if _are_fins(buffer[end : end + count * FIN_LINE_BYTES], count):
            end += count * FIN_LINE_BYTES
            if count < window or window == _MANY_FINS:
                break
            window *= _WINDOW_GROWTH
        elif is_fin(buffer[end : end + FIN_LINE_BYTES]):  # an id of other letters, or another command behind the run
            end += FIN_LINE_BYTES
            window = _FEW_FINS
        else:
            break
    return buffer if end - start == len(buffer) else buffer[start:end]


def _are_fins(lines: bytes, count: int) -> bool:
    """Whether all these lines are plain. With their digits made alike they are one line, repeated.

    That is a pass over the bytes in C, and no work per line in Python.
    """
    return lines.translate(_DIGITS_ALIKE) == _ALIKE_LINE * count


# REQ and RDY.


def take_req(buffer: bytes, start: int) -> tuple[Req | None, int]:
    """The plain `REQ <id> <number>\\n` at `start`, and where it ends."""
    id_end = start + _ID_END
    if id_end + 3 > len(buffer) or buffer[start : start + 4] != _REQ_PREFIX or buffer[id_end] != _SPACE:
        return None, start
    timeout_ms, end = take_number(buffer, id_end + 1)
    if end < 0:
        return None, start
    message_id = buffer[start + 4 : id_end]
    return (Req(message_id, timeout_ms), end) if message_id.isalnum() else (None, start)


def take_rdy(buffer: bytes, start: int) -> tuple[int, int]:
    """The number in the plain `RDY <number>\\n` at `start`, and where the line ends; -1 if it is not plain."""
    if buffer[start : start + 4] != _RDY_PREFIX:
        return 0, -1
    return take_number(buffer, start + 4)


def take_number(buffer: bytes, start: i64) -> tuple[int, int]:
    """The number whose digits go from `start` to the end of the line, and where the line ends; -1 for all else."""
    position: i64 = start
    last: i64 = min(start + _MAX_DIGITS, len(buffer) - 1)
    number: i64 = 0
    while position <= last:
        letter: i64 = buffer[position]
        if letter == _LF:
            return (number, position + 1) if position > start else (0, -1)
        if letter < _ZERO or letter > _NINE:
            break
        number = number * 10 + letter - _ZERO
        position += 1
    return 0, -1


# PUB.


def message_end(buffer: bytes, start: int, max_msg_size: int) -> int:
    """Where the message ends whose size stands at `start`; -1 unless it is all there, and no larger than allowed."""
    if start + 4 > len(buffer):
        return -1
    size = read_size(buffer, start)
    end = start + 4 + size
    return end if 0 < size <= max_msg_size and end <= len(buffer) else -1


def take_pubs(buffer: bytes, start: int, *, line: bytes, topic: str, max_msg_size: int) -> tuple[Publish | None, int]:
    """All the PUBs in a row from `start` that begin with this line, which the first does; and where they end."""
    message_start = start + len(line)
    end = message_end(buffer, message_start, max_msg_size)
    if end < 0:
        return None, start
    first = buffer[message_start:end]
    if end == len(buffer):
        return Publish(b"PUB", topic, first, (len(first),), 1), end
    messages = [first]
    while True:
        message_start = end + len(line)
        if buffer[end:message_start] != line:
            break
        next_end = message_end(buffer, message_start, max_msg_size)
        if next_end < 0:
            break  # the next call waits for the rest, or raises
        messages.append(buffer[message_start:next_end])
        end = next_end
    return Publish(b"PUB", topic, b"".join(messages), _ends_of(messages), len(messages)), end


def _ends_of(messages: list[bytes]) -> Sequence[int]:
    """Where each message ends once they are joined."""
    size = len(messages[0])
    if len(messages) == 1:
        return (size,)
    if all(len(message) == size for message in messages):
        return range(size, size * len(messages) + 1, size)
    return array("I", accumulate(map(len, messages)))
