from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from emberq.base.clock import ManualClock
from emberq.http.access import SecretFile
from emberq.http.message import HttpError, Request, Response, text
from emberq.http.router import Handler, Route
from emberq.nsqd.auth import guard as guard_module
from emberq.nsqd.auth.authorizer import Authorizer
from emberq.nsqd.auth.guard import ApiGuard
from emberq.nsqd.options import NsqdOptions
from tests.support.auth_server import AuthServer, entry, grant
from tests.support.waiting import until

pytestmark = pytest.mark.loop("uvloop")

SECRET = "Bearer s3cret"


def say_done(_request: Request) -> Response:
    return text("done")


async def say_done_later(_request: Request) -> Response:
    await asyncio.sleep(0)
    return text("done later")


class Guarded:
    """Handlers behind a guard, with the clock in the test's hand. Use inside a running loop."""

    def __init__(self, server: AuthServer, handler: Handler = say_done) -> None:
        self.clock = ManualClock()
        options = NsqdOptions(auth_http_address=(server.address,))
        self.guard = ApiGuard(Authorizer(options, clock=self.clock), clock=self.clock)
        self._handler = handler

    async def ask(
        self, method: str, target: str, *, shows: str | None = SECRET, route: str = "", **facts: Any
    ) -> Response:
        """The answer to a request; `route` is the path as routed, if it differs from the target's."""
        headers = {} if shows is None else {b"authorization": shows.encode("latin-1")}
        request = Request(method, target, headers=headers, **facts)
        (protected,) = self.guard.protect([Route(method, route or request.path, self._handler)])
        response = protected.handler(request)
        return response if isinstance(response, Response) else await response


async def status_of(server: AuthServer, method: str, target: str, **options: Any) -> int:
    return (await Guarded(server).ask(method, target, **options)).status


# What a request needs.


@pytest.mark.parametrize("path", ["/ping", "/info", "/stats", "/metrics"])
async def test_looking_at_the_daemon_needs_no_secret(path: str) -> None:
    with AuthServer(grant()) as server:
        assert await status_of(server, "GET", path, shows=None) == 200
    assert server.questions == []


TOPIC_VERBS = [
    "/pub", "/mpub", "/topic/create", "/topic/delete", "/topic/empty", "/topic/pause", "/topic/unpause",
]  # fmt: skip
CHANNEL_VERBS = [f"/channel/{verb}" for verb in ("create", "delete", "empty", "pause", "unpause", "seek")]
WHOLE_TOPIC_VERBS = ["/journal", "/journal/read", "/topic/peek"]
DAEMON_VERBS = [
    ("GET", "/config/{option}"), ("PUT", "/config/{option}"), ("GET", "/debug/pprof/"), ("POST", "/debug/freememory"),
    ("POST", "/channel/policy"), ("POST", "/channel/redrive"), ("GET", "/whatever/comes/new"),
]  # fmt: skip


@pytest.mark.parametrize("path", TOPIC_VERBS)
async def test_publishing_and_changing_a_topic_need_publish_on_it(path: str) -> None:
    with AuthServer(grant(entry(topic="^t$", permissions=["publish"]))) as server:
        assert await status_of(server, "POST", f"{path}?topic=t") == 200
        assert await status_of(server, "POST", f"{path}?topic=x") == 403
        server.answer = grant(entry(permissions=["subscribe"]))
        assert await status_of(server, "POST", f"{path}?topic=t") == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [*(("POST", path) for path in CHANNEL_VERBS), *(("GET", f"/channel/{look}") for look in ("peek", "policy"))],
)
async def test_changing_and_peeking_a_channel_need_subscribe_on_it(method: str, path: str) -> None:
    with AuthServer(grant(entry(topic="^t$", channels=["^c$"], permissions=["subscribe"]))) as server:
        assert await status_of(server, method, f"{path}?topic=t&channel=c") == 200
        assert await status_of(server, method, f"{path}?topic=x&channel=c") == 403
        assert await status_of(server, method, f"{path}?topic=t&channel=x") == 403
        assert await status_of(server, method, f"{path}?topic=t") == 403
        server.answer = grant(entry(permissions=["publish"]))
        assert await status_of(server, method, f"{path}?topic=t&channel=c") == 403


