"""The connections of a receiver to one nsqd, for one topic: they are made together and end together.

There are several because an nsqd gives a connection 2500 messages at a time at most, unless told otherwise, and what is
on its way to the disk is not finished yet. They end together because a message may come again by another connection
than the one it came by first, and then it must be clear whether it was stored: when a link is lost, what it had brought
and was not stored yet is forgotten, and before another is made, what was stored is in doubt (`channel_spool`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from emberq.client import ClientConfig, Connection, ConnectionLost, NsqError, ServerError
from emberq.client.connection import OnClose
from emberq.spark.channel_frames import Arrived, Cut, FrameCutter, Origin, frames_of
from emberq.wire import command
from emberq.wire.frame import Frame

CONNECTIONS = 4
FIRST_RDY = 100
"""Until it is known how large messages are."""
MAX_BYTES_IN_FLIGHT = 16 * 1024 * 1024
"""On one connection, about: what may have to be held in memory."""
CLOSE_TIMEOUT_S = 1.0

_log = logging.getLogger(__name__)


class Lane:
    """One connection, and the frames of the messages that it brought until somebody takes them."""

    def __init__(self, origin: Origin) -> None:
        self.connection: Connection  # from `connect` on
        self._origin = origin
        self._pieces: list[bytes] = []
        self._lengths: list[int] = []
        self._rdy = 0
        self._mean_bytes = MAX_BYTES_IN_FLIGHT // FIRST_RDY
        self.in_doubt_until_ns = -1
        self.on_arrival: Callable[[int], None] = _nobody
        """Told how many messages have arrived."""

    async def connect(self, config: ClientConfig, *, on_close: OnClose) -> None:
        """Raises what `Connection.open` does."""
        cutter = FrameCutter(max_frame_bytes=config.max_frame_bytes)
        self.connection = await Connection.open(
            self._origin.nsqd,
            config,
            decode=partial(_cut, cutter),
            on_messages=self._collect,
            on_error=_log_error,
            on_close=on_close,
        )

    def _collect(self, connection: Connection, cut: Cut) -> None:
        if connection.is_open:
            self._pieces += cut.pieces
            self._lengths += cut.lengths
            self.on_arrival(len(cut.lengths))

    def take(self) -> Arrived | None:
        """What has arrived since the last time."""
        if not self._lengths:
            return None
        pieces, lengths = self._pieces, self._lengths
        self.forget()
        self._mean_bytes = sum(lengths) // len(lengths)
        return Arrived(self._origin, frames_of(pieces, lengths), self.in_doubt_until_ns, self._send_if_open)

    def _send_if_open(self, data: bytes) -> None:
        if self.connection.is_open:
            self.connection.send(data)

    def forget(self) -> None:
        """Do without what has arrived and was not taken."""
        self._pieces, self._lengths = [], []

    def ask(self, *, for_messages: bool) -> None:
        """Let nsqd send messages, as many as there is room for; or none."""
        room = max(1, MAX_BYTES_IN_FLIGHT // self._mean_bytes)
        rdy = min(room, self.connection.answer.max_rdy_count) if for_messages else 0
        if not self._rdy / 2 < rdy < self._rdy * 2 and rdy != self._rdy:  # not for small changes
            self._rdy = rdy
            self._send_if_open(command.rdy(rdy))


class ChannelLink:
    """Owned by a receiver, in its event loop, from `connect` to `close` or until it is lost."""

    def __init__(self, origin: Origin, on_lost: Callable[[ChannelLink], None]) -> None:
        self.origin = origin
        self.lanes: list[Lane] = []
        """Those that have subscribed."""
        self._unsubscribed: list[Lane] = []
        self._on_lost = on_lost
        self._is_over = False

    async def connect(self, config: ClientConfig) -> None:
        """Connect; no message comes yet. Raises what `Connection.open` does."""
        for _ in range(CONNECTIONS):
            lane = Lane(self.origin)
            await lane.connect(config, on_close=self._on_close)
            self._unsubscribed.append(lane)

    async def subscribe(self, channel: str, *, in_doubt_until_ns: int, on_arrival: Callable[[int], None]) -> None:
        """Subscribe to the channel; messages come when they are asked for. Raises what `Connection.request` does.

        An nsqd may allow a channel only so many consumers (`--max-channel-consumers`): one connection is enough.
        """
        for lane in self._unsubscribed:
            lane.in_doubt_until_ns = in_doubt_until_ns
            lane.on_arrival = on_arrival
            try:
                await lane.connection.request(command.sub(topic=self.origin.topic, channel=channel))
            except ServerError as refusal:
                if not self.lanes:
                    raise
                _log.info("nsqd %s allows %d connections: %s", self.origin.nsqd, len(self.lanes), refusal)
                break
            self.lanes.append(lane)
        if not all(lane.connection.is_open for lane in self.lanes):  # one may have ended behind its answer
            raise ConnectionLost(self.origin.nsqd, "lost while subscribing")
        await asyncio.gather(*(lane.connection.close() for lane in self._unsubscribed if lane not in self.lanes))

    def ask(self, *, for_messages: bool) -> None:
        """Let nsqd send messages, or none from now on."""
        for lane in self.lanes:
            lane.ask(for_messages=for_messages)

    async def finish_up(self) -> None:
        """Ask nsqd for no more; what it had sent before has arrived when this returns, if it answers in time."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                connections = [lane.connection for lane in self.lanes if lane.connection.is_open]
                await asyncio.gather(*(connection.request(command.CLS) for connection in connections))
        except (TimeoutError, NsqError) as failure:
            _log.warning("nsqd %s: %s", self.origin.nsqd, failure or "does not say that it sends no more")

    async def close(self) -> None:
        """End it; nobody is told."""
        self._is_over = True
        await asyncio.gather(*(lane.connection.close() for lane in {*self.lanes, *self._unsubscribed}))

    def _on_close(self, lost: Connection, failure: BaseException | None) -> None:
        if self._is_over or lost not in [lane.connection for lane in self.lanes]:
            return
        self._is_over = True
        _log.warning("lost nsqd %s: %s", self.origin.nsqd, failure)
        for lane in self.lanes:
            lane.forget()
            lane.connection.abort(failure or ConnectionError("another connection to this nsqd was lost"))
        self._on_lost(self)


def _cut(cutter: FrameCutter, data: bytes) -> tuple[Cut | None, list[Frame]]:
    """How the connection of a lane decodes: messages stay in their frames."""
    cut = cutter.feed(data)
    return cut if cut.lengths else None, cut.others


def _nobody(_count: int) -> None:
    """Listens while nothing can come."""


def _log_error(connection: Connection, data: bytes) -> None:
    _log.info("nsqd %s: %s", connection.address, data.decode("utf-8", "backslashreplace"))
