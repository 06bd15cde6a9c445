"""The table of legal commands, against the one in the protocol's description."""

from __future__ import annotations

import pytest

from emberq.wire.decoder import CommandDecoder
from emberq.wire.error import FatalError
from emberq.wire.line import LEGAL_STATES, CommandLimits, State

INTO_STATE = {State.INIT: b"  V2", State.SUBSCRIBED: b"  V2SUB t c\n", State.CLOSING: b"  V2SUB t c\nCLS\n"}
BODY = b"\x00\x00\x00\x02{}"
MPUB_BODY = b"\x00\x00\x00\x09\x00\x00\x00\x01\x00\x00\x00\x01x"
LEGAL = [
    # command, init, subscribed, closing
    (b"IDENTIFY", b"IDENTIFY\n" + BODY, True, False, False),
    (b"AUTH", b"AUTH\n" + BODY, True, False, False),
    (b"SUB", b"SUB t c\n", True, False, False),
    (b"PUB", b"PUB t\n" + BODY, True, True, True),
    (b"MPUB", b"MPUB t\n" + MPUB_BODY, True, True, True),
    (b"DPUB", b"DPUB t 0\n" + BODY, True, True, True),
    (b"NOP", b"NOP\n", True, True, True),
    (b"RDY", b"RDY 1\n", False, True, True),
    (b"FIN", b"FIN 0123456789abcdef\n", False, True, True),
    (b"REQ", b"REQ 0123456789abcdef 0\n", False, True, True),
    (b"TOUCH", b"TOUCH 0123456789abcdef\n", False, True, True),
    (b"CLS", b"CLS\n", False, True, False),
]
CASES = [
    pytest.param(state, name, sent, legal, id=f"{name.decode()}-{state.name}")
    for name, sent, *by_state in LEGAL
    for state, legal in zip(State, by_state, strict=True)
]


def test_stats_shows_states_by_these_numbers() -> None:
    assert {state.name: state.value for state in State} == {"INIT": 0, "SUBSCRIBED": 3, "CLOSING": 4}


def test_the_table_knows_every_command() -> None:
    assert set(LEGAL_STATES) == {name for name, *_ in LEGAL}


@pytest.mark.conformance(46, 69, 75, 76, 90, 95)
@pytest.mark.parametrize(("state", "name", "sent", "legal"), CASES)
def test_a_command_is_taken_in_its_states_and_refused_in_the_others(
    state: State, name: bytes, sent: bytes, *, legal: bool
) -> None:
    decoder = CommandDecoder(CommandLimits())
    decoder.feed(INTO_STATE[state])
    while decoder.next_command() is not None:
        pass
    assert decoder.state is state
    assert (state in LEGAL_STATES[name]) is legal
    decoder.feed(sent)
    if legal:
        assert decoder.next_command() is not None
    else:
        with pytest.raises(FatalError) as refusal:
            decoder.next_command()
        assert refusal.value.data == b"E_INVALID cannot %b in current state" % name
