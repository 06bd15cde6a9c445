"""What a client may ask of the server's memory and patience. Every bound stands here with its reason."""

from __future__ import annotations

from dataclasses import dataclass

SLICE_BYTES = 16 * 1024
"""Bytes handed to the parser at a time. Between two slices a connection can be held back, so this also bounds the
requests that may wait, already parsed, behind one whose answer is not ready: the shortest request has 18 bytes."""

TURN_BYTES = 128 * 1024
"""What one connection may be answered in one turn of the event loop; the others wait meanwhile."""

ANSWER_COST_BYTES = 1024
"""Counted for an answer besides its body, so that a turn also ends after many small ones."""

DISCARD_BYTES = 256 * 1024
"""A body that nobody reads is thrown away up to this size, to keep the connection; a longer one costs it."""


@dataclass(frozen=True)
class HttpLimits:
    """Bounds that a daemon may set."""

    max_header_bytes: int = 64 * 1024
    """Request line and headers: far above what clients and proxies send, far below what would hurt."""
    max_header_count: int = 100
    header_timeout_ms: int = 10_000
    """From a request's first byte to the end of its headers, however steadily they trickle."""
    body_timeout_ms: int = 60_000
    """From the end of the headers to the end of the body; 5 MB need less than 1 Mbit/s for that."""
    idle_timeout_ms: int = 120_000
    """Between an answer and the next request: longer than the pools of the usual clients keep a connection."""
    write_timeout_ms: int = 30_000
    """For a client that does not read its answer: without any progress for so long it is cut off."""
    linger_ms: int = 5_000
    """How long what a client still sends after its request was refused is read, so that it sees the refusal."""


DEFAULT_LIMITS = HttpLimits()
