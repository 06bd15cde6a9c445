"""Asking the authorization servers what the holder of a secret may do, and what one TCP connection may do.

`Authorizer` asks:

    GET  URL?common_name=…&remote_ip=…&secret=…&tls=true|false
    POST URL    {"common_name":["…"],"remote_ip":["…"],"secret":["…"],"tls":["true|false"]}

The servers are tried one after another, from a random one on around the ring, until one gives a valid answer. The log
says why an answer could not be used; the client learns only that it failed.

`ConnectionAuth` is the authorization of one connection. AUTH brings it; SUB, PUB, MPUB and DPUB are checked against it.
One that has expired is fetched anew, with the same secret, at the next such check and not before: a subscription that
goes on needs no permission again. RDY, FIN, REQ, TOUCH, CLS and NOP need none.

Commands are executed in order and at once, but a query takes time. So what needs one is split in two:

    AUTH       auth.refuse_if_set()                      FatalError: already set
               await auth.authorize(secret, peer)        FatalError: failed, or nothing is authorized
               frame.response(auth.answer())
    PUB t      auth.check(b"PUB", "t")                   True: go on; FatalError: refused
                                                         False: `await auth.refresh()`, then execute the command again

While a coroutine of the second column is awaited the session is paused (see `emberq.nsqd.connection.Pause`): it
decodes and executes nothing, and the client's next bytes wait in the socket. Heartbeats go on; the read deadline does
not run, since nothing is read. Then the session goes on with the command that waited, then with what the decoder still
holds, then with what was kept, and reads again. If the connection is lost meanwhile the session cancels the task, which
closes the connection to the server.

An MPUB can fail before its authorization is checked, because its topic is created ahead of its body. Such an error goes
through `judge`, which puts the refusal in its place.
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
from emberq.base.tls import TlsFileError, TlsVersion, client_context
from emberq.http.client import HttpClient, HttpQueryError, UnexpectedStatusError, public_url
from emberq.http.message import encode_json
from emberq.nsqd.auth import permission
from emberq.nsqd.auth.permission import Authorization, InvalidAnswerError, parse_answer
from emberq.nsqd.options import NsqdOptions
from emberq.wire import error
from emberq.wire.error import FatalError
from emberq.wire.parameter import quote

_log = logging.getLogger(__name__)


# Asking the servers.

MAX_ANSWER_BYTES = 1024 * 1024
"""Room for ten thousand entries."""
SMALL_ANSWER_BYTES = 16 * 1024
"""Parsed in a few milliseconds. A larger answer is parsed in a thread, so that other clients do not wait."""


class AuthFailedError(Exception):
    """No server gave a valid answer."""


class AuthOptionsError(Exception):
    """Options with which no server can be asked; the text says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthPeer:
    """The client that sent a secret; the servers may decide by it."""

    remote_ip: str
    """Empty for a Unix socket."""
    is_tls: bool = False
    common_name: str = ""
    """The subject's common name in the client's certificate, if it showed one."""


@dataclass(frozen=True, slots=True)
class _Server:
    url: str = field(repr=False)
    public_url: str
    """The URL without its secrets, for the log."""


class Authorizer:
    """Asks the servers of `--auth-http-address`. Shared by all connections; holds no secret."""

    def __init__(
        self, options: NsqdOptions, *, clock: Clock, choose_index: Callable[[int], int] = random.randrange
    ) -> None:
        if not permission.IS_AVAILABLE:
            raise AuthOptionsError("--auth-http-address needs google-re2: pip install 'emberq[auth]'")
        self._clock = clock
        self._choose_index = choose_index
        """Picks the server to ask first: an index below its argument."""
        self._servers = [_server(address) for address in options.auth_http_address]
        self._posts = options.auth_http_request_method == "post"
        self._http = HttpClient(
            connect_timeout_ns=options.http_client_connect_timeout_ns,
            request_timeout_ns=options.http_client_request_timeout_ns,
            tls=client_tls(options),
            max_body_bytes=MAX_ANSWER_BYTES,
        )

    async def authorize(self, secret: bytes, peer: AuthPeer) -> Authorization:
        """What the holder of the secret may do, which may be nothing. AuthFailedError if no server answers validly."""
        reason = ""
        first = self._choose_index(len(self._servers))
        for server in self._servers[first:] + self._servers[:first]:
            try:
                return await self._parse(await self._ask(server, secret, peer))
            except UnexpectedStatusError as refusal:
                reason = f"got response {refusal.status}"  # the rest of the answer may echo the question
            except (HttpQueryError, InvalidAnswerError) as failure:
                reason = str(failure)
            _log.error("AUTH: failed to query %s - %s", server.public_url, reason)
        raise AuthFailedError(f"failed to auth against {server.public_url} - {reason}")

    async def _ask(self, server: _Server, secret: bytes, peer: AuthPeer) -> bytes:
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


