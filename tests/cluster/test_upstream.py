from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import ClassVar

import pytest

from emberq.cluster.upstream import (
    MAX_CONCURRENT_QUERIES,
    DaemonKind,
    Document,
    Findings,
    UpstreamError,
    Upstreams,
    texts,
)
from emberq.cluster.upstream import UpstreamsFailedError as Failed
from emberq.http.client import HttpClient
from tests.support.cluster_rig import DEAD, REFUSED, make_upstreams
from tests.support.scripted_server import ScriptedServer, answer

pytestmark = pytest.mark.loop("uvloop")


def read_topics(document: Document) -> list[str]:
    return texts(document, "topics")


async def topics_of(upstreams: Upstreams, *addresses: str) -> Findings[list[list[str]]]:
    return await upstreams.ask_each(
        DaemonKind.LOOKUPD, addresses, lambda address: upstreams.get(address, "/topics", read_topics)
    )


def address_of(server: ScriptedServer) -> str:
    return f"127.0.0.1:{server.port}"


async def test_everybody_who_answers_is_heard_in_the_order_asked() -> None:
    one, two = (ScriptedServer(answer(json.dumps({"topics": [name]}).encode())) for name in ("a", "b"))
    with one, two:
        found = await topics_of(make_upstreams(), address_of(two), address_of(one))
    assert found.value == [["b"], ["a"]]
    assert (found.warnings, found.message) == ((), "")


async def test_one_that_fails_is_a_warning() -> None:
    with ScriptedServer(answer(b'{"topics":["a"]}')) as alive:
        found = await topics_of(make_upstreams(), DEAD, address_of(alive))
    assert found.value == [["a"]]
    assert found.warnings == (REFUSED.format("topics"),)
    assert found.message == f"WARNING: {REFUSED.format('topics')}"


async def test_one_that_is_slow_is_a_warning_after_the_timeout_and_holds_nobody_up() -> None:
    with ScriptedServer(answer(b'{"topics":["a"]}')) as alive, ScriptedServer() as silent:
        found = await topics_of(make_upstreams(request_timeout_ms=200), address_of(silent), address_of(alive))
    assert found.value == [["a"]]
    assert found.warnings == (f'Get "http://{address_of(silent)}/topics": no answer in time',)


def test_several_warnings_are_told_in_one_line() -> None:
    assert Findings(None, ("one", "two")).message == "WARNING: one; two"


async def test_when_all_fail_there_is_no_answer() -> None:
    with (
        ScriptedServer(answer(b'{"message":"TOPIC_NOT_FOUND"}', status="404 Not Found")) as refusing,
        pytest.raises(Failed) as raised,
    ):
        await topics_of(make_upstreams(), address_of(refusing), DEAD)
    assert str(raised.value) == (
        'failed to query any nsqlookupd: got response 404 Not Found "{\\"message\\":\\"TOPIC_NOT_FOUND\\"}"\n'
        + REFUSED.format("topics")
    )
    assert raised.value.kind is DaemonKind.LOOKUPD


async def test_with_nobody_to_ask_there_is_no_answer_either() -> None:
    with pytest.raises(Failed, match=r"^failed to query any nsqlookupd: $"):
        await topics_of(make_upstreams())


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"[]", "the answer is not a JSON object"),
        (b"<html>", "the answer is not JSON"),
        (b'{"topics":[1]}', "topics in the answer is not of the expected type"),
    ],
)
async def test_an_answer_that_makes_no_sense_is_a_failure(body: bytes, complaint: str) -> None:
    with ScriptedServer(answer(body)) as server, pytest.raises(Failed) as raised:
        await topics_of(make_upstreams(), address_of(server))
    assert raised.value.failures == (f'Get "http://{address_of(server)}/topics": {complaint}',)


async def test_what_a_daemon_refused_with_can_be_told() -> None:
    with (
        ScriptedServer(answer(b'{"message":"CHANNEL_NOT_FOUND"}', status="404 Not Found")) as server,
        pytest.raises(UpstreamError) as raised,
    ):
        await make_upstreams().post(address_of(server), "/channel/empty", topic="t", channel="c")
    assert raised.value.refusal == "CHANNEL_NOT_FOUND"