async def test_making_a_channel_that_gives_up_needs_publish_on_its_dead_letter_topic() -> None:
    with AuthServer(grant(entry(topic="^t$", permissions=["subscribe"]))) as server:
        target = "/channel/create?topic=t&channel=c&dead_letter_topic=d"
        assert await status_of(server, "POST", target) == 403
        server.answer = grant(
            entry(topic="^t$", permissions=["subscribe"]), entry(topic="^d$", permissions=["publish"])
        )
        assert await status_of(server, "POST", target) == 200


@pytest.mark.parametrize("path", WHOLE_TOPIC_VERBS)
async def test_reading_all_of_a_topic_needs_subscribe_on_any_channel_of_it(path: str) -> None:
    with AuthServer(grant(entry(topic="^t$", permissions=["subscribe"]))) as server:
        assert await status_of(server, "GET", f"{path}?topic=t") == 200
        assert await status_of(server, "GET", f"{path}?topic=x") == 403
        server.answer = grant(entry(topic="^t$", channels=["^c$"]))
        assert await status_of(server, "GET", f"{path}?topic=t") == 403
        assert await status_of(server, "GET", f"{path}?topic=t&channel=c") == 403
        server.answer = grant(entry(permissions=["publish"]))
        assert await status_of(server, "GET", f"{path}?topic=t") == 403


@pytest.mark.parametrize(("method", "path"), DAEMON_VERBS)
async def test_whatever_is_not_listed_needs_an_entry_for_everything(method: str, path: str) -> None:
    with AuthServer(grant(entry())) as server:
        assert await status_of(server, method, "/x?topic=t", route=path) == 200
        server.answer = grant(entry(topic="^t$"), entry(permissions=["publish"]))
        assert await status_of(server, method, "/x?topic=t", route=path) == 403
        assert await status_of(server, method, "/x?topic=t", route=path, shows=None) == 401


async def test_a_request_without_a_topic_is_left_to_its_handler_to_refuse() -> None:
    with AuthServer(grant(entry(topic="^t$"))) as server:
        assert await status_of(server, "POST", "/pub") == 200
        assert await status_of(server, "POST", "/pub", shows=None) == 401


async def test_a_malformed_query_is_a_bad_request() -> None:
    with AuthServer(grant(entry())) as server, pytest.raises(HttpError) as raised:
        await status_of(server, "POST", "/pub?topic=%zz")
    assert (raised.value.status, raised.value.message) == (400, "INVALID_REQUEST")


# How a secret is shown.


@pytest.mark.parametrize(
    "shown",
    [
        "Bearer s3cret",
        "bearer   s3cret ",
        "Basic " + base64.b64encode(b"joe:s3cret").decode(),
        "basic " + base64.b64encode(b":s3cret").decode(),
    ],
)
async def test_the_secret_is_a_bearer_token_or_a_basic_password(shown: str) -> None:
    with AuthServer(grant(entry())) as server:
        assert await status_of(server, "POST", "/pub?topic=t", shows=shown) == 200
    assert server.questions[0].params["secret"] == ["s3cret"]


@pytest.mark.parametrize("shown", [None, "", "Bearer", "Bearer  ", "s3cret", "Digest x", "Basic ???", "Basic am9l"])
async def test_without_a_secret_nobody_is_asked(shown: str | None) -> None:
    with AuthServer(grant(entry())) as server:
        assert await status_of(server, "POST", "/pub?topic=t", shows=shown) == 401
    assert server.questions == []


