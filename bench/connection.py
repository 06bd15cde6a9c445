"""One connection to nsqd: a blocking socket, plain for HTTP, or one that has done its handshake.

Blocking, because a worker process has nothing else to do than to wait for its server; a limit on every wait,
because a server that falls silent must end the run instead of hanging it. The kernel keeps that limit
(SO_RCVTIMEO): a timeout of Python's would cost a poll before every call. A wait that was too long then ends
in BlockingIOError; `reason` puts it into words.
"""

from __future__ import annotations

import json
import socket
import struct

from bench import frame
from bench.failure import LoadFailure

Address = tuple[str, int]

SILENCE_LIMIT_S = 30  # no work here lets a healthy server be silent this long
_SILENCE_LIMIT = struct.pack("@ll", SILENCE_LIMIT_S, 0)  # struct timeval: seconds, microseconds


def connect(
    address: Address, *, source: Address | None = None, settings: dict[str, object] | None = None
) -> socket.socket:
    """A socket that has sent the magic and had its IDENTIFY answered, as real clients do."""
    connection = connect_plain(address, source=source)
    try:
        about = {"client_id": "bench", "hostname": "bench", "user_agent": "emberq-bench", **(settings or {})}
        body = json.dumps({**about, "feature_negotiation": True}).encode()
        connection.sendall(frame.MAGIC + frame.identify(body))
        json.loads(read_response(connection))
    except BaseException:
        connection.close()
        raise
    return connection


def connect_plain(address: Address, *, source: Address | None = None) -> socket.socket:
    """A socket over which nothing has been said."""
    connection = socket.create_connection(address, timeout=SILENCE_LIMIT_S, source_address=source)
    connection.settimeout(None)
    for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, direction, _SILENCE_LIMIT)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def subscribe(connection: socket.socket, *, topic: str, channel: str) -> None:
    connection.sendall(f"SUB {topic} {channel}\n".encode())
    answer = read_response(connection)
    if answer != b"OK":
        raise LoadFailure(f"nsqd answered SUB with {answer!r}")


def create_channel(address: Address, *, topic: str, channel: str) -> None:
    """A subscription makes topic and channel; both stay when it leaves."""
    with connect(address) as connection:
        subscribe(connection, topic=topic, channel=channel)


def read_response(connection: socket.socket) -> bytes:
    """One response frame, read exactly: what follows it stays in the socket."""
    size, kind = frame.HEADER.unpack(_read_exactly(connection, frame.HEADER.size))
    text = _read_exactly(connection, size - 4)
    if kind != frame.RESPONSE:
        raise frame.unexpected(kind, text)
    return text


def received(data: bytes) -> bytes:
    """`data` as it came from recv, where nothing means that the server went away."""
    if not data:
        raise LoadFailure("nsqd closed the connection")
    return data


def reason(error: LoadFailure | OSError) -> str:
    """What went wrong between us and nsqd."""
    if isinstance(error, LoadFailure):
        return str(error)
    if isinstance(error, BlockingIOError):
        return f"nsqd was silent for {SILENCE_LIMIT_S} s"
    return f"{type(error).__name__}: {error}"


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += received(connection.recv(count - len(data)))
    return data
