"""Listening on an address: for plain connections, or for connections that begin by TLS.

    listener = Listener("127.0.0.1:4150", make_protocol, label="TCP")
    await listener.bind()       takes the address, so that a taken port stops the start early
    await listener.serve()      accepts connections
    await listener.close()      accepts no more; open connections stay

**TLS.** The event loop could do the handshakes by itself, but it keeps silent about one that fails. An operator whose
nsqd still speaks plain TCP would find nothing in the log. So these connections are accepted here, with a task for each
handshake (`HandshakeServer`):

    accepted -> has_room()? -> handshake, MAX_HANDSHAKE_SECONDS at most -> protocol.connection_made
                  no: closed     failed: closed, and a line in the log with the address and the reason

A client that says nothing, or garbage, costs a descriptor, a task and some 50 kB until then, and no other client waits
for it. If there are MAX_HANDSHAKES of them, each new one takes the place of the oldest: an honest client is done long
before its turn comes. The log gets a line a second, however many fail.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from emberq.base.address import AddressError, TcpAddress, UnixAddress, format_peer, network_text, parse_address
from emberq.base.clock import NS_PER_SECOND, SystemClock
from emberq.base.log import RefusalLog
from emberq.base.tls import openssl_reason, openssl_text

BACKLOG = 4096
"""Connections that may wait to be accepted; the system cuts it to its own limit."""
KEEP_ALIVE_SECONDS = 15
"""As in the reference: so a peer that vanished is noticed."""

_log = logging.getLogger(__name__)


class ListenError(Exception):
    """The address cannot be listened on."""


class Listener:
    """A socket that accepts connections. Bound first, so that a taken port stops the start early; served later."""

    def __init__(
        self,
        address: str,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        label: str,
        tls: ssl.SSLContext | None = None,
        has_room: Callable[[], bool] | None = None,
    ) -> None:
        """With `tls`, connections begin by a handshake. `has_room` is asked before each; it logs why there is none."""
        self._tls = tls
        self._has_room = has_room
        self._text = address
        self._make_protocol = make_protocol
        self._label = label
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | HandshakeServer | None = None
        self._unix_path: str | None = None

    @property
    def address(self) -> tuple[str, int] | str:
        """Host and port, or path, once bound."""
        if self._socket is None:
            raise RuntimeError("not listening")
        name = self._socket.getsockname()
        return name if isinstance(name, str) else (name[0], name[1])

    @property
    def port(self) -> int:
        """The port; -1 for a Unix socket."""
        address = self.address
        return -1 if isinstance(address, str) else address[1]

    async def bind(self) -> None:
        """Take the address; connections wait until `serve`."""
        try:
            self._socket = self._bound(parse_address(self._text))
            self._socket.listen(BACKLOG)
        except (OSError, AddressError) as failure:
            raise ListenError(f"listen ({self._text}) failed - {failure}") from failure

    def _bound(self, address: TcpAddress | UnixAddress) -> socket.socket:
        if isinstance(address, UnixAddress):
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(address.path)
            self._unix_path = address.path
            return listening
        family, _, _, _, where = socket.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit these.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
            if hasattr(socket, option):
                listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), KEEP_ALIVE_SECONDS)
        listening.bind(where)
        return listening

    def _shown_address(self) -> str:
        address = self.address
        return address if isinstance(address, str) else str(TcpAddress(*address))

    async def serve(self) -> None:
        """Accept connections from here on."""
        if self._socket is None:
            raise RuntimeError("not bound")
        if self._tls is not None:
            self._server = HandshakeServer(
                self._socket, self._make_protocol, self._tls, label=self._label, has_room=self._has_room
            )
            self._server.start()
        else:
            loop = asyncio.get_running_loop()
            create = loop.create_server if self._unix_path is None else loop.create_unix_server
            self._server = await create(self._make_protocol, sock=self._socket, backlog=BACKLOG)
        _log.info("%s: listening on %s", self._label, self._shown_address())

    async def close(self) -> None:
        """Accept no more. Connections that are open stay."""
        if self._socket is None:
            return
        _log.info("%s: closing %s", self._label, self._shown_address())
        if self._server is not None:
            self._server.close()
        else:
            self._socket.close()
        if self._unix_path is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._unix_path)  # noqa: PTH108 - pathlib would be loaded for every client
        self._socket = None


# Connections that begin by TLS.

MAX_HANDSHAKE_SECONDS = 10
"""As long as nsqd waits for the first bytes of a plain connection. Python's default, a minute, is a long time to hold a
descriptor for nothing."""
MAX_HANDSHAKES = 2048
"""At a time, which take some 100 MB. A thousand nsqds may come back to an nsqlookupd in one moment."""
MAX_SHUTDOWN_SECONDS = 5
"""For the farewell of TLS, which a client may never answer."""
ACCEPTED_PER_TURN = 64
"""Then the event loop serves others. The rest waits in the system."""
PAUSE_SECONDS = 0.1
"""Without accepting, when there is no descriptor left. The event loop would ask again and again."""
LOG_INTERVAL_NS = NS_PER_SECOND


class HandshakeServer:
    """Accepts the connections of one listening socket. Owned by its listener, which closes it."""

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        *,
        label: str,
        has_room: Callable[[], bool] | None,
    ) -> None:
        self._listening = listening
        self._make_protocol = make_protocol
        self._context = context
        self._label = label
        self._has_room = has_room
        self._handshakes: dict[asyncio.Task[None], str] = {}
        """Under way, the oldest first, with the address of the client. The event loop holds its tasks only weakly."""
        self._pause: asyncio.TimerHandle | None = None
        self._refusals = RefusalLog(_log, clock=SystemClock(), interval_ns=LOG_INTERVAL_NS)

    def start(self) -> None:
        """Accept connections from here on."""
        self._listening.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Accept no more, and end the handshakes under way. Connections that are open stay."""
        if self._pause is not None:
            self._pause.cancel()
        asyncio.get_running_loop().remove_reader(self._listening)
        self._listening.close()
        for handshake in self._handshakes:
            handshake.cancel()

    def _resume(self) -> None:
        self._pause = None
        asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTED_PER_TURN):
            try:
                connection, peername = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as failure:
                self._refusals.warn(f"{self._label}: cannot accept connections: {network_text(failure)}")
                loop.remove_reader(self._listening)
                self._pause = loop.call_later(PAUSE_SECONDS, self._resume)
                return
            if self._has_room is not None and not self._has_room():
                connection.close()
                continue
            connection.setblocking(False)
            self._make_room()
            peer = format_peer(peername)
            handshake = loop.create_task(self._shake_hands(connection, peer))
            self._handshakes[handshake] = peer
            handshake.add_done_callback(lambda done: self._handshakes.pop(done, None))

    def _make_room(self) -> None:
        """Give up the oldest handshake if there are too many."""
        if len(self._handshakes) >= MAX_HANDSHAKES:
            oldest = next(iter(self._handshakes))
            self._refusals.warn(f"{self._label}: refused {self._handshakes[oldest]}: too many handshakes at a time")
            oldest.cancel()
            del self._handshakes[oldest]

    async def _shake_hands(self, connection: socket.socket, peer: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=MAX_HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=MAX_SHUTDOWN_SECONDS,
            )
        except OSError as failure:  # ssl.SSLError is one, and TimeoutError
            self._refusals.warn(f"{self._label}: refused {peer}: {refusal(failure)}")


# Why a handshake failed, in words that tell what to do.

_REASONS = {
    "HTTP_REQUEST": "it asked by plain HTTP, and this port speaks TLS only",
    "WRONG_VERSION_NUMBER": "it does not speak TLS, and this port speaks nothing else",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate, which --tls-client-auth-policy asks for",
    "UNSUPPORTED_PROTOCOL": "it speaks only versions of TLS that are older than --tls-min-version",
    "NO_SHARED_CIPHER": "it knows only cipher suites that are not safe",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority of our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept our certificate; it may be for another name",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "to it our certificate has expired",
}
"""By OpenSSL's names of what went wrong."""


def refusal(failure: OSError) -> str:
    """Why a handshake as the server failed."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {failure.verify_message}"
    if isinstance(failure, ssl.SSLError):
        return _REASONS.get(openssl_reason(failure)) or f"the handshake failed: {openssl_text(failure)}"
    if isinstance(failure, ConnectionAbortedError):
        return f"no handshake within {MAX_HANDSHAKE_SECONDS} s"
    return "it left before the handshake was done"
