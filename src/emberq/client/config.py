"""Everything that can be set: connections, consumers, retries.

    ClientConfig      what every connection has in common, a producer's or a consumer's
    ConsumerConfig    how a consumer behaves
    RetryPolicy       how often and for how long to try to publish a message
    ReconnectDelay    how long a producer leaves an nsqd alone after failures

    connections = ClientConfig(heartbeat_interval_ms=5_000, snappy=True, auth_secret=b"...")
    consuming = ConsumerConfig(max_in_flight=1000, max_attempts=10, dead_letter_topic="orders.dead")

A config is checked when it is made, so a mistake shows where it was made and not at the first connection. It never
changes; `dataclasses.replace` makes a similar one.
"""

from __future__ import annotations

import enum
import math
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from ssl import SSLContext
from typing import Any

from emberq import __version__
from emberq.client.argument import check_field_types
from emberq.client.backoff import BackoffStrategy, exponential_s
from emberq.client.observer import Observer, check_observer
from emberq.wire.negotiation import (
    DEFAULT_DEFLATE_LEVEL,
    DEFAULT_OUTPUT_BUFFER_SIZE,
    MAX_SAMPLE_RATE,
    MIN_HEARTBEAT_INTERVAL_MS,
    MIN_MSG_TIMEOUT_MS,
    MIN_OUTPUT_BUFFER_SIZE,
)
from emberq.wire.parameter import PRODUCER_ID_BYTES, is_valid_name

OFF = -1
"""What IDENTIFY takes for "none at all", where 0 means "as the server likes"."""

DEFAULT_MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Far above what any nsqd is set up to carry (1 MiB unless told otherwise), far below what would hurt to hold."""


def _short_hostname() -> str:
    return socket.gethostname().partition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How to connect, and what to ask nsqd for. Sizes are in bytes."""

    client_id: str = field(default_factory=_short_hostname)
    """Shown by nsqd and nsqadmin; the short name of this machine unless set."""
    hostname: str = field(default_factory=socket.gethostname)
    """Shown as well."""
    user_agent: str = f"emberq/{__version__}"
    """Shown as well."""
    heartbeat_interval_ms: int = 30_000
    """How often nsqd sends a heartbeat; after twice as long without a byte the connection is given up. -1: never,
    which is for producers alone: nsqd lets no consumer subscribe without heartbeats."""
    output_buffer_size: int = DEFAULT_OUTPUT_BUFFER_SIZE
    """How much nsqd collects before it sends; 0: as much as it likes, -1: it sends every message at once."""
    output_buffer_timeout_ms: int = 250
    """For how long nsqd collects at most; 0: as long as it likes, -1: until the buffer is full."""
    msg_timeout_ms: int = 0
    """Within which time nsqd wants a message answered; 0: its own default."""
    sample_rate: int = 0
    """The percentage of messages to receive, 1 to 99; 0: all of them."""
    tls: SSLContext | None = None
    """If given, every connection is encrypted, or it is not made: an nsqd without TLS is refused."""
    snappy: bool = False
    """Ask for compressed connections. nsqd may say no, and the connection is then made without."""
    deflate: bool = False
    """The same with another algorithm; not both."""
    deflate_level: int = DEFAULT_DEFLATE_LEVEL
    """From 1, the fastest, to 9, the smallest; nsqd may lower it."""
    auth_secret: bytes = field(default=b"", repr=False)
    """Sent to an nsqd that demands AUTH."""
    topology_region: str = ""
    """Where this client runs. An nsqd that considers it delivers to consumers of its own zone or region first."""
    topology_zone: str = ""
    """Where in the region."""
    connect_timeout_s: float = 5.0
    """For all it takes until commands can be sent: TCP, IDENTIFY, TLS, AUTH."""
    request_timeout_s: float = 10.0
    """For the answer to a command that has one, counted from the call."""
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    """A peer that announces a longer frame is not an nsqd, or not one to listen to."""
    producer_id: bytes = b""
    """The id, 16 bytes, under which batches are numbered; set by a `Producer` that is idempotent. Empty: no numbers."""
    envelope: bool = False
    """Messages may have headers, which travel in front of their bodies: a producer that is set so puts an envelope
    around every message, and a consumer opens it. Both must be; to others an envelope is a part of the body."""
    observer: Observer | None = field(default=None, repr=False)
    """Hears of all that happens, for metrics and traces."""

    def __post_init__(self) -> None:
        check_field_types(self)
        check_observer(self.observer)
        self._check_at_least("heartbeat_interval_ms", MIN_HEARTBEAT_INTERVAL_MS, also=(OFF,))
        self._check_at_least("output_buffer_size", MIN_OUTPUT_BUFFER_SIZE, also=(0, OFF))
        self._check_at_least("output_buffer_timeout_ms", 0, also=(OFF,))
        self._check_at_least("msg_timeout_ms", MIN_MSG_TIMEOUT_MS, also=(0,))
        self._check_at_least("max_frame_bytes", 1)
        if not 0 <= self.sample_rate <= MAX_SAMPLE_RATE:
            raise ValueError(f"sample_rate is {self.sample_rate}; it is a percentage from 0 to {MAX_SAMPLE_RATE}")
        if not 1 <= self.deflate_level <= 9:
            raise ValueError(f"deflate_level is {self.deflate_level}; there are levels 1 to 9")
        if not isinstance(self.tls, SSLContext | None):
            raise TypeError(f"tls is {self.tls!r}; it must be an ssl.SSLContext")
        if len(self.producer_id) not in (0, PRODUCER_ID_BYTES):
            raise ValueError(
                f"producer_id has {len(self.producer_id)} bytes; it must have {PRODUCER_ID_BYTES}, or none"
            )
        if self.snappy and self.deflate:
            raise ValueError("snappy and deflate exclude each other")
        for name in ("connect_timeout_s", "request_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")

    def _check_at_least(self, name: str, minimum: int, *, also: tuple[int, ...] = ()) -> None:
        value: int = getattr(self, name)
        if value < minimum and value not in also:
            allowed = "".join(f", or {special}" for special in also)
            raise ValueError(f"{name} is {value}; it must be at least {minimum}{allowed}")

    def identify_fields(self) -> dict[str, Any]:
        """The document that IDENTIFY carries."""
        numbering = {"emberq_producer_id": self.producer_id.hex()} if self.producer_id else {}
        return {
            "client_id": self.client_id,
            "hostname": self.hostname,
            "user_agent": self.user_agent,
            "feature_negotiation": True,
            "heartbeat_interval": self.heartbeat_interval_ms,
            "output_buffer_size": self.output_buffer_size,
            "output_buffer_timeout": self.output_buffer_timeout_ms,
            "msg_timeout": self.msg_timeout_ms,
            "sample_rate": self.sample_rate,
            "tls_v1": self.tls is not None,
            "snappy": self.snappy,
            "deflate": self.deflate,
            "deflate_level": self.deflate_level,
            "topology_region": self.topology_region,
            "topology_zone": self.topology_zone,
            **numbering,
        }


