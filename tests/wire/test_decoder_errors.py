"""Every error text that a stream can earn, to the byte, and when: with the byte that shows it, not later."""

from __future__ import annotations

import pytest

from emberq.wire.decoder import CommandDecoder
from emberq.wire.error import FatalError
from emberq.wire.line import CommandLimits
from tests.wire.playback import play
from tests.wire.reference_decoder import AT_EOF, End
from tests.wire.streams import int32, sized

ID = b"0123456789abcdef"
DEFAULT = CommandLimits()
SMALL = CommandLimits(max_msg_size=100, max_body_size=1000, max_req_timeout_ms=60_000, max_rdy_count=50)
SUBSCRIBE = b"SUB t c\n"
CLOSE = b"SUB t c\nCLS\n"


def mpub(*, declared: int, count: int) -> bytes:
    return b"MPUB t\n" + int32(declared) + int32(count)


LINES = [
    (b"\n", b"E_INVALID invalid command "),  # row 4
    (b"\r\n", b"E_INVALID invalid command "),  # row 5
    (b"ASDF\n", b"E_INVALID invalid command ASDF"),  # row 6
    (b"nop\n", b"E_INVALID invalid command nop"),  # row 7
    (b"\xff\x00\n", b"E_INVALID invalid command \xff\x00"),  # row 10
    (b"ASDF with parameters\n", b"E_INVALID invalid command ASDF"),
    (b" NOP\n", b"E_INVALID invalid command "),
    (b"NOP\r\r\n", b"E_INVALID invalid command NOP\r"),
    (b"NOP\t\n", b"E_INVALID invalid command NOP\t"),
    (b"NOP\0\n", b"E_INVALID invalid command NOP\0"),
    (SUBSCRIBE + b"FIND %b\n" % ID, b"E_INVALID invalid command FIND"),
    # IDENTIFY
    (SUBSCRIBE + b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY in current state"),  # row 46
    (CLOSE + b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY in current state"),
    # AUTH
    (SUBSCRIBE + b"AUTH\n", b"E_INVALID cannot AUTH in current state"),
    (SUBSCRIBE + b"AUTH x\n", b"E_INVALID cannot AUTH in current state"),
    (b"AUTH x\n", b"E_INVALID AUTH invalid number of parameters"),
    (b"AUTH \n", b"E_INVALID AUTH invalid number of parameters"),
    # SUB
    (SUBSCRIBE + b"SUB t c\n", b"E_INVALID cannot SUB in current state"),  # row 75
    (SUBSCRIBE + b"SUB\n", b"E_INVALID cannot SUB in current state"),
    (CLOSE + b"SUB t c\n", b"E_INVALID cannot SUB in current state"),
    (b"SUB t\n", b"E_INVALID SUB insufficient number of parameters"),  # row 72
    (b"SUB\n", b"E_INVALID SUB insufficient number of parameters"),
    (b"SUB a$\n", b"E_INVALID SUB insufficient number of parameters"),
    (b"SUB a$ c\n", b'E_BAD_TOPIC SUB topic name "a$" is not valid'),  # row 73
    (b"SUB t a$\n", b'E_BAD_CHANNEL SUB channel name "a$" is not valid'),  # row 73
    (b"SUB t  c\n", b'E_BAD_CHANNEL SUB channel name "" is not valid'),  # row 74
    (b"SUB a$ b$\n", b'E_BAD_TOPIC SUB topic name "a$" is not valid'),
    (b"SUB t test:ephemeral\n", b'E_BAD_CHANNEL SUB channel name "test:ephemeral" is not valid'),  # row 14
    (b"SUB #ephemeral c\n", b'E_BAD_TOPIC SUB topic name "#ephemeral" is not valid'),  # row 16
    (b"SUB %b c\n" % (b"x" * 65), b'E_BAD_TOPIC SUB topic name "%b" is not valid' % (b"x" * 65)),  # row 15
    # RDY
    (b"RDY 1\n", b"E_INVALID cannot RDY in current state"),  # row 76
    (SUBSCRIBE + b"RDY -1\n", b"E_INVALID RDY could not parse count -1"),  # row 78
    (SUBSCRIBE + b"RDY x\n", b"E_INVALID RDY could not parse count x"),  # row 78
    (SUBSCRIBE + b"RDY +1\n", b"E_INVALID RDY could not parse count +1"),
    (SUBSCRIBE + b"RDY 0x1\n", b"E_INVALID RDY could not parse count 0x1"),
    (SUBSCRIBE + b"RDY \xff\n", b"E_INVALID RDY could not parse count \xff"),
    (SUBSCRIBE + b"RDY 2501\n", b"E_INVALID RDY count 2501 out of range 0-2500"),
    (SUBSCRIBE + b"RDY 18446744073709551615\n", b"E_INVALID RDY count -1 out of range 0-2500"),  # row 79
    # FIN, REQ, TOUCH
    (b"FIN %b\n" % ID, b"E_INVALID cannot FIN in current state"),  # row 95
    (b"REQ %b 0\n" % ID, b"E_INVALID cannot REQ in current state"),  # row 95
    (b"TOUCH %b\n" % ID, b"E_INVALID cannot TOUCH in current state"),  # row 95
    (SUBSCRIBE + b"FIN\n", b"E_INVALID FIN insufficient number of params"),
    (SUBSCRIBE + b"FIN \n", b"E_INVALID invalid message ID"),  # row 91
    (SUBSCRIBE + b"FIN %b\n" % ID[:15], b"E_INVALID invalid message ID"),  # row 92
    (SUBSCRIBE + b"FIN %bf\n" % ID, b"E_INVALID invalid message ID"),  # row 92
    (SUBSCRIBE + b"FIN  %b\n" % ID, b"E_INVALID invalid message ID"),
    (SUBSCRIBE + b"FIN %b\r\n" % ID[:15], b"E_INVALID invalid message ID"),
    (SUBSCRIBE + b"REQ\n", b"E_INVALID REQ insufficient number of params"),
    (SUBSCRIBE + b"REQ %b\n" % ID, b"E_INVALID REQ insufficient number of params"),  # row 99
    (SUBSCRIBE + b"REQ %b x\n" % ID[:15], b"E_INVALID invalid message ID"),
    (SUBSCRIBE + b"REQ %b -1\n" % ID, b"E_INVALID REQ could not parse timeout -1"),  # row 97
    (SUBSCRIBE + b"REQ %b 1.5\n" % ID, b"E_INVALID REQ could not parse timeout 1.5"),
    (SUBSCRIBE + b"TOUCH\n", b"E_INVALID TOUCH insufficient number of params"),
    (SUBSCRIBE + b"TOUCH %bf\n" % ID, b"E_INVALID invalid message ID"),
    # CLS
    (b"CLS\n", b"E_INVALID cannot CLS in current state"),  # row 90
    (CLOSE + b"CLS\n", b"E_INVALID cannot CLS in current state"),  # row 89
    # PUB, MPUB, DPUB
    (b"PUB\n", b"E_INVALID PUB insufficient number of parameters"),  # row 50
    (b"PUB a$\n", b'E_BAD_TOPIC PUB topic name "a$" is not valid'),  # row 51
    (b"PUB \n", b'E_BAD_TOPIC PUB topic name "" is not valid'),
    (b'PUB b\x01\xff\xc3\xa9"\\\n', 'E_BAD_TOPIC PUB topic name "b\\x01\\xffé\\"\\\\" is not valid'.encode()),
    (b"MPUB\n", b"E_INVALID MPUB insufficient number of parameters"),
    (b"MPUB a$\n", b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a$" is not valid'),  # row 60
    (b"DPUB\n", b"E_INVALID DPUB insufficient number of parameters"),
    (b"DPUB t\n", b"E_INVALID DPUB insufficient number of parameters"),  # row 67
    (b"DPUB a$ x\n", b'E_BAD_TOPIC DPUB topic name "a$" is not valid'),
    (b"DPUB t x\n", b"E_INVALID DPUB could not parse timeout x"),  # row 66
    (b"DPUB t -1\n", b"E_INVALID DPUB could not parse timeout -1"),
    (b"DPUB t 3600100\n", b"E_INVALID DPUB timeout 3600100 out of range 0-3600000"),  # row 65
]
"""Refused by their line alone: no body was read."""

SIZES = [
    (b"IDENTIFY\n" + int32(0), b"E_BAD_BODY IDENTIFY invalid body size 0"),  # row 21
    (b"IDENTIFY\n" + int32(-1), b"E_BAD_BODY IDENTIFY invalid body size -1"),  # row 21
    (b"IDENTIFY\n" + int32(6_000_000), b"E_BAD_BODY IDENTIFY body too big 6000000 > 5242880"),  # row 22
    (b"IDENTIFY\n" + int32(-(2**31)), b"E_BAD_BODY IDENTIFY invalid body size -2147483648"),
    (b"AUTH\n" + int32(0), b"E_BAD_BODY AUTH invalid body size 0"),
    (b"AUTH\n" + int32(-7), b"E_BAD_BODY AUTH invalid body size -7"),
    (b"AUTH\n" + int32(5_242_881), b"E_BAD_BODY AUTH body too big 5242881 > 5242880"),
    (b"PUB t\n" + int32(0), b"E_BAD_MESSAGE PUB invalid message body size 0"),  # row 49
    (b"PUB t\n" + int32(-5), b"E_BAD_MESSAGE PUB invalid message body size -5"),  # row 49
    (b"PUB t\n" + int32(1_048_577), b"E_BAD_MESSAGE PUB message too big 1048577 > 1048576"),
    (b"PUB t\n" + sized(b"a") + b"PUB t\n" + int32(0), b"E_BAD_MESSAGE PUB invalid message body size 0"),
    (b"PUB t\n" + sized(b"a") + b"PUB t\n" + int32(-1), b"E_BAD_MESSAGE PUB invalid message body size -1"),
    (b"DPUB t 0\n" + int32(0), b"E_BAD_MESSAGE DPUB invalid message body size 0"),
    (b"DPUB t 0\n" + int32(-1), b"E_BAD_MESSAGE DPUB invalid message body size -1"),
    (b"DPUB t 0\n" + int32(2**31 - 1), b"E_BAD_MESSAGE DPUB message too big 2147483647 > 1048576"),
]
"""Refused by a size: nothing behind it was read."""

SMALL_LIMITS = [
    (b"PUB t\n" + int32(105), b"E_BAD_MESSAGE PUB message too big 105 > 100"),  # row 48
    (SUBSCRIBE + b"RDY 51\n", b"E_INVALID RDY count 51 out of range 0-50"),  # row 77
    (b"DPUB t 60001\n", b"E_INVALID DPUB timeout 60001 out of range 0-60000"),
    (b"IDENTIFY\n" + int32(1001), b"E_BAD_BODY IDENTIFY body too big 1001 > 1000"),
]

MPUBS = [
    (b"MPUB t\n" + int32(0), b"E_BAD_BODY MPUB invalid body size 0"),  # row 59
    (b"MPUB t\n" + int32(-9), b"E_BAD_BODY MPUB invalid body size -9"),
    (b"MPUB t\n" + int32(1148), b"E_BAD_BODY MPUB body too big 1148 > 1000"),  # row 55
    (mpub(declared=100, count=0), b"E_BAD_BODY MPUB invalid message count 0"),  # row 58
    (mpub(declared=100, count=-1), b"E_BAD_BODY MPUB invalid message count -1"),  # row 58
    (mpub(declared=100, count=200), b"E_BAD_BODY MPUB invalid message count 200"),  # row 58
    (
        mpub(declared=524, count=6) + sized(b"x" * 100) * 5 + int32(0),
        b"E_BAD_MESSAGE MPUB invalid message(5) body size 0",
    ),  # row 56
    (mpub(declared=100, count=2) + int32(-3), b"E_BAD_MESSAGE MPUB invalid message(0) body size -3"),
    (mpub(declared=529, count=5) + int32(101), b"E_BAD_MESSAGE MPUB message too big 101 > 100"),  # row 57
    (mpub(declared=4, count=10) + sized(b"x" * 100) * 9 + int32(100), b"E_BAD_BODY MPUB body too big 1044 > 1000"),
    (mpub(declared=4, count=10) + sized(b"x" * 99) * 9 + int32(66), b"E_BAD_BODY MPUB body too big 1001 > 1000"),
]
"""Refused when their topic exists already."""

CUT_OFF = [
    (b"IDENTIFY\n", b"E_BAD_BODY IDENTIFY failed to read body size"),
    (b"IDENTIFY\n\0\0\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
    (b"IDENTIFY\n" + int32(2), b"E_BAD_BODY IDENTIFY failed to read body"),
    (b"IDENTIFY\n" + int32(2) + b"{", b"E_BAD_BODY IDENTIFY failed to read body"),
    (b"AUTH\n", b"E_BAD_BODY AUTH failed to read body size"),
    (b"AUTH\n" + int32(2) + b"s", b"E_BAD_BODY AUTH failed to read body"),
    (b"PUB t\n", b"E_BAD_MESSAGE PUB failed to read message body size"),
    (b"PUB t\n\0\0\0", b"E_BAD_MESSAGE PUB failed to read message body size"),
    (b"PUB t\n" + int32(1), b"E_BAD_MESSAGE PUB failed to read message body"),
    (b"PUB t\n" + int32(10) + b"abc", b"E_BAD_MESSAGE PUB failed to read message body"),  # row 52
    (b"PUB t\n" + sized(b"a") + b"PUB t\n\0", b"E_BAD_MESSAGE PUB failed to read message body size"),
    (b"PUB t\n" + sized(b"a") + b"PUB t\n" + int32(2) + b"a", b"E_BAD_MESSAGE PUB failed to read message body"),
    (b"DPUB t 5\n", b"E_BAD_MESSAGE DPUB failed to read message body size"),
    (b"DPUB t 5\n" + int32(2) + b"a", b"E_BAD_MESSAGE DPUB failed to read message body"),
]

MPUBS_CUT_OFF = [
    (b"MPUB t\n", b"E_BAD_BODY MPUB failed to read body size"),
    (b"MPUB t\n\0\0\0", b"E_BAD_BODY MPUB failed to read body size"),
    (b"MPUB t\n" + int32(14), b"E_BAD_BODY MPUB failed to read message count"),
    (b"MPUB t\n" + int32(14) + b"\0\0\0", b"E_BAD_BODY MPUB failed to read message count"),
    (mpub(declared=14, count=2), b"E_BAD_MESSAGE MPUB failed to read message(0) body size"),
    (mpub(declared=14, count=2) + int32(1), b"E_BAD_MESSAGE MPUB failed to read message body"),
    (mpub(declared=14, count=2) + sized(b"a"), b"E_BAD_MESSAGE MPUB failed to read message(1) body size"),
    (mpub(declared=14, count=2) + sized(b"a") + b"\0\0\0", b"E_BAD_MESSAGE MPUB failed to read message(1) body size"),
    (mpub(declared=14, count=2) + sized(b"a") + int32(1), b"E_BAD_MESSAGE MPUB failed to read message body"),
    (
        mpub(declared=99, count=3) + sized(b"a") + sized(b"bb") + b"\0",
        b"E_BAD_MESSAGE MPUB failed to read message(2) body size",
    ),
    (mpub(declared=99, count=2) + sized(b"a") + int32(9) + b"bb", b"E_BAD_MESSAGE MPUB failed to read message body"),
]

CLEAN_ENDS = [
    b"",  # row 3
    b"  V",  # row 3
    b"  V2",
    b"  V2SU",  # row 11
    b"  V2IDENTIFY",
    b"  V2PUB t\n" + sized(b"a"),
    b"  V2PUB t\n" + sized(b"a") + b"PUB t",
    b"  V2" + mpub(declared=9, count=1) + sized(b"a"),
    b"  V2" + mpub(declared=9, count=1) + sized(b"a") + b"NO",
    b"  V2SUB t c\nFIN 01234567",
]


def check_refusal(stream: bytes, end: End, limits: CommandLimits) -> None:
    """The stream is refused at its last byte: in one packet, byte by byte, and with more behind it."""
    single_bytes = [bytes([byte]) for byte in stream]
    assert play([stream], limits).end == end
    assert play(single_bytes, limits).end == end
    assert play([*single_bytes, b"NOP\n"], limits).end == end
    assert play([stream[:-1]], limits).end.position == AT_EOF


@pytest.mark.conformance(1)
@pytest.mark.parametrize("magic", [b"XXXX", b"  V1", b"V2  ", b"NOP\n", b"GET "])
def test_a_client_that_does_not_say_v2_is_refused(magic: bytes) -> None:
    check_refusal(magic, End(b"E_BAD_PROTOCOL", position=4), DEFAULT)


@pytest.mark.conformance(4, 5, 6, 7, 10, 14, 15, 16, 21, 22, 46, 49, 50, 51, 60, 65, 66, 67)
@pytest.mark.conformance(72, 73, 74, 75, 76, 78, 79, 89, 90, 91, 92, 95, 97, 99)
@pytest.mark.parametrize(("sent", "error"), [*LINES, *SIZES])
def test_a_wrong_line_or_size_is_refused_before_anything_behind_it(sent: bytes, error: bytes) -> None:
    check_refusal(b"  V2" + sent, End(error, position=4 + len(sent)), DEFAULT)


@pytest.mark.conformance(48, 77)
@pytest.mark.parametrize(("sent", "error"), SMALL_LIMITS)
def test_the_limits_are_the_servers(sent: bytes, error: bytes) -> None:
    check_refusal(b"  V2" + sent, End(error, position=4 + len(sent)), SMALL)


@pytest.mark.conformance(55, 56, 57, 58, 59, 63)
@pytest.mark.parametrize(("sent", "error"), MPUBS)
def test_a_wrong_mpub_is_refused_and_leaves_its_topic(sent: bytes, error: bytes) -> None:
    check_refusal(b"  V2" + sent, End(error, "t", position=4 + len(sent)), SMALL)


@pytest.mark.conformance(58)
def test_the_most_messages_of_an_mpub_follow_from_the_largest_body() -> None:
    check_refusal(
        b"  V2" + mpub(declared=100, count=1_048_576),
        End(b"E_BAD_BODY MPUB invalid message count 1048576", "t", position=19),
        DEFAULT,
    )
    assert play([b"  V2" + mpub(declared=100, count=1_048_575)], DEFAULT).end.position == AT_EOF


@pytest.mark.conformance(52)
@pytest.mark.parametrize(("sent", "error"), CUT_OFF)
def test_a_stream_that_ends_inside_a_body_is_told_so(sent: bytes, error: bytes) -> None:
    for pieces in ([b"  V2" + sent], [b"  V2", *[bytes([byte]) for byte in sent]]):
        assert play(pieces, DEFAULT).end == End(error)


@pytest.mark.parametrize(("sent", "error"), MPUBS_CUT_OFF)
def test_a_stream_that_ends_inside_an_mpub_is_told_where(sent: bytes, error: bytes) -> None:
    for pieces in ([b"  V2" + sent], [b"  V2", *[bytes([byte]) for byte in sent]]):
        assert play(pieces, DEFAULT).end == End(error, "t")


@pytest.mark.conformance(3, 11)
@pytest.mark.parametrize("stream", CLEAN_ENDS)
def test_a_stream_that_ends_outside_a_body_ends_cleanly(stream: bytes) -> None:
    for pieces in ([stream], [bytes([byte]) for byte in stream]):
        assert play(pieces, DEFAULT).end == End(None)


@pytest.mark.conformance(144, 145)
@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b"SUB t c\n", b"SUB"),
        (b"NOP\n", b"NOP"),
        (b"PUB t\n", b"PUB"),
        (b"FIN %b\n" % ID, b"FIN"),
        (b"AUTH\n", b"AUTH"),
        (b"ASDF x\n", b"ASDF"),
        (b"\n", b""),
    ],
)
def test_where_tls_is_required_only_identify_comes_before_it(line: bytes, name: bytes) -> None:
    decoder = CommandDecoder(DEFAULT)
    decoder.tls_required = True
    decoder.feed(b"  V2IDENTIFY\n" + sized(b"{}") + line)
    assert decoder.next_command() is not None
    with pytest.raises(FatalError) as refusal:
        decoder.next_command()
    assert refusal.value.data == b"E_INVALID cannot %b in current state (TLS required)" % name


@pytest.mark.parametrize(
    ("sent", "line"),
    [
        (b"AUTH s3cret\n", b"AUTH"),
        (b"AUTHs3cret\n", b"AUTH"),
        (b"AUTH\n" + int32(0), b"AUTH"),
        (b"SUB t a$\n", b"SUB t a$"),
        (b"PUB t\n" + int32(0), b"PUB t"),
    ],
)
def test_an_error_names_the_line_that_earned_it_without_a_secret(sent: bytes, line: bytes) -> None:
    decoder = CommandDecoder(DEFAULT)
    decoder.feed(b"  V2" + sent)
    with pytest.raises(FatalError) as wrong:
        decoder.next_command()
    assert wrong.value.line == line
