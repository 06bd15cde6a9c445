"""The consumer's side of a connection: SUB, RDY, FIN, REQ, TOUCH and CLS.

Messages leave as the channel hands them over, or are held back if the client asked for that (see `connection`). FIN,
REQ and TOUCH of a message that this client does not hold are refused; the connection stays open.

Commands only change what the channel knows; `settle`, at the end of the loop's turn, answers those that were refused,
and lets the channel hand over what the others made room for (see `Deliveries` in `connection`). A refusal takes longer
than the command: it is logged and sent. When thousands of consumers are late at once, only some of them settle in a
turn, and clients that have nothing to do with it are served in between.

A client that holds many messages is not waiting for the next one. So it gets more of them together, and is not read
from for each FIN (`PATIENT_PART`, `FinishPace`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from emberq.base.clock import NS_PER_MS
from emberq.broker.channel import Channel
from emberq.broker.error import BrokerError
from emberq.broker.stats import ClientStats
from emberq.broker.subscriber import Subscriber
from emberq.nsqd.connection import REST_NS, Deadlines, Output
from emberq.nsqd.context import SessionContext
from emberq.storage.error import StorageError
from emberq.wire import error, frame
from emberq.wire.command import FIN_LINE_BYTES, Fin, Rdy, Req, Sub, Touch
from emberq.wire.error import ClientError, FatalError
from emberq.wire.negotiation import ConnectionSettings

_log = logging.getLogger(__name__)

MAX_REFUSED_COUNT = 64
"""How many refusals of one client are sent in a turn of the loop. The client is not read from while more wait."""


PATIENT_PART = 32
"""A consumer can wait for more messages while less than one in so many of those that it wants is missing."""
EASY_COUNT = 64
EASY_RESTS = 4
"""A client is at ease that holds so many messages, and at its pace enough of them for so many rests."""


class FinishPace:
    """How fast a client finishes its messages. Owned by its subscription.

    Most clients write each FIN by itself. To read each by itself takes most of what a message costs, on both sides: the
    client has to wake nsqd for it. A client that holds many messages loses nothing if its FINs gather in the socket for
    the time of a rest (`connection.REST_NS`).
    """

    __slots__ = ("_finished", "_judged_ns")

    def __init__(self) -> None:
        self._judged_ns = 0
        """When it was last looked at."""
        self._finished = 0
        """How many messages the client had finished by then."""

    def is_easy(self, *, now_ns: int, finished: int, held: int) -> bool:
        """Whether what the client holds is enough for a rest. The answer is no until one could be over."""
        elapsed_ns = now_ns - self._judged_ns
        if elapsed_ns < REST_NS:
            return False
        lately = finished - self._finished
        self._judged_ns, self._finished = now_ns, finished
        return lately * REST_NS * EASY_RESTS <= held * elapsed_ns


class SubscribedConnection(Protocol):
    """What a channel needs of the whole connection."""

    def close(self) -> None: ...

    def stats(self) -> ClientStats: ...


class ClientSubscription:
    """A `SubscriberSink` of the broker. Owned by its session. Idle until the SUB, of which there is at most one."""

    __slots__ = (
        "_channel",
        "_connection",
        "_context",
        "_deadlines",
        "_is_closing",
        "_output",
        "_pace",
        "_refused",
        "_stop_until",
        "_trace",
        "is_at_ease",
        "is_unsettled",
        "remote_address",
        "settings",
        "subscriber",
    )

    def __init__(
        self,
        connection: SubscribedConnection,
        context: SessionContext,
        *,
        output: Output,
        deadlines: Deadlines,
        stop_until: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._connection: SubscribedConnection | None = connection
        """None once the connection is gone."""
        self._context = context
        self._trace = context.trace
        self._output = output
        self._deadlines = deadlines
        self._stop_until = stop_until
        """Executes no more commands of this client until the work is done."""
        self._channel: Channel | None = None
        self._is_closing = False
        """CLS has come."""
        self._refused: deque[ClientError] = deque()
        """What is to be answered to commands that failed."""
        self.is_at_ease = False
        """Whether the client has just finished one message of many: what it sends next is not urgent."""
        self._pace = FinishPace()
        self.is_unsettled = False
        """Whether the channel may have something to hand over, and `Deliveries` knows of it."""
        self.remote_address = ""
        """For the log."""
        self.settings = context.default_settings
        """What the client has negotiated, or the defaults."""
        self.subscriber: Subscriber | None = None
        """This client, as the channel knows it."""

    # The broker's side.

    def deliver(self, frames: bytes) -> None:
        """Send message frames, or hold them if the client asked for that."""
        if self._trace.is_on:
            self._trace.delivered(self.remote_address, frames)
            self._trace_state()
        output = self._output
        if not output.holds:
            if not self._context.deliveries.hold(output, frames):
                output.flush()
                output.write(frames)
        elif output.hold(frames) >= output.buffer_bytes or not self._is_ready():
            self._flush()
        elif self.settings.output_buffer_timeout_ms:
            self._deadlines.flush_within(self.settings.output_buffer_timeout_ms)

    def deliver_pieces(self, pieces: list[bytes | memoryview]) -> None:
        """Send message frames of which some are large."""
        if self._output.holds or self._trace.is_on:
            self.deliver(b"".join(pieces))
        else:
            self._output.flush()
            self._output.write_pieces(pieces)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def stats(self) -> ClientStats:
        assert self._connection is not None  # noqa: S101 - the channel has forgotten one that is gone
        return self._connection.stats()

    def _is_ready(self) -> bool:
        subscriber = self.subscriber
        return subscriber is not None and subscriber.ready_count > subscriber.in_flight_count

    def _trace_state(self) -> None:
        if self.subscriber is not None:
            self._trace.state(self.remote_address, self.subscriber.ready_count, self.subscriber.in_flight_count)

    def _flush(self) -> None:
        self._output.flush()
        self._deadlines.flushed()

    # The connection's side.

    def block(self) -> None:
        """The socket does not take more for now."""
        if self.subscriber is not None and self._channel is not None:
            self._channel.block(self.subscriber)

    def unblock(self) -> None:
        """The socket takes more again."""
        if self.subscriber is not None and self._channel is not None:
            self._channel.unblock(self.subscriber)
            self._channel.pump()

    def end(self) -> None:
        """The connection is gone, and let go."""
        channel, subscriber = self._channel, self.subscriber
        self._connection = self._channel = self.subscriber = None
        self._context.deliveries.forget(self)
        self._refused.clear()
        if subscriber is not None and channel is not None:
            channel.unsubscribe(subscriber)
            if self.is_unsettled:
                self.is_unsettled = False
                channel.pump()  # what it gave back is for the others
            self._context.broker.leave(channel)

    # Commands.

    def settle_later(self) -> None:
        """Be settled at the end of the turn."""
        if not self.is_unsettled:
            self.is_unsettled = True
            self._context.deliveries.add(self)

    def settle(self) -> None:
        """Let the channel hand over what it can now, if this client has changed anything."""
        if not self.is_unsettled:
            return
        self.is_unsettled = False
        if self._refused:
            self.answer_refused()
        if self._channel is not None:
            self._channel.pump()
            if self._output.holds and self._output.has_held and not self._is_ready():
                self._flush()

    def subscribe(self, command: Sub, delivery: ConnectionSettings) -> None:
        """SUB. `delivery` is the timeout, sample rate and zone that messages are delivered by."""
        subscriber = Subscriber(
            self,
            msg_timeout_ns=delivery.msg_timeout_ms * NS_PER_MS,
            sample_rate=delivery.sample_rate,
            locality=self._context.locality(delivery),
        )
        try:
            channel = self._context.broker.topic(command.topic).channel(command.channel)
            channel.subscribe(subscriber)
        except (BrokerError, StorageError) as refusal:
            raise FatalError(error.SUB_FAILED, b"SUB failed %b" % str(refusal).encode()) from refusal
        self._channel = channel
        self.subscriber = subscriber
        if self._output.is_full:
            channel.block(subscriber)
        self._output.reply(frame.OK)

    def ready(self, command: Rdy) -> None:
        """RDY."""
        if self._is_closing:
            _log.info("PROTOCOL(V2): [%s] ignoring RDY after CLS in state ClientStateV2Closing", self.remote_address)
            return
        channel, subscriber = self._subscribed()
        channel.set_ready(subscriber, command.count)
        self.settle_later()
        if self._trace.is_on:
            self._trace_state()

    def finish(self, command: Fin) -> None:
        """FIN."""
        channel, subscriber = self._subscribed()
        unknown = channel.finish(subscriber, command.lines)
        held = subscriber.in_flight_count
        if held >= EASY_COUNT and len(command.lines) == FIN_LINE_BYTES:
            self.is_at_ease = self._pace.is_easy(
                now_ns=self._deadlines.last_heard_ns, finished=subscriber.finish_count, held=held
            )
        if not self.is_unsettled and channel.depth:
            if subscriber.window * PATIENT_PART < subscriber.ready_count:
                self._context.deliveries.add_patient(self)
            else:
                self.settle_later()
        for message_id in unknown:
            self._refuse(error.FIN_FAILED, b"FIN", message_id, channel.why_not(message_id))

    def requeue(self, command: Req) -> None:
        """REQ."""
        channel, subscriber = self._subscribed()
        limit_ms = self._context.command_limits.max_req_timeout_ms
        timeout_ms = max(0, min(command.timeout_ms, limit_ms))
        if timeout_ms != command.timeout_ms:
            _log.info(
                "PROTOCOL(V2): [%s] REQ timeout %d out of range 0-%d. Setting to %d",
                self.remote_address,
                command.timeout_ms,
                limit_ms,
                timeout_ms,
            )
        try:
            channel.requeue(subscriber, command.id, delay_ns=timeout_ms * NS_PER_MS)
            self.settle_later()
        except BrokerError as refusal:
            self._refuse(error.REQ_FAILED, b"REQ", command.id, refusal)

    def touch(self, command: Touch) -> None:
        """TOUCH."""
        channel, subscriber = self._subscribed()
        try:
            channel.touch(subscriber, command.id, msg_timeout_ns=self.settings.msg_timeout_ms * NS_PER_MS)
        except BrokerError as refusal:
            self._refuse(error.TOUCH_FAILED, b"TOUCH", command.id, refusal)

    def start_close(self) -> None:
        """CLS."""
        self._is_closing = True
        channel, subscriber = self._subscribed()
        channel.set_ready(subscriber, 0)
        self._output.reply(frame.CLOSE_WAIT)

    def _refuse(self, code: bytes, verb: bytes, message_id: bytes, refusal: BrokerError) -> None:
        """Remember to answer a command that failed; the connection stays open."""
        self._refused.append(ClientError(code, b"%b %b failed %b" % (verb, message_id, str(refusal).encode())))
        self.settle_later()
        if len(self._refused) == MAX_REFUSED_COUNT + 1:
            self._stop_until(self._all_refused_are_answered())

    def answer_refused(self) -> None:
        """Tell the client, and the log, which commands failed; MAX_REFUSED_COUNT of them at most."""
        refused = self._refused
        for _ in range(min(len(refused), MAX_REFUSED_COUNT)):
            wrong = refused.popleft()
            _log.error("[%s] - %s", self.remote_address, wrong)
            self._output.reply(frame.error(wrong.data))

    async def _all_refused_are_answered(self) -> None:
        while self._refused:
            self.answer_refused()
            await asyncio.sleep(0)

    def _subscribed(self) -> tuple[Channel, Subscriber]:
        """The channel and subscriber. The decoder refuses commands that need them before there is a SUB."""
        assert self._channel is not None  # noqa: S101
        assert self.subscriber is not None  # noqa: S101
        return self._channel, self.subscriber
