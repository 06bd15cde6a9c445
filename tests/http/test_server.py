"""The server as its daemon sees it: writing, guard and shutdown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.http.message import HttpError, Request, Response
from tests.http.conftest import StartServer
from tests.http.harness import HttpHarness
from tests.http.playback import Played, Stage, damaged, damages, examples, final_answers, streams
from tests.http.site import HUGE
from tests.support.raw_http_client import RawClient, request
from tests.support.waiting import wait_until

TLS_REQUIRED = Response(403, b'{"message": "TLS_REQUIRED", "https_port": 4152}', content_type="application/json")


def connection_count(server: HttpHarness) -> int:
    return server.call(lambda: server.server.connection_count)


# Writing.


async def test_a_long_body_is_written_without_being_copied() -> None:
    stage = Stage()
    transport = await stage.play([request("GET", "/huge")])
    assert any(part is HUGE for part in transport.parts)
    await stage.leave(transport)


async def test_short_answers_to_one_packet_leave_in_one_piece() -> None:
    stage = Stage()
    transport = await stage.play([request("GET", "/ping") * 20])
    assert len(final_answers(transport.written)) == 20
    assert not transport.parts
    await stage.leave(transport)


# The guard.


def test_the_guards_answer_comes_before_any_routing(start_server: StartServer) -> None:
    server = start_server(guard=lambda _request: TLS_REQUIRED)
    client = server.connect()
    for method, path in (("GET", "/ping"), ("GET", "/nowhere"), ("POST", "/ping"), ("OPTIONS", "/ping"), ("GET", "//")):
        answer = client.ask(method, path)
        assert (answer.status, answer.body) == (403, TLS_REQUIRED.body)
    assert not server.site.seen


def test_the_guard_sees_a_request_before_its_body(start_server: StartServer) -> None:
    bodies: list[bytes] = []

    def guard(request: Request) -> Response | None:
        bodies.append(request.body)
        return TLS_REQUIRED if request.header("Authorization") is None else None

    client = start_server(guard=guard).connect()
    client.send(request("POST", "/echo", content_length="5", expect="100-continue"))
    assert client.read_answer().status == 403
    client = start_server(guard=guard).connect()
    assert client.ask("POST", "/echo", b"hello", authorization="Bearer x").body == b"hello"
    assert bodies == [b"", b""]


def test_a_guard_may_raise_its_refusal(start_server: StartServer) -> None:
    def guard(_request: Request) -> Response | None:
        raise HttpError(401, "UNAUTHORIZED")

    assert start_server(guard=guard).connect().ask("GET", "/ping").error == (401, "UNAUTHORIZED")


def test_a_guard_that_crashes_lets_nobody_through(start_server: StartServer, caplog: pytest.LogCaptureFixture) -> None:
    def guard(_request: Request) -> Response | None:
        raise RuntimeError("on purpose")

    for server in (start_server(guard=guard), start_server(head_guard=guard)):
        assert server.connect().ask("GET", "/ping").error == (500, "INTERNAL_ERROR")
        assert not server.site.seen


# Shutdown.


def test_closing_closes_idle_connections(server: HttpHarness, client: RawClient) -> None:
    client.ask("GET", "/ping")
    half_way = server.connect()
    half_way.send(b"GET /ping HT")
    server.settle()
    assert connection_count(server) == 2
    server.call(server.server.close)
    assert client.is_closed_by_server()
    assert half_way.is_closed_by_server()
    assert connection_count(server) == 0


def test_a_running_request_is_answered_before_its_connection_closes(server: HttpHarness, client: RawClient) -> None:
    client.send(request("GET", "/gate") + request("GET", "/ping"))
    server.settle()
    server.call(server.server.close)
    server.settle()
    assert connection_count(server) == 1
    server.open_gate()
    answer = client.read_answer()
    assert (answer.body, answer.closes) == (b"through", True)
    assert client.is_closed_by_server()
    assert not server.site.seen


def test_who_comes_too_late_is_turned_away(server: HttpHarness) -> None:
    server.call(server.server.close)
    assert server.connect().is_closed_by_server()
    wait_until(lambda: connection_count(server) == 0)


# Bad company.


def test_whatever_one_client_sends_the_others_are_served(server: HttpHarness, client: RawClient) -> None:
    @examples(60)
    @given(stream=streams, damage=damages, leaves_politely=st.booleans())
    def disturb(stream: list[Played], damage: list[tuple[int, bytes]], leaves_politely: bool) -> None:
        vandal = server.connect()
        vandal.send_what_fits(damaged(stream, damage))
        if leaves_politely:
            vandal.close()
        else:
            vandal.reset()
        assert client.ask("GET", "/ping").body == b"OK"

    disturb()
    wait_until(lambda: connection_count(server) == 1)
