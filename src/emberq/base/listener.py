"""A socket that accepts connections: TCP, or Unix when the address is a path."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from emberq.base.address import AddressError, TcpAddress, UnixAddress, parse_address

BACKLOG = 4096
"""Connections that may wait to be accepted; the system cuts it to its own limit."""
KEEP_ALIVE_SECONDS = 15
"""As in the reference: a peer that vanished without a word is noticed."""

_log = logging.getLogger(__name__)


class ListenError(Exception):
    """The address cannot be listened on."""


class Listener:
    """Bound first, so that a taken port stops the start early; served when everything else is ready."""

    def __init__(
        self,
        address: str,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        label: str,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._text = address
        self._make_protocol = make_protocol
        self._label = label
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._unix_path: Path | None = None

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
            self._unix_path = Path(address.path)
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
        loop = asyncio.get_running_loop()
        if self._unix_path is not None:
            self._server = await loop.create_unix_server(
                self._make_protocol, sock=self._socket, backlog=BACKLOG, ssl=self._tls
            )
        else:
            self._server = await loop.create_server(
                self._make_protocol, sock=self._socket, backlog=BACKLOG, ssl=self._tls
            )
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
            self._unix_path.unlink(missing_ok=True)
        self._socket = None
