"""Which command is legal when: the state machine of a connection, as a table."""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """Where a connection stands; the numbers are what /stats shows."""

    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4


_ALWAYS = frozenset(State)
_BEFORE_SUB = frozenset({State.INIT})
_AFTER_SUB = frozenset({State.SUBSCRIBED, State.CLOSING})

LEGAL_STATES: dict[bytes, frozenset[State]] = {
    b"IDENTIFY": _BEFORE_SUB,
    b"AUTH": _BEFORE_SUB,
    b"SUB": _BEFORE_SUB,
    b"PUB": _ALWAYS,
    b"MPUB": _ALWAYS,
    b"DPUB": _ALWAYS,
    b"NOP": _ALWAYS,
    b"RDY": _AFTER_SUB,  # while closing it is legal and has no effect
    b"FIN": _AFTER_SUB,
    b"REQ": _AFTER_SUB,
    b"TOUCH": _AFTER_SUB,
    b"CLS": frozenset({State.SUBSCRIBED}),
}
