"""Metrics of clients for Prometheus, as a scrape sees them."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from emberq.client import prometheus
from emberq.client.config import ClientConfig, ConsumerConfig
from emberq.client.consumer import Consumer
from emberq.client.error import MessageTooLargeError
from emberq.client.message import Message
from emberq.client.producer import Producer
from emberq.client.prometheus import PrometheusObserver
from emberq.embedded import Embedded
from tests.client.scripted_nsqd import ScriptedNsqd
from tests.support.waiting import until


class Scraped:
    """A registry of a program, and what it serves."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.config = ClientConfig(observer=PrometheusObserver(registry=self.registry))

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


async def test_publications_and_connections_are_counted() -> None:
    scraped = Scraped()
    async with Embedded(with_lookupd=False, max_msg_size=5) as nsq:
        (address,) = nsq.nsqd_tcp_addresses
        async with Producer(address, scraped.config) as producer:
            await producer.publish_many("orders", [b"1", b"22"])
            await producer.publish("orders", b"3")
            with pytest.raises(MessageTooLargeError):
                await producer.publish("orders", b"much too long")
            assert scraped.value("nsq_client_connections", address=address) == 1
    assert scraped.value("nsq_published_messages_total", topic="orders") == 3
    assert scraped.value("nsq_publish_seconds_count", topic="orders") == 2
    assert scraped.value("nsq_publish_failures_total", topic="orders", error="MessageTooLargeError") == 1
    assert scraped.value("nsq_client_connections", address=address) == 0
    assert scraped.value("nsq_client_connections_lost_total", address=address) is None


async def test_a_connection_that_was_lost_is_counted_as_such() -> None:
    scraped = Scraped()
    async with ScriptedNsqd() as nsqd, Producer(nsqd.address, scraped.config) as producer:
        await producer.wait_until_connected()
        nsqd.drop_connections()
        await until(lambda: scraped.value("nsq_client_connections_lost_total", address=nsqd.address) == 1)


async def test_what_handlers_do_is_counted() -> None:
    scraped = Scraped()
    channel = {"topic": "t", "channel": "c"}

    async def handle(message: Message) -> None:
        if message.body == b"bad":
            raise ValueError("as told")

    config = ConsumerConfig(max_attempts=2, backoff_unit_s=0.01, default_requeue_delay_s=0)
    async with (
        ScriptedNsqd() as nsqd,
        Consumer("t", "c", handle, nsqd_addresses=nsqd.address, config=config, client_config=scraped.config),
    ):
        nsqd.send(b"good")
        nsqd.send(b"bad")
        nsqd.send(b"tired", attempts=3)
        await until(lambda: scraped.value("nsq_given_up_messages_total", **channel) == 1)
        await until(lambda: scraped.value("nsq_backoff_level", **channel) == 1)
        assert scraped.value("nsq_received_messages_total", **channel) == 3
        assert scraped.value("nsq_handler_seconds_count", **channel) == 1
        assert scraped.value("nsq_handler_failures_total", **channel, error="ValueError") == 1
        assert scraped.value("nsq_requeued_messages_total", **channel) == 1


async def test_answers_that_come_too_late_are_counted() -> None:
    scraped = Scraped()
    async with (
        ScriptedNsqd() as nsqd,
        Consumer("t", "c", nsqd_addresses=nsqd.address, client_config=scraped.config) as consumer,
    ):
        nsqd.send()
        (await anext(consumer)).finish()
        nsqd.fail(b"E_FIN_FAILED FIN 0000000000000001 failed ID not in flight")
        await until(lambda: scraped.value("nsq_late_answers_total", topic="t", channel="c") == 1)


def test_the_names_are_those_of_the_manual() -> None:
    scraped = Scraped()
    manual = prometheus.__doc__ or ""
    served = {line.split()[2] for line in generate_latest(scraped.registry).decode().splitlines() if "# TYPE" in line}
    assert served == {line.split()[0] for line in manual.splitlines() if line.startswith("    nsq_")}
