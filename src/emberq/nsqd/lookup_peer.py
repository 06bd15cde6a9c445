"""One nsqlookupd: a connection that is kept open as long as nsqd runs, and what is said on it.

    waiting ──retry──> connecting ──> identifying ──> registering ──> up
       ^                   │               │               │           │
       └───────────────────┴───── any failure ─────────────┴───────────┘

- Only `LookupPeer` waits for nsqlookupd. It allows a second for connecting, four more for a handshake, and a second for
  each answer. A PING every 15 s notices a connection that died in silence.
- Any failure (no connection, no answer in time, a wrong answer) ends the connection. Nothing is kept for the next one:
  it begins with a fresh snapshot of all that exists.
- Retries come at growing, partly random intervals, so that a thousand nsqds that lost the same nsqlookupd do not come
  back in one moment. The intervals grow until a connection has lasted: an nsqlookupd that accepts every connection and
  then fails is not asked more often than one that is not there.
- The log has one line for up and one for down, however many retries lie between; at level debug, one for each retry.

`Conversation` is what is said on one connection, from the first byte to the last, without I/O:

    begin()                     magic and IDENTIFY leave; nothing else does until the answer is here
    its answer                  a snapshot of all that exists is taken, its registrations are next
    add(command)                comes after them, in order
    output()                    the commands that may leave now: at most WINDOW of them wait for their answers

So a change is told exactly once: if it happened before the snapshot it is in it, and `add` ignores it; if it happened
later it is queued. Commands do not wait for the answer to the one before: with 100,000 channels that would take 100,000
round trips.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from emberq.base.address import parse_tcp_address
from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.timers import Timers
from emberq.base.tls import openssl_reason, openssl_text
from emberq.wire.lookup import (
    MAGIC,
    PING,
    AnswerError,
    LookupAnswerReader,
    LookupdInfo,
    NsqdIdentity,
    TopicAndChannels,
    check_ok,
    identify,
    parse_info,
    registrations,
)

CONNECT_TIMEOUT_NS = NS_PER_SECOND
HANDSHAKE_TIMEOUT_NS = 4 * NS_PER_SECOND
"""A thousand nsqds that come back to an nsqlookupd in one moment have to wait for each other's handshakes."""
ANSWER_TIMEOUT_NS = NS_PER_SECOND
PING_INTERVAL_NS = 15 * NS_PER_SECOND
FIRST_RETRY_NS = 250 * NS_PER_MS
MAX_RETRY_NS = 5 * NS_PER_SECOND
"""So long after nsqlookupd came back, consumers may not find this nsqd there."""
MAX_SHOWN = 256
"""Characters of what it tells of itself that the log shows; a host name has no more."""
TLS_ALERT = b"\x15\x03"
"""How the answer of a server begins that speaks TLS only: a record of the type alert, and the version."""
MAX_QUERY_COUNT = 16
"""HTTP queries to one nsqlookupd at a time: a burst of new topics must not take all our file descriptors."""

_log = logging.getLogger(__name__)

Snapshot = Callable[[], Iterable[TopicAndChannels]]

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerContext:
    """What all peers of one nsqd share."""

    identity: NsqdIdentity
    snapshot: Snapshot
    """All topics with their channels, as they are now."""
    max_answer_bytes: int
    clock: Clock
    timers: Timers
    spawn: Spawn
    """Runs a coroutine and holds its task."""
    chance: Callable[[], float]
    """A number from 0 to 1."""
    tls: ssl.SSLContext | None = None
    """None: plain TCP."""


