"""IDENTIFY: what a client asks for, and what it gets.

`parse_request` reads the client's JSON, `negotiate` decides. Both are pure: a request and the server's limits in, the
settings of the connection and the answer out. A field that is 0 or absent leaves the setting as it is. What a client
calls itself and its place is cut to MAX_NAME_CHARACTERS: it is kept and shown for as long as the connection lasts.

Not in NSQ: the answer tells, behind all that NSQ's has, how large a message and the body of an MPUB may be, so that a
client need not send what would be refused:

    "max_msg_size": 1048576, "max_body_size": 5242880

Not in NSQ either: a client may ask to number what it publishes, so that a batch it sends again is stored once, by

    "emberq_producer_id": "<32 hexadecimal digits>"      and is answered      "emberq_idempotent": true

It takes a random id and keeps it for as long as it may send a batch again, over new connections too. A client that does
not ask gets no such answer. An nsqd that does not know the key ignores it, and its answer lacks the other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace

from emberq.wire import error
from emberq.wire.error import FatalError
from emberq.wire.parameter import UndecodableError, parse_object, parse_producer_id

MIN_HEARTBEAT_INTERVAL_MS = 1000
MIN_MSG_TIMEOUT_MS = 1000
MIN_OUTPUT_BUFFER_SIZE = 64
MAX_SAMPLE_RATE = 99
MAX_NAME_CHARACTERS = 256
"""More than the longest host name. A body may have 5 MB, and /stats shows the names of every client."""
DEFAULT_DEFLATE_LEVEL = 6
DEFAULT_OUTPUT_BUFFER_SIZE = 16 * 1024


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What the server offers, and the range of what a client may ask for."""

    version: str
    max_rdy_count: int = 2500
    max_heartbeat_interval_ms: int = 60_000
    max_output_buffer_size: int = 64 * 1024
    min_output_buffer_timeout_ms: int = 25
    max_output_buffer_timeout_ms: int = 30_000
    max_msg_timeout_ms: int = 900_000
    max_deflate_level: int = 6
    tls: bool = False
    deflate: bool = True
    snappy: bool = True
    auth_required: bool = False
    topology_region: str = ""
    topology_zone: str = ""
    max_msg_size: int = 0
    """The largest message; 0: clients are not told, as by NSQ's own nsqd."""
    max_body_size: int = 0
    """The largest body of an MPUB; 0: likewise."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How one connection is served. 0 means off for the heartbeat and for the periodic flush."""

    client_id: str
    hostname: str
    heartbeat_interval_ms: int
    output_buffer_timeout_ms: int
    msg_timeout_ms: int
    output_buffer_size: int = DEFAULT_OUTPUT_BUFFER_SIZE
    user_agent: str = ""
    sample_rate: int = 0
    topology_region: str = ""
    topology_zone: str = ""
    producer_id: bytes = b""
    """The producer id under which the client numbers what it publishes; empty if it does not."""


@dataclass(frozen=True, slots=True)
class IdentifyRequest:
    """The fields of an IDENTIFY that a server reads; each default is what an absent field means."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    feature_negotiation: bool = False
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    sample_rate: int = 0
    msg_timeout: int = 0
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 0
    topology_region: str = ""
    topology_zone: str = ""
    emberq_producer_id: str = ""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What was agreed: `answer` is the data of the response frame, the rest says which upgrades follow it, in order."""

    settings: ConnectionSettings
    answer: bytes
    tls: bool = False
    snappy: bool = False
    deflate_level: int = 0
    """0: the stream is not deflated."""


_FIELD_TYPES: dict[str, type] = {field.name: type(field.default) for field in fields(IdentifyRequest)}


def parse_request(body: bytes) -> IdentifyRequest:
    """The request in the body of an IDENTIFY. Keys match in any case; unknown keys are ignored."""
    try:
        return IdentifyRequest(**parse_object(body, _FIELD_TYPES))
    except UndecodableError:
        raise FatalError(error.BAD_BODY, b"IDENTIFY failed to decode JSON body") from None


def negotiate(request: IdentifyRequest, current: ConnectionSettings, limits: ServerLimits) -> Agreement:
    """What the connection gets, or the `FatalError` its request deserves."""
    settings = replace(
        current,
        client_id=request.client_id[:MAX_NAME_CHARACTERS],
        hostname=request.hostname[:MAX_NAME_CHARACTERS],
        user_agent=request.user_agent[:MAX_NAME_CHARACTERS],
        topology_region=request.topology_region[:MAX_NAME_CHARACTERS],
        topology_zone=request.topology_zone[:MAX_NAME_CHARACTERS],
        heartbeat_interval_ms=_heartbeat_interval_ms(request, current, limits),
        output_buffer_timeout_ms=_output_buffer_timeout_ms(request, current, limits),
        output_buffer_size=_output_buffer_size(request, current, limits),
        sample_rate=_sample_rate(request),
        msg_timeout_ms=_msg_timeout_ms(request, current, limits),
    )
    if not request.feature_negotiation:
        return Agreement(settings, b"OK")
    if request.emberq_producer_id:
        settings = replace(settings, producer_id=_producer_id(request))
    return _negotiated(request, settings, limits)


