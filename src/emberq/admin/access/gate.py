"""The gate: who asks, and whether they may.

Three ways to run, by what is configured:

    neither --user-file nor --trusted-proxy-cidr    as the reference: all may look. If --admin-user names users, only
                                                    they may act, by a header that any client can set
    --trusted-proxy-cidr                            all requests come through a proxy, whose header is believed; from
                                                    elsewhere nothing is answered
    --user-file                                     all users log in: on the page (a session in a cookie), with each
                                                    request (HTTP Basic, for programs) or through a trusted proxy; the
                                                    file says who may do what

With --http-secret-file a program that shows one of its secrets is let in too, as an admin (`http.access`). Where all
may look, every request has to show one; who the visitor is and may do is told by the rest, as without it.

A request that changes something is refused with 403 FORBIDDEN when it comes with a session but without its token, or
when the role does not reach that far.

**Other sites.** What a page of another site made a browser ask is refused for every user, as `http.browser` says: the
page may know an address that only the browser can reach, or a proxy that vouches for its user. By which name the
browser calls us makes a difference where all may look, or where the operator has said by which: a page that was rebound
has no session, and does not come through the proxy, unless the browser runs on the proxy's machine.

**Where from.** Clients are counted by their address: those who guess passwords, and those who look at live views. A
request by a proxy of --trusted-proxy-cidr or --forwarding-proxy-cidr comes from where the proxy says, in the header
`X-Forwarded-For`. A client can begin that header as it likes, and each proxy adds the address it was asked from to its
end. So it is read from the end, as far as it names such proxies; the next address is the client's. Of IPv6 addresses a
client has as many as it likes, so that the network counts (/64).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Network, ip_address
from secrets import token_bytes

from emberq.admin.access.session import LoginSession, LoginThrottle, Sessions
from emberq.admin.access.user import Passwords, Permission, Role, User, UserFileError, read_users
from emberq.admin.options import AdminOptions
from emberq.base.address import Address, Network, NetworkError, is_within, parse_network, parse_remote
from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.http.access import SecretFile
from emberq.http.browser import BrowserGuard, host_in
from emberq.http.message import HttpError, Request

COOKIE = "nsqadmin-session"
CSRF_HEADER = "x-csrf-token"
SECRET_HOLDER = "http-secret-file"  # noqa: S105 - a name
"""The name, in pages and in the audit log, of a visitor who shows a secret: programs and operators share it."""
MAX_VERIFIED = 1000
"""Programs whose password is remembered as right; of more, the oldest is checked anew."""
VERIFIED_NS = 300 * NS_PER_SECOND
"""How long: a check takes as long as dozens of requests."""
CHECKS_AT_ONCE = 2
"""Each takes a core and 32 MiB."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Visitor:
    """A user who is let in."""

    name: str
    """Empty if it is not known."""
    role: Role
    session: LoginSession | None = None
    is_known: bool = True
    """Whether the name was proved, or merely claimed."""


