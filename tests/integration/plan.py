"""The plan that every client library carries out: what to publish, and what to do with each message.

A message is a number from 0 to `message_count - 1`; its body follows from the number (`body_of`), so that
whoever receives it can tell whether it arrived intact. Most messages are finished when they arrive. A few
have another fate:

    requeued    REQ at the first attempt, finished at the second; the library backs off meanwhile
    deferred    published with DPUB, so it must not arrive before its delay is over
    abandoned   the first attempt is never answered: it times out, and the second is finished
    touched     held for longer than the message timeout, kept alive by TOUCH, then finished

The plan also says how to connect: over TLS, compressed, with a secret. The producer is told where nsqd is;
so is the consumer, unless it is to find out from nsqlookupd. The test makes the plan and hands it to the
driver as one JSON argument; the drivers know nothing else.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

# A body must survive whatever the protocol itself uses: line feeds, NULs, bytes that are no text.
_EVERY_BYTE = bytes(range(256))


def body_of(number: int) -> bytes:
    """The body of a message: its number, a colon, and up to 256 bytes of every value."""
    return b"%d:%b" % (number, _EVERY_BYTE[: number % 257])


def number_of(body: bytes) -> int | None:
    """The number of a message, or None when its body is not the one that was published."""
    digits, _, _ = body.partition(b":")
    return int(digits) if digits.isdigit() and body == body_of(int(digits)) else None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run of a client library. Counts are messages, fates are message numbers."""

    address: str
    topic: str
    channel: str
    # How to connect; what is empty is not used. A path to an authority's certificate asks for TLS.
    authority_path: str = ""
    certificate_path: str = ""
    key_path: str = ""
    compression: str = ""  # "snappy" or "deflate"
    auth_secret: str = ""
    # If given, all that the consumer knows. It asks there every second, the shortest interval that pynsq takes.
    lookupd_http_address: str = ""
    lookup_interval_s: int = 1
    # If given, nsqlookupd is asked by HTTPS, and shown this and the certificate.
    lookupd_secret: str = ""
    message_count: int = 10_000
    # The first messages go out as one PUB each, the others in MPUBs of this many.
    single_count: int = 1_000
    batch_size: int = 100
    max_in_flight: int = 200
    # On a busy machine a library takes seconds to get round to all that is in flight.
    msg_timeout_ms: int = 4_000
    # Shorter than the run, so that every connection has heartbeats to answer; and long enough for a library that lets a
    # publisher wait while messages pour in, which on a busy machine takes seconds. nsqd bears with two intervals.
    heartbeat_interval_ms: int = 3_000
    defer_ms: int = 500
    # Long enough to outlive the message timeout, touched often enough never to reach it.
    hold_ms: int = 4_600
    touch_interval_ms: int = 400
    # After the last FIN: a message that nsqd did not take as finished would time out and come back.
    linger_ms: int = 4_600
    # A driver that has not finished by then reports what it has got.
    deadline_ms: int = 60_000
    # Spread over the first half: after a requeue a library tries one message before it goes on, and it
    # would wait for those held below if they were in flight at that time.
    requeued: tuple[int, ...] = tuple(range(0, 5_000, 250))
    deferred: tuple[int, ...] = tuple(range(1, 1_000, 50))
    abandoned: tuple[int, ...] = tuple(range(9_000, 10_000, 50))
    touched: tuple[int, ...] = tuple(range(9_001, 10_000, 50))

    @property
    def lookupd_url(self) -> str:
        """Where the consumer asks."""
        return f"{'https' if self.lookupd_secret else 'http'}://{self.lookupd_http_address}"

    @property
    def singles(self) -> list[int]:
        """The messages to publish with one PUB each."""
        return [number for number in range(self.single_count) if number not in self.deferred]

    @property
    def batches(self) -> list[list[int]]:
        """The messages to publish with MPUB, a list for each."""
        starts = range(self.single_count, self.message_count, self.batch_size)
        return [list(range(start, min(start + self.batch_size, self.message_count))) for start in starts]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        fields: dict[str, Any] = json.loads(text)
        for name, value in fields.items():
            if isinstance(value, list):
                fields[name] = tuple(value)  # JSON has no tuples
        return cls(**fields)
