"""What pages of other sites may make a browser do to us: nothing. One rule for nsqd, nsqlookupd and nsqadmin.

A browser runs code of every site that its user visits, on a machine that may reach daemons which no other client of
the internet reaches. Two attacks follow, and each has its check.

**Requests across sites.** A page of `evil.example` posts a form to `http://localhost:4151/topic/delete?topic=orders`.
The page cannot read the answer, but the topic is gone. A browser says of every request that changes something which
site's page made it (`Origin`), and of every request to this machine or by TLS how that site is related to ours
(`Sec-Fetch-Site`). No script can change either. A request that a page of another site made is refused: 403 FORBIDDEN.
A user who follows a link to us is let in: that is a GET, and the page that has the link never sees the answer.

**DNS rebinding.** A page is loaded from `http://evil.example:4171`, whose name then leads to 127.0.0.1. To the browser
page and daemon are one site, so `Origin` says nothing, and the page reads every answer. But the browser has to name the
site in `Host`. So a browser is served under names that are ours, and refused under any other: 403 UNKNOWN_HOST. Ours
are `localhost`, the host name of the machine, what the daemon listens on, its broadcast address and what the operator
adds by --http-allowed-host. An address of digits has no name that could lead elsewhere, so it is always ours.

**Programs** may call us by any name: they run no code of other sites, so neither attack is possible, and a cluster has
names that no daemon knows of. They are told from browsers by what browsers always send and no page can take away:

    Origin             with all that changes something, and with what is read across sites
    Sec-Fetch-Site     with everything, to this machine and by TLS
    Accept-Language    with everything. Node's `fetch` sends it too, along with a `Sec-Fetch-Mode`, which a browser
                       never sends without a `Sec-Fetch-Site`; Deno's without, so it counts as a browser
    User-Agent         `Mozilla/…` with everything, and PowerShell, a program, says what it is behind that. Chromium
                       without a window names no language (156), and lets no page change this one; Firefox and Safari
                       let pages change it, and always name a language

Behind a proxy our name is what the proxy was called by: it passes that on as `Host` or `X-Forwarded-Host`. A page of
another site can set neither, and one that has been rebound is refused by its `Host`, whatever else it sets.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from emberq.base.text import quoted
from emberq.http.message import HttpError, Request, Response

MAX_TOLD = 100
"""Unknown names that the log is told of. A page can make up as many as it likes."""

_DEFAULT_PORTS = {"http": 80, "https": 443}
_OUR_OWN = ("same-origin", "none")
"""`none`: the user typed the address."""
_READING = ("GET", "HEAD")

_log = logging.getLogger(__name__)


class BrowserGuard:
    """Refuses what pages of other sites make a browser ask. Owned by the daemon; its verdict depends on the head alone.

    It is a `Guard` of a server.
    """

    def __init__(self, names: Iterable[str], *, checks_host: bool = True) -> None:
        """`names` are ours besides `localhost` and the host name; `.example.com` is that name and all below.

        Without `checks_host` a browser may call us by any name: right where no request is answered without a login.
        """
        given = {_folded(_without_port(name)) for name in (*names, socket.gethostname(), ".localhost") if name}
        self._names = frozenset(name.removeprefix(".") for name in given)
        self._domains = tuple(name for name in given if name.startswith("."))
        self._checks_host = checks_host
        self._told: set[str] = set()
        """Unknown names that the log has been told of."""

    def __call__(self, request: Request) -> Response | None:
        """The refusal, or None for a request that may go on."""
        refusal = self.refusal(request)
        return refusal.response() if refusal is not None else None

    def refusal(self, request: Request) -> HttpError | None:
        """The same as an error that can be raised."""
        if not is_from_browser(request):
            return None
        if self._checks_host and not self._is_our_name(request.header("host") or ""):
            self._tell(request)
            return HttpError(403, "UNKNOWN_HOST", hint="names of this daemon are added by --http-allowed-host")
        return HttpError(403, "FORBIDDEN") if is_from_elsewhere(request) else None

    def _is_our_name(self, host: str) -> bool:
        name = _folded(_without_port(host))
        if not name or name in self._names or name.endswith(self._domains):
            return True  # a browser always has a name to send
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def _tell(self, request: Request) -> None:
        name = _without_port(request.header("host") or "")
        if name not in self._told and len(self._told) < MAX_TOLD:
            self._told.add(name)
            _log.warning(
                "a browser (%s) called this daemon %s and was refused; if that is its name, add it by"
                " --http-allowed-host",
                request.remote_address,
                quoted(name),
            )


def is_from_browser(request: Request) -> bool:
    """Whether a browser may have sent this; see the module docstring."""
    if request.raw_header(b"origin") is not None or request.raw_header(b"sec-fetch-site") is not None:
        return True
    if request.raw_header(b"accept-language") is not None and request.raw_header(b"sec-fetch-mode") is None:
        return True
    agent = (request.header("user-agent") or "").strip().lower()
    return agent.startswith("mozilla/") and "powershell/" not in agent


def is_from_elsewhere(request: Request) -> bool:
    """Whether a page of another site made this request, other than by a link that a user followed."""
    origin = request.header("origin")
    if origin is not None:
        return not _is_ours(origin, request)
    has_relation = request.raw_header(b"sec-fetch-site") is not None
    return has_relation and not is_from_our_own_page(request) and not _is_followed_link(request)


def is_from_our_own_page(request: Request) -> bool:
    """Whether a browser says that its user asks, or a page of ours. One that says nothing may be led by another."""
    return (request.header("sec-fetch-site") or "").strip().lower() in _OUR_OWN


def _is_followed_link(request: Request) -> bool:
    """Whether the answer becomes what the user sees: not a picture, a frame or a script's data in another page."""
    mode, destination = request.header("sec-fetch-mode"), request.header("sec-fetch-dest")
    return request.method in _READING and (mode, destination) == ("navigate", "document")


def _is_ours(origin: str, request: Request) -> bool:
    try:
        parts = urlsplit(origin.strip().lower())
        default_port = _DEFAULT_PORTS[parts.scheme]
        port = parts.port or default_port
    except (ValueError, KeyError):  # `null`, or nonsense
        return False
    if not parts.hostname:
        return False
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    spellings = {f"{host}:{port}", host} if port == default_port else {f"{host}:{port}"}
    named = (request.header(name) or "" for name in ("host", "x-forwarded-host"))
    return any(name.strip().lower() in spellings for each in named for name in each.split(","))


def host_in(address: str) -> str:
    """The host of an address to listen on, for the names of a `BrowserGuard`; empty if it has none."""
    return "" if "/" in address else address.rpartition(":")[0]


def _without_port(host: str) -> str:
    """`q1` of `q1:4151`; an IPv6 address keeps its brackets."""
    name, colon, port = host.strip().rpartition(":")
    return name if colon and (port.isdigit() or not port) else host.strip()


def _folded(name: str) -> str:
    return name.strip().lower().removesuffix(".")
