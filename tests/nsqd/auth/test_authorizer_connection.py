from __future__ import annotations

import json
from typing import Any

import pytest

from emberq.base.clock import ManualClock
from emberq.nsqd.auth.authorizer import Authorizer, AuthPeer, ConnectionAuth
from emberq.nsqd.options import NsqdOptions
from emberq.wire.error import FatalError
from tests.support.auth_server import AuthServer, entry, grant

pytestmark = pytest.mark.loop("uvloop")

PEER = AuthPeer(remote_ip="10.0.0.7")


def connection(server: AuthServer, clock: ManualClock) -> ConnectionAuth:
    options = NsqdOptions(auth_http_address=(server.address,))
    return ConnectionAuth(Authorizer(options, clock=clock), clock=clock)


async def authorized(server: AuthServer, clock: ManualClock) -> ConnectionAuth:
    auth = connection(server, clock)
    await auth.authorize(b"s3cret", PEER)
    return auth


def error_of(raised: pytest.ExceptionInfo[FatalError]) -> bytes:
    return raised.value.data


async def test_auth_makes_the_connection_someone() -> None:
    with AuthServer(grant(entry(), identity="joe", identity_url="http://j?a&b")) as server:
        auth = await authorized(server, ManualClock())
    assert auth.is_authorized
    assert (auth.identity, auth.identity_url) == ("joe", "http://j?a&b")
    assert json.loads(auth.answer()) == {"identity": "joe", "identity_url": "http://j?a&b", "permission_count": 1}
    assert auth.answer().startswith(b'{"identity":"joe","identity_url":"')


async def test_a_second_auth_is_refused() -> None:
    with AuthServer(grant(entry())) as server:
        auth = connection(server, ManualClock())
        auth.refuse_if_set()
        await auth.authorize(b"s3cret", PEER)
        with pytest.raises(FatalError) as raised:
            auth.refuse_if_set()
    assert error_of(raised) == b"E_INVALID AUTH already set"


async def test_an_auth_that_brings_nothing_is_refused() -> None:
    with AuthServer(grant()) as server, pytest.raises(FatalError) as raised:
        await authorized(server, ManualClock())
    assert error_of(raised) == b"E_UNAUTHORIZED AUTH no authorizations found"


async def test_an_auth_that_cannot_be_judged_fails() -> None:
    with AuthServer(b"?") as server, pytest.raises(FatalError) as raised:
        await authorized(server, ManualClock())
    assert error_of(raised) == b"E_AUTH_FAILED AUTH failed"


def test_commands_wait_for_auth() -> None:
    with AuthServer(grant(entry())) as server, pytest.raises(FatalError) as raised:
        connection(server, ManualClock()).check(b"SUB", "t", "c")
    assert error_of(raised) == b"E_AUTH_FIRST AUTH required before SUB"


async def test_what_is_not_allowed_is_refused_by_name() -> None:
    with AuthServer(grant(entry(topic="^t$"))) as server:
        auth = await authorized(server, ManualClock())
    assert auth.check(b"SUB", "t", "c")
    with pytest.raises(FatalError) as raised:
        auth.check(b"SUB", "x", "c#ephemeral")
    assert error_of(raised) == b'E_UNAUTHORIZED AUTH failed for SUB on "x" "c#ephemeral"'
    with pytest.raises(FatalError) as raised:
        auth.check(b"DPUB", "x")
    assert error_of(raised) == b'E_UNAUTHORIZED AUTH failed for DPUB on "x" ""'


async def test_an_expired_authorization_is_fetched_anew_with_the_same_secret() -> None:
    clock = ManualClock()
    with AuthServer(grant(entry(topic="old"), ttl=10)) as server:
        auth = await authorized(server, clock)
        clock.advance(seconds=9)
        assert auth.check(b"PUB", "old")
        clock.advance(seconds=1)
        assert not auth.check(b"PUB", "new")
        server.answer = grant(entry(topic="new"), ttl=10)
        await auth.refresh()
        assert auth.check(b"PUB", "new")
    assert [question.params["secret"] for question in server.questions] == [["s3cret"], ["s3cret"]]


async def test_an_authorization_that_became_empty_refuses_by_name() -> None:
    clock = ManualClock()
    with AuthServer(grant(entry(), ttl=1)) as server:
        auth = await authorized(server, clock)
        clock.advance(seconds=1)
        server.answer = grant()
        await auth.refresh()
    with pytest.raises(FatalError) as raised:
        auth.check(b"PUB", "t")
    assert error_of(raised) == b'E_UNAUTHORIZED AUTH failed for PUB on "t" ""'


async def test_a_failed_refresh_is_fatal() -> None:
    clock = ManualClock()
    with AuthServer(grant(entry(), ttl=1)) as server:
        auth = await authorized(server, clock)
        server.answer = b"?"
        with pytest.raises(FatalError) as raised:
            await auth.refresh()
    assert error_of(raised) == b"E_AUTH_FAILED AUTH failed"


MALFORMED = FatalError(b"E_BAD_BODY", b"MPUB invalid body size 0", topic="t")


def judged(auth: ConnectionAuth) -> tuple[bytes, str | None]:
    wrong = auth.judge(MALFORMED)
    return wrong.data, wrong.topic


@pytest.mark.parametrize(
    ("answer", "data", "topic"),
    [
        (grant(entry()), MALFORMED.data, "t"),
        (grant(entry(topic="x")), b'E_UNAUTHORIZED AUTH failed for MPUB on "t" ""', None),
    ],
)
async def test_a_malformed_mpub_makes_its_topic_only_if_it_was_allowed(
    answer: Any, data: bytes, topic: str | None
) -> None:
    with AuthServer(answer) as server:
        assert judged(await authorized(server, ManualClock())) == (data, topic)


async def test_a_malformed_mpub_makes_no_topic_before_auth_or_after_it_expired() -> None:
    clock = ManualClock()
    with AuthServer(grant(entry(), ttl=1)) as server:
        assert judged(connection(server, clock)) == (b"E_AUTH_FIRST AUTH required before MPUB", None)
        auth = await authorized(server, clock)
        clock.advance(seconds=1)
        assert judged(auth) == (MALFORMED.data, None)


def test_other_errors_are_not_judged() -> None:
    with AuthServer(grant()) as server:
        auth = connection(server, ManualClock())
    wrong = FatalError(b"E_INVALID", b"invalid command X")
    assert auth.judge(wrong) is wrong


async def test_nothing_shows_the_secret() -> None:
    with AuthServer(grant(entry())) as server:
        auth = await authorized(server, ManualClock())
    assert "s3cret" not in f"{auth!r} {auth.answer()!r} {auth.identity}"