class Gate:
    """Decides who may do what. Owned by the daemon; owns the sessions."""

    def __init__(self, options: AdminOptions, *, clock: Clock, secrets: SecretFile | None = None) -> None:
        """UserFileError if the file of users cannot be used."""
        self._options = options
        self._clock = clock
        self._secrets = secrets
        self._users: Mapping[str, User] = read_users(options.user_file) if options.user_file else {}
        self._passwords = Passwords() if options.user_file else None
        self._proxies = tuple(map(parse_network, options.trusted_proxy_cidr))
        self._forwarders = (*self._proxies, *map(parse_network, options.forwarding_proxy_cidr))
        self._sessions = Sessions(clock=clock, lifetime_ns=options.session_lifetime_ns)
        self._throttle = LoginThrottle(clock)
        self._checking = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._verified: dict[bytes, tuple[str, int]] = {}
        """By a digest of name and password: the name, and until when they are believed."""
        self._digest_key = token_bytes(32)
        names = (*options.http_allowed_host, host_in(options.http_address))
        self._browsers = BrowserGuard(names, checks_host=self.is_open or bool(options.http_allowed_host))

    @property
    def has_passwords(self) -> bool:
        """Whether one can log in with a name and a password."""
        return self._passwords is not None

    @property
    def is_open(self) -> bool:
        """Whether all may look, without logging in."""
        return not self.has_passwords and not self._proxies

    def reload(self) -> None:
        """Read the file of users again. A user who is not in it any more, or has a new password, is logged out."""
        if not self._options.user_file:
            return
        try:
            users = read_users(self._options.user_file)
        except UserFileError as failure:
            _log.error("the users stay as they are: %s", failure)
            return
        for name, user in self._users.items():
            now = users.get(name)
            if now is None or now.password != user.password:
                self._sessions.close_all_of(name)
        self._users = users
        self._verified.clear()
        _log.info("read %d users", len(users))

    # Who asks

    def visitor(self, request: Request) -> Visitor | None:
        """Who asks; None if that is not known, or not yet (see `verify`)."""
        if self.is_open:
            return self._passer_by(request)
        return (
            self._vouched_for(request)
            or self._with_secret(request)
            or self._logged_in(request)
            or self._verified_before(request)
        )

    def _passer_by(self, request: Request) -> Visitor:
        """As in the reference: the header is believed, whatever client sent it."""
        name = request.header(self._options.acl_http_header) or ""
        return Visitor(name or basic_user(request), self._role_of(name), is_known=False)

    def _vouched_for(self, request: Request) -> Visitor | None:
        name = request.header(self._options.acl_http_header) or ""
        if not name or not is_within(request.remote_address, self._proxies):
            return None
        if self.has_passwords:
            user = self._users.get(name)
            return Visitor(name, user.role) if user is not None else None
        return Visitor(name, self._role_of(name))

    def _with_secret(self, request: Request) -> Visitor | None:
        is_shown = self._secrets is not None and self._secrets.is_shown_by(request)
        return Visitor(SECRET_HOLDER, Role.ADMIN) if is_shown else None

    def _role_of(self, name: str) -> Role:
        """By --admin-user, where no file of users says it."""
        is_admin = not self._options.admin_user or name in self._options.admin_user
        return Role.ADMIN if is_admin else Role.VIEWER

    def _logged_in(self, request: Request) -> Visitor | None:
        token = cookie(request, COOKIE)
        session = self._sessions.find(token) if token else None
        user = self._users.get(session.user) if session is not None else None
        return Visitor(user.name, user.role, session) if user is not None else None

    def _verified_before(self, request: Request) -> Visitor | None:
        credentials = _basic(request) if self.has_passwords else None
        if credentials is None:
            return None
        name, until_ns = self._verified.get(self._digest(*credentials), ("", 0))
        user = self._users.get(name) if self._clock.monotonic_ns() < until_ns else None
        return Visitor(user.name, user.role) if user is not None else None

    async def verify(self, request: Request) -> Visitor | None:
        """Who asks, after a check of the password that the request shows, if it does."""
        credentials = _basic(request) if self.has_passwords else None
        if credentials is None:
            return None
        user = await self._checked(*credentials, request)
        while len(self._verified) >= MAX_VERIFIED:
            del self._verified[next(iter(self._verified))]
        self._verified[self._digest(*credentials)] = user.name, self._clock.monotonic_ns() + VERIFIED_NS
        return Visitor(user.name, user.role)

    def _digest(self, name: str, password: str) -> bytes:
        """What is kept in place of a password."""
        return hmac.digest(self._digest_key, f"{name}\0{password}".encode("utf-8", "surrogatepass"), hashlib.sha256)

    async def _checked(self, name: str, password: str, request: Request) -> User:
        """The user with this name and password; HttpError."""
        passwords = self._passwords
        if passwords is None:
            raise HttpError(404, "NOT_FOUND")
        address = counted_address(self.client_address(request))
        async with self._checking:  # failures of other requests meanwhile count
            if not self._throttle.allows(address=address, name=name):
                raise HttpError(429, "TOO_MANY_TRIES")
            user = self._users.get(name)
            is_right = await asyncio.to_thread(passwords.check, user, password)
            if user is None or not is_right:
                self._throttle.failed(address=address, name=name)
                raise HttpError(401, "LOGIN_FAILED")
            self._throttle.succeeded(address=address, name=name)
            return user

    async def log_in(self, name: str, password: str, request: Request) -> tuple[str, Visitor]:
        """A new session's token; HttpError."""
        user = await self._checked(name, password, request)
        token, session = self._sessions.open(user.name)
        return token, Visitor(user.name, user.role, session)

    def log_out(self, request: Request) -> None:
        """End the session that the request belongs to."""
        token = cookie(request, COOKIE)
        if token:
            self._sessions.close(token)

    # Where from

    def client_address(self, request: Request) -> str:
        """The address that the request comes from, as a proxy says if it is one to be believed, without a port."""
        hops = (request.header("x-forwarded-for") or "").split(",")
        return _first_foreign(request.remote_address, reversed(hops), self._forwarders)

    def viewer(self, request: Request) -> str:
        """By what the live views of a client are counted: a proved name, or an address."""
        visitor = self.visitor(request)
        if visitor is not None and visitor.is_known:
            return f"user {visitor.name}"
        return f"address {counted_address(self.client_address(request))}"

    # Whether they may

    def check_site(self, request: Request) -> None:
        """HttpError if a page of another site made the request."""
        refusal = self._browsers.refusal(request)
        if refusal is not None:
            raise refusal

    def check_source(self, request: Request, visitor: Visitor | None) -> None:
        """HttpError unless the visitor made the request, which is about to change something, and no other site did."""
        self.check_site(request)
        session = visitor.session if visitor is not None else None
        if session is not None and not session.knows(request.header(CSRF_HEADER) or ""):
            raise HttpError(403, "FORBIDDEN")

    def check(self, request: Request, visitor: Visitor, permission: Permission) -> None:
        """HttpError unless the visitor may do this, and made the request."""
        self.check_source(request, visitor)
        self.check_role(visitor, permission)

    def check_role(self, visitor: Visitor, permission: Permission) -> None:
        """HttpError unless the visitor may do this."""
        if permission not in visitor.role.permissions:
            raise HttpError(403, "FORBIDDEN")

    def cookie_header(self, token: str, request: Request, *, path: str) -> tuple[str, str]:
        """The header that makes the browser keep a session's token; an empty one makes it forget."""
        age_s = self._sessions.lifetime_ns // NS_PER_SECOND if token else 0
        secure = "; Secure" if is_secure(request) else ""
        return "Set-Cookie", f"{COOKIE}={token}; Path={path}; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}"


