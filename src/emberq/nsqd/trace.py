"""The debug log of client connections: a line for each command that comes and each message that leaves.

    DEBUG: PROTOCOL(V2): [127.0.0.1:41234] [FIN 0e1ac0d4168a6000]
    DEBUG: PROTOCOL(V2): writing msg(0e1ac0d416ca6000) to client(127.0.0.1:41234) - <body>
    DEBUG: [127.0.0.1:41234] state rdy:  100 inflt:   46

There are as many lines as messages, so a connection must not ask the `logging` module for each packet whether they are
wanted. `Trace.is_on` holds the answer. It is looked up when a client connects and when the log level is changed.

What clients send is shown up to MAX_SHOWN characters. The secret of an AUTH is never shown.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

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
from emberq.wire.frame import BODY_OFFSET, FRAME_HEADER, ID_BYTES, ID_OFFSET, MESSAGE

MAX_SHOWN = 256
"""Enough to recognise a message by; a body may have a megabyte."""

_log = logging.getLogger(__name__)


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

    def is_ready(self, remote_address: str, *, ready_count: int, in_flight_count: int) -> None:
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
