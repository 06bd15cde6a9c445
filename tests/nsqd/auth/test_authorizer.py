from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

import pytest

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, ManualClock
from emberq.base.tls import TlsVersion
from emberq.nsqd.auth.authorizer import SMALL_ANSWER_BYTES, AuthFailedError, AuthOptionsError, Authorizer, AuthPeer
from emberq.nsqd.auth.permission import Authorization
from emberq.nsqd.options import NsqdOptions
from tests.support.auth_server import AuthServer, entry, grant
from tests.support.certificates import Authority
from tests.support.scripted_server import ScriptedServer, answer, server_context

pytestmark = pytest.mark.loop("uvloop")

SECRET = b"s3cret"
PEER = AuthPeer(remote_ip="10.0.0.7")


def authorizer(*addresses: str, first: int = 0, clock: ManualClock | None = None, **options: Any) -> Authorizer:
    return Authorizer(
        NsqdOptions(auth_http_address=addresses, **options),
        clock=clock or ManualClock(),
        choose_index=lambda _count: first,
    )


async def authorize(*addresses: str, secret: bytes = SECRET, peer: AuthPeer = PEER, **options: Any) -> Authorization:
    return await authorizer(*addresses, **options).authorize(secret, peer)


async def test_a_get_carries_the_question_in_its_query_by_alphabet() -> None:
    with AuthServer(grant(entry())) as server:
        await authorize(
            server.address, secret=b"a b&\xff", peer=AuthPeer(remote_ip="::1", is_tls=True, common_name="me")
        )
    (question,) = server.questions
    assert question.method == "GET"
    assert question.target == "/auth?common_name=me&remote_ip=%3A%3A1&secret=a+b%26%FF&tls=true"
    assert question.headers["Accept"] == "application/vnd.nsq; version=1.0"


async def test_a_post_carries_the_question_in_its_body_as_lists() -> None:
    with AuthServer(grant(entry())) as server:
        await authorize(server.address, secret="ü".encode(), auth_http_request_method="post")
    (question,) = server.questions
    assert (question.method, question.target) == ("POST", "/auth")
    assert question.headers["Content-Type"] == "application/json"
    assert question.body.decode() == '{"common_name":[""],"remote_ip":["10.0.0.7"],"secret":["ü"],"tls":["false"]}'


async def test_an_address_may_be_a_whole_url() -> None:
    with AuthServer(grant(entry())) as server:
        await authorize(f"http://{server.address}/who")
    assert server.questions[0].target.startswith("/who?common_name=")


async def test_the_authorization_expires_by_the_daemons_clock() -> None:
    clock = ManualClock()
    with AuthServer(grant(entry(), ttl=60, identity="joe")) as server:
        authorization = await authorize(server.address, clock=clock)
    assert authorization.identity == "joe"
    assert authorization.expires_ns == clock.monotonic_ns() + 60 * NS_PER_SECOND


async def test_an_authorization_for_nothing_is_an_answer() -> None:
    with AuthServer(grant()) as server:
        assert (await authorize(server.address)).entries == ()


async def test_servers_are_tried_around_the_ring_until_one_answers() -> None:
    with (
        AuthServer(grant(entry(), ttl=0)) as third,
        AuthServer(grant(entry(), identity="first")) as first,
        AuthServer(grant(entry(), identity="second")) as second,
    ):
        authorization = await authorize(first.address, second.address, third.address, first=2)
    assert authorization.identity == "first"
    assert [len(server.questions) for server in (first, second, third)] == [1, 0, 1]


async def test_which_server_is_asked_first_is_left_to_chance() -> None:
    counts: list[int] = []

    def choose_index(count: int) -> int:
        counts.append(count)
        return 0

    with AuthServer(grant(entry())) as server:
        options = NsqdOptions(auth_http_address=(server.address, "127.0.0.1:1"))
        await Authorizer(options, clock=ManualClock(), choose_index=choose_index).authorize(SECRET, PEER)
    assert counts == [2]


@pytest.mark.parametrize("status", [201, 403, 404, 500])
async def test_any_status_but_200_is_a_failure(status: int) -> None:
    with AuthServer(grant(entry()), status=status) as server, pytest.raises(AuthFailedError):
        await authorize(server.address)


async def test_an_answer_that_takes_too_long_is_a_failure() -> None:
    with ScriptedServer() as server, pytest.raises(AuthFailedError):
        await authorize(server.url, http_client_request_timeout_ns=50 * NS_PER_MS)


async def test_a_large_answer_is_as_good_as_a_small_one() -> None:
    entries = [entry(topic=f"^topic-{number}$") for number in range(300)]
    with AuthServer(grant(*entries)) as server:
        authorization = await authorize(server.address)
    assert len(authorization.entries) == 300
    assert len(str(entries)) > SMALL_ANSWER_BYTES


async def test_an_answer_beyond_all_bounds_is_a_failure() -> None:
    with AuthServer(b" " * 2**20 + b"{}") as server, pytest.raises(AuthFailedError):
        await authorize(server.address)


ECHO = b"who is s3cret?"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (answer(ECHO, status="403 s3cret"), "got response 403"),
        (answer(ECHO), "not JSON"),
        (answer(b'{"ttl": 0}'), "invalid TTL 0 (must be >0)"),
        (b"s3cret", "the answer is not HTTP"),
    ],
)
async def test_the_log_says_why_without_the_secret(said: bytes, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedServer(said) as server, caplog.at_level(logging.DEBUG), pytest.raises(AuthFailedError) as raised:
        await authorize(f"http://joe:pass@127.0.0.1:{server.port}/auth")
    assert [record.getMessage() for record in caplog.records if record.name.startswith("emberq")] == [
        f"AUTH: failed to query http://127.0.0.1:{server.port}/auth - {reason}"
    ]
    assert "s3cret" not in f"{raised.value!r} {caplog.text}"


@pytest.mark.parametrize("address", ["ftp://host/auth", "a b:80", "http://"])
def test_an_address_that_leads_nowhere_is_refused_at_the_start(address: str) -> None:
    with pytest.raises(AuthOptionsError, match="--auth-http-address: "):
        authorizer(address)


def test_a_root_ca_file_that_is_missing_or_empty_is_refused_at_the_start(tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing.pem", tmp_path / "empty.pem"
    empty.touch()
    for path in (missing, empty):
        with pytest.raises(AuthOptionsError) as raised:
            authorizer("h:1", tls_root_ca_file=str(path))
        assert str(raised.value).startswith(f"failed to build client TLS config - {path}: ")


async def test_a_server_behind_tls_is_judged_by_the_root_ca_file(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "trusted")
    with AuthServer(grant(entry()), tls=server_context(authority.issue("auth"))) as server:
        await authorize(server.url, tls_root_ca_file=str(authority.path))
        assert len(server.questions) == 1
        with pytest.raises(AuthFailedError):
            await authorize(server.url)
        with pytest.raises(AuthFailedError):
            await authorize(server.url, tls_root_ca_file=str(Authority(tmp_path, "other").path))
    assert len(server.questions) == 1


async def test_a_server_whose_tls_is_too_old_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "trusted")
    context = server_context(authority.issue("auth"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with AuthServer(grant(entry()), tls=context) as server:
        await authorize(server.url, tls_root_ca_file=str(authority.path))
        with pytest.raises(AuthFailedError):
            await authorize(server.url, tls_root_ca_file=str(authority.path), tls_min_version=TlsVersion.TLS_1_3)
