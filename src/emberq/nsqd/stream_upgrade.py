"""Turning a plain stream into what IDENTIFY agreed on: TLS first, then compression.

The client hears of each step inside the new stream, by an OK. What it sent behind the IDENTIFY in the old one is
dropped, because it belongs to neither.
"""

from __future__ import annotations

import asyncio

from emberq.nsqd.output import Output
from emberq.nsqd.service import Service
from emberq.nsqd.tls_connection import TlsConnection
from emberq.wire import frame
from emberq.wire.compression import DeflateCodec, SnappyCodec
from emberq.wire.decoder import CommandDecoder
from emberq.wire.negotiation import Outcome


class StreamUpgrade:
    """The upgrades of one connection. Owned by its session."""

    __slots__ = ("_decoder", "_output", "_service", "is_shaking_hands", "tls")

    def __init__(self, service: Service, decoder: CommandDecoder, output: Output) -> None:
        self._service = service
        self._decoder = decoder
        self._output = output
        self.tls: TlsConnection | None = None
        """What was agreed, once the stream is encrypted."""
        self.is_shaking_hands = False
        """TLS is being agreed on: nothing of ours may get in between."""

    async def encrypt(self, protocol: asyncio.Protocol) -> None:
        """Shake hands on this connection; OSError (ssl.SSLError is one) or TimeoutError if that fails."""
        self.is_shaking_hands = True
        transport = await self._service.start_tls(self._output.transport, protocol)
        self.is_shaking_hands = False
        self._output.use_transport(transport)
        protocol.resume_writing()  # whatever the old transport last said, the new one is empty
        self.tls = TlsConnection.of(transport.get_extra_info("ssl_object"))
        self._decoder.tls_required = False
        self._output.reply(frame.OK)

    def compress(self, outcome: Outcome) -> None:
        """Switch both directions to what was agreed, if anything was."""
        if outcome.snappy:
            self._output.use_codec(SnappyCodec())
        elif outcome.deflate_level:
            self._output.use_codec(DeflateCodec(outcome.deflate_level))
        else:
            return
        self._decoder.discard()
        self._output.reply(frame.OK)