def _negotiated(request: IdentifyRequest, settings: ConnectionSettings, limits: ServerLimits) -> Agreement:
    tls = request.tls_v1 and limits.tls
    deflate = request.deflate and limits.deflate
    snappy = request.snappy and limits.snappy
    if deflate and snappy:
        raise FatalError(error.IDENTIFY_FAILED, b"cannot enable both deflate and snappy compression")
    level = request.deflate_level if deflate and request.deflate_level > 0 else DEFAULT_DEFLATE_LEVEL
    level = min(level, limits.max_deflate_level)
    answer = {
        "max_rdy_count": limits.max_rdy_count,
        "version": limits.version,
        "max_msg_timeout": limits.max_msg_timeout_ms,
        "msg_timeout": settings.msg_timeout_ms,
        "tls_v1": tls,
        "deflate": deflate,
        "deflate_level": level,
        "max_deflate_level": limits.max_deflate_level,
        "snappy": snappy,
        "sample_rate": settings.sample_rate,
        "auth_required": limits.auth_required,
        "output_buffer_size": settings.output_buffer_size,
        "output_buffer_timeout": settings.output_buffer_timeout_ms,
        "topology_region": limits.topology_region,
        "topology_zone": limits.topology_zone,
    }
    if limits.max_msg_size and limits.max_body_size:
        answer |= {"max_msg_size": limits.max_msg_size, "max_body_size": limits.max_body_size}
    if request.emberq_producer_id:
        answer["emberq_idempotent"] = True
    encoded = json.dumps(answer, separators=(",", ":")).encode()
    return Agreement(settings, encoded, tls=tls, snappy=snappy, deflate_level=level if deflate else 0)


def _heartbeat_interval_ms(request: IdentifyRequest, current: ConnectionSettings, limits: ServerLimits) -> int:
    asked = request.heartbeat_interval
    if asked == 0:
        return current.heartbeat_interval_ms
    if asked == -1:
        return 0
    if not MIN_HEARTBEAT_INTERVAL_MS <= asked <= limits.max_heartbeat_interval_ms:
        raise _invalid("heartbeat interval", asked)
    return asked


def _output_buffer_timeout_ms(request: IdentifyRequest, current: ConnectionSettings, limits: ServerLimits) -> int:
    asked = request.output_buffer_timeout
    if asked not in (0, -1) and not (
        limits.min_output_buffer_timeout_ms <= asked <= limits.max_output_buffer_timeout_ms
    ):
        raise _invalid("output buffer timeout", asked)
    if asked == -1 or request.output_buffer_size == -1:  # what is not buffered need not be flushed
        return 0
    return asked or current.output_buffer_timeout_ms


def _output_buffer_size(request: IdentifyRequest, current: ConnectionSettings, limits: ServerLimits) -> int:
    asked = request.output_buffer_size
    if asked == 0:
        return current.output_buffer_size
    if asked == -1:
        return 1
    if not MIN_OUTPUT_BUFFER_SIZE <= asked <= limits.max_output_buffer_size:
        raise _invalid("output buffer size", asked)
    return asked


def _sample_rate(request: IdentifyRequest) -> int:
    if not 0 <= request.sample_rate <= MAX_SAMPLE_RATE:
        raise _invalid("sample rate", request.sample_rate)
    return request.sample_rate


def _msg_timeout_ms(request: IdentifyRequest, current: ConnectionSettings, limits: ServerLimits) -> int:
    asked = request.msg_timeout
    if asked == 0:
        return current.msg_timeout_ms
    if not MIN_MSG_TIMEOUT_MS <= asked <= limits.max_msg_timeout_ms:
        raise _invalid("msg timeout", asked)
    return asked


def _producer_id(request: IdentifyRequest) -> bytes:
    producer_id = parse_producer_id(request.emberq_producer_id)
    if producer_id is None:
        raise FatalError(error.BAD_BODY, b"IDENTIFY emberq_producer_id is invalid")
    return producer_id


def _invalid(what: str, asked: int) -> FatalError:
    return FatalError(error.BAD_BODY, f"IDENTIFY {what} ({asked}) is invalid".encode())
