"""What the log tells of client connections, in the words of the Go nsqd: operators search for these.

`ConnectionLog` tells how a connection begins and ends. `Trace` is the debug log: a line for each command that comes and
each message that leaves.

    DEBUG: PROTOCOL(V2): [127.0.0.1:41234] [FIN 0e1ac0d4168a6000]
    DEBUG: PROTOCOL(V2): writing msg(0e1ac0d416ca6000) to client(127.0.0.1:41234) - <body>
    DEBUG: [127.0.0.1:41234] state rdy:  100 inflt:   46

There are as many debug lines as messages, so a connection must not ask the `logging` module for each packet whether
they are wanted. `Trace.is_on` holds the answer. It is looked up when a client connects and when the log level is
changed.

What clients send is shown up to MAX_SHOWN characters. The secret of an AUTH is never shown.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from emberq.base.address import network_text
from emberq.wire.command import (
    Auth,
    Cls,
    Command,
    DeferredPublish,
    Fin,
    Identify,
    NumberedPublish,
    Publish,
    Rdy,
    Req,
    Sub,
    Touch,
)
from emberq.wire.error import BadMagic, FatalError, SilentClose
from emberq.wire.frame import BODY_OFFSET, FRAME_HEADER, ID_BYTES, ID_OFFSET, MESSAGE
from emberq.wire.negotiation import IdentifyRequest

MAX_SHOWN = 256
"""Enough to recognise a message by; a body may have a megabyte."""

_log = logging.getLogger(__name__)


# The beginning and the end.


class ConnectionLog:
    """What the log tells of one connection. Owned by its session."""

    __slots__ = ("_ended_by", "_remote_address", "_trace", "is_greeted")

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._remote_address = ""
        self.is_greeted = False
        """Whether the log has what the connection began by."""
        self._ended_by = ""
        """Why we close the connection; empty if it is no fault of the client."""

    def connected(self, remote_address: str) -> None:
        self._trace.refresh()
        self._remote_address = remote_address
        _log.info("TCP: new client(%s)", remote_address)

    def greeted(self, magic: bytes) -> None:
        """The client has sent its first bytes."""
        if not self.is_greeted:
            self.is_greeted = True
            _log.info("CLIENT(%s): desired protocol magic '%s'", self._remote_address, shown(magic))

    def identified(self, request: IdentifyRequest) -> None:
        """IDENTIFY has come, and may be refused yet."""
        _log.info("[%s] IDENTIFY: %s", self._remote_address, identity_text(request))

    def failed(self, wrong: FatalError) -> None:
        """The client has done something that ends the connection."""
        if isinstance(wrong, BadMagic):
            self.greeted(wrong.magic)
            _log.error("client(%s) bad protocol magic '%s'", self._remote_address, shown(wrong.magic))
            return
        if wrong.line and self._trace.is_on:
            _log.debug("PROTOCOL(V2): [%s] [%s]", self._remote_address, shown(wrong.line))
        text = shown(wrong.data)
        if isinstance(wrong, SilentClose):
            self._ended_by = f"failed to read command - {text}"
        else:
            self._ended_by = text
            _log.error("[%s] - %s", self._remote_address, text)

    def auth_failed(self, cause: BaseException) -> None:
        """No authorization server could be asked; `cause` holds no secret."""
        _log.warning("PROTOCOL(V2): [%s] AUTH failed %s", self._remote_address, cause)

    def was_silent(self) -> None:
        """No command came for so long that the connection is given up."""
        self._ended_by = "failed to read command - i/o timeout: no command within two heartbeat intervals"

    def did_not_greet(self) -> None:
        """The first bytes did not come in time."""
        _log.info("failed to read protocol version - i/o timeout: nothing from client(%s)", self._remote_address)

    def did_not_read(self) -> None:
        """The client took nothing of what was sent, for so long that it is cut off."""
        _log.error("PROTOCOL(V2): [%s] messagePump error - i/o timeout: it does not read", self._remote_address)

    def closed(self, cause: Exception | None, *, by_client: bool) -> None:
        """The connection is gone; `cause` is what the network said."""
        why = self._ended_by
        if by_client and not why and cause is not None:
            why = f"failed to read command - {network_text(cause)}"
        if self.is_greeted:
            _log.info("PROTOCOL(V2): [%s] exiting ioloop", self._remote_address)
            if why:
                _log.error("client(%s) - %s", self._remote_address, why)
        elif by_client and cause is None:
            _log.info("failed to read protocol version - EOF")  # checks of the port do this all the time
        elif by_client and cause is not None:
            _log.error("failed to read protocol version - %s", network_text(cause))


def identity_text(request: IdentifyRequest) -> str:
    """An IDENTIFY by the names and in the order in which the Go nsqd shows it."""
    return (
        f"{{ClientID:{request.client_id[:MAX_SHOWN]} Hostname:{request.hostname[:MAX_SHOWN]}"
        f" HeartbeatInterval:{request.heartbeat_interval} OutputBufferSize:{request.output_buffer_size}"
        f" OutputBufferTimeout:{request.output_buffer_timeout}"
        f" FeatureNegotiation:{_word(request.feature_negotiation)} TLSv1:{_word(request.tls_v1)}"
        f" Deflate:{_word(request.deflate)} DeflateLevel:{request.deflate_level} Snappy:{_word(request.snappy)}"
        f" SampleRate:{request.sample_rate} UserAgent:{request.user_agent[:MAX_SHOWN]}"
        f" MsgTimeout:{request.msg_timeout}}}"
    )


def _word(value: bool) -> str:
    return "true" if value else "false"


# Commands and messages.


class Trace:
    """Whether the debug log is on, and what is written to it. One for all connections of an nsqd."""

    __slots__ = ("is_on",)

    def __init__(self) -> None:
        self.is_on = False
        """Whether the methods below are to be called. They cost a line for each message."""

    def refresh(self) -> None:
        """The log level may have changed."""
        self.is_on = _log.isEnabledFor(logging.DEBUG)

    def received(self, remote_address: str, command: Command) -> None:
        """A client has sent this."""
        for line in command_lines(command):
            _log.debug("PROTOCOL(V2): [%s] [%s]", remote_address, line)

    def delivered(self, remote_address: str, frames: bytes) -> None:
        """These message frames, back to back, leave for a client."""
        start = 0
        while start < len(frames):
            size, kind = FRAME_HEADER.unpack_from(frames, start)
            end = start + 4 + size
            message = start + FRAME_HEADER.size
            if kind == MESSAGE:
                message_id = frames[message + ID_OFFSET : message + ID_OFFSET + ID_BYTES]
                body = frames[message + BODY_OFFSET : min(end, message + BODY_OFFSET + MAX_SHOWN)]
                _log.debug(
                    "PROTOCOL(V2): writing msg(%s) to client(%s) - %s",
                    shown(message_id),
                    remote_address,
                    shown(body, hidden_count=end - message - BODY_OFFSET - len(body)),
                )
            start = end

    def state(self, remote_address: str, ready_count: int, in_flight_count: int) -> None:
        """How many messages a consumer is ready for, and has."""
        _log.debug("[%s] state rdy: %4d inflt: %4d", remote_address, ready_count, in_flight_count)


def shown(data: bytes, *, hidden_count: int = 0) -> str:
    """Bytes of a client as text for the log, at most MAX_SHOWN of them; `hidden_count` more were left out before."""
    text = data[:MAX_SHOWN].decode("utf-8", "backslashreplace")
    hidden_count += max(0, len(data) - MAX_SHOWN)
    return f"{text}... ({hidden_count} bytes more)" if hidden_count else text


def command_lines(command: Command) -> Iterator[str]:
    """The lines that the client sent, without bodies: several for FINs and PUBs that are decoded as one."""
    if isinstance(command, Fin):
        for message_id in command.ids:
            yield f"FIN {shown(message_id)}"
    elif isinstance(command, Publish):
        for _ in range(command.reply_count):
            yield f"{command.verb.decode()} {command.topic}"
    elif isinstance(command, NumberedPublish):
        yield f"{command.verb.decode()} {command.topic} {command.sequence}"
    elif isinstance(command, DeferredPublish):
        yield f"DPUB {command.topic} {command.defer_ms}"
    elif isinstance(command, Req):
        yield f"REQ {shown(command.id)} {command.timeout_ms}"
    elif isinstance(command, Touch):
        yield f"TOUCH {shown(command.id)}"
    elif isinstance(command, Rdy):
        yield f"RDY {command.count}"
    elif isinstance(command, Sub):
        yield f"SUB {command.topic} {command.channel}"
    elif isinstance(command, Cls):
        yield "CLS"
    elif isinstance(command, Identify):
        yield "IDENTIFY"
    elif isinstance(command, Auth):
        yield "AUTH"
    else:
        yield "NOP"