MAX_REQUEUE_DELAY_S = 3600.0
"""nsqd's own limit unless told otherwise; a longer delay is cut there."""


# Consumers


class HandlersIn(enum.StrEnum):
    """Where handlers that are plain functions run."""

    THREADS = "threads"
    """For functions that wait: they block no event loop there."""
    PROCESSES = "processes"
    """For functions that keep a CPU busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How a consumer behaves. Times are in seconds."""

    max_in_flight: int = 100
    """How many messages may be with this consumer, unanswered, over all its connections. 0: start paused."""
    max_in_flight_bytes: int = 0
    """How many bytes the unanswered messages of one connection may have before nsqd has to wait; 0: 64 MiB, or 1 MiB
    for each message that was asked for if that is more. Raise it if you gather many large messages before you answer
    any."""
    concurrency: int = 0
    """How many handlers run at the same time; 0: as many as max_in_flight, but not more than 1000 coroutines, 32
    threads, or one process for each CPU."""
    handlers_in: HandlersIn = HandlersIn.THREADS
    """Where handlers that are plain functions run (see `worker`). PROCESSES is for those that keep a CPU busy: such a
    handler must be picklable and gets a `MessageSnapshot`."""
    handler_timeout_s: float = 0.0
    """After this time a handler has failed: its coroutine is cancelled, its thread left behind, its process killed, and
    its message requeued. 0: never. Below nsqd's msg_timeout unless messages are touched, or they time out first."""
    max_attempts: int = 5
    """After so many deliveries without success a message is given up when it comes once more; 0: never."""
    dead_letter_topic: str = ""
    """Where messages go that are given up: published to the nsqd they came from, then finished."""

    default_requeue_delay_s: float = 90.0
    """A failed message comes back after this times its attempts ..."""
    max_requeue_delay_s: float = 900.0
    """... but not later than this."""
    backoff_strategy: BackoffStrategy = BackoffStrategy.EXPONENTIAL
    """How the pause after failures grows."""
    backoff_unit_s: float = 1.0
    """What it grows from: the first pause is twice this."""
    max_backoff_s: float = 120.0
    """The longest pause after failures; 0: no backoff."""

    auto_touch: bool = False
    """Keep messages that are being handled, or wait for it, from timing out, up to nsqd's --max-msg-timeout. Off unless
    asked for, as NSQ expects of its clients: the timeout is how a message gets away from a handler that hangs. Together
    with `handler_timeout_s`, which does that as well, it is safe."""
    drain_timeout_s: float = 30.0
    """How long `stop` waits for messages that are being handled."""

    low_rdy_idle_timeout_s: float = 10.0
    """With more connections than max_in_flight: a silent one loses its turn after this time ..."""
    low_rdy_timeout_s: float = 30.0
    """... and a busy one after this."""
    rdy_redistribute_interval_s: float = 5.0
    """How often max_in_flight is shared out anew among the connections."""

    lookupd_poll_interval_s: float = 60.0
    """How often nsqlookupd is asked for the nsqds that have the topic."""
    lookupd_poll_jitter: float = 0.3
    """The second poll is late by a random part of this fraction of the interval, so that consumers that started
    together do not ask together."""
    lookupd_timeout_s: float = 10.0
    """For its answer."""
    lookupd_secret: bytes = field(default=b"", repr=False)
    """Sent to nsqlookupd as a bearer token, where it runs with `--http-secret-file`."""
    authorize_lookupd: bool = True
    """Without a lookupd_secret, send the auth_secret, if there is one, to nsqlookupd too."""
    max_reconnect_delay_s: float = 15.0
    """An nsqd that cannot be reached is tried again after a fraction of a second, then later and later up to this."""

    def __post_init__(self) -> None:
        check_field_types(self)
        self._make_member("handlers_in", HandlersIn)
        self._make_member("backoff_strategy", BackoffStrategy)
        for name in (
            "max_in_flight",
            "max_in_flight_bytes",
            "concurrency",
            "max_attempts",
            "handler_timeout_s",
            "drain_timeout_s",
        ):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be below 0")
        for name in ("default_requeue_delay_s", "max_requeue_delay_s", "max_backoff_s", "backoff_unit_s"):
            if not 0 <= getattr(self, name) <= MAX_REQUEUE_DELAY_S:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be from 0 to {MAX_REQUEUE_DELAY_S:g}")
        for name in (
            "low_rdy_idle_timeout_s",
            "low_rdy_timeout_s",
            "rdy_redistribute_interval_s",
            "lookupd_poll_interval_s",
            "lookupd_timeout_s",
            "max_reconnect_delay_s",
        ):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0 and finite")
        if not 0 <= self.lookupd_poll_jitter <= 1:
            raise ValueError(f"lookupd_poll_jitter is {self.lookupd_poll_jitter}; it is a fraction from 0 to 1")
        if self.dead_letter_topic and not is_valid_name(self.dead_letter_topic):
            raise ValueError(f"dead_letter_topic {self.dead_letter_topic!r} is not a valid name")

    def _make_member(self, name: str, kind: type[StrEnum]) -> None:
        """Let a word stand for the member that it is the value of."""
        value = getattr(self, name)
        if value not in tuple(kind):
            raise ValueError(f"{name} is {value!r}; it is one of {', '.join(kind)}")
        object.__setattr__(self, name, kind(value))