class LookupPeer:
    """Owns the connection to one nsqlookupd. `start` and `close` in the loop's thread; neither waits."""

    def __init__(self, address: str, context: PeerContext) -> None:
        self.address = address
        self.info = LookupdInfo()
        """What it last told of itself. Kept when the connection is lost: its HTTP API may still answer."""
        self.tried = asyncio.Event()
        """Set once the first attempt has ended: nsqlookupd has answered IDENTIFY, or cannot be reached."""
        self.query_slots = asyncio.Semaphore(MAX_QUERY_COUNT)
        self.is_up = False
        """Whether all topics and channels are registered there."""
        self._context = context
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._failure_count = 0
        """Failures since a connection last lasted until its first PING."""
        self._is_loss_told = False
        """Whether the log says already that it is down."""
        self._is_attempt_told = False
        """Whether the log says already that we try to connect."""
        self._retry_alarm = context.timers.alarm(self.start)
        self._deadline = context.timers.alarm(self._on_deadline)
        self._ping_alarm = context.timers.alarm(self._ping)

    def __repr__(self) -> str:
        state = "up" if self.is_up else "down" if self._connection is None else "connecting"
        return f"<LookupPeer {self.address} {state} failures={self._failure_count}>"

    def start(self) -> None:
        """Connect, now and whenever the connection is lost."""
        context = self._context
        _log.log(logging.DEBUG if self._is_attempt_told else logging.INFO, "LOOKUP connecting to %s", self.address)
        self._is_attempt_told = True
        conversation = Conversation(
            context.identity,
            address=self.address,
            snapshot=context.snapshot,
            max_answer_bytes=context.max_answer_bytes,
        )
        self._connection = _Connection(self, conversation)
        self._set_deadline(CONNECT_TIMEOUT_NS + (HANDSHAKE_TIMEOUT_NS if context.tls is not None else 0))
        self._connecting = context.spawn(self._connect(self._connection))

    def close(self) -> None:
        """Close the connection for good."""
        self._hang_up()
        for alarm in (self._retry_alarm, self._deadline, self._ping_alarm):
            alarm.discard()
        self.tried.set()  # those who wait for the first attempt go on

    def tell(self, command: bytes) -> None:
        """Pass on a change. Does nothing while there is no connection: the next one begins with all that exists."""
        if self._connection is None:
            return
        try:
            self._connection.conversation.add(command)
        except FallenBehindError as behind:
            self._lose(str(behind))
        else:
            self._send(self._connection)

    # The connection.

    async def _connect(self, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        try:
            target = parse_tcp_address(self.address)
            await loop.create_connection(
                lambda: connection, target.host or "localhost", target.port, ssl=self._context.tls
            )
        except (OSError, ValueError) as failure:  # ValueError: not an address, or a name that cannot be looked up
            if connection is self._connection:
                self._connecting = None
                self._lose(f"cannot connect: {_connect_failure(failure, is_tls=self._context.tls is not None)}")

    def connected(self, connection: _Connection) -> None:
        """The connection is open."""
        if connection is not self._connection:
            connection.abort()
            return
        self._set_deadline(ANSWER_TIMEOUT_NS)
        connection.write(connection.conversation.begin())

    def received(self, connection: _Connection, data: bytes) -> None:
        """Take in answers, and send what they made room for."""
        if connection is not self._connection:
            return
        conversation = connection.conversation
        was_identified = conversation.info is not None
        try:
            answered_count = conversation.receive(data)
        except AnswerError as wrong:
            is_tls_alert = not was_identified and data.startswith(TLS_ALERT)
            self._lose("it speaks TLS only; this nsqd needs --lookupd-tls" if is_tls_alert else str(wrong))
            return
        if not answered_count:
            return  # a part of an answer gains no time for the rest
        if not was_identified:
            self._identified(conversation.info or LookupdInfo())
        if conversation.awaited_count:
            self._set_deadline(ANSWER_TIMEOUT_NS)
        else:
            self._deadline.cancel()
        self._send(connection)
        if not conversation.awaited_count and not self.is_up:
            self._come_up()

    def disconnected(self, connection: _Connection, why: Exception | None) -> None:
        """The other side closed the connection, or the network failed."""
        if connection is self._connection:
            is_tls = self._context.tls is not None
            self._lose(_loss(why, has_answered=connection.conversation.info is not None, is_tls=is_tls))

    def _send(self, connection: _Connection) -> None:
        conversation = connection.conversation
        was_idle = not conversation.awaited_count
        data = conversation.output()
        if not data:
            return
        if was_idle:
            self._set_deadline(ANSWER_TIMEOUT_NS)
        connection.write(data)

    def _ping(self) -> None:
        if self.is_up:
            self._failure_count = 0
        self._ping_alarm.set(self._context.clock.monotonic_ns() + PING_INTERVAL_NS)
        _log.debug("LOOKUPD(%s): sending heartbeat", self.address)
        self.tell(PING)

    def _set_deadline(self, timeout_ns: int) -> None:
        self._deadline.set(self._context.clock.monotonic_ns() + timeout_ns)

    def _on_deadline(self) -> None:
        is_open = self._connection is not None and self._connection.is_open
        self._lose("no answer in time" if is_open else "cannot connect: no answer in time")

    # Up and down.

    def _identified(self, info: LookupdInfo) -> None:
        self.info = info
        self.tried.set()
        _log.info(
            "LOOKUPD(%s): peer info {TCPPort:%d HTTPPort:%d Version:%s BroadcastAddress:%s}",
            self.address,
            info.tcp_port,
            info.http_port,
            info.version[:MAX_SHOWN],
            info.broadcast_address[:MAX_SHOWN],
        )
        self._ping_alarm.set(self._context.clock.monotonic_ns() + PING_INTERVAL_NS)

    def _come_up(self) -> None:
        self.is_up = True
        self._is_loss_told = self._is_attempt_told = False
        _log.info("LOOKUPD(%s): registered with nsqlookupd v%s", self.address, self.info.version)
        if self.info.http_address is None:
            _log.error("LOOKUPD(%s): it announces no address, so it cannot be asked for channels", self.address)

    def _lose(self, reason: str) -> None:
        self._hang_up()
        self._failure_count += 1
        if not self._is_loss_told:
            self._is_loss_told = True
            _log.error("LOOKUPD(%s): not registered, will keep trying - %s", self.address, reason)
        self.is_up = False
        self.tried.set()
        delay_ns = retry_delay_ns(self._failure_count, chance=self._context.chance())
        self._retry_alarm.set(self._context.clock.monotonic_ns() + delay_ns)

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        self._deadline.cancel()
        self._ping_alarm.cancel()


# What went wrong, in words that tell what to do.

_NOT_TLS = ("WRONG_VERSION_NUMBER", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""What OpenSSL finds in an answer that is not TLS."""
_CERTIFICATE_WANTED = ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE")


def _connect_failure(failure: OSError | ValueError, *, is_tls: bool) -> str:
    if isinstance(failure, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {failure.verify_message} (--lookupd-tls-root-ca-file)"
    if isinstance(failure, ssl.SSLError) and openssl_reason(failure) in _NOT_TLS:
        return "it does not speak TLS; it needs --tls-cert, or this nsqd no --lookupd-tls"
    if isinstance(failure, ssl.SSLError):
        return _refusal_text(failure)
    if is_tls and isinstance(failure, ConnectionResetError):
        return _closed_early(is_tls=True)
    return str(failure)


def _loss(why: Exception | None, *, has_answered: bool, is_tls: bool) -> str:
    if isinstance(why, ssl.SSLError):
        return _refusal_text(why)
    return "the connection was closed" if has_answered else _closed_early(is_tls=is_tls)


def _closed_early(*, is_tls: bool) -> str:
    """A server that refuses a handshake, or the lack of one, closes without a word."""
    wish = "want to see a certificate (--tls-cert, --tls-key)" if is_tls else "speak TLS only (--lookupd-tls)"
    return f"the connection was closed before it answered; it may {wish}, which its log tells"


def _refusal_text(failure: ssl.SSLError) -> str:
    if openssl_reason(failure) in _CERTIFICATE_WANTED:
        return "it wants to see a certificate (--tls-cert, --tls-key)"
    return f"TLS failed: {openssl_text(failure)}"


def retry_delay_ns(failure_count: int, *, chance: float) -> int:
    """How long to wait after so many failures in a row. `chance`, from 0 to 1, shortens it by up to a half."""
    doublings = min(failure_count - 1, 16)  # far beyond the longest interval, and no huge numbers
    longest_ns = min(FIRST_RETRY_NS << doublings, MAX_RETRY_NS)
    return round(longest_ns * (1 - chance / 2))


class _Connection(asyncio.Protocol):
    """Passes events of the loop to the peer, which ignores all but its current connection."""

    def __init__(self, peer: LookupPeer, conversation: Conversation) -> None:
        self.conversation = conversation
        self._peer = peer
        self._transport: asyncio.Transport | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer.connected(self)

    def data_received(self, data: bytes) -> None:
        self._peer.received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer.disconnected(self, exc)


# What is said on one connection.

WINDOW = 500
"""Commands that may wait for their answers: many per round trip, and at most some 70 kB in our buffers."""
MAX_QUEUED = 100_000
"""Changes that may wait behind them. With more, starting again from a fresh snapshot is quicker."""


class FallenBehindError(Exception):
    """More than MAX_QUEUED changes wait: connect again and start from a snapshot."""


class Conversation:
    """What is said on one connection. Owned by its peer, and dropped with the connection."""

    def __init__(self, identity: NsqdIdentity, *, address: str, snapshot: Snapshot, max_answer_bytes: int) -> None:
        self.info: LookupdInfo | None = None
        """What nsqlookupd told of itself; None until it answered IDENTIFY."""
        self.awaited_count = 0
        """Commands whose answers have not come."""
        self._identity = identity
        self._address = address
        """For the log."""
        self._snapshot = snapshot
        self._reader = LookupAnswerReader(max_bytes=max_answer_bytes)
        self._registrations: Iterator[bytes] = iter(())
        """What is left of the snapshot."""
        self._changes: deque[bytes] = deque()

    def begin(self) -> bytes:
        """The first bytes to send."""
        self.awaited_count = 1
        return MAGIC + identify(self._identity)

    def add(self, command: bytes) -> None:
        """Send this too, after all that waits; FallenBehindError if too much waits."""
        if self.info is None:
            return  # the snapshot will have it
        if len(self._changes) >= MAX_QUEUED:
            raise FallenBehindError(f"more than {MAX_QUEUED} changes wait to be registered")
        self._changes.append(command)

    def output(self) -> bytes:
        """The bytes that may be sent now."""
        if self.info is None:
            return b""
        room = WINDOW - self.awaited_count
        commands = list(islice(self._registrations, room))
        if _log.isEnabledFor(logging.INFO):
            for command in commands:
                _log.info("LOOKUPD(%s): %s", self._address, command.decode().rstrip())
        while self._changes and len(commands) < room:
            commands.append(self._changes.popleft())
            self._log_change(commands[-1])
        self.awaited_count += len(commands)
        return b"".join(commands)

    def _log_change(self, command: bytes) -> None:
        line = command.decode().split()
        if command != PING:
            what = "topic" if len(line) == 2 else "channel"  # behind the verb: a topic, or a topic and a channel
            _log.info("LOOKUPD(%s): %s %s", self._address, what, " ".join(line))

    def receive(self, data: bytes) -> int:
        """Take in what came; how many commands it answered. AnswerError if it is not a valid answer."""
        answered_count = 0
        for answer in self._reader.feed(data):
            self._take(answer)
            answered_count += 1
        return answered_count

    def _take(self, answer: bytes) -> None:
        if not self.awaited_count:
            raise AnswerError("it answered what was not asked")
        if self.info is None:
            self.info = parse_info(answer)
            self._registrations = registrations(tuple(self._snapshot()))
        else:
            check_ok(answer)
        self.awaited_count -= 1
