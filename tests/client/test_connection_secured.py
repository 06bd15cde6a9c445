"""A producer and a consumer with an nsqd that accepts nothing less than the kind of connection they have."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from emberq.client.config import ClientConfig, ConsumerConfig
from emberq.client.consumer import Consumer
from emberq.client.message import Message
from emberq.client.producer import Producer
from emberq.embedded import Embedded
from tests.support.auth_server import AuthServer, entry, grant
from tests.support.certificates import Authority
from tests.support.publishing import numbered
from tests.support.waiting import until

SECRET = b"open sesame"
MESSAGE_COUNT = 300
LARGE = b"x" * 900_000
"""Far more than fits into one piece of any kind of stream."""


@contextmanager
def secured(folder: Path, *, tls: bool, client_certificate: bool, auth: bool) -> Iterator[tuple[dict[str, Any], Any]]:
    """The options of an nsqd that insists on this, and the settings of a client that offers it."""
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    authority = Authority(folder, "authority")
    if tls:
        options |= {**authority.issue("server").options(), "tls_required": "tcp-https"}
        settings["tls"] = ssl.create_default_context(cafile=str(authority.path))
    if client_certificate:
        options |= {"tls_root_ca_file": str(authority.path), "tls_client_auth_policy": "require-verify"}
        client = authority.issue("client")
        settings["tls"].load_cert_chain(client.certificate_path, client.key_path)
    with ExitStack() as running:
        if auth:
            publishing = entry(topic="t", permissions=["publish"])
            subscribing = entry(topic="t", channels=["c"], permissions=["subscribe"])
            server = running.enter_context(AuthServer(grant(publishing, subscribing)))
            options["auth_http_address"] = (server.address,)
            settings["auth_secret"] = SECRET
        yield options, settings


@pytest.mark.loop("movable", "uvloop")
@pytest.mark.parametrize("compression", ["", "snappy", "deflate"])
@pytest.mark.parametrize(
    ("tls", "client_certificate", "auth"),
    [(False, False, False), (True, False, False), (False, False, True), (True, True, True)],
    ids=["clear", "tls", "auth", "certificate and auth"],
)
async def test_what_is_published_is_handled_over_every_kind_of_connection(
    tmp_path: Path,
    compression: str,
    tls: bool,
    client_certificate: bool,
    auth: bool,
) -> None:
    with secured(tmp_path, tls=tls, client_certificate=client_certificate, auth=auth) as (options, settings):
        if compression:
            settings[compression] = True
        config = ClientConfig(output_buffer_timeout_ms=25, **settings)
        handled: list[bytes] = []

        async def handle(message: Message) -> None:
            handled.append(message.body)

        async with Embedded(with_lookupd=False, **options) as nsq:
            addresses = nsq.nsqd_tcp_addresses
            consumer = Consumer(
                "t",
                "c",
                handle,
                nsqd_addresses=addresses,
                config=ConsumerConfig(max_in_flight=50),
                client_config=config,
            )
            async with consumer, Producer(addresses, config) as producer:
                await producer.publish_many("t", numbered(MESSAGE_COUNT - 1))
                await producer.publish("t", LARGE)
                await until(lambda: len(handled) >= MESSAGE_COUNT)
        assert sorted(handled) == sorted([*numbered(MESSAGE_COUNT - 1), LARGE])


async def test_a_consumer_that_is_not_let_in_tries_again_until_it_is() -> None:
    with AuthServer(grant()) as server:
        handled: list[bytes] = []

        async def handle(message: Message) -> None:
            handled.append(message.body)

        async with Embedded(with_lookupd=False, auth_http_address=(server.address,)) as nsq:
            consumer = Consumer(
                "t", "c", handle, nsqd_addresses=nsq.nsqd_tcp_addresses, client_config=ClientConfig(auth_secret=SECRET)
            )
            async with consumer:
                assert consumer.statistics().addresses == ()
                server.answer = grant(entry())
                await until(lambda: bool(consumer.statistics().addresses))
