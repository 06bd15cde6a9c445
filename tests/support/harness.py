"""nsqd inside the test's process, with its time in the test's hand.

`NsqdHarness` runs the real daemon on an event loop in a thread of its own. Clients reach it through real sockets;
what has no command (pausing, emptying, statistics) goes through `call`, which runs a function on the daemon's
thread, the only one that may touch the broker.

Time stands still until `advance` moves it, so no test sleeps to see a timeout. Two kinds of waiting remain, and both
end as soon as they can: a read waits for its frame, and `wait_until` waits for work that nobody answers (a closed
socket being noticed, a file being written by another thread).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

import uvloop

from emberq.base.clock import ManualClock
from emberq.broker.broker import Broker
from emberq.broker.stats import ChannelStats, ClientStats, TopicStats
from emberq.nsqd.daemon import Nsqd
from emberq.nsqd.options import NsqdOptions
from tests.support.raw_client import MAGIC, Address, Client
from tests.support.waiting import PATIENCE_S

T = TypeVar("T")

TIME_STEP_MS = 25
"""Longest stride of `advance`: alarms that set themselves again must come up as often as they would in real time."""

SETTLING_TURNS = 10
"""Turns of the event loop within which it has accepted, read and executed all that was sent before."""


class NsqdHarness:
    """A running nsqd; a context manager. Owns the daemon, its loop, its thread and the clients it connected."""

    def __init__(self, options: NsqdOptions) -> None:
        self.options = options
        self.clock = ManualClock()
        self._nsqd: Nsqd | None = None
        self._clients: list[Client] = []
        self._unhandled: list[str] = []  # what the daemon let escape into the event loop
        self._loop = uvloop.new_event_loop()
        self._loop.set_exception_handler(self._note_unhandled)
        self._thread = threading.Thread(target=self._loop.run_forever, name="nsqd", daemon=True)

    # Life

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.start()
        except BaseException:
            self._end_thread()
            raise
        return self

    def __exit__(self, *_raised: object) -> None:
        try:
            for client in self._clients:
                client.close()
            self.stop()
        finally:
            self._end_thread()
        assert not self._unhandled, self._unhandled

    def start(self) -> None:
        """Start a daemon on the data folder."""
        nsqd = Nsqd(self.options, clock=self.clock)
        self._await(nsqd.start())
        self._nsqd = nsqd

    def stop(self) -> None:
        """Shut the daemon down cleanly, if it runs."""
        if self._nsqd is not None:
            nsqd, self._nsqd = self._nsqd, None
            self._await(nsqd.stop())

    def restart(self, **changed_options: Any) -> None:
        """Shut down and start again on the same data folder. Clients must connect anew."""
        self.stop()
        self.options = replace(self.options, **changed_options)
        self.start()

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def _note_unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._unhandled.append(f"{context['message']}: {context.get('exception')!r}")

    # The daemon's thread

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the daemon's thread and return its result."""

        async def run() -> T:
            return function()

        return self._await(run())

    def settle(self) -> None:
        """Let the daemon execute everything sent so far. For commands without an answer; prefer one that has one."""
        for _ in range(SETTLING_TURNS):
            self.call(lambda: None)

    def advance(self, *, ms: int) -> None:
        """Move the clock, ringing every alarm that comes due on the way."""

        def move() -> None:
            remaining_ms = ms
            while remaining_ms > 0:
                step_ms = min(remaining_ms, TIME_STEP_MS)
                self.clock.advance(ms=step_ms)
                self.nsqd.run_timers()
                remaining_ms -= step_ms

        self.call(move)

    # Clients and files

    @property
    def http_address(self) -> Address:
        """Where nsqd serves HTTP."""
        address = self.nsqd.http_address
        assert address is not None
        return address

    def connect(self, *, magic: bytes = MAGIC, receive_buffer_bytes: int = 0) -> Client:
        """A new connection, closed with the harness at the latest."""
        client = Client(self.nsqd.tcp_address, magic=magic, receive_buffer_bytes=receive_buffer_bytes)
        self._clients.append(client)
        return client

    def consumer(self, topic: str, channel: str, *, rdy: int = 0, **identify: Any) -> Client:
        """A new connection that subscribed, ready for `rdy` messages."""
        client = self.connect()
        if identify:
            client.identify(**identify)
        client.sub(topic, channel)
        if rdy:
            client.rdy(rdy)
        return client

    @property
    def data_path(self) -> Path:
        """The folder of nsqd.dat and the disk queues."""
        return Path(self.options.data_path)

    # What an operator sees and does

    @property
    def nsqd(self) -> Nsqd:
        """The running daemon."""
        assert self._nsqd is not None, "nsqd is not running"
        return self._nsqd

    @property
    def broker(self) -> Broker:
        """The daemon's broker, to be touched only inside `call`."""
        return self.nsqd.broker

    def has_topic(self, name: str) -> bool:
        """Does the topic exist?"""
        return any(topic.name == name for topic in self.call(self.broker.snapshot))

    def topic(self, name: str) -> TopicStats:
        """The topic's statistics at this moment."""
        return next(topic for topic in self.call(self.broker.snapshot) if topic.name == name)

    def has_channel(self, topic: str, name: str) -> bool:
        """Does the channel exist?"""
        return self.has_topic(topic) and any(channel.name == name for channel in self.topic(topic).channels)

    def channel(self, topic: str, name: str) -> ChannelStats:
        """The channel's statistics at this moment."""
        return next(channel for channel in self.topic(topic).channels if channel.name == name)

    def producers(self) -> tuple[ClientStats, ...]:
        """The connections that have published."""
        return self.call(lambda: tuple(self.nsqd.producers()))

    def health(self) -> str | None:
        """None, or what is wrong, in the words of /ping."""
        health = self.call(self.nsqd.health)
        return None if health == "OK" else health.removeprefix("NOK - ")

    def create_topic(self, name: str) -> None:
        """Make the topic if it is missing."""
        self.call(lambda: self.broker.topic(name))

    def delete_topic(self, name: str) -> None:
        """Delete the topic with all it holds."""
        self.call(lambda: self.broker.delete_topic(name))

    def pause_topic(self, name: str) -> None:
        """Stop the topic's flow into its channels."""
        self.call(lambda: self.broker.topic(name).pause())

    def unpause_topic(self, name: str) -> None:
        """Let the topic flow again."""
        self.call(lambda: self.broker.topic(name).unpause())

    def empty_topic(self, name: str) -> None:
        """Drop what the topic has not yet given to its channels."""
        self.call(lambda: self.broker.topic(name).empty())

    def create_channel(self, topic: str, name: str) -> None:
        """Make the channel, and its topic, if missing."""
        self.call(lambda: self.broker.topic(topic).channel(name))

    def delete_channel(self, topic: str, name: str) -> None:
        """Delete the channel with all it holds."""
        self.call(lambda: self.broker.topic(topic).delete_channel(name))

    def pause_channel(self, topic: str, name: str) -> None:
        """Stop the channel's deliveries."""
        self.call(lambda: self.broker.topic(topic).channel(name).pause())

    def unpause_channel(self, topic: str, name: str) -> None:
        """Let the channel deliver again."""
        self.call(lambda: self.broker.topic(topic).channel(name).unpause())

    def empty_channel(self, topic: str, name: str) -> None:
        """Drop everything the channel holds."""
        self.call(lambda: self.broker.topic(topic).channel(name).empty())

    def persist_metadata(self) -> None:
        """Write nsqd.dat now."""
        self.call(lambda: self.nsqd.persist_metadata())