async def test_the_servers_learn_where_the_request_came_from() -> None:
    with AuthServer(grant(entry())) as server:
        await status_of(server, "POST", "/pub?topic=t", remote_address="10.0.0.7:99", is_tls=True)
        await status_of(server, "POST", "/pub?topic=t", remote_address="[::1]:99")
        await status_of(server, "POST", "/pub?topic=t", remote_address="@")
    asked = [(question.params["remote_ip"], question.params["tls"]) for question in server.questions]
    assert asked == [(["10.0.0.7"], ["true"]), (["::1"], ["false"]), ([""], ["false"])]


# How it is refused.


async def test_a_refusal_for_want_of_a_secret_says_how_to_show_one() -> None:
    with AuthServer(grant()) as server:
        response = await Guarded(server).ask("POST", "/pub?topic=t", shows=None)
    assert json.loads(response.body) == {"message": "UNAUTHORIZED"}
    assert dict(response.headers)["WWW-Authenticate"] == 'Bearer realm="nsqd", Basic realm="nsqd"'
    assert dict(response.headers)["X-NSQ-Content-Type"] == "nsq; version=1.0"


@pytest.mark.parametrize(("answer", "status"), [(grant(), 200), (b"?", 200), (b"who?", 403)])
async def test_a_secret_that_no_server_knows_is_unauthorized(answer: Any, status: int) -> None:
    with AuthServer(answer, status=status) as server:
        assert await status_of(server, "POST", "/pub?topic=t") == 401


async def test_a_refusal_for_want_of_permission_is_forbidden() -> None:
    with AuthServer(grant(entry(topic="x"))) as server:
        assert (await Guarded(server).ask("POST", "/pub?topic=t")).body == b'{"message":"FORBIDDEN"}'


# What is remembered.


@asynccontextmanager
async def guarding(answer: Any, *, handler: Handler = say_done) -> AsyncIterator[tuple[AuthServer, Guarded]]:
    """A server that gives the answer, and handlers behind a guard that asks it."""
    with AuthServer(answer) as server:
        guarded = Guarded(server, handler)
        yield server, guarded
        await guarded.guard.close()


async def test_an_authorization_is_remembered_until_it_expires() -> None:
    async with guarding(grant(entry(), ttl=60)) as (server, guarded):
        for _ in range(3):
            assert (await guarded.ask("POST", "/pub?topic=t")).status == 200
        guarded.clock.advance(seconds=60)
        server.answer = grant()
        assert (await guarded.ask("POST", "/pub?topic=t")).status == 401
        assert len(server.questions) == 2


async def test_a_failed_query_is_repeated_only_after_a_moment() -> None:
    async with guarding(b"?") as (server, guarded):
        for _ in range(3):
            assert (await guarded.ask("POST", "/pub?topic=t")).status == 401
        server.answer = grant(entry())
        guarded.clock.advance(seconds=1)
        assert (await guarded.ask("POST", "/pub?topic=t")).status == 200
        assert len(server.questions) == 2


async def test_each_secret_and_each_address_is_asked_about() -> None:
    async with guarding(grant(entry())) as (server, guarded):
        for shows in ("Bearer one", "Bearer two"):
            for address in ("10.0.0.1:5", "10.0.0.2:5", "10.0.0.2:6"):
                await guarded.ask("POST", "/pub?topic=t", shows=shows, remote_address=address)
        assert len(server.questions) == 4


async def test_wrong_secrets_do_not_push_out_right_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "MAX_REMEMBERED", 2)
    async with guarding(grant(entry())) as (server, guarded):
        await guarded.ask("POST", "/pub?topic=t", shows="Bearer right")
        server.answer = b"?"
        for number in range(5):
            await guarded.ask("POST", "/pub?topic=t", shows=f"Bearer wrong{number}")
        assert (await guarded.ask("POST", "/pub?topic=t", shows="Bearer right")).status == 200
        assert len(server.questions) == 6


