"""An offer to upgrade the connection is declined by acting as if it had not been made.

Some clients offer HTTP/2 with their first request (`Connection: Upgrade`, `Upgrade: h2c`) and go on in HTTP/1.1 when
the answer does not take it up.
"""

from __future__ import annotations

from collections.abc import Mapping


def head_without_upgrade(*, method: bytes, target: bytes, version: str, headers: Mapping[bytes, bytes]) -> bytes:
    """The head of the same request without the offer. Names of headers are in lower case."""
    lines = [b"%b %b HTTP/%b" % (method, target, version.encode("ascii"))]
    for name, value in headers.items():
        if name == b"connection":
            lines.append(b"connection: " + _without_upgrade(value))
        elif name != b"upgrade":
            lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join([*lines, b"", b""])


def _without_upgrade(options: bytes) -> bytes:
    kept = (option.strip() for option in options.split(b",") if option.strip().lower() != b"upgrade")
    return b", ".join(kept)
