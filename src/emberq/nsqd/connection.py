"""A client's connection below its commands: what leaves, when, in which order, and when nothing more is read.

Output. Frames leave compressed if that was agreed. A client may ask that message frames be held until its buffer is
full or a timeout has passed. Held frames leave early with any other frame, and when the client can take no more
messages anyway. Holding only saves system calls, and a turn of the event loop already gathers what there is to send. So
a client that accepts the server's default timeout gets its messages at once; one that asks for another timeout gets
what it asked for.

Deadlines. One alarm serves four of them:

    greeting        the first bytes, after which the others begin
    heartbeat       every interval
    read deadline   two intervals without a whole command
    write deadline  one interval in which a full socket took nothing

A command that arrives moves the read deadline without touching the alarm. When the alarm rings, `due` computes what is
really due.

ReplyQueue. Replies leave in the order of the commands, though some are not known yet. A publish to a journaled topic is
answered when its messages are on the disk. Until then a client may publish more, to other topics too; those replies
wait behind the first. Those that one sync has settled leave in one write. Other commands that have a reply wait until
the queue is empty.

Pause. A session stops for three reasons. A client that sends a lot gives way to the others after its turn, and goes on
in the loop's next one. A command that takes time (TLS, AUTH, a reply that must wait for those before it) holds up all
commands behind it. And what a client sends may not be urgent, and cost less when it has gathered in the socket for a
moment. Meanwhile reading is paused and what the client sends stays in its socket. One packet may still
come, because the loop had read it already; it is kept, until the session takes it or a TLS handshake begins.

Deliveries. Commands of consumers only change what a channel knows. What they made room for is delivered at the end of
the loop's turn, when all sockets that were readable have been read. So the consumers of a channel share what is there,
each gets one write, and clients are not woken for every message. A consumer that holds nearly as many messages as it
wants can wait a millisecond for more of them.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections import deque
from collections.abc import Callable, Coroutine
from enum import Flag, auto
from typing import Any, Protocol

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.timers import NEVER, Timers
from emberq.broker.stats import ClientStats
from emberq.wire.command import Command
from emberq.wire.compression import Codec
from emberq.wire.error import FatalError


class ClientConnection(Protocol):
    """An open connection, as the daemon and /stats see it."""

    @property
    def has_published(self) -> bool: ...

    def abort(self) -> None:
        """Close now."""
        ...

    def stats(self) -> ClientStats:
        """The connection as /stats shows it."""
        ...


# Output.

MAX_UNREAD_REPLY_BYTES = 1024 * 1024
"""Replies that a client may leave unread. Beyond that its commands are not read either."""


class Output:
    """The writing side of one connection. Owned by its session."""

    __slots__ = (
        "_held",
        "_held_bytes",
        "_is_unread",
        "_suspended",
        "_unsent_bytes",
        "buffer_bytes",
        "codec",
        "holds",
        "is_closing",
        "is_full",
        "transport",
        "write",
    )

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.write: Callable[[bytes], None]
        """Sends at once: the transport's `write`, behind the codec if there is one."""
        self.codec: Codec | None = None
        self.holds = False
        """Whether message frames are held back."""
        self.buffer_bytes = 0
        """Held frames leave when they reach this size."""
        self.is_full = False
        """The socket does not take more for now."""
        self.is_closing = False
        """The connection is closed or closing: no more replies are sent."""
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._is_unread = False
        """The client leaves too many replies unread. Until it reads them, its commands are not read."""
        self._suspended = False
        """The session is paused and reads nothing."""
        self._unsent_bytes = 0
        """What was waiting to be sent when the client's progress was last looked at, and replies added since."""

    def use_transport(self, transport: asyncio.Transport) -> None:
        """From here on, send by this transport, uncompressed until `use_codec`."""
        self.transport = transport
        self.codec = None
        self.write = transport.write

    def use_codec(self, codec: Codec) -> None:
        """From here on, compress what is sent."""
        self.codec = codec
        send = self.transport.write
        self.write = lambda data: send(codec.compress(data))

    def write_pieces(self, pieces: list[bytes | memoryview]) -> None:
        """Send at once, without joining the pieces if nothing must be done to them."""
        if self.codec is None:
            self.transport.writelines(pieces)
        else:
            self.write(b"".join(pieces))

    def reply(self, data: bytes) -> None:
        """Send a frame that is not a message, behind the messages that are held."""
        if self._held:
            self.flush()
        self.write(data)
        if self.is_full:
            self._unsent_bytes += len(data)
            self._stop_reading_beyond_limit()

    def hold(self, frames: bytes) -> int:
        """Hold message frames back; returns how many bytes are held now."""
        self._held.append(frames)
        self._held_bytes += len(frames)
        return self._held_bytes

    def flush(self) -> None:
        """Send the messages that are held."""
        if self._held:
            self.write(b"".join(self._held))
            self._held.clear()
            self._held_bytes = 0

    @property
    def has_held(self) -> bool:
        return bool(self._held)

    def _stop_reading_beyond_limit(self) -> None:
        if not self._is_unread and self.transport.get_write_buffer_size() > MAX_UNREAD_REPLY_BYTES:
            self._is_unread = True
            self.transport.pause_reading()

    def has_no_room(self) -> None:
        """The socket takes no more for now."""
        self.is_full = True
        self._unsent_bytes = self._count_unsent()

    def has_progressed(self) -> bool:
        """Whether the client has read something since this was last asked, or the socket became full."""
        before, self._unsent_bytes = self._unsent_bytes, self._count_unsent()
        return self._unsent_bytes < before

    def _count_unsent(self) -> int:
        """The bytes that the client has not received: here, and in the kernel, which hides small steps from us."""
        return self.transport.get_write_buffer_size() + _unsent_in_kernel(self.transport)

    def has_room(self) -> None:
        """The socket takes more again."""
        self.is_full = False
        self._is_unread = False
        self._read_if_wanted()

    def suspend_reading(self) -> None:
        """Leave what the client sends in the socket."""
        self._suspended = True
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        self._suspended = False
        self._read_if_wanted()

    def read_on(self) -> None:
        """Read whatever comes, to drop it."""
        self._is_unread = False
        self.resume_reading()

    def _read_if_wanted(self) -> None:
        if not self._suspended and not self._is_unread and not self.transport.is_reading():
            self.transport.resume_reading()