# Retries


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When to give up on a message that nsqd did not confirm.

    A message is sent again if the connection broke, the answer did not come in time, or nsqd could not store it. nsqd
    may have stored it all the same, so a message that is sent again may be published twice; with `max_attempts=1` none
    is sent again that nsqd may have.
    """

    max_attempts: int = 5
    """How often a message is sent, the first time included. What nsqd certainly did not come to does not count."""
    timeout_s: float = 30.0
    """For all attempts together, and for the wait until any nsqd can be reached."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts is {self.max_attempts}; the first attempt counts")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s is {self.timeout_s}; it must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconnectDelay:
    """How long to leave an nsqd alone after failures: twice as long each time, up to a limit, with jitter.

    The jitter takes off up to half, so that clients which lost the same nsqd do not all come back at once.
    """

    first_s: float = 0.1
    """After the first failure."""
    max_s: float = 15.0
    """The longest."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not 0 < self.first_s <= self.max_s:
            raise ValueError(f"first_s is {self.first_s} and max_s is {self.max_s}; expected 0 < first_s <= max_s")

    def after(self, failures: int, *, random: Callable[[], float]) -> float:
        """Seconds to wait after so many failures in a row; `random` returns numbers from 0 to 1."""
        longest_s = min(self.max_s, exponential_s(failures - 1, unit_s=self.first_s))
        return longest_s * (1 - random() / 2)
