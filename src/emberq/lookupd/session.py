"""An nsqd's connection to nsqlookupd: commands to the registry, answers back.

What arrives in one packet is executed and answered with one write, before `data_received` returns. A packet of many
commands takes several turns of the event loop, so that other clients get theirs. The first bytes are due within
FIRST_BYTES_NS. Behind them there is no deadline for a client: look-ups judge whether it is alive, by when it was last
heard of.

Holding back. A client is not read from, and none of its commands is executed, while one of these bits is set:

    TURN      it has had its share of this turn of the event loop
    BLOCKED   it does not read its answers

The log has a line for each key that comes or goes. When a client is gone there is one for the client and none for its
keys, which may be a hundred thousand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from itertools import islice
from typing import cast

from emberq.base.address import TcpAddress, network_text
from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.text import format_duration
from emberq.base.timers import Alarm, Timers
from emberq.lookupd.registry import RegisteredNsqd, Registry, TooManyKeysError, TopicProducer
from emberq.wire import error
from emberq.wire.error import BadMagic, FatalError
from emberq.wire.lookup import MAGIC, OK, Command, LookupDecoder, LookupIdentify, Ping, Register, Unregister, response

MAX_SHOWN = 256
"""Characters of what an nsqd tells of itself that the log shows; a host name has no more."""
COMMANDS_PER_TURN = 100
"""They take one or two milliseconds, most of it for the log. An nsqd with ten thousand topics sends as many at once."""
TURN = 1
BLOCKED = 2
CLOSE_GRACE_NS = 5 * NS_PER_SECOND
"""How long a last answer may take to leave before the connection is cut off."""
FIRST_BYTES_NS = 10 * NS_PER_SECOND
"""An nsqd begins to speak at once. What says nothing for so long takes a descriptor for nothing."""

_log = logging.getLogger(__name__)


class LookupSession(asyncio.Protocol):
    """One connection. Owned by the event loop; registered with the context while it is open."""

    __slots__ = (
        "_closing",
        "_commands",
        "_context",
        "_cut_off",
        "_decoder",
        "_ended_by",
        "_first_bytes",
        "_holds",
        "_is_greeted",
        "_producer",
        "_remote_address",
        "_transport",
    )

    def __init__(self, context: LookupContext) -> None:
        self._context = context
        self._decoder = LookupDecoder()
        self._commands: Iterator[Command] = iter(())
        """What has arrived and is not executed."""
        self._holds = 0
        self._producer: TopicProducer | None = None
        """None until the client has identified itself."""
        self._remote_address = ""
        self._transport: asyncio.Transport
        self._closing = False
        self._cut_off: Alarm | None = None
        self._first_bytes = context.timers.alarm(self._on_silence)
        self._is_greeted = False
        """Whether the log has the client's magic."""
        self._ended_by = ""
        """Why the connection ends, if not by us."""

    def __repr__(self) -> str:
        return f"<Session {self._remote_address}>"

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peername = transport.get_extra_info("peername")
        if peername is None:  # the client left before it was accepted
            self.abort()
            return
        self._remote_address = str(TcpAddress(*peername[:2]))
        self._context.sessions.add(self)
        self._first_bytes.set(self._context.clock.monotonic_ns() + FIRST_BYTES_NS)
        _log.info("TCP: new client(%s)", self._remote_address)

    def data_received(self, data: bytes) -> None:
        self._commands = self._decoder.receive(data)  # all before are executed, or it would not have been read
        self._execute_some()

    def _execute_some(self) -> None:
        """Execute what has arrived, at most as much as may be in this turn of the event loop."""
        if self._closing or self._holds:
            return
        answers: list[bytes] = []
        try:
            for command in islice(self._commands, COMMANDS_PER_TURN):
                self._log_magic()
                answers.append(self._execute(command))  # answers before an error are sent too
        except FatalError as wrong:
            self._fail(wrong, answers)
            return
        self._log_magic()
        if len(answers) == COMMANDS_PER_TURN:
            self._hold(TURN)
            asyncio.get_running_loop().call_soon(self._release, TURN)
        self._transport.write(b"".join(answers))

    def _hold(self, reason: int) -> None:
        self._holds |= reason
        self._transport.pause_reading()

    def _release(self, reason: int) -> None:
        """Clear a bit, and go on if no other is set."""
        self._holds &= ~reason
        self._execute_some()
        if not self._holds and not self._closing:
            self._transport.resume_reading()

    def _log_magic(self) -> None:
        if not self._is_greeted and self._decoder.greeted:
            self._is_greeted = True
            self._first_bytes.discard()
            _log.info("CLIENT(%s): desired protocol magic '%s'", self._remote_address, MAGIC.decode())

    def eof_received(self) -> bool:
        if not self._closing:
            self._ended_by = "EOF"
            try:
                self._decoder.eof()
            except FatalError as wrong:
                self._fail(wrong, [])
        return False  # the loop closes the connection, after what was written has left

    def connection_lost(self, exc: Exception | None) -> None:
        self._first_bytes.discard()
        if self not in self._context.sessions:
            return
        self._context.sessions.discard(self)
        self._closing = True
        if self._cut_off is not None:
            self._cut_off.discard()
        if self._is_greeted:
            _log.info("PROTOCOL(V1): [%s] exiting ioloop", self._remote_address)
        if self._producer is not None:
            self._context.registry.disconnect(self._producer)
            self._context.tidying.set_earlier(self._context.clock.monotonic_ns())
            self._log_key("UNREGISTER", "client")
        why = self._ended_by or (network_text(exc) if exc is not None else "")
        if why and self._is_greeted:
            _log.error("client(%s) - %s", self._remote_address, why)
        elif why:
            is_port_check = self._ended_by == "EOF"
            _log.log(logging.INFO if is_port_check else logging.ERROR, "failed to read protocol version - %s", why)

    def pause_writing(self) -> None:
        if not self._closing:
            self._hold(BLOCKED)

    def resume_writing(self) -> None:
        if not self._closing:
            self._release(BLOCKED)

    # Ending.

    def abort(self) -> None:
        """Close now."""
        self._closing = True
        self._transport.abort()

    def _on_silence(self) -> None:
        self._ended_by = f"nothing came within {format_duration(FIRST_BYTES_NS)}"
        self.abort()

    def _fail(self, wrong: FatalError, answers: list[bytes]) -> None:
        """Send the answers so far and the error, and close."""
        self._log_magic()
        if isinstance(wrong, BadMagic):
            magic = wrong.magic.decode("utf-8", "backslashreplace")
            _log.info("CLIENT(%s): desired protocol magic '%s'", self._remote_address, magic)
            _log.error("client(%s) bad protocol magic '%s'", self._remote_address, magic)
        else:
            _log.error("[%s] - %s", self._remote_address, wrong)
            self._ended_by = str(wrong)
        self._closing = True
        self._transport.write(b"".join((*answers, response(wrong.data))))
        self._cut_off = self._context.timers.alarm(self._transport.abort)
        self._cut_off.set(self._context.clock.monotonic_ns() + CLOSE_GRACE_NS)
        self._transport.close()

    # Commands.

    def _execute(self, command: Command) -> bytes:
        match command:
            case Ping():
                if self._producer is not None:
                    self._ping(self._producer)
            case LookupIdentify():
                return self._identify(command)
            case Register(topic, channel):
                self._register(topic, channel)
            case Unregister():
                self._unregister(command)
        return OK

    def _register(self, topic: str, channel: str | None) -> None:
        try:
            new = self._context.registry.register(self._identified(), topic=topic, channel=channel)
        except TooManyKeysError:
            raise FatalError(error.INVALID, b"REGISTER of more topics and channels than one nsqd may have") from None
        if new.channel:
            self._log_key("REGISTER", "channel", topic, channel or "")
        if new.topic:
            self._log_key("REGISTER", "topic", topic)
        if self._context.registry.is_crowded:
            self._make_room()

    def _make_room(self) -> None:
        """Send the nsqd away that has registered the most."""
        crowding = FatalError(error.INVALID, b"there are too many topics and channels, and this nsqd has the most")
        largest = max(self._context.registry.producers, key=lambda producer: producer.key_count)
        if largest is self._producer:
            raise crowding
        session = next(each for each in self._context.sessions if each._producer is largest)
        if not session._closing:
            session._fail(crowding, [])
        self._context.registry.disconnect(largest)
        self._context.tidying.set_earlier(self._context.clock.monotonic_ns())

    def _identify(self, command: LookupIdentify) -> bytes:
        peer = RegisteredNsqd(self._remote_address, command.identity)
        self._producer = self._context.registry.connect(peer)
        identity = command.identity
        _log.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            self._remote_address,
            identity.broadcast_address[:MAX_SHOWN],
            identity.tcp_port,
            identity.http_port,
            identity.version[:MAX_SHOWN],
        )
        self._log_key("REGISTER", "client")
        return response(self._context.introduction)

    def _unregister(self, command: Unregister) -> None:
        registry, producer = self._context.registry, self._identified()
        if command.channel is not None:
            if registry.unregister_channel(producer, topic=command.topic, channel=command.channel):
                self._log_key("UNREGISTER", "channel", command.topic, command.channel)
            return
        had_it = command.topic in producer.topics
        for channel in registry.unregister_topic(producer, command.topic):
            _log.warning(
                "client(%s) unexpected UNREGISTER category:channel key:%s subkey:%s",
                self._remote_address,
                command.topic,
                channel,
            )
        if had_it:
            self._log_key("UNREGISTER", "topic", command.topic)

    def _ping(self, producer: TopicProducer) -> None:
        silent_ns = self._context.clock.monotonic_ns() - producer.heard_ns
        _log.info("CLIENT(%s): pinged (last ping %s)", self._remote_address, format_duration(silent_ns))
        self._context.registry.hear(producer)

    def _log_key(self, verb: str, category: str, key: str = "", subkey: str = "") -> None:
        _log.info("DB: client(%s) %s category:%s key:%s subkey:%s", self._remote_address, verb, category, key, subkey)

    def _identified(self) -> TopicProducer:
        """The producer. The decoder refuses commands that need it before IDENTIFY."""
        assert self._producer is not None  # noqa: S101
        return self._producer


class LookupContext:
    """What all sessions of one nsqlookupd share. Owned by the daemon."""

    def __init__(self, registry: Registry, *, clock: Clock, timers: Timers, tidying: Alarm) -> None:
        self.registry = registry
        self.tidying = tidying
        """Set when a producer is gone: its keys may have to be cleared away."""
        self.clock = clock
        self.timers = timers
        self.introduction = b""
        """The answer to IDENTIFY. Set when the ports are known, before the first session."""
        self.sessions: set[LookupSession] = set()
        """The connections that are open; each adds and removes itself."""
