"""URLs of HTTP taken apart, for those who ask another server.

    http://user:password@host:port/path?query#fragment
    |------------------| |-------||---------|
       authorization      origin   what the request asks for; the fragment is not sent

Secrets travel in URLs. So the text of an error holds nothing of the URL, and `public` is what may be shown of it.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
_PRINTABLE_ASCII = re.compile(r"[!-~]+")


class HttpUrlError(ValueError):
    """A text that is no URL of HTTP; the error's text says why."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where connections lead."""

    scheme: str
    host: str
    port: int

    @property
    def host_header(self) -> str:
        """The host as a request names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HttpUrl:
    """A URL taken apart."""

    origin: Origin
    path_and_query: str = field(repr=False)
    authorization: str | None = field(repr=False)
    """The header for credentials that stood in it."""

    @classmethod
    def parse(cls, text: str) -> HttpUrl:
        """HttpUrlError unless it is a URL of HTTP, with everything escaped that must be."""
        if _PRINTABLE_ASCII.fullmatch(text) is None:  # a line feed in a URL would forge a header
            raise HttpUrlError("a URL has a character that must be escaped")
        try:
            parts = urlsplit(text)
            port = parts.port
            (parts.hostname or "").encode("idna")  # as the look-up of the name will do
        except ValueError:
            raise HttpUrlError("a URL is malformed") from None  # the cause would quote the URL
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise HttpUrlError("a URL must begin with http:// or https:// and a host")
        origin = Origin(parts.scheme, parts.hostname, _DEFAULT_PORTS[parts.scheme] if port is None else port)
        path = parts.path or "/"
        has_query = "?" in text.partition("#")[0]  # an empty one is one, too
        return cls(origin, f"{path}?{parts.query}" if has_query else path, _basic_authorization(parts.netloc))

    @property
    def public(self) -> str:
        """The URL without credentials and query string."""
        return f"{self.origin.scheme}://{self.origin.host_header}{self.path_and_query.partition('?')[0]}"


def _basic_authorization(netloc: str) -> str | None:
    credentials, at, _ = netloc.rpartition("@")
    if not at:
        return None
    user, _, password = credentials.partition(":")
    pair = unquote_to_bytes(user) + b":" + unquote_to_bytes(password)
    return "Basic " + base64.b64encode(pair).decode("ascii")
