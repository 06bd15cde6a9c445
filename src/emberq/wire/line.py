"""The lines of commands: what they mean, and which is legal when.

`LineParser` follows the connection's state itself (SUB subscribes, CLS closes), because what may come next depends on
it, and a client may send everything in one packet.

A line is its words, separated by one space each: the command's name and its parameters. Parameters beyond those that a
command has are ignored. A command that has a body is returned without it (see `BodyValue`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from emberq.wire import error
from emberq.wire.command import (
    Auth,
    Cls,
    Command,
    DeferredPublish,
    Fin,
    Identify,
    Nop,
    NumberedPublish,
    Publish,
    Rdy,
    Req,
    Sub,
    Touch,
)
from emberq.wire.error import FatalError
from emberq.wire.frame import ID_BYTES
from emberq.wire.parameter import parse_int64, parse_name, parse_sequence, quote


class State(IntEnum):
    """The state of a connection; the numbers are what /stats shows."""

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

_SUBSCRIBED: Final = State.SUBSCRIBED  # looking a member up in its class is slow
_CLOSING: Final = State.CLOSING
_NOP: Final = Nop()
_MAX_PLAIN_DIGITS: Final = 18  # so many fit 64 bits

known_lines: Final[dict[bytes, Publish | DeferredPublish]] = {}
"""Lines of PUB, MPUB and DPUB that were parsed before, as commands without a body: publishers repeat them."""
MAX_KNOWN_LINES: Final = 1024
MAX_KNOWN_LINE_BYTES: Final = 128  # more than any such line needs; so a client cannot fill memory with them


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """The sizes and numbers that a server accepts."""

    max_msg_size: int = 1024 * 1024
    max_body_size: int = 5 * 1024 * 1024
    max_req_timeout_ms: int = 3_600_000
    max_rdy_count: int = 2500


class LineParser:
    """The lines of one connection. The base of `CommandDecoder`, which finds them in the bytes."""

    def __init__(self, limits: CommandLimits) -> None:
        self._limits = limits
        self.state = State.INIT
        self._parsers = _PARSERS_IN[State.INIT]
        """The commands that are legal in this state."""
        self.is_subscribed = False
        """Whether there was a SUB, so that messages may be answered."""
        self.takes_rdy = False
        """Whether RDY is legal and has an effect."""
        self.tls_required = False
        """While set, anything but IDENTIFY is refused. It may be set before the first command alone."""
        self.is_upgraded = False
        """Whether the stream is encrypted or compressed. IDENTIFY is refused then: a client asks for both at once, and
        one that asks again may be a stranger who spoke before the client did."""
        self.heartbeats_enabled = True
        """SUB is refused without them."""
        self._takes_sequences = False
        """Whether a further parameter of PUB and MPUB is the number of the batch; otherwise it is ignored."""

    def parse_line(self, line: bytes) -> Command:
        """The command of this line; FatalError if it is none, or must not come now."""
        known = known_lines.get(line)
        if known is not None and not self._takes_sequences and not self.tls_required:
            if isinstance(known, Publish):
                return Publish(known.verb, known.topic, b"", (), 1)
            if known.defer_ms <= self._limits.max_req_timeout_ms:
                return DeferredPublish(known.topic, known.defer_ms)
        return self._parse_new(line)

    def _parse_new(self, line: bytes) -> Command:
        raw = line
        if line.endswith(b"\r"):
            line = line[:-1]
        words = line.split(b" ")
        name = words[0]
        parser = self._parsers.get(name)
        if parser is None or (self.tls_required and name != b"IDENTIFY"):
            raise self._refusal(name)
        command = parser(self, words)
        if len(raw) <= MAX_KNOWN_LINE_BYTES and not self._takes_sequences:
            if isinstance(command, Publish):
                _remember(raw, Publish(command.verb, command.topic, b"", (), 1))
            elif isinstance(command, DeferredPublish):
                _remember(raw, DeferredPublish(command.topic, command.defer_ms))
        return command

    def _refusal(self, name: bytes) -> FatalError:
        """Why a command of this name must not come now."""
        if self.tls_required:
            return FatalError(error.INVALID, b"cannot %b in current state (TLS required)" % name)
        if name in LEGAL_STATES:
            return FatalError(error.INVALID, b"cannot %b in current state" % name)
        return FatalError(error.INVALID, b"invalid command %b" % name)

    def _enter(self, state: State) -> None:
        self.state = state
        self._parsers = _PARSERS_IN[state]
        self.is_subscribed = True
        self.takes_rdy = state is _SUBSCRIBED

    # About the connection.

    def _parse_nop(self, _words: Sequence[bytes]) -> Command:
        return _NOP

    def _parse_identify(self, _words: Sequence[bytes]) -> Command:
        if self.is_upgraded:
            raise FatalError(error.INVALID, b"cannot IDENTIFY in current state")
        return Identify()

    def _parse_auth(self, words: Sequence[bytes]) -> Command:
        if len(words) > 1:
            raise FatalError(error.INVALID, b"AUTH invalid number of parameters")
        return Auth()

    def _parse_sub(self, words: Sequence[bytes]) -> Command:
        if not self.heartbeats_enabled:
            raise FatalError(error.INVALID, b"cannot SUB with heartbeats disabled")
        if len(words) < 3:
            raise FatalError(error.INVALID, b"SUB insufficient number of parameters")
        topic = _parse_topic(b"SUB", words[1])
        channel = parse_name(words[2])
        if channel is None:
            raise FatalError(error.BAD_CHANNEL, b"SUB channel name %b is not valid" % quote(words[2]))
        self._enter(_SUBSCRIBED)
        return Sub(topic, channel)

    def _parse_cls(self, _words: Sequence[bytes]) -> Command:
        self._enter(_CLOSING)
        return Cls()

    # Consuming.

    def _parse_rdy(self, words: Sequence[bytes]) -> Command:
        if not self.takes_rdy:
            return Rdy(0)  # whatever it says, it has no effect
        raw = words[1] if len(words) > 1 else b"1"
        count = _parse_number(raw)
        if count is None:
            raise FatalError(error.INVALID, b"RDY could not parse count %b" % raw)
        if not 0 <= count <= self._limits.max_rdy_count:
            text = b"RDY count %d out of range 0-%d" % (count, self._limits.max_rdy_count)
            raise FatalError(error.INVALID, text)
        return Rdy(count)

    def _parse_fin(self, words: Sequence[bytes]) -> Command:
        return Fin(b"FIN %b\n" % _parse_id(b"FIN", words, needed=1))

    def _parse_req(self, words: Sequence[bytes]) -> Command:
        message_id = _parse_id(b"REQ", words, needed=2)
        timeout_ms = _parse_number(words[2])
        if timeout_ms is None:
            raise FatalError(error.INVALID, b"REQ could not parse timeout %b" % words[2])
        return Req(message_id, timeout_ms)

    def _parse_touch(self, words: Sequence[bytes]) -> Command:
        return Touch(_parse_id(b"TOUCH", words, needed=1))

    # Publishing.

    def _parse_pub(self, words: Sequence[bytes]) -> Command:
        if len(words) < 2:
            raise FatalError(error.INVALID, b"PUB insufficient number of parameters")
        topic = _parse_topic(b"PUB", words[1])
        if self._takes_sequences and len(words) > 2:
            return NumberedPublish(b"PUB", topic, b"", (), _parse_sequence(b"PUB", words[2]))
        return Publish(b"PUB", topic, b"", (), 1)

    def _parse_mpub(self, words: Sequence[bytes]) -> Command:
        if len(words) < 2:
            raise FatalError(error.INVALID, b"MPUB insufficient number of parameters")
        topic = parse_name(words[1])
        if topic is None:
            # The reference's answer has the code twice, so ours has too.
            text = b"E_BAD_TOPIC MPUB topic name %b is not valid" % quote(words[1])
            raise FatalError(error.BAD_TOPIC, text)
        if self._takes_sequences and len(words) > 2:
            return NumberedPublish(b"MPUB", topic, b"", (), _parse_sequence(b"MPUB", words[2]))
        return Publish(b"MPUB", topic, b"", (), 1)

    def _parse_dpub(self, words: Sequence[bytes]) -> Command:
        if len(words) < 3:
            raise FatalError(error.INVALID, b"DPUB insufficient number of parameters")
        topic = _parse_topic(b"DPUB", words[1])
        defer_ms = _parse_number(words[2])
        if defer_ms is None:
            raise FatalError(error.INVALID, b"DPUB could not parse timeout %b" % words[2])
        if not 0 <= defer_ms <= self._limits.max_req_timeout_ms:
            text = b"DPUB timeout %d out of range 0-%d" % (defer_ms, self._limits.max_req_timeout_ms)
            raise FatalError(error.INVALID, text)
        return DeferredPublish(topic, defer_ms)


_Parser = Callable[[LineParser, list[bytes]], Command]

_PARSERS: dict[bytes, _Parser] = {
    b"PUB": LineParser._parse_pub,
    b"MPUB": LineParser._parse_mpub,
    b"DPUB": LineParser._parse_dpub,
    b"FIN": LineParser._parse_fin,
    b"REQ": LineParser._parse_req,
    b"TOUCH": LineParser._parse_touch,
    b"RDY": LineParser._parse_rdy,
    b"NOP": LineParser._parse_nop,
    b"SUB": LineParser._parse_sub,
    b"CLS": LineParser._parse_cls,
    b"IDENTIFY": LineParser._parse_identify,
    b"AUTH": LineParser._parse_auth,
}
_PARSERS_IN: dict[State, dict[bytes, _Parser]] = {
    state: {name: parser for name, parser in _PARSERS.items() if state in LEGAL_STATES[name]} for state in State
}


def _remember(line: bytes, command: Publish | DeferredPublish) -> None:
    if len(known_lines) == MAX_KNOWN_LINES:
        known_lines.clear()
    known_lines[line] = command


def _parse_topic(verb: bytes, raw: bytes) -> str:
    topic = parse_name(raw)
    if topic is None:
        raise FatalError(error.BAD_TOPIC, b"%b topic name %b is not valid" % (verb, quote(raw)))
    return topic


def _parse_sequence(verb: bytes, raw: bytes) -> int:
    sequence = parse_sequence(raw)
    if sequence is None:
        raise FatalError(error.INVALID, b"%b could not parse sequence %b" % (verb, raw))
    return sequence


def _parse_id(verb: bytes, words: Sequence[bytes], *, needed: int) -> bytes:
    if len(words) <= needed:
        raise FatalError(error.INVALID, b"%b insufficient number of params" % verb)
    if len(words[1]) != ID_BYTES:
        raise FatalError(error.INVALID, b"invalid message ID")
    return words[1]


def _parse_number(raw: bytes) -> int | None:
    """As `parse_int64`, with a short way for numbers that cannot wrap."""
    return int(raw) if len(raw) <= _MAX_PLAIN_DIGITS and raw.isdigit() else parse_int64(raw)
