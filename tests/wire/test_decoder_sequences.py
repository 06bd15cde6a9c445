"""PUB and MPUB with a number, for clients that have negotiated it; all others are read as ever."""

from __future__ import annotations

import pytest

from emberq.wire import command
from emberq.wire.command import Command, NumberedPublish, Publish
from emberq.wire.decoder import CommandDecoder
from emberq.wire.error import FatalError
from emberq.wire.line import CommandLimits
from tests.wire.playback import commands_in
from tests.wire.streams import sized

MPUB_OF_TWO = command.mpub("t", [b"a", b"bb"], sequence=8)
NUMBERED_PUB = NumberedPublish(b"PUB", "t", sized(b"hi"), (6,), 7)
PLAIN_PUB = Publish(b"PUB", "t", sized(b"hi"), (6,), 1)


@pytest.fixture
def decoder() -> CommandDecoder:
    """One that has agreed on numbers."""
    decoder = CommandDecoder(CommandLimits(max_msg_size=100, max_body_size=1000))
    decoder.feed(b"  V2")
    assert decoder.next_command() is None
    decoder.take_sequences(True)
    return decoder


def decode(decoder: CommandDecoder, stream: bytes) -> list[Command]:
    decoder.feed(stream)
    return list(commands_in(decoder))


def refusal_of(decoder: CommandDecoder, stream: bytes) -> bytes:
    with pytest.raises(FatalError) as refusal:
        decode(decoder, stream)
    return refusal.value.data


def test_a_number_is_taken_where_it_was_agreed_on(decoder: CommandDecoder) -> None:
    assert decode(decoder, b"PUB t 7\n" + sized(b"hi")) == [NUMBERED_PUB]
    assert decode(decoder, b"PUB t 7 junk\r\n" + sized(b"hi")) == [NUMBERED_PUB]


def test_a_number_is_ignored_where_it_was_not(decoder: CommandDecoder) -> None:
    decoder.take_sequences(False)
    assert decode(decoder, b"PUB t 7\n" + sized(b"hi")) == [PLAIN_PUB]
    assert decode(decoder, b"PUB t x\n" + sized(b"hi")) == [PLAIN_PUB]
    assert [type(found) for found in decode(decoder, MPUB_OF_TWO)] == [Publish]


def test_publishes_without_a_number_are_as_ever(decoder: CommandDecoder) -> None:
    assert decode(decoder, command.pub("t", b"hi")) == [PLAIN_PUB]
    assert decoder.repeated(command.pub("t", b"hi")) == sized(b"hi")


def test_numbered_publishes_are_not_joined(decoder: CommandDecoder) -> None:
    stream = b"".join(command.pub("t", b"hi", sequence=number) for number in (7, 7, 8))
    found = decode(decoder, stream)
    assert [command.sequence for command in found if isinstance(command, NumberedPublish)] == [7, 7, 8]


def test_an_mpub_keeps_its_number_however_it_arrives(decoder: CommandDecoder) -> None:
    expected = NumberedPublish(b"MPUB", "t", sized(b"a") + sized(b"bb"), [5, 11], 8)
    for cut in range(1, len(MPUB_OF_TWO)):
        found = decode(decoder, MPUB_OF_TWO[:cut]) + decode(decoder, MPUB_OF_TWO[cut:])
        assert len(found) == 1
        assert isinstance(found[0], NumberedPublish)
        assert (found[0].blob, list(found[0].ends), found[0].sequence) == (expected.blob, expected.ends, 8)


def test_the_next_mpub_has_a_number_of_its_own(decoder: CommandDecoder) -> None:
    decode(decoder, MPUB_OF_TWO[:20])
    found = decode(decoder, MPUB_OF_TWO[20:] + command.mpub("t", [b"x"]) + command.mpub("t", [b"y"], sequence=9))
    assert [getattr(each, "sequence", None) for each in found] == [8, None, 9]
    (plain,) = decode(decoder, command.mpub("t", [b"x"])[:12]) + decode(decoder, command.mpub("t", [b"x"])[12:])
    assert isinstance(plain, Publish)


def test_a_line_is_read_anew_once_numbers_are_agreed_on(decoder: CommandDecoder) -> None:
    decoder.take_sequences(False)
    decode(decoder, b"PUB t 7\n" + sized(b"hi"))
    decode(decoder, MPUB_OF_TWO)
    decoder.take_sequences(True)
    assert decoder.repeated(b"PUB t 7\n" + sized(b"hi")) is None
    assert decode(decoder, b"PUB t 7\n" + sized(b"hi")) == [NUMBERED_PUB]
    assert isinstance(decode(decoder, MPUB_OF_TWO)[0], NumberedPublish)


@pytest.mark.parametrize("wrong", [b"x", b"-1", b"", b"9223372036854775808", b"99999999999999999999"])
@pytest.mark.parametrize("verb", [b"PUB", b"MPUB"])
def test_a_wrong_number_is_refused_before_its_body_has_come(decoder: CommandDecoder, verb: bytes, wrong: bytes) -> None:
    line = b"%b t %b\n" % (verb, wrong)
    assert refusal_of(decoder, line) == b"E_INVALID %b could not parse sequence %b" % (verb, wrong)


def test_a_numbered_message_has_the_same_limits(decoder: CommandDecoder) -> None:
    assert refusal_of(decoder, b"PUB t 7\n" + sized(b"x" * 101)) == b"E_BAD_MESSAGE PUB message too big 101 > 100"


def test_an_unfinished_numbered_message_is_waited_for(decoder: CommandDecoder) -> None:
    assert decode(decoder, b"PUB t 7\n\0\0\0\x02h") == []
    with pytest.raises(FatalError) as refusal:
        decoder.eof()
    assert refusal.value.data == b"E_BAD_MESSAGE PUB failed to read message body"
