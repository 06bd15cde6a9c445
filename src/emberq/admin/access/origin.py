"""Requests that another site had a browser make.

A browser says of every request that changes something which site's page made it (`Origin`), and modern ones how that
site is related to ours (`Sec-Fetch-Site`). One that another site made is refused, whoever the browser's user is: the
page may know an address that only its user can reach, or a proxy that vouches for them. Programs say nothing of the
kind and are not concerned.

Behind a proxy our name is what the proxy was called by: it passes that on as `Host` or `X-Forwarded-Host`. A page
cannot make a browser lie about either.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from emberq.http.message import Request

_DEFAULT_PORTS = {"http": 80, "https": 443}
_OUR_OWN = ("same-origin", "none")
"""`none`: the user typed the address."""


def is_from_elsewhere(request: Request) -> bool:
    """Whether a page of another site made this request."""
    origin = request.header("origin")
    if origin is not None:
        return not _is_ours(origin, request)
    relation = request.header("sec-fetch-site")
    return relation is not None and relation.lower() not in _OUR_OWN


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
