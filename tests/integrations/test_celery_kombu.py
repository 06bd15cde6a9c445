"""Kombu over NSQ, without Celery: queues, exchanges, acknowledgement, prefetch, fork, settings."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import OperationalError

import emberq.integrations.celery
from emberq.client import NsqError
from emberq.embedded import EmbeddedThread
from emberq.integrations.celery import seconds_until_eta
from emberq.integrations.kombu_client import broker_settings
from tests.support.auth_server import AuthServer, entry, grant
from tests.support.certificates import Authority
from tests.support.embedded import Broker, http_of
from tests.support.held_port import hold_port
from tests.support.waiting import PATIENCE_S, wait_until

SOON_S = 0.2
"""How long a test waits for what does not come."""


class Kombu:
    """Connections to one nsqd, and short ways to use them."""

    def __init__(self, nsq: EmbeddedThread, closing: ExitStack) -> None:
        self._options = {"nsqd_http_addresses": nsq.nsqd_http_addresses}
        self._url = ";".join(f"nsq://{address}" for address in nsq.nsqd_tcp_addresses)
        self._closing = closing

    def connect(self, **options: Any) -> Connection:
        connection = Connection(self._url, transport_options=self._options | options)
        return self._closing.enter_context(connection)


@pytest.fixture
def kombu(nsq: EmbeddedThread) -> Iterator[Kombu]:
    with ExitStack() as closing:
        yield Kombu(nsq, closing)


def publish(
    connection: Connection, body: object, exchange: Exchange | None = None, key: str = "", **options: Any
) -> None:
    producer = Producer(connection.channel(), exchange=exchange, auto_declare=exchange is not None)
    producer.publish(body, routing_key=key, **options)


class Reader:
    """A consumer that keeps its messages."""

    def __init__(self, connection: Connection, *queues: Queue, prefetch: int = 0, no_ack: bool = False) -> None:
        self.connection = connection
        self.messages: list[Any] = []
        channel = connection.channel()
        self.consumer = Consumer(channel, list(queues), on_message=self.messages.append, no_ack=no_ack)
        self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    @property
    def bodies(self) -> list[Any]:
        return [message.decode() for message in self.messages]

    def wait_for(self, count: int) -> None:
        while len(self.messages) < count:
            self.connection.drain_events(timeout=PATIENCE_S)

    def look(self) -> None:
        """Take what comes soon, if anything does."""
        try:
            while True:
                self.connection.drain_events(timeout=SOON_S)
        except TimeoutError:
            pass


JOBS = Queue("jobs", Exchange("jobs", "direct"), routing_key="jobs")


def test_a_message_goes_round_and_is_finished(kombu: Kombu, broker: Broker) -> None:
    connection = kombu.connect()
    publish(connection, {"task": 1}, JOBS.exchange, "jobs", declare=[JOBS])
    reader = Reader(connection, JOBS)
    reader.wait_for(1)
    assert reader.bodies == [{"task": 1}]
    assert broker.counts("jobs", "celery").in_flight == 1
    reader.messages[0].ack()
    wait_until(lambda: broker.counts("jobs", "celery").unfinished == 0)


def test_a_rejected_message_comes_again_or_not(kombu: Kombu, broker: Broker) -> None:
    connection = kombu.connect()
    publish(connection, "job", JOBS.exchange, "jobs", declare=[JOBS])
    reader = Reader(connection, JOBS)
    reader.wait_for(1)
    assert reader.messages[0].delivery_info["redelivered"] is False
    reader.messages[0].requeue()
    reader.wait_for(2)
    assert reader.messages[1].delivery_info["redelivered"] is True
    reader.messages[1].reject()
    wait_until(lambda: broker.counts("jobs", "celery").unfinished == 0)


def test_what_a_closed_connection_left_unacknowledged_comes_to_another_at_once(kombu: Kombu) -> None:
    first, second = kombu.connect(), kombu.connect()
    publish(first, "job", JOBS.exchange, "jobs", declare=[JOBS])
    Reader(first, JOBS).wait_for(1)
    first.release()
    reader = Reader(second, JOBS)
    reader.wait_for(1)
    assert reader.bodies == ["job"]


@pytest.mark.parametrize("prefetch", [1, 3])
def test_no_more_than_the_prefetch_count_is_unacknowledged(kombu: Kombu, broker: Broker, prefetch: int) -> None:
    connection = kombu.connect()
    for number in range(6):
        publish(connection, number, JOBS.exchange, "jobs", declare=[JOBS])
    reader = Reader(connection, JOBS, prefetch=prefetch)
    reader.wait_for(prefetch)
    reader.look()
    assert len(reader.messages) == prefetch
    assert broker.counts("jobs", "celery").in_flight == prefetch
    reader.messages[0].ack()
    reader.wait_for(prefetch + 1)


def test_the_prefetch_count_is_for_all_queues_together(kombu: Kombu, broker: Broker) -> None:
    connection = kombu.connect()
    queues = [Queue(name, Exchange(name, "direct"), routing_key=name) for name in ("mail", "sms")]
    for queue in queues:
        for number in range(2):
            publish(connection, number, queue.exchange, queue.name, declare=[queue])
    reader = Reader(connection, *queues, prefetch=2)

    def in_flight() -> int:
        return sum(broker.counts(queue.name, "celery").in_flight for queue in queues)

    for acknowledged in range(4):
        expected = min(2, 4 - acknowledged)
        reader.wait_for(acknowledged + expected)
        reader.look()
        assert len(reader.messages) == acknowledged + expected
        wait_until(lambda expected=expected: in_flight() == expected)  # type: ignore[misc]
        reader.messages[acknowledged].ack()


def test_a_cancelled_consumer_gets_nothing_and_still_acknowledges(kombu: Kombu, broker: Broker) -> None:
    connection = kombu.connect()
    reader = Reader(connection, JOBS, prefetch=1)
    publish(connection, 1, JOBS.exchange, "jobs", declare=[JOBS])
    reader.wait_for(1)
    reader.consumer.cancel()
    publish(connection, 2, JOBS.exchange, "jobs", declare=[JOBS])
    reader.messages[0].ack()
    wait_until(lambda: broker.counts("jobs", "celery").unfinished == 1)
    reader.look()
    assert len(reader.messages) == 1


def test_a_task_with_an_eta_waits_in_nsqd(kombu: Kombu, broker: Broker) -> None:
    broker.create_channel("jobs", "celery")
    publish(kombu.connect(), 1, JOBS.exchange, "jobs", declare=[JOBS], headers={"eta": in_an_hour(-60)})
    wait_until(lambda: broker.counts("jobs", "celery").deferred == 1)  # when nsqlookupd has told of other channels


@pytest.mark.nsq(max_req_timeout_ns=100_000_000)
@pytest.mark.parametrize("max_deferral_s", [0.1, 3600.0])
def test_beyond_the_limit_of_nsqd_it_waits_there_again_and_again(
    kombu: Kombu, broker: Broker, max_deferral_s: float
) -> None:
    connection = kombu.connect(max_deferral_s=max_deferral_s)
    publish(connection, 1, JOBS.exchange, "jobs", declare=[JOBS], headers={"eta": in_an_hour()})
    reader = Reader(connection, JOBS)
    while broker.counts("jobs", "celery").requeued < 3:
        reader.look()
    assert reader.messages == []


def in_an_hour(seconds_more: float = 0) -> str:
    return (datetime.now(UTC) + timedelta(hours=1, seconds=seconds_more)).isoformat()


def test_a_fanout_exchange_reaches_the_queue_of_every_process(kombu: Kombu) -> None:
    exchange = Exchange("news", "fanout", durable=False)
    connections = [kombu.connect() for _ in range(3)]
    queues = [Queue(f"news.{number}@host", exchange, auto_delete=True) for number in range(2)]
    readers = [Reader(connection, queue, no_ack=True) for connection, queue in zip(connections, queues, strict=False)]
    publish(connections[2], "hello", exchange)
    for reader in readers:
        reader.wait_for(1)
        assert reader.bodies == ["hello"]


def test_a_transient_queue_picks_what_its_binding_asks_for(kombu: Kombu) -> None:
    exchange = Exchange("events", "topic")
    publisher, listener = kombu.connect(), kombu.connect()
    reader = Reader(listener, Queue("mine", exchange, routing_key="task.#", auto_delete=True), no_ack=True)
    for key in ("worker.online", "task.sent", "task.failed.twice"):
        publish(publisher, key, exchange, key)
    reader.wait_for(2)
    reader.look()
    assert reader.bodies == ["task.sent", "task.failed.twice"]


def test_a_transient_queue_hears_nothing_from_before_its_time(
    kombu: Kombu, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emberq.integrations.celery, "CLOCK_TOLERANCE_S", 0.0)
    exchange = Exchange("news", "fanout", durable=False)
    connection = kombu.connect()
    publish(connection, "shut down!", exchange)
    wait_until(lambda: broker.message_count("news#ephemeral") == 1)
    reader = Reader(connection, Queue("late", exchange, auto_delete=True), no_ack=True)
    publish(connection, "hello", exchange)
    reader.wait_for(1)
    reader.look()
    assert reader.bodies == ["hello"]


def test_durable_queues_of_a_topic_exchange_keep_their_messages(kombu: Kombu, broker: Broker) -> None:
    media = Exchange("media", "topic")
    queues = [Queue("images", media, routing_key="image.*"), Queue("all", media, routing_key="#")]
    connection = kombu.connect()
    publish(connection, "resize", media, "image.resize", declare=queues)
    publish(connection, "cut", media, "video.cut", declare=queues)
    assert broker.message_count("images") == 1
    assert broker.message_count("all") == 2


def test_a_message_for_a_queue_that_is_not_known_here_is_warned_of(
    kombu: Kombu, caplog: pytest.LogCaptureFixture
) -> None:
    connection = kombu.connect()
    for _ in range(2):
        publish(connection, "lost", Exchange("reports", "direct"), "monthly")
    assert caplog.text.count("no durable queue is known to be bound to exchange 'reports' by 'monthly'") == 1
    publish(connection, "answer", Exchange("reply", "direct", durable=False), "someone")
    assert "'reply'" not in caplog.text


def test_a_queue_is_counted_and_purged(kombu: Kombu) -> None:
    connection = kombu.connect()
    for number in range(3):
        publish(connection, number, JOBS.exchange, "jobs", declare=[JOBS])
    queue = JOBS(connection.default_channel)
    assert queue.queue_declare(passive=True).message_count == 3
    assert queue.purge() == 3
    assert queue.queue_declare(passive=True).message_count == 0
    queue.delete()


def test_without_the_http_api_purging_says_what_is_missing(kombu: Kombu) -> None:
    queue = JOBS(kombu.connect(nsqd_http_addresses=[]).default_channel)
    queue.declare()
    with pytest.raises(ValueError, match="nsqd_http_addresses"):
        queue.purge()


def test_a_message_can_be_got_without_consuming(kombu: Kombu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emberq.integrations.celery, "GET_TIMEOUT_S", PATIENCE_S)
    connection = kombu.connect()
    publish(connection, "one", JOBS.exchange, "jobs", declare=[JOBS])
    queue = JOBS(connection.default_channel)
    message = queue.get()
    assert message is not None
    assert message.payload == "one"
    message.ack()
    monkeypatch.setattr(emberq.integrations.celery, "GET_TIMEOUT_S", SOON_S)
    assert queue.get() is None


def test_channel_and_prefix_can_be_chosen(kombu: Kombu, broker: Broker) -> None:
    connection = kombu.connect(channel="workers", queue_name_prefix="shop.")
    publish(connection, "one", JOBS.exchange, "jobs", declare=[JOBS])
    Reader(connection, JOBS).wait_for(1)
    assert broker.counts("shop.jobs", "workers").in_flight == 1


def test_a_connection_is_good_in_a_forked_child_too(kombu: Kombu, broker: Broker) -> None:
    connection = kombu.connect()
    publish(connection, "parent", JOBS.exchange, "jobs", declare=[JOBS])
    reader = Reader(connection, JOBS)
    reader.wait_for(1)
    child = os.fork()
    if child == 0:
        try:
            publish(connection, "child", JOBS.exchange, "jobs", declare=[JOBS])
            connection.release()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert broker.message_count("jobs") == 2
    publish(connection, "parent again", JOBS.exchange, "jobs", declare=[JOBS])
    reader.wait_for(3)  # what the child did to its copy of the consumer has not reached this one
    assert sorted(reader.bodies) == ["child", "parent", "parent again"]


@pytest.mark.nsq(nsqd_count=2)
def test_queues_of_all_nsqds_in_the_url_are_read(kombu: Kombu, nsq: EmbeddedThread) -> None:
    connection = kombu.connect()
    for number in range(4):
        publish(connection, number, JOBS.exchange, "jobs", declare=[JOBS])
    assert all(Broker(nsq, number=number).message_count("jobs") for number in range(2))
    reader = Reader(connection, JOBS)
    reader.wait_for(4)
    assert sorted(reader.bodies) == [0, 1, 2, 3]


@pytest.mark.nsq(nsqd_count=2)
def test_nsqlookupd_tells_of_nsqds_that_are_not_in_the_url(nsq: EmbeddedThread) -> None:
    known, other = (Broker(nsq, number=number) for number in range(2))
    options = {"lookupd_addresses": nsq.lookupd_http_addresses}
    with Connection(f"nsq://{other.tcp_address}") as publisher:
        publish(publisher, "from afar", JOBS.exchange, "jobs", declare=[JOBS])
    wait_until(lambda: is_registered_at(nsq, "jobs"))
    with Connection(f"nsq://{known.tcp_address}", transport_options=options) as connection:
        reader = Reader(connection, JOBS, no_ack=True)
        reader.wait_for(1)
        assert reader.bodies == ["from afar"]


def is_registered_at(nsq: EmbeddedThread, topic: str) -> bool:
    answer = http_of(nsq.lookupd_http_addresses[0]).get(f"/lookup?topic={topic}")
    return answer.status == 200 and bool(answer.json()["producers"])


def test_an_nsqd_that_is_restarted_is_connected_to_again_unnoticed(tmp_path: Path) -> None:
    with hold_port() as port, ExitStack() as running:

        def start() -> None:
            running.enter_context(EmbeddedThread(tcp_address=f"127.0.0.1:{port}", data_path=tmp_path))

        start()
        with Connection(f"nsq://127.0.0.1:{port}") as connection:
            reader = Reader(connection, JOBS, prefetch=1)
            publish(connection, 1, JOBS.exchange, "jobs", declare=[JOBS])
            reader.wait_for(1)
            running.close()
            start()
            reader.messages[0].ack()  # too late, and no error
            publish(connection, 2, JOBS.exchange, "jobs", declare=[JOBS])
            reader.wait_for(2)
            assert reader.bodies[1] in (1, 2)  # the first comes again


def test_a_broker_that_is_not_there_is_an_error_that_kombu_knows() -> None:
    with Connection("nsq://127.0.0.1:1", connect_timeout=0.2) as connection, pytest.raises(OperationalError):
        connection.ensure_connection(max_retries=1, interval_start=0.01)


# Settings


def test_a_url_gives_addresses_and_the_secret() -> None:
    connection = Connection("nsq://:s3cret@a.example:4250;nsq://:s3cret@b.example")
    settings = broker_settings(connection)
    assert settings.nsqd_addresses == ["a.example:4250", "b.example:4150"]
    assert settings.client.auth_secret == b"s3cret"
    assert broker_settings(Connection("nsq://")).nsqd_addresses == ["localhost:4150"]


def test_options_reach_the_client() -> None:
    options = {
        "lookupd_addresses": "127.0.0.1:4161",
        "msg_timeout_ms": 5000,
        "max_deferral_s": 60.0,
        "client_config": {"snappy": True},
    }
    settings = broker_settings(Connection("nsq://[::1]", transport_options=options))
    assert settings.nsqd_addresses == ["[::1]:4150"]
    assert settings.lookupd_addresses == ["127.0.0.1:4161"]
    assert settings.client.msg_timeout_ms == 5000
    assert settings.client.snappy
    assert settings.consumer.max_requeue_delay_s == 60.0


def test_tls_is_set_up_as_celery_users_know_it(authority: Authority) -> None:
    tls = authority.issue("127.0.0.1").options() | {"tls_required": True}
    with EmbeddedThread(**tls) as nsq:
        url = f"nsq://{nsq.nsqd_tcp_addresses[0]}"
        with Connection(url, ssl={"ca_certs": str(authority.path)}) as connection:
            publish(connection, "one", JOBS.exchange, "jobs", declare=[JOBS])
            reader = Reader(connection, JOBS, no_ack=True)
            reader.wait_for(1)
        with Connection(url) as stranger, pytest.raises(NsqError):
            publish(stranger, "one", JOBS.exchange, "jobs", declare=[JOBS])


def test_the_password_of_the_url_opens_an_nsqd_that_asks_for_a_secret() -> None:
    with AuthServer(grant(entry())) as auth, EmbeddedThread(auth_http_address=(auth.address,)) as nsq:
        address = nsq.nsqd_tcp_addresses[0]
        with Connection(f"nsq://:s3cret@{address}") as connection:
            publish(connection, "one", JOBS.exchange, "jobs", declare=[JOBS])
            reader = Reader(connection, JOBS, no_ack=True)
            reader.wait_for(1)
        assert {tuple(question.params["secret"]) for question in auth.questions} == {("s3cret",)}
        with Connection(f"nsq://{address}") as stranger, pytest.raises(NsqError):
            publish(stranger, "one", JOBS.exchange, "jobs", declare=[JOBS])


def test_tls_without_certificates_is_for_those_who_ask_for_it() -> None:
    assert broker_settings(Connection("nsq://")).client.tls is None
    careful = broker_settings(Connection("nsq://", ssl=True)).client.tls
    assert careful is not None
    assert careful.verify_mode is ssl.CERT_REQUIRED
    careless = broker_settings(Connection("nsq://", ssl={"cert_reqs": ssl.CERT_NONE})).client.tls
    assert careless is not None
    assert careless.verify_mode is ssl.CERT_NONE


def test_only_times_with_a_zone_make_a_message_wait_in_nsqd() -> None:
    now = datetime.now(UTC)
    later = (now + timedelta(hours=1)).isoformat()
    assert 3500 < seconds_until_eta({"headers": {"eta": later}}) <= 3600
    assert seconds_until_eta({"headers": {"eta": (now - timedelta(hours=1)).isoformat()}}) == 0
    for eta in (None, later.partition("+")[0], "soon", 17):
        assert seconds_until_eta({"headers": {"eta": eta}}) == 0
    assert seconds_until_eta({"headers": None}) == 0
