"""What one TCP connection may do.

AUTH brings the connection an authorization; SUB, PUB, MPUB and DPUB are checked against it. One that has expired is
fetched anew, with the same secret, at the next such check and not before: a subscription that goes on needs no
permission again. RDY, FIN, REQ, TOUCH, CLS and NOP need none.

Commands are executed in order and at once, but a query takes time. So whatever needs one is split in two:

    AUTH       auth.refuse_if_set()                      FatalError: already set
               await auth.authorize(secret, peer)        FatalError: failed, or nothing is authorized
               frame.response(auth.answer())
    PUB t      auth.check(b"PUB", "t")                   True: go on; FatalError: refused
                                                         False: `await auth.refresh()`, then execute the command again

While a coroutine of the second column is awaited the session is *suspended*. It decodes and executes nothing, pauses
reading (the client's next bytes wait in the socket) and keeps a packet that came nevertheless, undecoded. Heartbeats go
on; the read deadline does not run, since what the client says cannot be heard. When the coroutine has ended the session
goes on with the command that waited, then with what the decoder still holds, then with what was kept, and reads again.
If the connection is lost meanwhile the session cancels the task, which closes the connection to the server.

A command can fail before its authorization is looked at: MPUB, whose topic comes into being ahead of its body. Such an
error goes through `judge`, which puts the refusal in its place.
"""

from __future__ import annotations

from emberq.base.clock import Clock
from emberq.http.message import encode_json
from emberq.nsqd.auth.authorizer import AuthFailed, Authorizer, Peer
from emberq.nsqd.auth.permission import Authorization
from emberq.wire import error
from emberq.wire.error import FatalError
from emberq.wire.name import quote


class ConnectionAuth:
    """The authorization of one connection, where authorization servers are configured. Owned by its session."""

    __slots__ = ("_authorization", "_authorizer", "_clock", "_peer", "_secret")

    def __init__(self, authorizer: Authorizer, *, clock: Clock) -> None:
        self._authorizer = authorizer
        self._clock = clock
        self._authorization: Authorization | None = None
        self._secret = b""
        """What AUTH brought, for the next query."""
        self._peer = Peer(remote_ip="")

    # What others may know.

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
        """Raise what an AUTH deserves that comes for the second time."""
        if self.is_authorized:
            raise FatalError(error.INVALID, b"AUTH already set")

    async def authorize(self, secret: bytes, peer: Peer) -> None:
        """Ask what the holder of the secret may do."""
        self._secret, self._peer = secret, peer
        await self.refresh()
        if not self.is_authorized:
            raise FatalError(error.UNAUTHORIZED, b"AUTH no authorizations found")

    async def refresh(self) -> None:
        """Ask again with the secret that AUTH brought. The answer counts even if nothing is allowed any more."""
        try:
            self._authorization = await self._authorizer.authorize(self._secret, self._peer)
        except AuthFailed as failure:
            raise FatalError(error.AUTH_FAILED, b"AUTH failed") from failure

    def answer(self) -> bytes:
        """The data of the frame that answers a successful AUTH."""
        count = len(self._authorization.entries) if self._authorization is not None else 0
        document = {"identity": self.identity, "identity_url": self.identity_url, "permission_count": count}
        return encode_json(document)

    # SUB, PUB, MPUB, DPUB.

    def check(self, verb: bytes, topic: str, channel: str = "") -> bool:
        """Whether the command may be executed: True, or False while the authorization has to be refreshed first.

        What may not be executed at all raises its FatalError.
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
        """The error to answer a command with that failed by `wrong`: the refusal, if it was not allowed anyway.

        Either way no topic comes into being for a client that may not publish to it. Nobody is asked anew for a
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
