"""What can be wrong with what a client sent.

    ProtocolError
    ├── ClientError      answered with an error frame; the connection goes on
    └── FatalError       answered with an error frame, then the connection is closed
        ├── SilentClose  closed without an answer
        └── BadMagic     it does not begin as the protocol does

The frame's data is the error code, a space and a text: bytes, not str, because errors echo what the client sent.
"""

from __future__ import annotations

BAD_PROTOCOL = b"E_BAD_PROTOCOL"
INVALID = b"E_INVALID"
BAD_BODY = b"E_BAD_BODY"
BAD_TOPIC = b"E_BAD_TOPIC"
BAD_CHANNEL = b"E_BAD_CHANNEL"
BAD_MESSAGE = b"E_BAD_MESSAGE"
IDENTIFY_FAILED = b"E_IDENTIFY_FAILED"
TOO_MANY_CONNECTIONS = b"E_TOO_MANY_CONNECTIONS"
AUTH_DISABLED = b"E_AUTH_DISABLED"
AUTH_FIRST = b"E_AUTH_FIRST"
AUTH_FAILED = b"E_AUTH_FAILED"
UNAUTHORIZED = b"E_UNAUTHORIZED"
SUB_FAILED = b"E_SUB_FAILED"
PUB_FAILED = b"E_PUB_FAILED"
MPUB_FAILED = b"E_MPUB_FAILED"
DPUB_FAILED = b"E_DPUB_FAILED"
FIN_FAILED = b"E_FIN_FAILED"
REQ_FAILED = b"E_REQ_FAILED"
TOUCH_FAILED = b"E_TOUCH_FAILED"


class ProtocolError(Exception):
    """The peer broke a rule of the protocol; `data` is the data of the error frame that says so."""

    def __init__(self, code: bytes, text: bytes = b"") -> None:
        self.data = code + b" " + text if text else code
        super().__init__(self.data.decode("utf-8", "backslashreplace"))


class ClientError(ProtocolError):
    """Only this command failed."""


class FatalError(ProtocolError):
    """The connection cannot go on.

    `topic` is the topic that the command names, if the server must create it although the command failed: MPUB does so
    before it reads its body.
    """

    line = b""
    """The line of the command, if it was refused for its line or body; for the log."""

    def __init__(self, code: bytes, text: bytes = b"", *, topic: str | None = None) -> None:
        super().__init__(code, text)
        self.topic = topic


class BadMagic(FatalError):
    """The connection begins by something else than the protocol's magic."""

    def __init__(self, magic: bytes) -> None:
        super().__init__(BAD_PROTOCOL)
        self.magic = magic
        """What it begins by."""


class SilentClose(FatalError):
    """The connection cannot go on, and the client is not told why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason.encode())
