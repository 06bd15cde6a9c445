"""Streams of bytes for property tests: what clients send, what broken clients send, and ways to cut it in pieces.

The limits are small, so that streams of a few hundred bytes reach all of them. A run is made of lines from a table:
one choice for each line keeps the search quick and its counterexamples short.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from emberq.wire.line import CommandLimits
from tests.support.examples import examples as examples
from tests.wire.reference_decoder import transcribe

LIMITS = CommandLimits(max_msg_size=40, max_body_size=200, max_req_timeout_ms=5000, max_rdy_count=50)
MAX_MPUB_COUNT = 39


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def sized(body: bytes) -> bytes:
    """A body with its size before it."""
    return int32(len(body)) + body


def pick(usual: Sequence[bytes], *unusual: bytes) -> SearchStrategy[bytes]:
    """One of the usual, or seldom one of the unusual."""
    repeats = 1 + 7 * len(unusual) // len(usual)
    return st.sampled_from([*usual] * repeats + [*unusual])


# Parts of commands.

NAMES = [b"t", b"topic", b"a.b-c_D9", b"t#ephemeral", b"x" * 64]
WRONG_NAMES = [b"", b"a$", b"#ephemeral", b"x" * 65, b"t\r", b"\xff\xc3\xa9", b't"\\\x01', b"t\xc2\x85"]
IDS = [b"0123456789abcdef", b"0d6e4079e36703c0", b"ffffffffffffffff", b"\x00\xff234567FIN\t1234"]
ODD_IDS = [
    b"",
    b"0123456789abcde",
    b"0123456789abcdeff",
    b"0123456 89abcdef",
    b" 123456789abcdef",
    b"0123456789abcde ",
    b"0123456\r89abcdef",
    b"\r123456789abcdef",
    b"0123456789abcde\r",
    b"0123456\n89abcdef",
    b"\n123456789abcdef",
    b"0123456789abcde\n",
    b"0123456789a\nFIN ",
]
NUMBERS = [b"0", b"1", b"007", b"50", b""]
WRONG_NUMBERS = [b"-1", b"+1", b"x", b"51", b"5001", b"18446744073709551615", b"9" * 40, b"\xd9\xa3"]
WRONG_SIZES = [0, -1, -(2**31), 2**31 - 1, LIMITS.max_msg_size + 1, LIMITS.max_body_size + 1]
LINE_ENDS = pick([b"\n"], b"\r\n", b" extra\n", b" \n", b" \r\r\n")

_TRICKY_TEXT = b"PUB t\n\x00\x00\x00\x01FIN 0123456789abcdef\nNOP\n" * 2


def _body(choice: int) -> bytes:
    start, size = divmod(choice, LIMITS.max_msg_size)
    return _TRICKY_TEXT[start : start + size + 1]


bodies = st.integers(0, 8 * LIMITS.max_msg_size - 1).map(_body)
messages = bodies.map(sized)
wrong_messages = st.one_of(
    st.sampled_from(WRONG_SIZES).map(int32), bodies.map(lambda body: int32(len(body) + 1) + body)
)


def _command(*parts: SearchStrategy[bytes], body: SearchStrategy[bytes] | None = None) -> SearchStrategy[bytes]:
    line = st.tuples(st.tuples(*parts).map(b" ".join), LINE_ENDS)
    return (line if body is None else st.tuples(line.map(b"".join), body)).map(b"".join)


def _run(one: SearchStrategy[bytes], max_size: int = 8) -> SearchStrategy[bytes]:
    return st.lists(one, min_size=1, max_size=max_size).map(b"".join)


def _lines(verb: bytes, params: Sequence[bytes]) -> list[bytes]:
    return [verb + b" " + param + b"\n" for param in params]


# MPUB, whose counts may all lie.


def mpub(topic: bytes, sizes: Sequence[int], *, count: int, declared: int) -> bytes:
    """An MPUB whose messages have these sizes; for a size that no message can have, little or nothing follows."""
    messages = [int32(size) + bytes([97 + index % 26]) * _sent(size) for index, size in enumerate(sizes)]
    return b"MPUB " + topic + b"\n" + int32(declared) + int32(count) + b"".join(messages)


def _sent(size: int) -> int:
    return size if 0 < size < 1000 else 0


def body_size(sizes: Sequence[int]) -> int:
    """What an honest client declares."""
    return 4 + sum(4 + _sent(size) for size in sizes)


def honest_mpub(topic: bytes, sizes: Sequence[int]) -> bytes:
    return mpub(topic, sizes, count=len(sizes), declared=body_size(sizes))


uniform_sizes = st.integers(0, 10 * 10 - 1).map(lambda shape: [1 + shape // 10] * (1 + shape % 10))
mixed_sizes = st.lists(st.integers(1, 12), min_size=1, max_size=10)
all_sizes = st.one_of(uniform_sizes, mixed_sizes)
good_mpubs = st.builds(honest_mpub, st.sampled_from(NAMES), all_sizes)


@st.composite
def lying_mpubs(draw: st.DrawFn) -> bytes:
    """An MPUB with wrong sizes, a wrong count or a wrong body size."""
    sizes = list(draw(all_sizes))
    if draw(st.booleans()):
        sizes[draw(st.integers(0, len(sizes) - 1))] = draw(st.sampled_from(WRONG_SIZES))
    right_count = len(sizes)
    count = draw(
        st.sampled_from([*[right_count] * 6, 0, -1, 1, right_count + 1, MAX_MPUB_COUNT, MAX_MPUB_COUNT + 1, 2**31 - 1])
    )
    right_size = body_size(sizes)
    declared = draw(st.sampled_from([*[right_size] * 4, 4, 200, *WRONG_SIZES]))
    return mpub(b"t", sizes, count=count, declared=declared)


# Commands, in runs, and streams of them.

_ANSWERS = [*_lines(b"FIN", IDS), *[b"REQ %b %b\n" % (IDS[0], number) for number in (b"0", b"", b"50")], b"RDY 5\n"]

good_commands = st.one_of(
    _run(st.sampled_from(_lines(b"FIN", IDS))),
    _run(st.sampled_from(_lines(b"FIN", IDS)), max_size=40),
    _run(st.sampled_from(_ANSWERS), max_size=20),
    _run(_command(st.sampled_from([b"PUB t", b"PUB t", b"PUB u"]), body=messages)),
    good_mpubs,
    _command(st.sampled_from(_lines(b"DPUB", NAMES)).map(bytes.strip), st.sampled_from(NUMBERS), body=messages),
    _run(
        _command(
            st.sampled_from(
                [b"NOP", b"RDY 1", b"RDY 50", b"RDY ", b"TOUCH " + IDS[0], b"REQ %b 7" % IDS[1], b"FIN " + IDS[2]]
            )
        )
    ),
)
"""What a subscribed client may send."""

broken_commands = st.one_of(
    _run(pick(_lines(b"FIN", IDS), *_lines(b"FIN", ODD_IDS)), max_size=40),
    _run(pick(_ANSWERS, *[b"REQ %b 1\n" % odd_id for odd_id in ODD_IDS], b"RDY 51\n", b"RDY 1 1\n"), max_size=20),
    _run(_command(pick([b"PUB t", b"PUB u"], b"PUB", *[b"PUB " + name for name in WRONG_NAMES]), body=messages)),
    _run(_command(st.just(b"PUB t"), body=st.one_of(messages, messages, messages, wrong_messages))),
    _run(st.one_of(lying_mpubs(), good_mpubs)),
    lying_mpubs(),
    _command(st.just(b"MPUB"), pick(NAMES, *WRONG_NAMES)),
    _command(st.just(b"DPUB"), pick(NAMES, *WRONG_NAMES), pick(NUMBERS, *WRONG_NUMBERS), body=wrong_messages),
    _command(st.just(b"REQ"), pick(IDS, *ODD_IDS), pick(NUMBERS, *WRONG_NUMBERS)),
    _command(st.just(b"TOUCH"), st.sampled_from(ODD_IDS)),
    _command(st.just(b"RDY"), st.sampled_from(WRONG_NUMBERS)),
    _command(st.just(b"SUB"), pick(NAMES, *WRONG_NAMES), pick(NAMES, *WRONG_NAMES)),
    _command(st.sampled_from([b"IDENTIFY", b"AUTH"]), body=st.one_of(messages, wrong_messages)),
    _command(st.sampled_from([b"FIN", b"REQ", b"TOUCH", b"MPUB", b"DPUB t", b"SUB t", b"CLS", b"CLS", b"nop", b""])),
    st.sampled_from([b"\n", b"\r\n", b" NOP\n", b"\xff\x00\n"]),
)
"""What nobody should send, or not now."""

any_commands = st.one_of(good_commands, good_commands, broken_commands)
openings = pick([b"  V2SUB t c\n"], b"  V2", b"  V2IDENTIFY\n" + sized(b"{}") + b"AUTH\n" + sized(b"secret"))

subscribed_streams = st.lists(good_commands, max_size=5).map(lambda parts: b"  V2SUB t c\n" + b"".join(parts))
any_streams = st.tuples(openings, st.lists(any_commands, max_size=5).map(b"".join)).map(b"".join)

_DAMAGES: list[Callable[[bytes, int, bytes], bytes]] = [
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
    damage = draw(st.sampled_from(_DAMAGES))
    return damage(stream, draw(st.integers(0, len(stream))), draw(st.binary(min_size=1, max_size=4)))


def in_packets(stream: bytes, packet_bytes: int) -> list[bytes]:
    """A stream in packets of one size."""
    return [stream[start : start + packet_bytes] for start in range(0, len(stream), packet_bytes)]


@st.composite
def in_pieces(draw: st.DrawFn, streams: SearchStrategy[bytes]) -> list[bytes]:
    """A stream in single bytes, where nothing can hide; a command at a time, as many clients send; or cut anywhere."""
    stream = draw(streams)
    way = draw(st.sampled_from(["bytes", "commands", "anywhere"]))
    if way == "bytes":
        cuts = list(range(1, len(stream)))
    elif way == "commands":
        cuts = [position for position, _ in transcribe(stream, LIMITS).events]
    else:
        cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return [stream[start:end] for start, end in pairwise([0, *cuts, len(stream)])]