# Where from

_IPV6_PREFIX_BITS = 64
"""What a provider gives to one customer, at the least."""


def counted_address(address: str) -> str:
    """What stands for the address where clients are counted."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv4Address):
        return address
    return str(IPv6Network((parsed, _IPV6_PREFIX_BITS), strict=False))


def _first_foreign(remote_address: str, hops: Iterable[str], proxies: Sequence[Network]) -> str:
    """The first of the address asked from and the hops behind it that is none of these proxies."""
    address = _address_in(remote_address)
    for hop in hops:
        if address is None or not any(address in proxy for proxy in proxies):
            break
        next_address = _address_in(hop.strip())
        if next_address is None:  # the proxy hides its client: it is counted itself
            break
        address = next_address
    return str(address) if address is not None else remote_address.rpartition(":")[0]


def _address_in(text: str) -> Address | None:
    """The address, with or without a port behind it."""
    for spelling in (f"[{text}]:0", text):
        try:
            return parse_remote(spelling)
        except NetworkError:
            continue
    return None


# What a request says


def is_secure(request: Request) -> bool:
    """Whether the browser speaks TLS, with us or with a proxy."""
    return request.is_tls or "https" in (request.header("x-scheme"), request.header("x-forwarded-proto"))


def cookie(request: Request, name: str) -> str:
    """The value of a cookie; empty if there is none."""
    for pair in (request.header("cookie") or "").split(";"):
        key, equals, value = pair.strip().partition("=")
        if equals and key == name:
            return value
    return ""


def basic_user(request: Request) -> str:
    """The name in HTTP Basic credentials, whether it is right or not."""
    credentials = _basic(request)
    return credentials[0] if credentials is not None else ""


def _basic(request: Request) -> tuple[str, str] | None:
    scheme, _, encoded = (request.header("authorization") or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).decode("utf-8").partition(":")
    except ValueError:  # not base64, not even ASCII, or not UTF-8
        return None
    return (name, password) if colon else None
