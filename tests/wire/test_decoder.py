"""What a client sends, as commands: single ones, runs of them, and what changes from one to the next."""

from __future__ import annotations

import sys

import pytest

from emberq.wire.command import Auth, Cls, Command, DeferredPublish, Fin, Identify, Nop, Publish, Rdy, Req, Sub, Touch
from emberq.wire.decoder import MAX_LINE_BYTES, CommandDecoder
from emberq.wire.error import FatalError, SilentClose
from emberq.wire.line import CommandLimits, State
from tests.wire.playback import as_seen_in_pieces, commands_in, flatten, play
from tests.wire.reference_decoder import Event, transcribe
from tests.wire.streams import int32, sized

ID = b"0123456789abcdef"
OTHER_ID = b"0d6e4079e36703c0"


def decoder_after(stream: bytes) -> CommandDecoder:
    """A decoder that has dealt with the stream."""
    decoder = CommandDecoder(CommandLimits())
    decoder.feed(stream)
    list(commands_in(decoder))
    return decoder


def decode(stream: bytes, *, after: bytes = b"  V2") -> list[Command]:
    decoder = decoder_after(after)
    decoder.feed(stream)
    return list(commands_in(decoder))


def events(stream: bytes, *, after: bytes = b"  V2") -> list[Event]:
    return [event for command in decode(stream, after=after) for event in flatten(command)]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"IDENTIFY\n" + sized(b"{}"), Identify(b"{}")),
        (b"IDENTIFY x y\n" + sized(b"{}"), Identify(b"{}")),
        (b"AUTH\n" + sized(b"a secret\n"), Auth(b"a secret\n")),
        (b"SUB topic channel\n", Sub("topic", "channel")),
        (b"SUB t#ephemeral c#ephemeral junk\n", Sub("t#ephemeral", "c#ephemeral")),
        (b"PUB t\n" + sized(b"hi"), Publish(b"PUB", "t", sized(b"hi"), (6,), 1)),
        (b"DPUB t 1500\n" + sized(b"x"), DeferredPublish("t", 1500, sized(b"x"))),
        (b"NOP\n", Nop()),
    ],
)
def test_a_new_connection_may_send(sent: bytes, expected: Command) -> None:
    assert decode(sent) == [expected]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"RDY 2500\n", Rdy(2500)),
        (b"RDY 007 junk\n", Rdy(7)),
        pytest.param(b"RDY\n", Rdy(1), marks=pytest.mark.conformance(80)),
        pytest.param(b"RDY \n", Rdy(0), marks=pytest.mark.conformance(80)),
        (b"RDY\r\n", Rdy(1)),
        (b"FIN %b\n" % ID, Fin(b"FIN %b\n" % ID)),
        (b"FIN %b\r\n" % ID, Fin(b"FIN %b\n" % ID)),
        (b"FIN %b junk\n" % ID, Fin(b"FIN %b\n" % ID)),
        (b"REQ %b 0\n" % ID, Req(ID, 0)),
        (b"REQ %b \n" % ID, Req(ID, 0)),
        (b"REQ %b 7200000 junk\n" % ID, Req(ID, 7_200_000)),
        (b"REQ %b 18446744073709551615\n" % ID, Req(ID, -1)),
        (b"TOUCH %b\n" % ID, Touch(ID)),
        (b"TOUCH %b junk\n" % ID, Touch(ID)),
        (b"CLS\n", Cls()),
        (b"PUB t\n" + sized(b"hi"), Publish(b"PUB", "t", sized(b"hi"), (6,), 1)),
    ],
)
def test_a_subscribed_connection_may_send(sent: bytes, expected: Command) -> None:
    assert decode(sent, after=b"  V2SUB t c\n") == [expected]


@pytest.mark.conformance(8)
def test_extra_parameters_and_a_carriage_return_are_ignored() -> None:
    assert decode(b"NOP foo bar\r\nNOP\n") == [Nop(), Nop()]