def client_tls(options: NsqdOptions) -> ssl.SSLContext:
    """How to judge the certificates of authorization servers: by `--tls-root-ca-file`, else as the system does."""
    # OpenSSL refuses versions below 1.2 at its default security level.
    lowest = max(options.tls_min_version, TlsVersion.TLS_1_2)
    try:
        context = client_context(ca_file=options.tls_root_ca_file, minimum=ssl.TLSVersion(int(lowest)))
    except TlsFileError as failure:
        why = f"{options.tls_root_ca_file}: {failure.reason.strerror or failure}"
        raise AuthOptionsError(f"failed to build client TLS config - {why}") from failure
    # An authority in the file is trusted even if it is an intermediate one, or older than today's strict rules.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _server(address: str) -> _Server:
    url = address if "://" in address else f"http://{address}/auth"
    try:
        return _Server(url, public_url(url))
    except HttpQueryError as wrong:
        raise AuthOptionsError(f"--auth-http-address: {wrong}") from wrong


# What one connection may do.


class ConnectionAuth:
    """The authorization of one connection, where authorization servers are configured. Owned by its session."""

    __slots__ = ("_authorization", "_authorizer", "_clock", "_peer", "_secret")

    def __init__(self, authorizer: Authorizer, *, clock: Clock) -> None:
        self._authorizer = authorizer
        self._clock = clock
        self._authorization: Authorization | None = None
        self._secret = b""
        """The secret that AUTH brought, for the next query."""
        self._peer = AuthPeer(remote_ip="")

    # For /stats.

    @property
    def is_authorized(self) -> bool:
        """Whether AUTH was successful and anything is allowed."""
        return self._authorization is not None and bool(self._authorization.entries)

    @property
    def identity(self) -> str:
        return self._authorization.identity if self._authorization is not None else ""

    @property
    def identity_url(self) -> str:
        return self._authorization.identity_url if self._authorization is not None else ""

    # AUTH.

    def refuse_if_set(self) -> None:
        """FatalError for a second AUTH."""
        if self.is_authorized:
            raise FatalError(error.INVALID, b"AUTH already set")

    async def authorize(self, secret: bytes, peer: AuthPeer) -> None:
        """Ask what the holder of the secret may do."""
        self._secret, self._peer = secret, peer
        await self.refresh()
        if not self.is_authorized:
            raise FatalError(error.UNAUTHORIZED, b"AUTH no authorizations found")

    async def refresh(self) -> None:
        """Ask again with the secret that AUTH brought. The answer counts even if nothing is allowed any more."""
        try:
            self._authorization = await self._authorizer.authorize(self._secret, self._peer)
        except AuthFailedError as failure:
            raise FatalError(error.AUTH_FAILED, b"AUTH failed") from failure

    def answer(self) -> bytes:
        """The data of the frame that answers a successful AUTH."""
        count = len(self._authorization.entries) if self._authorization is not None else 0
        document = {"identity": self.identity, "identity_url": self.identity_url, "permission_count": count}
        return encode_json(document)

    # SUB, PUB, MPUB, DPUB.

    def check(self, verb: bytes, topic: str, channel: str = "") -> bool:
        """Whether the command may be executed: True, or False while the authorization has to be refreshed first.

        FatalError if it may not be executed.
        """
        authorization = self._authorization
        if authorization is None:
            raise FatalError(error.AUTH_FIRST, b"AUTH required before %b" % verb)
        if authorization.is_expired(self._clock.monotonic_ns()):
            return False
        if not authorization.allows(topic, channel):
            raise _refusal(verb, topic, channel)
        return True

    def judge(self, wrong: FatalError) -> FatalError:
        """The error to answer an MPUB that failed by `wrong`: the refusal, if it was not allowed anyway.

        Either way no topic is created for a client that may not publish to it. The servers are not asked again for a
        command that fails in any case.
        """
        if wrong.topic is None:
            return wrong
        try:
            is_allowed = self.check(b"MPUB", wrong.topic)
        except FatalError as refusal:
            return refusal
        return wrong if is_allowed else FatalError(wrong.data)


def _refusal(verb: bytes, topic: str, channel: str) -> FatalError:
    names = b"%b %b" % (quote(topic.encode()), quote(channel.encode()))
    return FatalError(error.UNAUTHORIZED, b"AUTH failed for %b on %b" % (verb, names))
