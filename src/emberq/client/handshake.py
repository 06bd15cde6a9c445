"""From an open socket to a connection that takes commands.

    client                          nsqd
    "  V2", IDENTIFY {...}    →
                              ←     {...}: what was agreed, in clear
    TLS handshake             ↔                                if agreed
                              ←     OK, inside TLS
                              ←     OK, compressed             if agreed
    AUTH secret               →                                if demanded
                              ←     {...}: who we are

Nothing may be sent behind an IDENTIFY before its answer is there: nsqd drops what it read in clear when it changes to
another kind of stream.
"""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from typing import Any

from emberq.base.address import TcpAddress, parse_address
from emberq.client.config import ClientConfig
from emberq.client.error import AuthRefused, HandshakeFailed, server_error
from emberq.client.stream import Stream
from emberq.wire import command
from emberq.wire.compression import DeflateCodec, SnappyCodec
from emberq.wire.frame import ERROR, FRAME_HEADER, RESPONSE

_START_OF_HTTP = int.from_bytes(b"HTTP", "big")
"""The size of the first frame, if the peer answers in HTTP."""
_UNFRAMED_ERROR = int.from_bytes(b"E_BA", "big")
"""The type of the first frame, if the peer is an nsqlookupd: its E_BAD_PROTOCOL has a size, but no type."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What nsqd agreed to. The defaults are what an nsqd too old to negotiate does."""

    version: str = ""
    max_rdy_count: int = 2500
    msg_timeout_ms: int = 60_000
    max_msg_timeout_ms: int = 900_000
    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 6
    sample_rate: int = 0
    auth_required: bool = False
    output_buffer_size: int = 0
    output_buffer_timeout_ms: int = 0
    idempotent: bool = False
    """Whether batches may be numbered."""


_ANSWER_FIELDS: dict[str, tuple[str, type]] = {
    "version": ("version", str),
    "max_rdy_count": ("max_rdy_count", int),
    "msg_timeout": ("msg_timeout_ms", int),
    "max_msg_timeout": ("max_msg_timeout_ms", int),
    "tls_v1": ("tls", bool),
    "snappy": ("snappy", bool),
    "deflate": ("deflate", bool),
    "deflate_level": ("deflate_level", int),
    "sample_rate": ("sample_rate", int),
    "auth_required": ("auth_required", bool),
    "output_buffer_size": ("output_buffer_size", int),
    "output_buffer_timeout": ("output_buffer_timeout_ms", int),
    "emberq_idempotent": ("idempotent", bool),
}
"""The key in nsqd's document: our name for it, and its type."""


def parse_answer(data: bytes) -> Answer:
    """What an answer to IDENTIFY says; ValueError if it cannot be one."""
    if not data.startswith(b"{"):
        return Answer()
    document: dict[str, Any] = json.loads(data)
    known: dict[str, Any] = {}
    for key, (name, expected) in _ANSWER_FIELDS.items():
        value = document.get(key)
        if value is None:
            continue
        if type(value) is not expected:
            raise ValueError(f"{key} is {value!r}")
        known[name] = value
    return Answer(**known)


class Handshake:
    """Sets up one connection. Used once; whoever opened the stream closes it if this fails."""

    def __init__(self, stream: Stream, *, address: str, config: ClientConfig) -> None:
        self._stream = stream
        self._address = address
        self._config = config

    async def run(self) -> Answer:
        """What was agreed, once commands can be sent; a `HandshakeFailed` or a `ServerError` otherwise."""
        self._stream.write(command.MAGIC_V2 + command.identify(self._config.identify_fields()))
        answer = self._parse(await self._read_response())
        if self._config.producer_id and not answer.idempotent:
            raise self._failed("nsqd cannot tell batches that are sent again, and storing them twice is not wanted")
        await self._encrypt(answer)
        await self._compress(answer)
        if answer.auth_required:
            await self._authenticate()
        return answer

    def _parse(self, data: bytes) -> Answer:
        try:
            return parse_answer(data)
        except ValueError as error:
            raise self._failed(f"the answer to IDENTIFY makes no sense: {error}") from error

    async def _encrypt(self, answer: Answer) -> None:
        context = self._config.tls
        if context is None:
            return
        if not answer.tls:
            raise self._failed("nsqd does not offer TLS, and going on without is not what was asked for")
        try:
            await self._stream.start_tls(context, server_hostname=self._server_hostname(context))
        except ssl.SSLError as error:
            raise self._failed(f"no agreement on TLS: {error}") from error
        await self._expect_ok("TLS")

    def _server_hostname(self, context: ssl.SSLContext) -> str:
        """The name that nsqd's certificate must bear. A Unix socket has none but this machine's."""
        target = parse_address(self._address)
        host = target.host if isinstance(target, TcpAddress) else ""
        return host or ("localhost" if context.check_hostname else "")

    async def _compress(self, answer: Answer) -> None:
        if answer.snappy:
            self._stream.start_codec(SnappyCodec())
            await self._expect_ok("snappy")
        elif answer.deflate:
            self._stream.start_codec(DeflateCodec(answer.deflate_level))
            await self._expect_ok("deflate")

    async def _authenticate(self) -> None:
        if not self._config.auth_secret:
            raise AuthRefused("E_AUTH_FIRST", "nsqd demands AUTH, and no auth_secret is configured")
        self._stream.write(command.auth(self._config.auth_secret))
        await self._read_response()

    async def _expect_ok(self, upgrade: str) -> None:
        data = await self._read_response()
        if data != b"OK":
            raise self._failed(f"{data[:64]!r} instead of OK after the change to {upgrade}")

    async def _read_response(self) -> bytes:
        """The data of the next frame, which must be a response; an error frame is raised."""
        size, frame_type = FRAME_HEADER.unpack(await self._stream.read_exactly(FRAME_HEADER.size))
        if size == _START_OF_HTTP:
            raise self._failed(
                "unexpected HTTP response; give the address at which nsqd speaks TCP, which usually has port 4150"
            )
        if frame_type == _UNFRAMED_ERROR:
            raise self._failed(
                "this answers like an nsqlookupd; give the address of an nsqd, which usually has port 4150, or give "
                "nsqlookupd's HTTP address as lookupd_addresses"
            )
        if not 4 <= size <= self._config.max_frame_bytes:
            raise self._failed(f"a frame of {size} bytes; this is not an nsqd")
        data = await self._stream.read_exactly(size - 4)
        if frame_type == ERROR:
            raise server_error(data)
        if frame_type != RESPONSE:
            raise self._failed(f"a frame of type {frame_type} instead of an answer")
        return data

    def _failed(self, reason: str) -> HandshakeFailed:
        return HandshakeFailed(self._address, reason)