@pytest.mark.conformance(53)
def test_a_publish_may_have_extra_parameters() -> None:
    assert events(b"PUB t junk\n" + sized(b"a") + b"MPUB t junk\n" + sized(b"\0\0\0\1" + sized(b"b"))) == [
        (b"PUB", b"t", b"a"),
        (b"MPUB", b"t", b"b"),
    ]


@pytest.mark.conformance(13, 15)
@pytest.mark.parametrize("name", ["test", "test-with_period.", "test#ephemeral", "x" * 64])
def test_valid_names_are_taken_for_topics_and_channels(name: str) -> None:
    raw = name.encode()
    assert decode(b"SUB %b %b\n" % (raw, raw)) == [Sub(name, name)]


@pytest.mark.conformance(2)
def test_a_greeting_alone_is_no_command() -> None:
    decoder = CommandDecoder(CommandLimits())
    decoder.feed(b"  V")
    assert decoder.next_command() is None
    assert not decoder.greeted
    decoder.feed(b"2")
    assert decoder.next_command() is None
    assert decoder.greeted


def test_a_secret_is_not_shown() -> None:
    assert "hush" not in repr(Auth(b"hush"))


# Runs.


def test_fins_in_a_row_are_one_command() -> None:
    [run] = decode(b"FIN %b\nFIN %b\n" % (ID, OTHER_ID) * 100, after=b"  V2SUB t c\n")
    assert isinstance(run, Fin)
    assert run.ids == [ID, OTHER_ID] * 100


def test_a_fin_that_is_cut_off_ends_the_run_and_starts_the_next() -> None:
    decoder = decoder_after(b"  V2SUB t c\n")
    decoder.feed(b"FIN %b\nFIN %b\nFIN 01234" % (ID, OTHER_ID))
    assert list(commands_in(decoder)) == [Fin(b"FIN %b\nFIN %b\n" % (ID, OTHER_ID))]
    decoder.feed(b"56789abcdef\nFIN %b\n" % OTHER_ID)
    assert list(commands_in(decoder)) == [Fin(b"FIN %b\nFIN %b\n" % (ID, OTHER_ID))]


def test_other_commands_stay_in_their_place_between_fins() -> None:
    sent = b"FIN %b\nRDY 5\nFIN %b\nFIN %b\nNOP\n" % (ID, ID, OTHER_ID)
    assert decode(sent, after=b"  V2SUB t c\n") == [
        Fin(b"FIN %b\n" % ID),
        Rdy(5),
        Fin(b"FIN %b\nFIN %b\n" % (ID, OTHER_ID)),
        Nop(),
    ]


@pytest.mark.parametrize("odd_id", [b"0123456\r89abcdef", b"\r123456789abcdef", b"\x00\xff\t\v456789abcdef"])
def test_an_id_is_any_sixteen_bytes_without_a_separator(odd_id: bytes) -> None:
    run = b"FIN %b\n" % ID * 3
    assert events(run + b"FIN %b\n" % odd_id + run, after=b"  V2SUB t c\n") == [
        *[(b"FIN", ID)] * 3,
        (b"FIN", odd_id),
        *[(b"FIN", ID)] * 3,
    ]


@pytest.mark.parametrize(
    "odd_id",
    [
        b"0123456 89abcdef",
        b" 123456789abcdef",
        b"0123456789abcde ",
        b"0123456\n89abcdef",
        b"0123456789abcde\r",
        b"0123456789a\nFIN ",
    ],
)
@pytest.mark.parametrize("before", [0, 1, 50])
def test_a_separator_inside_an_id_is_found_in_any_run(odd_id: bytes, before: int) -> None:
    stream = b"  V2SUB t c\n" + b"FIN %b\n" % ID * before + b"FIN %b\n" % odd_id + b"FIN %b\n" % ID * 50
    found = play([stream], CommandLimits())
    assert found.commands == [(b"SUB", b"t", b"c"), *[(b"FIN", ID)] * before]
    assert found.end.data == b"E_INVALID invalid message ID"


def test_pubs_of_one_size_to_one_topic_are_one_command() -> None:
    [run] = decode((b"PUB t\n" + sized(b"abc")) * 50)
    assert run == Publish(b"PUB", "t", sized(b"abc") * 50, range(7, 351, 7), 50)


