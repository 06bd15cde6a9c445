"""A client that sends what it is told to, byte by byte, and reads answers with no help from the code under test."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass, field
from typing import Any

from tests.support.raw_connection import Address, RawConnection
from tests.support.waiting import PATIENCE_S


@dataclass(frozen=True)
class Answer:
    """An answer as it came over the wire."""

    status: int
    reason: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    """Names in lower case."""

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        """Status and message of a V1 error, which must be exactly that."""
        assert self.headers["x-nsq-content-type"] == "nsq; version=1.0"
        assert self.headers["content-type"] == "application/json; charset=utf-8"
        message = self.json["message"]
        assert self.body == b'{"message":"%b"}' % message.encode()
        return self.status, message

    @property
    def closes(self) -> bool:
        return self.headers.get("connection") == "close"


class RawClient(RawConnection):
    """One connection."""

    def __init__(self, address: Address, *, tls: ssl.SSLContext | None = None, receive_buffer_bytes: int = 0) -> None:
        super().__init__(address, receive_buffer_bytes=receive_buffer_bytes)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._received = b""

    def send_what_fits(self, data: bytes) -> int:
        """Send without waiting for room; returns how many bytes the system took."""
        self.socket.setblocking(False)
        sent = 0
        try:
            while sent < len(data):
                sent += self.socket.send(data[sent:])
        except BlockingIOError:
            pass
        finally:
            self.socket.settimeout(PATIENCE_S)
        return sent

    def ask(self, method: str, target: str, body: bytes = b"", **headers: str) -> Answer:
        """A whole request and its answer."""
        self.send(request(method, target, body, **headers))
        return self.read_answer(method)

    def read_answer(self, method: str = "GET") -> Answer:
        """The next answer; `method` is what it answers."""
        answer, self._received = self._next_answer(method)
        return answer

    def _next_answer(self, method: str) -> tuple[Answer, bytes]:
        while True:
            found = cut_answer(self._received, method)
            if found is not None:
                return found
            piece = self.socket.recv(65536)
            assert piece, f"the connection was closed over {self._received!r}"
            self._received += piece

    def read_exactly(self, size: int) -> bytes:
        """Just so many bytes, whatever they are."""
        while len(self._received) < size:
            piece = self.socket.recv(65536)
            assert piece, "the connection was closed early"
            self._received += piece
        some, self._received = self._received[:size], self._received[size:]
        return some

    def read_to_end(self) -> bytes:
        """Everything until the server closes."""
        while piece := self.socket.recv(65536):
            self._received += piece
        everything, self._received = self._received, b""
        return everything

    def is_closed_by_server(self) -> bool:
        """Whether the server has closed without saying anything more; waits for it to do either."""
        try:
            return not self._received and self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


def request(method: str, target: str, body: bytes = b"", **headers: str) -> bytes:
    """The bytes of a request; `content_length="5"` makes the header `content-length`, an empty value omits it."""
    fields = {"host": "localhost"}
    if body or method in ("POST", "PUT"):
        fields["content-length"] = str(len(body))
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(*chunks: bytes, trailers: bytes = b"") -> bytes:
    """A body in chunks."""
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n" + trailers + b"\r\n"


def cut_answer(received: bytes, method: str) -> tuple[Answer, bytes] | None:
    """The first answer in `received` and what follows it, or None if it is not complete."""
    head, blank, rest = received.partition(b"\r\n\r\n")
    if not blank:
        return None
    status_line, *header_lines = head.decode("latin-1").split("\r\n")
    version, status, reason = status_line.split(" ", 2)
    assert version == "HTTP/1.1"
    headers: dict[str, str] = {}
    for line in header_lines:
        name, _, value = line.partition(": ")
        assert name.lower() not in headers, f"{name} was sent twice"
        headers[name.lower()] = value
    has_body = method != "HEAD" and int(status) >= 200 and int(status) not in (204, 304)
    size = int(headers["content-length"]) if has_body else 0
    if len(rest) < size:
        return None
    return Answer(int(status), reason, rest[:size], headers), rest[size:]


def cut_answers(received: bytes) -> list[Answer]:
    """All answers of a stream that holds nothing else."""
    answers = []
    while received:
        found = cut_answer(received, "GET")
        assert found is not None, f"half an answer: {received!r}"
        answer, received = found
        answers.append(answer)
    return answers
