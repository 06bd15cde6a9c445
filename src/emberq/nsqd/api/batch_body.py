"""The body of /mpub, as the batch that a topic takes.

    text      messages between line feeds; the last needs none, empty lines are no messages, a carriage return is part
              of its message
    binary    int32 count, then for each message int32 size and body: an MPUB's body without its leading size

A batch is what `Topic.publish` wants: messages back to back, each an int32 size and a body, and where each of them
ends, as a `range` when all have one size.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate

from emberq.http.message import HttpError
from emberq.wire import error
from emberq.wire.error import FatalError
from emberq.wire.mpub import MpubBody

_INT32 = struct.Struct(">i")

Batch = tuple[bytes, Sequence[int]]


def batch_of_lines(body: bytes, *, max_msg_size: int) -> Batch:
    """The messages of a text body, of which there may be none."""
    messages = list(filter(None, body.split(b"\n")))
    if not messages:
        return b"", ()
    sizes = list(map(len, messages))
    largest = max(sizes)
    if largest > max_msg_size:
        raise HttpError(413, "MSG_TOO_BIG")
    if largest == min(sizes):
        return _uniform_batch(messages, largest)
    pieces = [b""] * (2 * len(messages))
    pieces[0::2] = map(_INT32.pack, sizes)
    pieces[1::2] = messages
    return b"".join(pieces), array("I", accumulate([_INT32.size + size for size in sizes]))


def _uniform_batch(messages: Sequence[bytes], size: int) -> Batch:
    head = _INT32.pack(size)
    blob = head + head.join(messages)
    stride = len(head) + size
    return blob, range(stride, len(blob) + 1, stride)


def batch_of_records(body: bytes, *, topic: str, max_msg_size: int, max_body_size: int) -> Batch:
    """The messages of a binary body."""
    mpub = MpubBody(topic, max_msg_size=max_msg_size, max_body_size=max_body_size)
    try:
        command, _ = mpub.begin(_INT32.pack(len(body)) + body, 0)
    except FatalError as wrong:
        raise _refusal(wrong) from wrong
    if command is None:
        raise _refusal(mpub.eof_error())
    return command.blob, command.ends


def _refusal(wrong: FatalError) -> HttpError:
    return HttpError(413, "BAD_BODY" if wrong.data.startswith(error.BAD_BODY) else "BAD_MESSAGE")