def test_pubs_of_many_sizes_to_one_topic_are_one_command() -> None:
    [run] = decode(b"".join(b"PUB t\n" + sized(b"x" * size) for size in (1, 200, 3)))
    assert isinstance(run, Publish)
    assert (list(run.ends), run.reply_count) == ([5, 209, 216], 3)


def test_another_topic_starts_another_command() -> None:
    sent = [(b"t", b"1"), (b"t", b"22"), (b"u", b"3"), (b"t", b"4")]
    found = decode(b"".join(b"PUB %b\n" % topic + sized(body) for topic, body in sent))
    assert [command.topic for command in found if isinstance(command, Publish)] == ["t", "u", "t"]
    assert [event for command in found for event in flatten(command)] == [(b"PUB", *pub) for pub in sent]


def test_a_topic_that_begins_like_the_last_is_another_topic() -> None:
    assert events(b"PUB t\n" + sized(b"a") + b"PUB tt\n" + sized(b"b") + b"PUB t\n" + sized(b"c")) == [
        (b"PUB", b"t", b"a"),
        (b"PUB", b"tt", b"b"),
        (b"PUB", b"t", b"c"),
    ]


def test_a_body_that_looks_like_commands_is_a_body() -> None:
    body = b"NOP\nPUB t\n" + sized(b"FIN %b\n" % ID)
    assert events(b"PUB t\n" + sized(body) + b"NOP\n") == [(b"PUB", b"t", body), (b"NOP",)]


def test_a_big_body_in_many_packets_is_one_message() -> None:
    decoder = decoder_after(b"  V2PUB t\n" + (1_000_000).to_bytes(4, "big"))
    for _ in range(999):
        assert decoder.receive(b"x" * 1000) is None
    command = decoder.receive(b"x" * 1000 + b"NOP\n")
    assert command is not None
    assert flatten(command) == [(b"PUB", b"t", b"x" * 1_000_000)]
    assert decoder.next_command() == Nop()


@pytest.mark.parametrize(
    "before",
    [
        b"NO",
        b"PUB t\n",
        b"PUB t\n\0\0",
        b"PUB u\n" + int32(15),
        b"MPUB t\n" + int32(23) + int32(1) + int32(15),
        b"IDENTIFY\n" + int32(15),
    ],
)
def test_a_packet_that_looks_like_the_last_pub_may_be_the_rest_of_something_else(before: bytes) -> None:
    packets = [b"  V2PUB t\n" + sized(b"a"), before, b"PUB t\n" + sized(b"abcde")]
    expected = transcribe(b"".join(packets), CommandLimits())
    assert play(packets, CommandLimits()) == as_seen_in_pieces(expected, packets)


@pytest.mark.parametrize(
    "before",
    [
        b"NOP ",
        b"PUB t\n" + int32(21),
        b"DPUB t 0\n" + int32(30) + b"x" * 9,
        b"MPUB t\n" + int32(29) + int32(1) + int32(21),
        b"MPUB t\n" + int32(29) + int32(1) + int32(30) + b"x" * 9,
    ],
)
def test_a_packet_that_looks_like_a_fin_may_be_the_rest_of_something_else(before: bytes) -> None:
    packets = [b"  V2SUB t c\n", before, b"FIN %b\n" % ID, b"FIN %b\n" % OTHER_ID]
    expected = transcribe(b"".join(packets), CommandLimits())
    assert expected.commands[-1] == (b"FIN", OTHER_ID)
    assert play(packets, CommandLimits()) == as_seen_in_pieces(expected, packets)


# Lines.


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_the_longest_line_has_16384_bytes(end: bytes) -> None:
    assert decode(b"NOP ".ljust(MAX_LINE_BYTES - len(end), b"x") + end + b"NOP\n") == [Nop(), Nop()]


@pytest.mark.conformance(9)
@pytest.mark.parametrize("rest", [b"", b"\n", b"x\n"])
def test_a_longer_line_is_not_answered(rest: bytes) -> None:
    decoder = decoder_after(b"  V2NOP\n")
    decoder.feed(b"x" * (MAX_LINE_BYTES - 1))
    assert decoder.next_command() is None
    decoder.feed(b"x" + rest)
    with pytest.raises(SilentClose):
        decoder.next_command()