def _unsent_in_kernel(transport: asyncio.Transport) -> int:
    """What the kernel holds and the client has not acknowledged; 0 where the system does not tell."""
    try:
        answer = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(answer, sys.byteorder)


# Deadlines.


class Due(Flag):
    """What a session has to do now."""

    NOTHING = 0
    HEARTBEAT = auto()
    FLUSH = auto()
    GIVE_UP = auto()
    """The client has been silent for too long."""
    CUT_OFF = auto()
    """The client does not read, or a close takes too long."""


class Deadlines:
    """The deadlines of one connection. Owned by its session: `ring` tells it to ask what is `due`."""

    __slots__ = (
        "_alarm",
        "_clock",
        "_cut_off_ns",
        "_flush_ns",
        "_heartbeat_ns",
        "_interval_ns",
        "has_started",
        "last_heard_ns",
    )

    def __init__(self, *, clock: Clock, timers: Timers, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._alarm = timers.alarm(ring)
        self._interval_ns = 0
        """0: neither heartbeats nor deadlines."""
        self.has_started = False
        """Whether the greeting has come, or is not awaited any more."""
        self.last_heard_ns = 0
        """When a whole command last arrived; kept by the session."""
        self._heartbeat_ns = NEVER
        self._flush_ns = NEVER
        self._cut_off_ns = NEVER

    def start(self, interval_ms: int) -> None:
        """Send a heartbeat every `interval_ms` from now on; 0: neither heartbeats nor deadlines."""
        if not self.has_started:
            self.has_started = True
            self._cut_off_ns = NEVER  # the greeting has come
        now_ns = self._clock.monotonic_ns()
        self._interval_ns = interval_ms * NS_PER_MS
        self.last_heard_ns = now_ns
        self._heartbeat_ns = now_ns + self._interval_ns if interval_ms else NEVER
        self._set_alarm()

    def change_deadlines(self, interval_ms: int) -> None:
        """Another interval for the deadlines. Heartbeats keep their interval, unless the new one is 0."""
        self._interval_ns = interval_ms * NS_PER_MS
        if not interval_ms:
            self._heartbeat_ns = NEVER
        self._set_alarm()

    def flush_within(self, timeout_ms: int) -> None:
        """Flush within this time; an earlier flush stays."""
        if self._flush_ns == NEVER:
            self._flush_ns = self._clock.monotonic_ns() + timeout_ms * NS_PER_MS
            self._alarm.set_earlier(self._flush_ns)

    def flushed(self) -> None:
        self._flush_ns = NEVER

    def socket_is_full(self) -> None:
        """The client has one interval to read something."""
        if self._interval_ns:
            self.cut_off_within(self._interval_ns)

    def socket_has_room(self) -> None:
        self._cut_off_ns = NEVER

    def cut_off_within(self, timeout_ns: int) -> None:
        """Cut the connection off after this time."""
        self._cut_off_ns = self._clock.monotonic_ns() + timeout_ns
        self._alarm.set_earlier(self._cut_off_ns)

    def end_within(self, timeout_ns: int) -> None:
        """The connection is being closed: this is the only deadline left. Others may be over, and would ring on."""
        self.has_started = True  # the others are not to begin any more
        self._interval_ns = 0
        self._heartbeat_ns = self._flush_ns = NEVER
        self._cut_off_ns = self._clock.monotonic_ns() + timeout_ns
        self._set_alarm()

    def stop(self) -> None:
        """The connection is gone."""
        self._alarm.discard()

    def due(self, *, is_reading: bool) -> Due:
        """What is to be done now; the alarm is set for what comes next.

        A client that is not read from cannot be silent: the read deadline begins anew.
        """
        now_ns = self._clock.monotonic_ns()
        if not is_reading:
            self.last_heard_ns = now_ns
        due = Due.NOTHING
        if now_ns >= self._cut_off_ns:
            due |= Due.CUT_OFF
        if self._interval_ns and now_ns >= self.last_heard_ns + 2 * self._interval_ns:
            due |= Due.GIVE_UP
        if now_ns >= self._flush_ns:
            self._flush_ns = NEVER
            due |= Due.FLUSH
        if now_ns >= self._heartbeat_ns:
            self._heartbeat_ns = now_ns + self._interval_ns if self._interval_ns else NEVER
            due |= Due.HEARTBEAT
        self._set_alarm()
        return due

    def _set_alarm(self) -> None:
        deadline_ns = self.last_heard_ns + 2 * self._interval_ns if self._interval_ns else NEVER
        self._alarm.set(min(self._heartbeat_ns, self._flush_ns, self._cut_off_ns, deadline_ns))


# The order of replies.


Answer = Callable[[], bytes]
"""Gives the frames of a reply when its turn has come. FatalError: the connection ends with this error."""


class Reply:
    """The place of one reply in the queue."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: Answer | None = None
        """None while it is not known."""


class ReplyQueue:
    """The replies of one connection that have to wait. Owned by its session.

    One sync of the disk settles many of them. They leave together in the loop's next turn: to send each by itself costs
    more than what it answers, and the client would be woken for each.
    """

    __slots__ = ("_drained", "_fail", "_leaves_soon", "_line", "_output")

    def __init__(self, output: Output, *, fail: Callable[[FatalError], None]) -> None:
        self._output = output
        self._fail = fail
        self._line: deque[Reply] = deque()
        self._leaves_soon = False
        self._drained: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._line)

    def reserve(self) -> Reply:
        """A place behind all others, for a reply that is not known yet."""
        reply = Reply()
        self._line.append(reply)
        return reply

    def settle(self, reply: Reply, answer: Answer) -> None:
        """The reply is known: it leaves soon, once those before it have left."""
        reply.answer = answer
        if not self._leaves_soon and self._line and self._line[0].answer is not None:
            self._leaves_soon = True
            asyncio.get_running_loop().call_soon(self._leave)

    def _leave(self) -> None:
        """All that are known leave, up to the first that is not. None follows an error, or the client could take it for
        the answer to what was refused."""
        self._leaves_soon = False
        line = self._line
        frames: list[bytes] = []
        wrong: FatalError | None = None
        while line and wrong is None:
            answer = line[0].answer
            if answer is None:
                break
            line.popleft()
            try:
                frames.append(answer())
            except FatalError as refusal:
                wrong = refusal
                line.clear()
        if frames and not self._output.is_closing:
            self._output.reply(b"".join(frames))
        if wrong is not None and not self._output.is_closing:
            self._fail(wrong)
        self._tell_if_drained()

    def end(self) -> None:
        """The connection is gone: send nothing any more, and let go of the session."""
        self._line.clear()
        self._fail = ignore_failure
        self._tell_if_drained()

    def _tell_if_drained(self) -> None:
        if not self._line and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def drained(self) -> None:
        """Wait until all replies have left."""
        if self._line:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
            self._drained = None


# Pauses.


Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]
"""Runs a coroutine in the background and holds its task."""


REST_NS = NS_PER_MS
"""How long commands that are not urgent may gather in the socket."""


class Pause:
    """Stops one session and starts it again. Owned by the session.

    `resume` is called with the command that waited, if any. Behind it, `take_kept` gives the packet that was kept.
    """

    __slots__ = ("_fail", "_kept", "_output", "_resume", "_spawn", "awaited")

    def __init__(
        self,
        output: Output,
        *,
        spawn: Spawn,
        resume: Callable[[Command | None], None],
        fail: Callable[[FatalError], None],
    ) -> None:
        self._output = output
        self._spawn = spawn
        self._resume = resume
        self._fail = fail
        self.awaited: asyncio.Task[None] | asyncio.Handle | None = None
        """What the session waits for before it goes on; None while it runs."""
        self._kept = b""
        """What arrived during the pause; one packet at most."""

    def keep(self, data: bytes) -> None:
        """Keep a packet that came during the pause."""
        self._kept += data

    def take_kept(self) -> bytes:
        """The packet that came during the pause, if any."""
        kept, self._kept = self._kept, b""
        return kept

    def discard(self) -> None:
        """Forget the packet that was kept, as an upgrade of the stream demands."""
        self._kept = b""

    def give_way(self) -> None:
        """Let other connections have their turn first: the loop would read from a busy socket again and again."""
        if self.awaited is None and not self._output.is_closing:
            self._output.suspend_reading()
            self.awaited = asyncio.get_running_loop().call_soon(self._go_on, None)

    def rest(self) -> None:
        """Let commands that are not urgent gather in the socket: they cost less together, on both sides."""
        if self.awaited is None and not self._output.is_closing:
            self._output.suspend_reading()
            self.awaited = asyncio.get_running_loop().call_later(REST_NS / NS_PER_SECOND, self._go_on, None)

    def until(self, work: Coroutine[Any, Any, None], *, waiting: Command | None = None) -> None:
        """Stop until `work` is done, then go on with the command that is `waiting`."""
        self._output.suspend_reading()
        self.awaited = self._spawn(self._wait(work, waiting))

    async def _wait(self, work: Coroutine[Any, Any, None], waiting: Command | None) -> None:
        try:
            await work
        except FatalError as wrong:
            self.awaited = None
            self._fail(wrong)
            return
        finally:
            work.close()
        self._go_on(waiting)

    def _go_on(self, waiting: Command | None) -> None:
        self.awaited = None
        if not self._output.is_closing:
            self._output.resume_reading()
            self._resume(waiting)

    def end(self) -> None:
        """The connection is gone: stop waiting, and let go of the session."""
        if self.awaited is not None:
            self.awaited.cancel()
            self.awaited = None
        self._resume = _do_not_resume
        self._fail = ignore_failure


def _do_not_resume(_waiting: Command | None) -> None:
    """What a session that has ended does after a pause."""


def ignore_failure(_wrong: FatalError) -> None:
    """What a session that has ended does with a failure."""


# Deliveries.


class Settling(Protocol):
    """A consumer's side of a connection: `ClientSubscription`."""

    def settle(self) -> None:
        """Deliver what there is room for."""
        ...

    def settle_later(self) -> None:
        """Be settled at the end of the turn."""
        ...


PATIENCE_S = 0.001
"""How long a consumer waits for more messages that holds nearly as many as it wants."""
FEW_FRAME_BYTES = 4096
MAX_HELD_BYTES = 16 * 1024
"""Messages of more bytes, or more of them for one client, are sent at once."""
MAX_SETTLED_COUNT = 256
"""How many subscriptions settle in one turn; a command of each of thousands may arrive at once."""


class Deliveries:
    """Lets subscriptions settle at the end of the loop's turn. Owned by the daemon."""

    def __init__(self) -> None:
        self._unsettled: list[Settling] = []
        self._patient: dict[Settling, None] = {}
        """Those that are settled when PATIENCE_S is over; an ordered set."""
        self._outputs: list[Output] | None = None
        """Those that hold messages until all subscriptions have settled; None while none does."""

    def add(self, subscription: Settling) -> None:
        """Something was heard from this consumer."""
        if not self._unsettled:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._unsettled.append(subscription)

    def add_patient(self, subscription: Settling) -> None:
        """Something was heard from this consumer, which has enough to do for now."""
        if not self._patient:
            asyncio.get_running_loop().call_later(PATIENCE_S, self._end_patience)
        self._patient[subscription] = None

    def forget(self, subscription: Settling) -> None:
        """This consumer has gone."""
        self._patient.pop(subscription, None)

    def _end_patience(self) -> None:
        patient = list(self._patient)
        self._patient.clear()
        for subscription in patient:
            subscription.settle_later()

    def hold(self, output: Output, frames: bytes) -> bool:
        """Let a few frames leave with those for others, if this is the end of a turn; whether it is."""
        if self._outputs is None or len(frames) > FEW_FRAME_BYTES:
            return False
        if not output.has_held:
            self._outputs.append(output)
        if output.hold(frames) > MAX_HELD_BYTES:
            output.flush()
        return True

    def _end_turn(self) -> None:
        """What one raises is raised when all have settled.

        What is sent leaves at the very end, one write right behind the other: a client on another core that has just
        gone to sleep is expensive to wake.
        """
        unsettled = self._unsettled[:MAX_SETTLED_COUNT]
        del self._unsettled[:MAX_SETTLED_COUNT]
        if self._unsettled:
            asyncio.get_running_loop().call_soon(self._end_turn)
        outputs: list[Output] = []
        self._outputs = outputs if len(unsettled) > 1 else None
        failures: list[Exception] = []
        for subscription in unsettled:
            try:
                subscription.settle()
            except Exception as failure:  # noqa: BLE001 - raised below
                failures.append(failure)
        self._outputs = None
        for output in outputs:
            output.flush()
        if failures:
            raise ExceptionGroup("deliveries failed", failures)
