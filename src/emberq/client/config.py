"""What every connection of a client has in common, be it a producer's or a consumer's.

    config = ClientConfig(heartbeat_interval_ms=5_000, snappy=True, auth_secret=b"...")

A config is checked when it is made, so a mistake shows where it was made and not at the first connection. It never
changes; `dataclasses.replace` makes a similar one.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any

from emberq import __version__
from emberq.client.argument import check_field_types
from emberq.client.observer import Observer, check_observer
from emberq.wire.negotiation import (
    DEFAULT_DEFLATE_LEVEL,
    DEFAULT_OUTPUT_BUFFER_SIZE,
    MAX_SAMPLE_RATE,
    MIN_HEARTBEAT_INTERVAL_MS,
    MIN_MSG_TIMEOUT_MS,
    MIN_OUTPUT_BUFFER_SIZE,
)
from emberq.wire.producer import PRODUCER_ID_BYTES

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
    """Shown by nsqd and nsqadmin, as are the next two."""
    hostname: str = field(default_factory=socket.gethostname)
    user_agent: str = f"emberq/{__version__}"
    heartbeat_interval_ms: int = 30_000
    """How often nsqd asks whether we are there; after twice as long without a byte we take it for dead. -1: never,
    which is for producers alone: nsqd lets nobody subscribe without heartbeats."""
    output_buffer_size: int = DEFAULT_OUTPUT_BUFFER_SIZE
    """How much nsqd collects before it sends; 0: as much as it likes, -1: it sends every message at once."""
    output_buffer_timeout_ms: int = 250
    """For how long nsqd collects at most; 0: as long as it likes, -1: until the buffer is full."""
    msg_timeout_ms: int = 0
    """Within which time nsqd wants a message answered; 0: its own default."""
    sample_rate: int = 0
    """The percentage of messages to receive, 1 to 99; 0: all of them."""
    tls: SSLContext | None = None
    """If given, every connection is encrypted, or it is not made: nsqd cannot talk us out of it."""
    snappy: bool = False
    """Ask for compressed connections. nsqd may say no, and the connection is then made without."""
    deflate: bool = False
    deflate_level: int = DEFAULT_DEFLATE_LEVEL
    auth_secret: bytes = field(default=b"", repr=False)
    """Sent to an nsqd that demands AUTH."""
    topology_region: str = ""
    topology_zone: str = ""
    connect_timeout_s: float = 5.0
    """For all it takes until commands can be sent: TCP, IDENTIFY, TLS, AUTH."""
    request_timeout_s: float = 10.0
    """For the answer to a command that has one, counted from the call."""
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    """A peer that announces a longer frame is not an nsqd, or not one to listen to."""
    producer_id: bytes = b""
    """As whom batches are numbered, 16 bytes; set by a `Producer` that is idempotent. Empty: they are not."""
    observer: Observer | None = field(default=None, repr=False)
    """Who hears of what happens, for metrics and traces."""

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