# What changes on the way.


def test_subscribing_and_closing_change_the_state_with_the_command() -> None:
    decoder = CommandDecoder(CommandLimits())
    decoder.feed(b"  V2SUB t c\nCLS\n")
    states = [decoder.state]
    while decoder.next_command() is not None:
        states.append(decoder.state)
    assert states == [State.INIT, State.SUBSCRIBED, State.CLOSING]


@pytest.mark.conformance(89)
@pytest.mark.parametrize("line", [b"RDY 1\n", b"RDY x\n", b"RDY 99999\n", b"RDY\n"])
def test_rdy_has_no_effect_on_a_closing_connection(line: bytes) -> None:
    assert decode(line, after=b"  V2SUB t c\nCLS\n") == [Rdy(0)]


@pytest.mark.conformance(89)
def test_a_closing_connection_may_answer_its_messages() -> None:
    sent = b"FIN %b\nREQ %b 5\nTOUCH %b\n" % (ID, ID, ID)
    assert decode(sent, after=b"  V2SUB t c\nCLS\n") == [Fin(b"FIN %b\n" % ID), Req(ID, 5), Touch(ID)]


@pytest.mark.conformance(29)
def test_a_connection_without_heartbeats_may_publish_but_not_subscribe() -> None:
    decoder = decoder_after(b"  V2IDENTIFY\n" + sized(b'{"heartbeat_interval":-1}'))
    decoder.heartbeats_enabled = False
    decoder.feed(b"PUB t\n" + sized(b"a") + b"SUB a$\n")
    assert isinstance(decoder.next_command(), Publish)
    with pytest.raises(FatalError, match=r"^E_INVALID cannot SUB with heartbeats disabled$"):
        decoder.next_command()


def test_an_upgrade_throws_away_what_came_behind_the_identify() -> None:
    decoder = CommandDecoder(CommandLimits())
    decoder.feed(b"  V2IDENTIFY\n" + sized(b"{}") + b"\x16\x03\x01 not in clear")
    assert decoder.next_command() == Identify(b"{}")
    decoder.discard()
    assert decoder.next_command() is None
    decoder.feed(b"NOP\nPUB t\n" + sized(b"a"))
    assert list(commands_in(decoder)) == [Nop(), Publish(b"PUB", "t", sized(b"a"), (5,), 1)]
    decoder.eof()


def test_a_body_that_has_come_in_part_is_forgotten_too() -> None:
    decoder = CommandDecoder(CommandLimits())
    for packet in (b"  V2PUB t\n\0\0\0\x64", b"some of ", b"the body"):
        assert decoder.receive(packet) is None
    decoder.discard()
    assert decoder.receive(b"NOP\n") == Nop()


@pytest.mark.parametrize("first", [b"?", b"\0", b"M", b" "])
def test_a_stream_that_does_not_begin_with_the_magic_is_refused(first: bytes) -> None:
    decoder = CommandDecoder(CommandLimits())
    with pytest.raises(FatalError, match=r"^E_BAD_PROTOCOL"):
        decoder.receive(first + int32(9) + int32(1) + sized(b"x"))


def test_what_follows_a_body_that_declared_too_little_is_decoded_once() -> None:
    decoder = CommandDecoder(CommandLimits())
    assert decoder.receive(b"  V2MPUB t\n" + int32(4) + int32(2) + b"\0\0") is None
    decoder.feed(b"\0\x01a" + sized(b"bb") + b"NOP\n")
    publish, *others = commands_in(decoder)
    assert isinstance(publish, Publish)
    assert (list(publish.ends), others) == ([5, 11], [Nop()])


def test_tls_may_be_required_until_it_is_there() -> None:
    decoder = CommandDecoder(CommandLimits())
    decoder.tls_required = True
    decoder.feed(b"  V2IDENTIFY\n" + sized(b"{}"))
    assert decoder.next_command() == Identify(b"{}")
    decoder.discard()
    decoder.tls_required = False
    decoder.feed(b"SUB t c\nFIN %b\n" % ID)
    assert list(commands_in(decoder)) == [Sub("t", "c"), Fin(b"FIN %b\n" % ID)]