async def test_a_refusal_without_json_has_no_message() -> None:
    with (
        ScriptedServer(answer(b"go away", status="500 Internal Server Error")) as server,
        pytest.raises(UpstreamError, match='got response 500 Internal Server Error "go away"') as raised,
    ):
        await make_upstreams().post(address_of(server), "/topic/create", topic="t")
    assert raised.value.refusal == ""


async def test_names_are_escaped_in_the_query() -> None:
    with ScriptedServer(answer(b"")) as server:
        await make_upstreams().post(address_of(server), "/channel/create", topic="t#ephemeral", channel="a b&c")
    assert server.requests[0].startswith(b"POST /channel/create?topic=t%23ephemeral&channel=a%20b%26c HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "address", ["", "host/path:1", "user@host:1", "host:1?x=", "host:1 HTTP/1.1\r\nX: y", "höst:1"]
)
async def test_an_address_cannot_lead_elsewhere(address: str) -> None:
    with pytest.raises(UpstreamError, match="is not an address"):
        await make_upstreams().get(address, "/stats", read_topics)


async def test_a_secret_is_shown_to_daemons_that_are_guarded() -> None:
    with ScriptedServer(answer(b'{"topics":[]}')) as server:
        await make_upstreams(secret=b"s3cret").get(address_of(server), "/topics", read_topics)
    assert b"\r\nAuthorization: Bearer s3cret\r\n" in server.requests[0]


async def test_a_long_answer_is_read_like_a_short_one() -> None:
    names = [f"topic-{number:06}" for number in range(30_000)]
    with ScriptedServer(answer(json.dumps({"topics": names}).encode())) as server:
        assert await make_upstreams().get(address_of(server), "/topics", read_topics) == names
    long_nonsense = ScriptedServer(answer(b"[" + b"1," * 200_000))
    with long_nonsense as server, pytest.raises(UpstreamError, match="the answer is not JSON"):
        await make_upstreams().get(address_of(server), "/topics", read_topics)


class CountingClient(HttpClient):
    """Answers everybody in the next moment, and counts how many wait."""

    waiting: ClassVar[list[str]] = []
    most: ClassVar[list[int]] = []

    async def get(self, url: str, *, headers: Mapping[str, str] | None = None) -> bytes:
        self.waiting.append(url)
        self.most.append(len(self.waiting))
        await asyncio.sleep(0)
        self.waiting.pop()
        return b'{"topics": []}'


async def test_a_thousand_questions_do_not_need_a_thousand_connections() -> None:
    upstreams = Upstreams(CountingClient(connect_timeout_ns=0, request_timeout_ns=0))
    found = await topics_of(upstreams, *(f"host{number}:4161" for number in range(1000)))
    assert len(found.value) == 1000
    assert max(CountingClient.most) == MAX_CONCURRENT_QUERIES


async def test_all_answers_together_are_awaited_for_so_long() -> None:
    http = HttpClient(connect_timeout_ns=0, request_timeout_ns=0)
    with ScriptedServer(answer(b'{"topics":["a"]}')) as alive, ScriptedServer() as silent:
        found = await topics_of(Upstreams(http, patience_s=0.2), address_of(silent), address_of(alive))
    assert found.value == [["a"]]
    assert found.warnings == ("some daemons could not be asked in time",)


def test_of_very_many_warnings_some_are_told() -> None:
    told = Findings(None, tuple(map(str, range(1000)))).message
    assert told.startswith("WARNING: 0; 1; ")
    assert told.endswith("; 19; and 980 more")
    assert str(Failed(DaemonKind.NSQD, ["x"] * 1000)).endswith("\nand 980 more")


async def test_an_answer_of_very_many_parts_is_not_read() -> None:
    with (
        ScriptedServer(answer(b'{"topics":[' + b"{}," * 500_000 + b"{}]}")) as hostile,
        pytest.raises(Failed, match="too many parts"),
    ):
        await topics_of(make_upstreams(), address_of(hostile))
