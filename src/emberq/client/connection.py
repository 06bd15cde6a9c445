"""One connection to one nsqd: questions and their answers, and what nsqd sends unasked.

Commands with an answer (SUB, PUB, MPUB, DPUB, CLS) go through `request` or `submit`. Any number may be under way: nsqd
executes them in order and answers in order, so the oldest question owns the next answer. A question that times out, or
whose caller gives up, keeps its place in the line, and its late answer is dropped there.

Commands without one (RDY, FIN, REQ, TOUCH) go through `send`.

What comes by itself is handled here or passed on:

    heartbeat                         answered at once, whatever the handlers of messages are doing
    messages                          `on_messages`, all that arrived together in one call
    E_FIN/REQ/TOUCH_FAILED            `on_error`, or else the log; the connection goes on
    any other error                   raised by the oldest request, and nsqd closes; those behind it were not executed
                                      and raise `NotExecutedError`
    no byte for two heartbeats        the connection is dead; `on_close`

What nsqd has no reason to send ends the connection with a `FrameError`: an answer to no question, more failed FINs,
REQs and TOUCHes than were sent, a message for an owner that consumes none. How many messages an owner expects is its
own affair; it ends the connection by `refuse`, or makes nsqd wait by `pause_reading`.

The callbacks are called in the loop's thread and must not block.

Messages come as `MessageFields`. A caller that wants them in another form passes a `decode`: it gets the bytes as they
arrive, and returns the messages that these complete (None or empty if there are none) and all other frames. Those are
handled here first; then the messages go to `on_messages`, in the form that `decode` gave them. What is no frame is a
`FrameError`, and ends the connection. Its owner hears of a `ConnectionLostError` that tells the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from emberq.base.address import AddressError
from emberq.client.address import nsqd_address
from emberq.client.config import ClientConfig
from emberq.client.error import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    NotExecutedError,
    NsqError,
    RequestTimeoutError,
    ServerError,
    server_error,
)
from emberq.client.stream import Handshake, IdentifyAnswer, Stream
from emberq.wire.command import FIN_LINE_BYTES, NOP
from emberq.wire.compression import CompressionError
from emberq.wire.frame import ERROR, RESPONSE, Frame, FrameDecoder, FrameError

HEARTBEAT = b"_heartbeat_"
SILENT_HEARTBEATS = 2
"""After so many intervals without a byte a connection is dead: one heartbeat may be late, not two."""
LATE_WAKE_S = 1.0
"""An alarm that rings so much too late tells of our own loop having been held up, not of the peer."""

log = logging.getLogger(__name__)

Messages = TypeVar("Messages")
"""What `decode` makes of those that arrived together; a list of `MessageFields` unless `open` was given another."""
Decode: TypeAlias = Callable[[bytes], tuple[Messages | None, Sequence[Frame]]]
OnMessages: TypeAlias = Callable[["Connection", Messages], None]
OnError: TypeAlias = Callable[["Connection", bytes], None]
OnClose: TypeAlias = Callable[["Connection", BaseException | None], None]


class Connection:
    """A connection that has been set up. Made by `open`; owned by a producer or consumer, in one event loop."""

    def __init__(
        self,
        stream: Stream,
        *,
        address: str,
        config: ClientConfig,
        answer: IdentifyAnswer,
        decode: Decode[Any],
        on_messages: OnMessages[Any] | None,
        on_error: OnError | None,
        on_close: OnClose | None,
    ) -> None:
        self.address = address
        self.answer = answer
        self._config = config
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._decode = decode
        self._on_messages = on_messages
        self._on_error = on_error
        self._on_close = on_close
        self._questions: deque[tuple[float, asyncio.Future[bytes], bytes]] = deque()
        """Oldest first: the loop's time at which the question times out, the future of its answer, and the only answer
        it may have; empty: any."""
        self._refusable_count = 0
        """Commands without an answer that nsqd may still say it could not execute."""
        self.late_count = 0
        """Answers to questions whose askers did not wait for them any more."""
        self.received_bytes = 0
        """All that came, decompressed."""
        self._question_alarm: asyncio.TimerHandle | None = None
        self._silence_alarm: asyncio.TimerHandle | None = None
        self._pause_alarm: asyncio.TimerHandle | None = None
        self._is_closed_by_us = False
        self._ended_by: BaseException | None = None
        self.is_open = True
        """Whether commands can be sent; False from the first sign of the end on."""

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<Connection {self.address} {state}, {len(self._questions)} requests under way>"

    @classmethod
    async def open(
        cls,
        address: str,
        config: ClientConfig,
        *,
        decode: Decode[Messages] | None = None,
        on_messages: OnMessages[Messages] | None = None,
        on_error: OnError | None = None,
        on_close: OnClose | None = None,
    ) -> Connection:
        """Connect, identify, encrypt, compress and authenticate as configured, within `connect_timeout_s`.

        Raises `ConnectError`, or a `ServerError` if nsqd refuses what was asked for. `on_close` is called once, if
        and only if this returns: with None after `close`, else with what ended the connection.
        """
        try:
            address = nsqd_address(address.strip())
        except AddressError as error:
            raise ConnectError(address, str(error)) from error
        try:
            async with asyncio.timeout(config.connect_timeout_s):
                stream, answer = await _set_up(address, config)
        except TimeoutError as error:
            raise ConnectError(address, f"not set up within {config.connect_timeout_s} s") from error
        connection = cls(
            stream,
            address=address,
            config=config,
            answer=answer,
            decode=decode or FrameDecoder(max_frame_bytes=config.max_frame_bytes).feed,
            on_messages=on_messages,
            on_error=on_error,
            on_close=on_close,
        )
        connection._start()
        return connection

    def _start(self) -> None:
        self._watch_silence()
        self._stream.deliver_to(self._receive, on_lost=self._ended)

    # Commands

    async def request(self, command: bytes, *, answer: bytes = b"") -> bytes:
        """Send a command that nsqd answers, and return the answer.

        If `answer` is given, any other ends the connection. Raises `ServerError`, `RequestTimeoutError`,
        `ConnectionLostError`, or `ClosedError` after `close`.
        """
        return await self.submit(command, answer=answer)

    def submit(self, command: bytes, *, answer: bytes = b"") -> asyncio.Future[bytes]:
        """The same without waiting: the answer to come. Cancelling it takes nothing back."""
        self.check_open()
        future: asyncio.Future[bytes] = self._loop.create_future()
        due_s = self._loop.time() + self._config.request_timeout_s
        self._questions.append((due_s, future, answer))
        if self._question_alarm is None:
            self._ring_for_questions_at(due_s)
        self._stream.write(command)
        return future

    def send(self, data: bytes) -> None:
        """Send commands that nsqd does not answer. They leave at the end of this turn of the loop, in one piece."""
        self.check_open()
        self._refusable_count += len(data) // FIN_LINE_BYTES  # no FIN, REQ or TOUCH is shorter
        self._stream.write(data)

    @property
    def pending_count(self) -> int:
        """How many requests nsqd has not answered yet."""
        return len(self._questions)

    @property
    def is_congested(self) -> bool:
        """Whether nsqd takes less than is written, so that `drain` would wait."""
        return self._stream.is_congested

    async def drain(self) -> None:
        """Wait until nsqd has taken enough of what was written; `ConnectionLostError` if it never does."""
        await self._stream.drain()
        self.check_open()

    def check_open(self) -> None:
        """`ClosedError` or `NotExecutedError` if no command can be sent any more."""
        if self._is_closed_by_us:
            raise ClosedError(f"the connection to {self.address} has been closed")
        if not self.is_open:
            reason = self._lost(self._ended_by).reason
            raise NotExecutedError(self.address, f"not connected: {reason}") from self._ended_by

    # Making nsqd wait

    def pause_reading(self) -> None:
        """Read no more, so that nsqd has to wait; heartbeats included, so it gets a sign of life from time to time."""
        self._stream.pause_reading()
        self._ring_for_sign_of_life()

    def resume_reading(self) -> None:
        """Go on."""
        if self._pause_alarm is not None:
            self._pause_alarm.cancel()
        self._stream.resume_reading()

    # Ending

    async def close(self) -> None:
        """Send what has been written and close. Requests under way raise `ClosedError`. Closing twice is harmless."""
        if self.is_open:
            self._is_closed_by_us = True
            self._shut(None)
        await self._stream.close()

    def abort(self, failure: BaseException) -> None:
        """Give the connection up at once, because of `failure`."""
        if self.is_open:
            self._shut(failure)
            self._stream.abort(failure)

    def refuse(self, what: str) -> None:
        """Give the connection up because of something that nsqd had no reason to send."""
        self.abort(FrameError(f"{what}; this is not how an nsqd behaves"))

    def _ended(self, failure: BaseException | None) -> None:
        """The stream is gone, for whatever reason."""
        if self.is_open and self._questions and isinstance(failure, OSError):
            self._stream.read_rest()  # there may be answers, and the error because of which nsqd closed
            failure = failure if self.is_open else self._ended_by
        if self.is_open:
            self._shut(failure)
        if self._on_close is not None:
            self._on_close(self, None if self._is_closed_by_us else self._reason_for_owner(failure))

    def _reason_for_owner(self, failure: BaseException | None) -> BaseException:
        """Whether a peer's end shows as the end of the stream or as a reset is chance; it means the same.

        What a peer has sent that it should not have is one more way in which a connection is lost.
        """
        return failure if isinstance(failure, NsqError) else self._lost(failure)

    def _shut(self, failure: BaseException | None) -> None:
        """From now on no command is sent, and no question is answered."""
        self.is_open = False
        self._ended_by = failure
        for alarm in (self._question_alarm, self._silence_alarm, self._pause_alarm):
            if alarm is not None:
                alarm.cancel()
        questions, self._questions = self._questions, deque()
        for _, future, _ in questions:
            if not future.done():
                future.set_exception(self._reason_for_asker(failure))

    def _reason_for_asker(self, failure: BaseException | None) -> BaseException:
        """Each asker gets an exception of its own: a traceback grows with every place that raises it."""
        if self._is_closed_by_us:
            return ClosedError(f"the connection to {self.address} was closed before the answer came")
        return self._lost(failure)

    def _lost(self, failure: BaseException | None) -> ConnectionLostError:
        """nsqd executes commands in order, so behind one that it answered with an error none was executed."""
        kind = NotExecutedError if isinstance(failure, ServerError) else ConnectionLostError
        lost = kind(self.address, str(failure) if failure is not None else "nsqd closed the connection")
        lost.__cause__ = failure
        return lost

    # Alarms

    def _ring_for_questions_at(self, due_s: float) -> None:
        self._question_alarm = self._loop.call_at(due_s, self._expire_questions, due_s)

    def _expire_questions(self, alarm_s: float) -> None:
        """All questions have the same time, so they fall due in the order in which they were asked."""
        self._question_alarm = None
        now_s = self._loop.time()
        if now_s - alarm_s > LATE_WAKE_S:
            self._ring_for_questions_at(now_s + LATE_WAKE_S)  # there may be answers that the loop has not come to read
            return
        for due_s, future, _ in self._questions:
            if due_s > now_s:
                self._ring_for_questions_at(due_s)
                return
            if not future.done():
                seconds = self._config.request_timeout_s
                future.set_exception(RequestTimeoutError(f"{self.address}: no answer within {seconds} s"))

    def _watch_silence(self) -> None:
        if self._config.heartbeat_interval_ms > 0:
            allowed_s = SILENT_HEARTBEATS * self._config.heartbeat_interval_ms / 1000
            self._ring_for_silence_at(self._stream.last_read_s + allowed_s)

    def _ring_for_silence_at(self, due_s: float) -> None:
        self._silence_alarm = self._loop.call_at(due_s, self._check_silence, due_s)

    def _check_silence(self, alarm_s: float) -> None:
        now_s = self._loop.time()
        silent_s = now_s - self._stream.last_read_s
        if self._stream.is_reading_paused:
            self._ring_for_silence_at(now_s + self._config.heartbeat_interval_ms / 1000)
        elif silent_s * 1000 < SILENT_HEARTBEATS * self._config.heartbeat_interval_ms:
            self._watch_silence()
        elif now_s - alarm_s > LATE_WAKE_S:
            self._ring_for_silence_at(now_s + LATE_WAKE_S)  # likewise
        else:
            self.abort(ConnectionLostError(self.address, f"not a byte from nsqd in {silent_s:.1f} s"))

    def _ring_for_sign_of_life(self) -> None:
        if self._config.heartbeat_interval_ms > 0:
            delay_s = self._config.heartbeat_interval_ms / 1000
            self._pause_alarm = self._loop.call_later(delay_s, self._give_sign_of_life)

    def _give_sign_of_life(self) -> None:
        self._answer_heartbeat()
        self._ring_for_sign_of_life()

    # What arrives

    def _receive(self, data: bytes) -> None:
        self.received_bytes += len(data)
        try:
            messages, others = self._decode(data)
            for frame in others:
                self._take(frame)
        except FrameError as failure:
            self.abort(failure)
            return
        if not messages or not self.is_open:
            return  # behind the end of the connection no message can be answered
        if self._on_messages is None:
            self.refuse("a message, and none was subscribed to")
        else:
            self._on_messages(self, messages)

    def _take(self, frame: Frame) -> None:
        if not self.is_open:
            return  # the connection has ended, and with it all that could use the frame
        if frame.type == ERROR:
            self._take_error(server_error(frame.data), frame.data)
        elif frame.type != RESPONSE:
            raise FrameError(f"a frame of unknown type {frame.type}")
        elif frame.data == HEARTBEAT:
            self._answer_heartbeat()
        else:
            self._take_answer(frame.data)

    def _take_answer(self, data: bytes) -> None:
        if not self._questions:
            raise FrameError(f"{data[:64]!r} answers no question")
        _, future, expected = self._questions[0]
        if expected and data != expected:
            raise FrameError(f"{data[:64]!r} instead of {expected.decode()}")
        self._questions.popleft()
        if not future.done():
            future.set_result(data)
        else:
            self.late_count += 1

    def _answer_heartbeat(self) -> None:
        """Unless nsqd reads nothing: then it finds signs of life enough when it does, and ours would pile up."""
        if not self._stream.is_congested:
            self._stream.write(NOP)

    def _take_error(self, error: ServerError, data: bytes) -> None:
        if not error.is_fatal:
            self._refusable_count -= 1
            if self._refusable_count < 0:
                raise FrameError(f"{data[:64]!r} answers no command")
            if self._on_error is not None:
                self._on_error(self, data)
            else:
                log.info("nsqd %s: %s", self.address, error)
            return
        if self._questions:
            _, future, _ = self._questions.popleft()
            if not future.done():
                future.set_exception(error)
        self.abort(error)


async def _set_up(address: str, config: ClientConfig) -> tuple[Stream, IdentifyAnswer]:
    """Connect and shake hands; leaves no socket behind when that fails or is cancelled."""
    try:
        stream = await Stream.connect(address)
    except (OSError, ValueError) as error:  # ValueError: the address, or a host name that cannot be looked up
        raise ConnectError(address, _describe(error)) from error
    try:
        return stream, await shake_hands(stream, address=address, config=config)
    except BaseException:
        stream.abort(None)
        raise


async def shake_hands(stream: Stream, *, address: str, config: ClientConfig) -> IdentifyAnswer:
    """What was agreed, once commands can be sent; whatever else the peer does is an `NsqError`."""
    try:
        return await Handshake(stream, address=address, config=config).run()
    except NsqError:
        raise  # says what it means already; some of these are OSErrors, too
    except EOFError as error:
        raise ConnectError(address, "the peer closed while the connection was being set up") from error
    except (OSError, CompressionError) as error:
        raise ConnectError(address, _describe(error)) from error


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__
