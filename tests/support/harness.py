"""nsqd inside the test's process, with its time in the test's hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from emberq.base.clock import ManualClock
from emberq.broker.broker import Broker
from emberq.broker.stats import ChannelStats, ClientStats, TopicStats
from emberq.nsqd.daemon import Nsqd
from emberq.nsqd.options import NsqdOptions
from tests.support.raw_client import MAGIC, Client
from tests.support.raw_connection import Address
from tests.support.server_thread import DaemonThread


class NsqdHarness(DaemonThread[Nsqd]):
    """A running nsqd."""

    def __init__(self, options: NsqdOptions) -> None:
        self.options = options
        self.clock = ManualClock()
        super().__init__("nsqd", clock=self.clock)

    def _make(self) -> Nsqd:
        return Nsqd(self.options, clock=self.clock)

    def restart(self, **changed_options: Any) -> None:
        """Shut down and start again on the same data folder. Clients must connect anew."""
        self.stop()
        self.options = replace(self.options, **changed_options)
        self.start()

    # Clients and files

    @property
    def http_address(self) -> Address:
        """Where nsqd serves HTTP."""
        address = self.nsqd.http_address
        assert address is not None
        return address

    def connect(self, *, magic: bytes = MAGIC, receive_buffer_bytes: int = 0) -> Client:
        """A new connection, closed with the harness at the latest."""
        return self._kept(Client(self.nsqd.tcp_address, magic=magic, receive_buffer_bytes=receive_buffer_bytes))

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
        return self.daemon

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
