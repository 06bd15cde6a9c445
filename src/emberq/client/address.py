"""Addresses as users write them: those at which nsqds speak TCP, and those at which nsqlookupds speak HTTP.

    nsqd          host:port, [IPv6]:port, tcp://host:port; the path of a Unix socket, with a / in it, or unix:/path
    nsqlookupd    host:port, [IPv6]:port; a URL with http:// or https://

They are read when a producer or consumer is made. What can mean only one thing is taken for that: spaces around an
address, a slash behind it, one address where a list of them is expected. Anything else is an `AddressError`, a
ValueError, that shows the right spelling. A port must be there: 4150 and 4161 are only usual, and one that is left out
of a URL means 80 everywhere else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias
from urllib.parse import SplitResult, quote, urlsplit, urlunsplit

from emberq.base.address import AddressError, TcpAddress, parse_address
from emberq.client.argument import describe
from emberq.http.client import HttpUrl, HttpUrlError

USUAL_NSQD_PORT = 4150
USUAL_LOOKUPD_PORT = 4161

Addresses: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"
"""One address, or several."""

_SCHEME = r"([a-zA-Z][a-zA-Z0-9+.-]*)://"
_FORBIDDEN = r"[\s,;\x00-\x1f\x7f]"


def address_list(name: str, addresses: object) -> list[str]:
    """The addresses in the argument `name`, each once, without spaces around them."""
    if isinstance(addresses, str | os.PathLike):
        addresses = [addresses]
    if not isinstance(addresses, Iterable) or isinstance(addresses, bytes | bytearray | Mapping):
        raise TypeError(f"{name} is {describe(addresses)}; it must be an address, or a list of them")
    return list(dict.fromkeys(_text(name, address) for address in addresses))


def _text(name: str, address: object) -> str:
    text = os.fspath(address) if isinstance(address, os.PathLike) else address
    if not isinstance(text, str):
        raise TypeError(f"{name} has {describe(address)} in it; an address is a str")
    return text.strip()


# nsqd


def nsqd_address(text: str) -> str:
    """An address that can be connected to, `host:port` or a path, for what the user wrote."""
    if text.startswith("unix:"):
        return _unix_path(text)
    scheme = re.match(_SCHEME, text)
    if "/" in text and scheme is None:
        return text
    _check_characters("nsqd", text, port=USUAL_NSQD_PORT)
    spelling = _spelling(text, USUAL_NSQD_PORT)
    bare = text
    if scheme is not None:
        bare = text[scheme.end() :].rstrip("/")
        if scheme[1].lower() != "tcp" or "/" in bare:
            reason = "is a URL, but nsqd is spoken to over TCP, at its --tcp-address"
            raise AddressError(f"nsqd address {_shown(text)} {reason}; write {spelling}")
    try:
        target = parse_address(bare)
    except AddressError as error:
        raise AddressError(f"nsqd address {_shown(text)}: {error}; write {spelling}") from error
    if not isinstance(target, TcpAddress) or not target.port:
        also = "" if scheme is not None or ":" in text else ", or for a Unix socket a path with a / in it"
        raise AddressError(f"nsqd address {_shown(text)}: missing port; write {spelling}{also}")
    return bare


def _unix_path(text: str) -> str:
    path = text.removeprefix("unix:").removeprefix("//")
    if not path.startswith("/"):
        raise AddressError(f"nsqd address {_shown(text)}: write the path of the Unix socket, '/run/nsqd.sock'")
    return path


# nsqlookupd


def lookup_url(address: str, topic: str) -> str:
    """The URL to ask at `address` for the nsqds of `topic`.

    Without a scheme it is `http://`, without a path it is `/lookup`; a query string is kept and `topic=` appended.
    """
    text = address.strip()
    _check_characters("nsqlookupd", text, port=USUAL_LOOKUPD_PORT)
    parts = _split_lookupd(text)
    path = "/lookup" if parts.path in ("", "/", "/lookup/") else parts.path
    query = f"{parts.query}&" if parts.query else ""
    url = urlunsplit(parts._replace(path=path, query=f"{query}topic={quote(topic, safe='')}", fragment=""))
    try:
        HttpUrl.parse(url)
    except HttpUrlError as error:
        raise AddressError(f"nsqlookupd address {_shown(text)}: {error}") from error
    return url


def _split_lookupd(text: str) -> SplitResult:
    scheme = re.match(_SCHEME, text)
    spelling = _spelling(text, USUAL_LOOKUPD_PORT)
    kind = scheme[1].lower() if scheme is not None else "http"
    if kind not in ("http", "https") or text.startswith(("/", "unix:")):
        raise AddressError(f"nsqlookupd address {_shown(text)}: it is asked over HTTP; write {spelling}")
    try:
        parts = urlsplit(text if scheme is not None else f"http://{text}")
        port = parts.port
    except ValueError as error:
        raise AddressError(f"nsqlookupd address {_shown(text)}: missing port or host; write {spelling}") from error
    if not port or not parts.hostname:
        raise AddressError(f"nsqlookupd address {_shown(text)}: missing port or host; write {spelling}")
    return parts


# Both


def _check_characters(kind: str, text: str, *, port: int) -> None:
    if not text:
        raise AddressError(f"an {kind} address is empty: missing port or host; write '127.0.0.1:{port}'")
    if re.search(_FORBIDDEN, text.partition("?")[0]):
        raise AddressError(f"{kind} address {_shown(text)}: several go into a list, ['one:{port}', 'other:{port}']")


def _spelling(text: str, port: int) -> str:
    """How an address with the host of `text` is written, quoted."""
    authority = re.sub(_SCHEME, "", text, count=1).partition("/")[0].rpartition("@")[2]
    if authority.startswith("["):
        host = authority.partition("]")[0] + "]"
    elif authority.count(":") > 1:
        host = f"[{authority.removesuffix(f':{port}')}]"
    else:
        host = authority.partition(":")[0] or "127.0.0.1"
    return f"'{host}:{port}'"


def _shown(text: str) -> str:
    """The address, quoted, without what may be secret in a URL."""
    return repr(re.sub(r"//[^/]*@", "//…@", text.partition("?")[0]))