async def test_of_too_many_secrets_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "MAX_REMEMBERED", 2)
    async with guarding(grant(entry())) as (server, guarded):
        for secret in ("one", "two", "three", "two", "three", "one"):
            await guarded.ask("POST", "/pub?topic=t", shows=f"Bearer {secret}")
        assert len(server.questions) == 4


async def test_requests_that_wait_for_the_same_answer_share_one_query() -> None:
    async with guarding(grant(entry())) as (server, guarded):
        server.gate.clear()
        waiting = [asyncio.create_task(guarded.ask("POST", "/pub?topic=t")) for _ in range(5)]
        await until(lambda: bool(server.questions))
        waiting.pop().cancel()  # one who gives up does not take the answer from the others
        server.gate.set()
        assert [response.status for response in await asyncio.gather(*waiting)] == [200] * 4
        assert len(server.questions) == 1


async def test_closing_ends_the_queries_under_way() -> None:
    async with guarding(grant(entry())) as (server, guarded):
        server.gate.clear()
        waiting = asyncio.create_task(guarded.ask("POST", "/pub?topic=t"))
        await until(lambda: bool(server.questions))
        await guarded.guard.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len(server.questions) == 1


async def test_a_handler_may_be_asynchronous() -> None:
    async with guarding(grant(entry()), handler=say_done_later) as (_server, guarded):
        for _ in range(2):
            assert (await guarded.ask("POST", "/pub?topic=t")).body == b"done later"


async def test_a_known_secret_is_let_through_without_waiting() -> None:
    async with guarding(grant(entry())) as (_server, guarded):
        await guarded.ask("POST", "/pub?topic=t")
        (route,) = guarded.guard.protect([Route("POST", "/pub", say_done)])
        request = Request("POST", "/pub?topic=t", headers={b"authorization": SECRET.encode()})
        assert isinstance(route.handler(request), Response)


async def test_the_rest_of_a_route_stays_as_it_is() -> None:
    async with guarding(grant()) as (_server, guarded):
        route = Route("POST", "/pub", say_done, max_body_bytes=7, too_big="MSG_TOO_BIG", quiet=True)
        (protected,) = guarded.guard.protect([route])
        assert (protected.method, protected.path) == ("POST", "/pub")
        assert (protected.max_body_bytes, protected.too_big, protected.quiet) == (7, "MSG_TOO_BIG", True)


# Secrets of operators.


@pytest.mark.parametrize(
    ("method", "target", "shows", "decides"),
    [
        ("POST", "/pub?topic=t", SECRET, True),
        ("GET", "/config/log_level", SECRET, True),
        ("GET", "/debug/pprof/", SECRET, True),
        ("POST", "/pub?topic=t", None, False),
        ("POST", "/pub?topic=t", "Digest x", False),
        ("GET", "/stats", SECRET, False),
        ("GET", "/info", SECRET, False),
        ("GET", "/metrics", SECRET, False),
    ],
)
async def test_the_servers_judge_the_secrets_that_are_shown_where_they_guard(
    method: str, target: str, shows: str | None, *, decides: bool
) -> None:
    headers = {} if shows is None else {b"authorization": shows.encode()}
    with AuthServer(grant()) as server:
        assert Guarded(server).guard.decides_on(Request(method, target, headers=headers)) is decides


async def test_no_server_is_asked_about_a_secret_of_an_operator(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_text("s3cret of an operator\n")
    clock = ManualClock()
    with AuthServer(grant()) as server:
        authorizer = Authorizer(NsqdOptions(auth_http_address=(server.address,)), clock=clock)
        guard = ApiGuard(authorizer, clock=clock, secrets=SecretFile(str(path)))
        (route,) = guard.protect([Route("PUT", "/config/{option}", say_done)])
        request = Request("PUT", "/config/x", headers={b"authorization": b"Bearer s3cret of an operator"})
        response = route.handler(request)
    assert isinstance(response, Response)
    assert response.status == 200
    assert server.questions == []
