"""What a hostile nsqd may send, as strategies, and a wire in memory on which a client hears it.

The streams are made of frames that an nsqd has and of frames that none has, some of them damaged, plain or compressed.
They are cut anywhere: what is right in one packet must be right in several.
"""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from emberq.client.stream import Stream
from emberq.wire import frame
from emberq.wire.compression import DeflateCodec, SnappyCodec
from emberq.wire.frame import FRAME_HEADER, WireMessage
from tests.support.scripted_peer import ANSWER, message_frame


class Wire(asyncio.Transport):
    """Carries bytes to a stream as an event loop would, and keeps what the stream sends."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._is_closing = False
        self.is_paused = False
        self.written = bytearray()
        stream.connection_made(self)

    async def carry(self, pieces: list[bytes]) -> None:
        """Bring the pieces, each when the stream reads; then the end."""
        for piece in pieces:
            while self.is_paused and not self._is_closing:
                await asyncio.sleep(0)
            if self._is_closing:
                break
            self._stream.data_received(piece)
            await asyncio.sleep(0)
        self.abort()
        await asyncio.sleep(0)

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._stream.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It takes all that is written."""


# Frames

ids = st.sampled_from([b"0123456789abcdef", b"\xff\n\x1b[2J" + bytes(10), bytes(16)])
messages = st.builds(
    lambda message_id, attempts, body: message_frame(WireMessage(1, attempts, message_id, body)),
    ids,
    st.integers(0, 65535),
    st.binary(max_size=60),
)
answers = st.sampled_from([b"OK", b"CLOSE_WAIT", b"_heartbeat_", b"", b"{}", b"\xff\x00", b"x" * 300]).map(
    frame.response
)
errors = st.sampled_from(
    [
        b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight",
        b"E_TOUCH_FAILED",
        b"E_INVALID \x1b[2J\n",
        b"E_UNAUTHORIZED",
        b"",
        b"\xff\xfe",
    ]
).map(frame.error)
odd_frames = st.builds(
    lambda size, kind, data: FRAME_HEADER.pack(size, kind) + data,
    st.sampled_from([-(2**31), -1, 0, 3, 4, 29, 30, 40, 2**18 + 1, 2**31 - 1]),
    st.sampled_from([0, 1, 2, 3, -1, 2**31 - 1]),
    st.binary(max_size=60),
)
heartbeats = st.integers(1, 50).map(lambda count: frame.HEARTBEAT * count)
floods = st.integers(1, 200).map(lambda count: message_frame(WireMessage(1, 1, b"0123456789abcdef", b"x")) * count)

frames = st.lists(
    st.one_of(messages, messages, answers, errors, heartbeats, floods, odd_frames, st.binary(max_size=20)), max_size=12
).map(b"".join)


# Answers to IDENTIFY

values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=10),
        st.sampled_from([0, -1, 10**400, "\n\x1b", "x" * 5000, 2**63]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
"""Anything that JSON can say."""

_KEYS = [
    "max_rdy_count",
    "msg_timeout",
    "tls_v1",
    "snappy",
    "deflate",
    "deflate_level",
    "auth_required",
    "version",
    "emberq_idempotent",
]

identify_answers = st.one_of(
    st.dictionaries(st.sampled_from(_KEYS), values, max_size=4).map(lambda odd: _encoded(ANSWER | odd)),
    st.dictionaries(st.sampled_from(_KEYS[2:5]), st.booleans(), max_size=3).map(lambda said: _encoded(ANSWER | said)),
    values.map(lambda value: _encoded(value)),
    st.sampled_from([b"OK", b"{", b'{"a":' + b"[" * 50_000, b'{"version":' + b"9" * 5000 + b"}", b"{\xff}"]),
)


def _encoded(document: Any) -> bytes:
    try:
        return json.dumps(document).encode()
    except ValueError:  # an integer with too many digits to be written; it is written by hand below
        return b'{"msg_timeout":' + b"9" * 5000 + b"}"


handshakes = st.builds(
    lambda answer, first, rest, kind: frame.response(answer) + first + compressed(rest, kind),
    identify_answers,
    st.sampled_from([b"", frame.OK, frame.HEARTBEAT, b"\x16\x03\x01"]),
    frames,
    st.sampled_from(["plain", "snappy", "deflate"]),
)


def compressed(data: bytes, kind: str) -> bytes:
    """The data behind an OK, as an nsqd sends it after it has agreed on compression."""
    if kind == "snappy":
        return SnappyCodec().compress(frame.OK + data)
    if kind == "deflate":
        return DeflateCodec(6).compress(frame.OK + data)
    return data


def in_pieces(streams: SearchStrategy[bytes]) -> SearchStrategy[list[bytes]]:
    """A stream, cut at some places."""
    return st.builds(_cut, streams, st.lists(st.integers(0, 4000), max_size=6))


def _cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = [0, *sorted(place for place in places if place < len(data)), len(data)]
    return [data[start:end] for start, end in pairwise(ends) if start < end]
