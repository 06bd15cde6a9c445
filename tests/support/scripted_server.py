"""A server of one thread that answers each connection with bytes a test has chosen, right or wrong."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Iterable
from typing import Self

from tests.support.certificates import KeyPair
from tests.support.waiting import PATIENCE_S

ACCEPT_POLL_S = 0.05


def answer(body: bytes, *, status: str = "200 OK") -> bytes:
    """A plain HTTP answer."""
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


def server_context(pair: KeyPair) -> ssl.SSLContext:
    """TLS for a server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate_path, pair.key_path)
    return context


END_PATIENCE_S = 1.0
"""How long a server that ends waits for its client to hang up."""


class ScriptedServer:
    """Serves one connection after another: reads a request, sends the next of `answers` piece by piece, closes.

    After the last answer it is silent: it accepts and reads, but says nothing until it is closed.
    """

    def __init__(self, *answers: bytes | Iterable[bytes], tls: ssl.SSLContext | None = None) -> None:
        self._answers = [[each] if isinstance(each, bytes) else each for each in answers]
        self._tls = tls
        self.requests: list[bytes] = []
        """What was read, per connection."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(ACCEPT_POLL_S)
        self.port: int = self._listening.getsockname()[1]
        self._stopping = threading.Event()
        self._silent: list[socket.socket] = []
        self._served: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._stopping.set()
        self._thread.join(END_PATIENCE_S)
        if self._thread.is_alive() and self._served is not None:
            # Its client may be in this thread, and cannot hang up as long as we wait here.
            with contextlib.suppress(OSError):
                self._served.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for connection in [*self._silent, self._listening]:
            connection.close()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            with contextlib.suppress(OSError):  # a client that hangs up is a client's right
                self._serve_one(connection)

    def _serve_one(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_S)
        self._served = connection
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            self._served = connection
            connection.do_handshake()
        self.requests.append(_read_request(connection))
        if not self._answers:
            self._silent.append(connection)
            return
        with connection:
            for piece in self._answers.pop(0):
                if self._stopping.is_set():
                    return
                connection.sendall(piece)


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        received = connection.recv(65536)
        if not received:
            return data
        data += received
    length = re.search(rb"(?i)content-length: (\d+)", data)
    whole = data.index(b"\r\n\r\n") + 4 + (int(length[1]) if length else 0)
    while len(data) < whole:
        data += connection.recv(65536)
    return data
