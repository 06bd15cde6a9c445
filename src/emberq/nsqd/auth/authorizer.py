"""Puts the question "what may the holder of this secret do?" to the authorization servers.

    GET  URL?common_name=…&remote_ip=…&secret=…&tls=true|false
    POST URL    {"common_name":["…"],"remote_ip":["…"],"secret":["…"],"tls":["true|false"]}

The servers are tried one after another, from a random one on around the ring, until one gives a valid answer. Why a
server's answer is no good is logged; whoever asked learns only that it failed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlencode

from emberq.base.clock import Clock
from emberq.base.http_query import HttpClient, HttpQueryError, UnexpectedStatus, public_url
from emberq.nsqd.auth import pattern
from emberq.nsqd.auth.permission import Authorization, InvalidAnswer, parse_answer
from emberq.nsqd.options import Options
from emberq.nsqd.tls_setting import TlsVersion

MAX_ANSWER_BYTES = 1024 * 1024
"""Ten thousand entries."""
SMALL_ANSWER_BYTES = 16 * 1024
"""Compiled in a few milliseconds. A larger answer is compiled in a thread, so that other clients do not wait for it."""

_log = logging.getLogger(__name__)


class AuthFailed(Exception):
    """No server gave a valid answer."""


class AuthOptionsError(Exception):
    """Options with which no server can be asked; the text says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who sent a secret; the servers may decide by it."""

    remote_ip: str
    """Empty for a Unix socket."""
    is_tls: bool = False
    common_name: str = ""
    """The subject's common name in the client's certificate, if it showed one."""


@dataclass(frozen=True, slots=True)
class _Server:
    url: str = field(repr=False)
    public_url: str
    """What may be shown of it."""


class Authorizer:
    """Asks the servers of `--auth-http-address`. Shared by all connections; holds no secret."""

    def __init__(
        self, options: Options, *, clock: Clock, choose_index: Callable[[int], int] = random.randrange
    ) -> None:
        if not pattern.IS_AVAILABLE:
            raise AuthOptionsError("--auth-http-address needs google-re2: pip install 'emberq[auth]'")
        self._clock = clock
        self._choose_index = choose_index
        """Picks one of so many servers to be asked first."""
        self._servers = [_server(address) for address in options.auth_http_address]
        self._posts = options.auth_http_request_method == "post"
        self._http = HttpClient(
            connect_timeout_ns=options.http_client_connect_timeout_ns,
            request_timeout_ns=options.http_client_request_timeout_ns,
            tls=client_tls(options),
            max_body_bytes=MAX_ANSWER_BYTES,
        )

    async def authorize(self, secret: bytes, peer: Peer) -> Authorization:
        """What the holder of the secret may do, which may be nothing; AuthFailed if no server says."""
        first = self._choose_index(len(self._servers))
        for server in self._servers[first:] + self._servers[:first]:
            try:
                return await self._parse(await self._ask(server, secret, peer))
            except UnexpectedStatus as refusal:
                reason = f"got response {refusal.status}"  # the rest of the answer may echo the question
            except (HttpQueryError, InvalidAnswer) as failure:
                reason = str(failure)
            _log.error("AUTH: failed to query %s - %s", server.public_url, reason)
        raise AuthFailed("no authorization server gave a valid answer")

    async def _ask(self, server: _Server, secret: bytes, peer: Peer) -> bytes:
        tls = "true" if peer.is_tls else "false"
        if not self._posts:
            question = {"common_name": peer.common_name, "remote_ip": peer.remote_ip, "secret": secret, "tls": tls}
            return await self._http.get(f"{server.url}?{urlencode(question)}")
        document = {
            "common_name": [peer.common_name],
            "remote_ip": [peer.remote_ip],
            "secret": [secret.decode("utf-8", "replace")],
            "tls": [tls],
        }
        body = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
        return await self._http.post(server.url, body, content_type="application/json")

    async def _parse(self, answer: bytes) -> Authorization:
        now_ns = self._clock.monotonic_ns()
        if len(answer) <= SMALL_ANSWER_BYTES:
            return parse_answer(answer, now_ns=now_ns)
        return await asyncio.to_thread(parse_answer, answer, now_ns=now_ns)


def client_tls(options: Options) -> ssl.SSLContext:
    """How to judge the certificates of authorization servers: by `--tls-root-ca-file`, else as the system does."""
    try:
        context = ssl.create_default_context(cafile=options.tls_root_ca_file or None)
    except OSError as failure:
        why = f"{options.tls_root_ca_file}: {failure.strerror or failure}"
        raise AuthOptionsError(f"failed to build client TLS config - {why}") from failure
    # An authority given by name is trusted even where it is an intermediate one, or older than today's strict rules.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    # Versions below 1.2 are beyond what OpenSSL agrees to at its default security level.
    lowest = max(options.tls_min_version, TlsVersion.TLS_1_2)
    context.minimum_version = ssl.TLSVersion(int(lowest))
    return context


def _server(address: str) -> _Server:
    url = address if "://" in address else f"http://{address}/auth"
    try:
        return _Server(url, public_url(url))
    except HttpQueryError as wrong:
        raise AuthOptionsError(f"--auth-http-address: {wrong}") from wrong
