"""Streams of bytes for property tests: what clients send, what broken clients send, and ways to cut it in pieces.

The limits are small, so that streams of a few hundred bytes reach all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from emberq.wire.decoder import Limits
from tests.wire.reference_decoder import transcribe

LIMITS = Limits(max_msg_size=40, max_body_size=200, max_req_timeout_ms=5000, max_rdy_count=50)

WRONG_SIZES = [0, -1, -(2**31), 2**31 - 1, LIMITS.max_msg_size + 1, LIMITS.max_body_size + 1]
SEPARATORS = b" \r\n"


def examples(count: int) -> settings:
    """How a property is tested: so many examples, the same ones every time."""
    return settings(max_examples=count, derandomize=True, deadline=None, database=None)


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def sized(body: bytes) -> bytes:
    """A body with its size before it."""
    return int32(len(body)) + body


def mostly(usual: SearchStrategy[bytes], unusual: SearchStrategy[bytes]) -> SearchStrategy[bytes]:
    """The unusual one time in sixteen."""
    return st.integers(0, 15).flatmap(lambda chance: unusual if chance == 15 else usual)


# Parts of commands.

names = st.sampled_from([b"t", b"topic", b"a.b-c_D9", b"t#ephemeral", b"x" * 64])
wrong_names = st.sampled_from(
    [b"", b"a$", b"#ephemeral", b"x" * 65, b"t\r", b"\xff\xc3\xa9", b't"\\\x01', b"t\xc2\x85"]
)
ids = st.binary(min_size=8, max_size=8).map(lambda raw: raw.hex().encode())
odd_ids = st.one_of(
    ids.map(lambda message_id: message_id[:-1]),
    ids.map(lambda message_id: message_id + b"f"),
    st.just(b""),
    st.tuples(ids, st.integers(0, 15), st.sampled_from(SEPARATORS)).map(
        lambda parts: parts[0][: parts[1]] + bytes([parts[2]]) + parts[0][parts[1] + 1 :]
    ),
)
line_ends = mostly(st.just(b"\n"), st.sampled_from([b"\r\n", b" extra\n", b" \n", b" \r\r\n"]))
numbers = st.integers(0, 50).map(lambda number: b"%d" % number)
wrong_numbers = st.sampled_from(
    [b"", b"-1", b"+1", b"x", b"51", b"5001", b"18446744073709551615", b"9" * 40, b"\xd9\xa3"]
)
bodies = st.one_of(st.integers(1, 6), st.integers(1, LIMITS.max_msg_size)).flatmap(
    lambda size: st.binary(min_size=size, max_size=size)
)
wrong_messages = st.one_of(
    st.sampled_from(WRONG_SIZES).map(int32), bodies.map(lambda body: int32(len(body) + 1) + body)
)


def _line(*parts: SearchStrategy[bytes]) -> SearchStrategy[bytes]:
    return st.tuples(st.tuples(*parts).map(b" ".join), line_ends).map(b"".join)


def _command(
    verb: bytes, *params: SearchStrategy[bytes], body: SearchStrategy[bytes] | None = None
) -> SearchStrategy[bytes]:
    line = _line(st.just(verb), *params)
    return line if body is None else st.tuples(line, body).map(b"".join)


def _run(one: SearchStrategy[bytes], *, longest: int) -> SearchStrategy[bytes]:
    return st.lists(one, min_size=1, max_size=longest).map(b"".join)


# MPUB, whose counts may all lie.


def mpub(topic: bytes, sizes: Sequence[int], *, count: int, declared: int) -> bytes:
    """An MPUB whose messages have these sizes, wrong ones included; of those only the size is there."""
    messages = b"".join(
        int32(size) + bytes([97 + index % 26]) * max(0, min(size, 99)) for index, size in enumerate(sizes)
    )
    return b"MPUB " + topic + b"\n" + int32(declared) + int32(count) + messages


def honest_mpub(topic: bytes, sizes: Sequence[int]) -> bytes:
    return mpub(topic, sizes, count=len(sizes), declared=4 + sum(4 + size for size in sizes))


uniform_sizes = st.tuples(st.integers(1, 12), st.integers(1, 12)).map(lambda shape: [shape[0]] * shape[1])
mixed_sizes = st.lists(st.integers(1, 12), min_size=1, max_size=12)
good_mpubs = st.builds(honest_mpub, names, st.one_of(uniform_sizes, mixed_sizes))


@st.composite
def lying_mpubs(draw: st.DrawFn) -> bytes:
    """An MPUB with wrong sizes, a wrong count or a wrong body size."""
    sizes = list(draw(st.one_of(uniform_sizes, mixed_sizes)))
    if draw(st.booleans()):
        sizes[draw(st.integers(0, len(sizes) - 1))] = draw(st.sampled_from(WRONG_SIZES))
    count = draw(st.one_of(st.just(len(sizes)), st.sampled_from([0, -1, 1, len(sizes) + 1, 39, 40, 2**31 - 1])))
    honest = 4 + sum(4 + max(0, min(size, 99)) for size in sizes)
    declared = draw(st.one_of(st.just(honest), st.sampled_from([4, honest + 7, 200, *WRONG_SIZES])))
    return mpub(draw(names), sizes, count=count, declared=declared)


# Commands, in runs, and streams of them.

good_commands = st.one_of(
    _run(_command(b"FIN", ids), longest=20),
    _run(_command(b"PUB", st.sampled_from([b"t", b"u"]), body=bodies.map(sized)), longest=8),
    good_mpubs,
    _run(good_mpubs, longest=3),
    _command(b"DPUB", names, numbers, body=bodies.map(sized)),
    _command(b"REQ", ids, st.one_of(numbers, st.just(b"18446744073709551615"))),
    _command(b"TOUCH", ids),
    _run(_command(b"RDY", numbers), longest=2),
    _command(b"NOP"),
)
"""What a subscribed client may send."""

any_commands = st.one_of(
    good_commands,
    good_commands,
    good_commands,
    _run(_command(b"FIN", mostly(ids, odd_ids)), longest=20),
    _run(
        _command(
            b"PUB", mostly(st.sampled_from([b"t", b"u"]), wrong_names), body=mostly(bodies.map(sized), wrong_messages)
        ),
        longest=8,
    ),
    lying_mpubs(),
    _command(b"MPUB", wrong_names),
    _command(
        b"DPUB",
        mostly(names, wrong_names),
        st.one_of(numbers, wrong_numbers),
        body=st.one_of(bodies.map(sized), wrong_messages),
    ),
    _command(b"REQ", st.one_of(ids, odd_ids), st.one_of(numbers, wrong_numbers)),
    _command(b"TOUCH", st.one_of(ids, odd_ids)),
    _command(b"RDY", wrong_numbers),
    _command(b"SUB", st.one_of(names, wrong_names), st.one_of(names, wrong_names)),
    _command(b"IDENTIFY", body=st.one_of(st.just(sized(b"{}")), wrong_messages)),
    _command(b"AUTH", body=st.one_of(bodies.map(sized), wrong_messages)),
    st.sampled_from(
        [b"FIN", b"REQ", b"TOUCH", b"PUB", b"MPUB", b"DPUB", b"SUB", b"RDY", b"CLS", b"IDENTIFY", b"nop"]
    ).map(lambda verb: verb + b"\n"),
    st.sampled_from([b"CLS\n", b"\n", b"\r\n", b" NOP\n", b"\xff\x00\n"]),
)
"""What anybody may send."""

openings = st.sampled_from(
    [b"  V2", b"  V2SUB t c\n", b"  V2SUB t c\n", b"  V2IDENTIFY\n" + sized(b"{}") + b"SUB t c#ephemeral\nRDY 1\n"]
)

subscribed_streams = st.lists(good_commands, max_size=8).map(lambda parts: b"  V2SUB t c\n" + b"".join(parts))
any_streams = st.tuples(openings, st.lists(any_commands, max_size=8).map(b"".join)).map(b"".join)

Damage = Callable[[bytes, int, bytes], bytes]
_DAMAGES: list[Damage] = [
    lambda stream, position, _: stream[:position],
    lambda stream, position, noise: stream[:position] + noise + stream[position:],
    lambda stream, position, noise: stream[:position] + stream[position + len(noise) :],
    lambda stream, position, noise: stream[:position] + noise + stream[position + len(noise) :],
]
"""Cut off, bytes put in, bytes lost, bytes replaced."""


@st.composite
def damaged_streams(draw: st.DrawFn) -> bytes:
    """A stream that broke in one place."""
    stream = draw(any_streams)
    return draw(st.sampled_from(_DAMAGES))(
        stream, draw(st.integers(0, len(stream))), draw(st.binary(min_size=1, max_size=4))
    )


@st.composite
def in_pieces(draw: st.DrawFn, streams: SearchStrategy[bytes]) -> list[bytes]:
    """A stream in single bytes, where nothing can hide; or a command at a time, as many clients send; or cut anywhere."""
    stream = draw(streams)
    way = draw(st.sampled_from(["bytes", "commands", "anywhere"]))
    if way == "bytes":
        cuts = list(range(1, len(stream)))
    elif way == "commands":
        cuts = [position for position, _ in transcribe(stream, LIMITS).events]
    else:
        cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return [stream[start:end] for start, end in pairwise([0, *cuts, len(stream)])]
