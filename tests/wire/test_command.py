"""What a client writes is what a server reads; and the bytes are those of the protocol's description."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.wire import command
from emberq.wire.command import Fin, Identify
from emberq.wire.decoder import CommandDecoder
from emberq.wire.line import CommandLimits
from tests.wire.playback import commands_in, flatten
from tests.wire.reference_decoder import Event
from tests.wire.streams import examples

ID = b"189b226c92669000"


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (command.MAGIC_V2, b"  V2"),
        (command.sub(topic="t", channel="c"), b"SUB t c\n"),
        (command.rdy(1), b"RDY 1\n"),
        (command.pub("t", b"hi"), b"PUB t\n\0\0\0\x02hi"),
        (command.pub("t", b"hi", sequence=7), b"PUB t 7\n\0\0\0\x02hi"),
        (command.mpub("t", [b"a"], sequence=0), b"MPUB t 0\n\0\0\0\x09\0\0\0\x01\0\0\0\x01a"),
        (command.fin([ID]), b"FIN 189b226c92669000\n"),
        (command.fin([ID, ID]), b"FIN 189b226c92669000\nFIN 189b226c92669000\n"),
        (command.fin([]), b""),
        (command.req(ID, timeout_ms=90), b"REQ 189b226c92669000 90\n"),
        (command.touch(ID), b"TOUCH 189b226c92669000\n"),
        (command.mpub("t", [b"a", b"bb"]), b"MPUB t\n\0\0\0\x0f\0\0\0\x02\0\0\0\x01a\0\0\0\x02bb"),
        (command.dpub("t", b"x", defer_ms=1500), b"DPUB t 1500\n\0\0\0\x01x"),
        (command.identify({}), b"IDENTIFY\n\0\0\0\x02{}"),
        (command.auth(b"secret"), b"AUTH\n\0\0\0\x06secret"),
        (command.NOP, b"NOP\n"),
        (command.CLS, b"CLS\n"),
    ],
)
def test_a_command_is_written_as_the_protocol_says(encoded: bytes, expected: bytes) -> None:
    assert encoded == expected


def test_lines_of_fin_have_one_length_and_tell_their_ids() -> None:
    other = b"f" * 16
    assert len(command.fin([ID])) == command.FIN_LINE_BYTES
    assert Fin(command.fin([ID, other, ID])).ids == [ID, other, ID]
    assert Fin(b"").ids == []


names = st.from_regex(r"[.a-zA-Z0-9_-]{1,54}(#ephemeral)?", fullmatch=True)
ids = st.binary(min_size=8, max_size=8).map(lambda raw: raw.hex().encode())
bodies = st.binary(min_size=1, max_size=30)

before_sub: st.SearchStrategy[tuple[bytes, list[Event]]] = st.one_of(
    st.tuples(names, bodies).map(lambda sent: (command.pub(*sent), [(b"PUB", sent[0].encode(), sent[1])])),
    st.tuples(names, st.lists(bodies, min_size=1, max_size=10)).map(
        lambda sent: (command.mpub(*sent), [(b"MPUB", sent[0].encode(), *sent[1])])
    ),
    st.tuples(names, bodies, st.integers(0, 3_600_000)).map(
        lambda sent: (
            command.dpub(sent[0], sent[1], defer_ms=sent[2]),
            [(b"DPUB", sent[0].encode(), sent[2], sent[1])],
        )
    ),
    bodies.map(lambda secret: (command.auth(secret), [(b"AUTH", secret)])),
    st.just((command.NOP, [(b"NOP",)])),
)
after_sub: st.SearchStrategy[tuple[bytes, list[Event]]] = st.one_of(
    st.lists(ids, max_size=10).map(lambda sent: (command.fin(sent), [(b"FIN", message_id) for message_id in sent])),
    st.tuples(ids, st.integers(0, 2**63 - 1)).map(
        lambda sent: (command.req(sent[0], timeout_ms=sent[1]), [(b"REQ", *sent)])
    ),
    ids.map(lambda message_id: (command.touch(message_id), [(b"TOUCH", message_id)])),
    st.integers(0, 2500).map(lambda count: (command.rdy(count), [(b"RDY", count)])),
)
subs: st.SearchStrategy[tuple[bytes, list[Event]]] = st.tuples(names, names).map(
    lambda sent: (
        command.sub(topic=sent[0], channel=sent[1]),
        [(b"SUB", sent[0].encode(), sent[1].encode())],
    )
)


@examples(200)
@given(st.lists(before_sub, max_size=4), subs, st.lists(after_sub, max_size=4))
def test_what_a_client_writes_is_what_a_server_reads(
    first: list[tuple[bytes, list[Event]]],
    sub: tuple[bytes, list[Event]],
    then: list[tuple[bytes, list[Event]]],
) -> None:
    cls: tuple[bytes, list[Event]] = (command.CLS, [(b"CLS",)])
    sent = [*first, sub, *then, cls]
    decoder = CommandDecoder(CommandLimits())
    decoder.feed(command.MAGIC_V2 + b"".join(encoded for encoded, _ in sent))
    received = [event for found in commands_in(decoder) for event in flatten(found)]
    assert received == [event for _, events in sent for event in events]
    decoder.eof()


json_values = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=10))


@examples(100)
@given(st.dictionaries(st.text(max_size=10), json_values, max_size=5))
def test_an_identify_carries_any_fields(fields: dict[str, object]) -> None:
    decoder = CommandDecoder(CommandLimits())
    decoder.feed(command.MAGIC_V2 + command.identify(fields))
    [identify] = commands_in(decoder)
    assert isinstance(identify, Identify)
    assert json.loads(identify.body.decode("ascii")) == fields
