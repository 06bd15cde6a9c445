"""Asking nsqlookupd, right and wrong answers."""

from __future__ import annotations

import json
import logging
import urllib.request
from typing import Any

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.client.config import ClientConfig, ConsumerConfig
from emberq.client.discovery import Discovery, producer_addresses, secret_for_lookupd
from emberq.embedded import EmbeddedThread
from emberq.http.client import HttpClient, HttpQueryError
from tests.support.loop import advance
from tests.support.scripted_server import ScriptedServer, answer
from tests.support.waiting import until

CLIENT = HttpClient(connect_timeout_ns=5 * NS_PER_SECOND, request_timeout_ns=5 * NS_PER_SECOND)


def producer(host: str, port: int) -> dict[str, Any]:
    return {"broadcast_address": host, "tcp_port": port}


def listing(*ports: int) -> bytes:
    return answer(json.dumps({"producers": [producer("10.0.0.1", port) for port in ports]}).encode())


async def poll(*servers: ScriptedServer, times: int = 1, secret: bytes = b"") -> list[list[str]]:
    """What so many polls of these nsqlookupds find."""
    discovery = Discovery([server.url for server in servers], "orders", client=CLIENT, secret=secret)
    return [await discovery.poll() for _ in range(times)]


def test_no_address_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="no nsqlookupd"):
        Discovery([], "orders", client=CLIENT)


def test_answers_of_old_servers_are_understood() -> None:
    assert producer_addresses({"status_code": 200, "data": {"producers": [producer("a", 1)]}}) == ["a:1"]


def test_an_ipv6_host_is_put_in_brackets_and_twins_are_one() -> None:
    assert producer_addresses({"producers": [producer("::1", 4150), producer("::1", 4150)]}) == ["[::1]:4150"]


def test_producers_that_make_no_sense_are_left_out() -> None:
    wrong = [None, 7, {}, producer("", 1), producer("a", 0), producer("a", 70_000), {"broadcast_address": "a"}]
    assert producer_addresses({"producers": [*wrong, producer("b", 2)]}) == ["b:2"]


@pytest.mark.parametrize("document", [None, [], {}, {"producers": 1}, {"data": []}])
def test_an_answer_without_producers_is_an_error(document: Any) -> None:
    with pytest.raises(HttpQueryError):
        producer_addresses(document)


async def test_each_poll_asks_the_next_server() -> None:
    with ScriptedServer(listing(1), listing(3)) as first, ScriptedServer(listing(2)) as second:
        assert await poll(first, second, times=3) == [["10.0.0.1:1"], ["10.0.0.1:2"], ["10.0.0.1:3"]]


async def test_when_a_server_fails_the_next_is_asked() -> None:
    missing = answer(b'{"message":"TOPIC_NOT_FOUND"}', status="404 Not Found")
    with (
        ScriptedServer(missing) as first,
        ScriptedServer(answer(b"<html>")) as second,
        ScriptedServer(listing(7)) as third,
    ):
        assert await poll(first, second, third) == [["10.0.0.1:7"]]


async def test_when_all_fail_nothing_is_found_and_nothing_raised() -> None:
    with ScriptedServer(b"garbage") as only:
        assert await poll(only) == [[]]


@pytest.mark.conformance(272)
async def test_the_secret_is_sent_as_a_bearer_token() -> None:
    with ScriptedServer(listing(1), listing(1)) as server:
        await poll(server, secret=b"s3cret")
        await poll(server)
        assert b"Authorization: Bearer s3cret\r\n" in server.requests[0]
        assert b"Authorization" not in server.requests[1]


async def test_only_the_second_poll_is_delayed_by_jitter() -> None:
    with ScriptedServer(listing(), listing()) as server:
        discovery = Discovery(
            [server.url], "orders", client=CLIENT, interval_s=60, jitter=0.5, random_fraction=lambda: 0.5
        )
        await discovery.poll()
        assert discovery.delay_s == 75
        await discovery.poll()
        assert discovery.delay_s == 60


async def test_a_real_nsqlookupd_names_the_nsqd_that_has_the_topic(nsq: EmbeddedThread) -> None:
    urllib.request.urlopen(f"http://{nsq.nsqd_http_addresses[0]}/topic/create?topic=orders", data=b"").close()
    discovery = Discovery(nsq.lookupd_http_addresses, "orders", client=CLIENT)

    async def is_found() -> bool:
        return await discovery.poll() == list(nsq.nsqd_tcp_addresses)

    await until(is_found)


# What the log tells

UNKNOWN = answer(b'{"message":"TOPIC_NOT_FOUND"}', status="404 Not Found")


async def poll_again_and_again(*servers: ScriptedServer, times: int, seconds_apart: float) -> None:
    discovery = Discovery([server.url for server in servers], "orders", client=CLIENT)
    for _ in range(times):
        await discovery.poll()
        advance(seconds_apart)


@pytest.mark.parametrize("nothing", [UNKNOWN, listing()])
async def test_a_topic_that_no_nsqd_has_is_told_at_once_and_then_once_in_a_while(
    nothing: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="emberq.client")
    with ScriptedServer(*[nothing] * 21, listing(7), listing(7)) as server:
        await poll_again_and_again(server, times=23, seconds_apart=60)
    waiting = "no nsqd has topic orders yet, as far as nsqlookupd knows"
    assert sum(waiting in line for line in caplog.messages) == 3
    assert [line for line in caplog.messages if waiting not in line] == ["topic orders was found, at nsqd 10.0.0.1:7"]


async def test_a_topic_that_the_next_server_knows_is_not_complained_about(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedServer(UNKNOWN) as first, ScriptedServer(listing(7)) as second:
        await poll(first, second)
    assert not caplog.records


async def test_a_server_that_fails_is_told_at_once_and_then_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedServer(*[b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"] * 11) as server:
        await poll_again_and_again(server, times=11, seconds_apart=10)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


async def test_a_server_that_is_no_nsqlookupd_is_told_with_what_to_give_instead(
    nsq: EmbeddedThread, caplog: pytest.LogCaptureFixture
) -> None:
    for address in (*nsq.nsqd_tcp_addresses, *nsq.nsqd_http_addresses, *nsq.lookupd_tcp_addresses):
        caplog.clear()
        assert await Discovery([address], "orders", client=CLIENT).poll() == []
        (line,) = [record.getMessage() for record in caplog.records if record.name == "emberq.client.discovery"]
        assert "give the address at which nsqlookupd speaks HTTP, which usually has port 4161" in line


def test_nsqlookupds_are_shown_their_own_secret_or_that_of_nsqds() -> None:
    client_config = ClientConfig(auth_secret=b"for nsqds")
    for config, shown in (
        (ConsumerConfig(lookupd_secret=b"for nsqlookupds"), b"for nsqlookupds"),
        (ConsumerConfig(lookupd_secret=b"for nsqlookupds", authorize_lookupd=False), b"for nsqlookupds"),
        (ConsumerConfig(), b"for nsqds"),
        (ConsumerConfig(authorize_lookupd=False), b""),
    ):
        assert secret_for_lookupd(config, client_config) == shown


async def test_a_server_that_wants_another_secret_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedServer(answer(b'{"message":"UNAUTHORIZED"}', status="401 Unauthorized")) as server:
        assert await poll(server, secret=b"s3cret") == [[]]
    assert "it wants a secret that it knows: lookupd_secret" in caplog.text
    assert "s3cret" not in caplog.text
