"""nsq_to_http sends messages to web servers, and answers those that arrived."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import Any

import pytest

from emberq.base.settings import OptionsError
from emberq.tools.client_flags import parse_client_option
from emberq.tools.nsq_to_http import ToHttpOptions, run
from tests.support.embedded import Broker
from tests.support.waiting import until
from tests.support.web_server import WebServer, answer
from tests.tools.rig import running

NO_BACKOFF = (parse_client_option("max_backoff_duration,0"),)
AT_ONCE = (*NO_BACKOFF, parse_client_option("default_requeue_delay,0"), parse_client_option("max_attempts,0"))
BODIES = [b"%d" % number for number in range(100)]


def sending(broker: Broker, **details: Any) -> ToHttpOptions:
    given: dict[str, Any] = {"topic": "t", "nsqd_tcp_address": (broker.tcp_address,), **details}
    return ToHttpOptions(**given).validated()


def is_finished(broker: Broker) -> bool:
    """Neither the channel has messages, nor the topic, which keeps them until nsqlookupd has told of other channels."""
    return broker.unfinished("t") == 0 and broker.counts("t", "nsq_to_http").deferred == 0


async def test_messages_are_posted_and_finished(broker: Broker) -> None:
    broker.queue("t", "nsq_to_http", BODIES)
    async with WebServer() as server:
        options = sending(broker, post=(f"{server.url}/in",), header=("X-Key: secret",), content_type="text/x", n=10)
        async with running(partial(run, options)):
            await until(lambda: is_finished(broker))
        assert server.bodies == Counter(BODIES)
        assert server.connection_count <= 10
        first = server.requests[0]
        assert first.line == "POST /in HTTP/1.1"
        assert (first.headers["x-key"], first.headers["content-type"]) == ("secret", "text/x")


async def test_messages_can_be_a_part_of_the_url(broker: Broker) -> None:
    broker.queue("t", "nsq_to_http", [b"a b&c"])
    async with WebServer() as server:
        async with running(partial(run, sending(broker, get=(f"{server.url}/?m=%s",)))):
            await until(lambda: is_finished(broker))
        assert [request.line for request in server.requests] == ["GET /?m=a+b%26c HTTP/1.1"]


@pytest.mark.parametrize(("kind", "status"), [("post", 500), ("post", 302), ("get", 204)])
async def test_a_message_that_was_not_accepted_is_requeued(
    broker: Broker, kind: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker.queue("t", "nsq_to_http", [b"x"])
    async with WebServer(lambda _: answer(status, body=b"")) as server:
        options = sending(broker, consumer_opt=NO_BACKOFF, **{kind: (f"{server.url}/?m=%s",)})
        async with running(partial(run, options)):
            await until(lambda: broker.counts("t", "nsq_to_http").deferred == 1)
        assert len(server.requests) == 1
        assert f"{server.url}/?m=***: got status code {status}" in caplog.text  # the value of a query may be secret


async def test_nothing_is_lost_while_a_server_fails_now_and_then(broker: Broker) -> None:
    broker.queue("t", "nsq_to_http", BODIES)
    async with WebServer(lambda _: answer(503 if len(server.requests) % 3 == 0 else 200)) as server:
        async with running(partial(run, sending(broker, post=(server.url,), consumer_opt=AT_ONCE))):
            await until(lambda: is_finished(broker))
        assert set(server.bodies) == set(BODIES)
        assert broker.counts("t", "nsq_to_http").requeued > 0


@pytest.mark.parametrize("mode", ["round-robin", "hostpool"])
async def test_addresses_take_turns(broker: Broker, mode: str) -> None:
    broker.queue("t", "nsq_to_http", BODIES)
    async with WebServer() as one, WebServer() as two:
        async with running(partial(run, sending(broker, post=(one.url, two.url), mode=mode))):
            await until(lambda: is_finished(broker))
        assert (len(one.requests), len(two.requests)) == (50, 50)


async def test_any_other_mode_sends_every_message_to_all(broker: Broker) -> None:
    broker.queue("t", "nsq_to_http", BODIES)
    async with WebServer() as one, WebServer() as two:
        async with running(partial(run, sending(broker, post=(one.url, two.url), mode="multicast"))):
            await until(lambda: is_finished(broker))
        assert one.bodies == two.bodies == Counter(BODIES)


async def test_a_server_that_fails_is_left_out(broker: Broker) -> None:
    broker.queue("t", "nsq_to_http", BODIES)
    async with WebServer() as good, WebServer(lambda _: answer(500)) as bad:
        async with running(partial(run, sending(broker, post=(good.url, bad.url), consumer_opt=AT_ONCE, n=1))):
            await until(lambda: is_finished(broker))
        assert set(good.bodies) == set(BODIES)
        assert len(bad.requests) == 1


async def test_a_sample_of_nothing_finishes_everything_unsent(broker: Broker) -> None:
    broker.queue("t", "nsq_to_http", BODIES)
    async with WebServer() as server:
        async with running(partial(run, sending(broker, post=(server.url,), sample=0.0))):
            await until(lambda: is_finished(broker))
        assert server.requests == []


async def test_a_sample_of_half_sends_about_half(broker: Broker) -> None:
    broker.queue("t", "nsq_to_http", BODIES * 4)
    async with WebServer() as server:
        async with running(partial(run, sending(broker, post=(server.url,), sample=0.5))):
            await until(lambda: is_finished(broker))
        assert 100 < len(server.requests) < 300


async def test_a_stop_waits_for_the_requests_under_way(broker: Broker) -> None:
    broker.queue("t", "nsq_to_http", [b"x"])
    async with WebServer() as server:
        async with running(partial(run, sending(broker, post=(server.url,)))):
            await until(lambda: len(server.requests) == 1)
        await until(lambda: broker.counts("t", "nsq_to_http").unfinished == 0)


async def test_timing_is_logged_for_all_and_for_each(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.queue("t", "nsq_to_http", BODIES * 2)
    with caplog.at_level(logging.INFO, logger="emberq.tools.host_pool"):
        async with WebServer() as one, WebServer() as two:
            options = sending(broker, post=(one.url, two.url), status_every=100, mode="round-robin")
            async with running(partial(run, options)):
                await until(lambda: is_finished(broker))
            names = Counter(line.partition(": ")[0] for line in caplog.messages if "finished 100 - " in line)
            assert names == {"[aggregate]": 2, f"[{one.url}]": 1, f"[{two.url}]": 1}


@pytest.mark.parametrize(
    ("details", "complaint"),
    [
        ({"topic": ""}, "--topic and --channel are required"),
        ({"channel": ""}, "--topic and --channel are required"),
        ({"content_type": ""}, "--content-type requires a value when used"),
        ({"post": (), "get": ("http://h/%s",), "content_type": "x"}, "--content-type only used with --post"),
        ({"nsqd_tcp_address": ()}, "--nsqd-tcp-address or --lookupd-http-address required"),
        ({"post": ()}, "--get or --post required"),
        ({"get": ("http://h/%s",)}, "use --get or --post not both"),
        ({"post": (), "get": ("http://h/",)}, "invalid GET address - must be a printf string"),
        ({"sample": 1.5}, "ERROR: --sample must be between 0.0 and 1.0"),
        ({"header": ("h:",)}, "--header value format should be 'key=value'"),
        ({"post": ("host",)}, "must begin with http:// or https://"),
        ({"n": 0}, "no handlers"),
    ],
)
def test_options_that_cannot_work_are_refused(details: dict[str, Any], complaint: str) -> None:
    given: dict[str, Any] = {"topic": "t", "nsqd_tcp_address": ("a:1",), "post": ("http://h/",)}
    with pytest.raises(OptionsError, match=complaint):
        ToHttpOptions(**(given | details)).validated()