# A packet like the last.

MPUB_OF_ONE = b"MPUB t\n" + int32(10) + int32(1) + sized(b"hi")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b"PUB t\n" + sized(b"first"), b"PUB t\n" + sized(b"hi")),
        (b"MPUB t\n" + int32(13) + int32(1) + sized(b"first"), MPUB_OF_ONE),
        (b"DPUB t 1500\n" + sized(b"first"), b"DPUB t 1500\n" + sized(b"hi")),
    ],
)
def test_a_packet_that_publishes_by_the_same_line_is_taken_at_once(first: bytes, second: bytes) -> None:
    decoder = decoder_after(b"  V2" + first)
    assert decoder.repeated(second) == sized(b"hi")
    assert decode(second, after=b"  V2" + first)[0].__class__ is decoder.last.__class__
    assert decoder.last.topic == "t"


@pytest.mark.parametrize(
    "packet",
    [
        MPUB_OF_ONE[:-1],
        MPUB_OF_ONE[:12],
        MPUB_OF_ONE + b"NOP\n",
        MPUB_OF_ONE.replace(b"MPUB t", b"MPUB u"),
        b"MPUB t\n" + int32(11) + int32(1) + sized(b"hi"),
        b"MPUB t\n" + int32(10) + int32(2) + sized(b"hi"),
        b"MPUB t\n" + int32(8) + int32(1) + sized(b""),
        b"MPUB t\n" + int32(17) + int32(2) + sized(b"hi") + sized(b"you"),
    ],
)
def test_any_other_packet_goes_the_long_way(packet: bytes) -> None:
    assert decoder_after(b"  V2" + MPUB_OF_ONE).repeated(packet) is None


def test_an_mpub_of_several_is_not_the_last_that_published_one() -> None:
    several = b"MPUB t\n" + int32(17) + int32(2) + sized(b"hi") + sized(b"you")
    assert decoder_after(b"  V2" + several).repeated(MPUB_OF_ONE) is None


def test_a_large_message_that_was_received_directly_is_a_command_like_any_other() -> None:
    body = b"x" * 200_000
    stream = b"PUB t\n" + sized(body)
    decoder = decoder_after(b"  V2" + stream[:100_000])
    room = decoder.room()
    assert room is not None
    room[:] = stream[100_000:]
    room.release()
    assert not decoder.has_received_body
    decoder.received(len(stream) - 100_000)
    assert decoder.has_received_body
    assert decoder.next_command() == Publish(b"PUB", "t", sized(body), (len(body) + 4,), 1)
    assert not decoder.has_received_body
    decoder.feed(b"NOP\n")
    assert list(commands_in(decoder)) == [Nop()]


@pytest.mark.parametrize(
    ("plain", "odd"),
    [
        (b"REQ %b 0\n" % ID, b"REQ %b 0\r\n" % ID),
        (b"RDY 5\n", b"RDY 5\r\n"),
    ],
)
def test_what_clients_send_most_is_taken_without_parsing_its_line(plain: bytes, odd: bytes) -> None:
    decoder = decoder_after(b"  V2SUB t c\n")
    short, long = call_count(decoder, plain), call_count(decoder, odd)
    assert short < long or long == 0  # compiled, there are no calls to be counted


def test_a_line_that_publishes_again_is_not_parsed_again() -> None:
    pub = b"PUB t\n" + sized(b"x")
    decoder = decoder_after(b"  V2" + pub + b"PUB u\n" + sized(b"x"))
    long, short = call_count(decoder, pub), call_count(decoder, pub)
    assert short < long or long == 0  # as above


def call_count(decoder: CommandDecoder, packet: bytes) -> int:
    """How many functions in Python it takes to decode one command."""
    calls: list[str] = []
    decoder.feed(packet)
    sys.setprofile(lambda _frame, event, _argument: calls.append(event))
    try:
        command = decoder.next_command()
    finally:
        sys.setprofile(None)
    assert command is not None
    return calls.count("call")
