"""Carries out a plan with gnsq: `python -m tests.integration.drivers.gnsq_driver PLAN` prints the report.

gnsq runs on gevent: every connection has a greenlet that reads, and calls the handler in it. gnsq has no
option for the message timeout, so nsqd must be started with the plan's as its default.
"""

import ssl
import sys
from collections.abc import Callable
from typing import Any

import gevent
import gnsq
import urllib3
from gevent.threadpool import ThreadPool

from tests.integration.drivers.ledger import Fate, Ledger
from tests.integration.plan import Plan, body_of

_POLL_S = 0.01

# The first backoff of gnsq is a random part of a second, cut off at this.
_MAX_BACKOFF_S = 0.05


class MendedProducer(gnsq.Producer):  # type: ignore[misc]  # gnsq has no type hints
    """A Producer that can use TLS and compression, with any nsqd.

    gnsq's own takes the OK that ends an upgrade for the answer to a publish, which fails: it has none waiting yet.
    """

    def __init__(self, *addresses: str, **options: Any) -> None:
        super().__init__(*addresses, **options)
        self._in_use: list[gnsq.NsqdTCPClient] = []

    def handle_connection_success(self, connection: gnsq.NsqdTCPClient) -> None:
        self._in_use.append(connection)
        super().handle_connection_success(connection)

    def handle_response(self, connection: gnsq.NsqdTCPClient, response: bytes) -> None:
        if connection in self._in_use:
            super().handle_response(connection, response)


class SecretLookupd(gnsq.LookupdClient):  # type: ignore[misc]
    """Asks an nsqlookupd by HTTPS, and shows it a secret and a certificate. gnsq's own client shows neither."""

    def __init__(self, plan: Plan) -> None:
        host, _, port = plan.lookupd_http_address.partition(":")
        files = {"ca_certs": plan.authority_path, "cert_file": plan.certificate_path, "key_file": plan.key_path}
        super().__init__(host, int(port), connection_class=urllib3.HTTPSConnectionPool, **files)
        self._shown = {"Authorization": f"Bearer {plan.lookupd_secret}"}

    def lookup(self, topic: str) -> Any:
        return self._request("GET", "/lookup", headers=self._shown, fields={"topic": topic})


class GnsqDriver:
    """One Producer and one Consumer on the plan's topic."""

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        self._plan = plan
        self._ledger = ledger
        self._clients: list[gnsq.Producer | gnsq.Consumer] = []

    def run(self) -> None:
        """Publishes and consumes until every message is finished, then listens for any that come back."""
        plan = self._plan
        producer = MendedProducer(plan.address, **_connection_options(plan))
        consumer = gnsq.Consumer(
            plan.topic,
            plan.channel,
            **_whereabouts(plan),
            message_handler=self._handle,
            max_in_flight=plan.max_in_flight,
            max_backoff_duration=_MAX_BACKOFF_S,
            **_connection_options(plan),
        )
        if plan.lookupd_secret:
            consumer.lookupds[:] = [SecretLookupd(plan)]
        self._clients += [consumer, producer]
        consumer.on_error.connect(self._on_error)
        consumer.on_exception.connect(self._on_error)
        producer.on_error.connect(self._on_error)
        consumer.start(block=False)
        producer.start()
        self._publish(producer)
        _until(lambda: self._ledger.complete)
        gevent.sleep(plan.linger_ms / 1000)

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def _publish(self, producer: gnsq.Producer) -> None:
        topic = self._plan.topic
        for number in self._plan.deferred:
            self._ledger.deferring(number)
            producer.publish(topic, body_of(number), defer=self._plan.defer_ms)
            self._ledger.published(1)
        # Without `raise_error` gnsq does not wait: all of these are under way at once.
        answers = [producer.publish(topic, body_of(number), raise_error=False) for number in self._plan.singles]
        for answer in answers:
            answer.get()
            self._ledger.published(1)
        for batch in self._plan.batches:
            producer.multipublish(topic, [body_of(number) for number in batch])
            self._ledger.published(len(batch))

    def _handle(self, _consumer: gnsq.Consumer, message: gnsq.Message) -> None:
        """The handler of the Consumer, which finishes the message unless told otherwise."""
        fate = self._ledger.delivered(message.body, attempts=message.attempts)
        if fate is Fate.FINISH:
            self._ledger.finished(message.body)
            return
        if fate is Fate.REQUEUE:
            raise gnsq.errors.NSQRequeueMessage
        message.enable_async()
        if fate is Fate.TOUCH:
            gevent.spawn(self._hold, message)

    def _hold(self, message: gnsq.Message) -> None:
        """Works on a message for longer than its timeout."""
        for held_ms in range(0, self._plan.hold_ms, self._plan.touch_interval_ms):
            gevent.sleep(min(self._plan.touch_interval_ms, self._plan.hold_ms - held_ms) / 1000)
            message.touch()
            self._ledger.touched()
        self._ledger.finished(message.body)
        message.finish()

    def _on_error(self, _sender: object, error: Exception, **_details: object) -> None:
        self._ledger.error(repr(error))


def _whereabouts(plan: Plan) -> dict[str, Any]:
    """How the Consumer gets to know of nsqd."""
    if plan.lookupd_http_address:
        return {"lookupd_http_addresses": [plan.lookupd_url], "lookupd_poll_interval": plan.lookup_interval_s}
    return {"nsqd_tcp_addresses": plan.address}


def _connection_options(plan: Plan) -> dict[str, Any]:
    """What Producer and Consumer have in common."""
    options: dict[str, Any] = {"heartbeat_interval": plan.heartbeat_interval_ms // 1000}
    if plan.authority_path:
        options["tls_v1"] = True
        options["tls_options"] = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": plan.authority_path}
    if plan.certificate_path:
        options["tls_options"] |= {"certfile": plan.certificate_path, "keyfile": plan.key_path}
    if plan.compression:
        options[plan.compression] = True
    if plan.auth_secret:
        options["auth_secret"] = plan.auth_secret.encode()
    return options


def _until(condition: Callable[[], object]) -> None:
    while not condition():
        gevent.sleep(_POLL_S)


def _main() -> None:
    plan = Plan.from_json(sys.argv[1])
    ledger = Ledger(plan)
    driver = GnsqDriver(plan, ledger)
    try:
        with gevent.Timeout(plan.deadline_ms / 1000):
            driver.run()
    except gevent.Timeout:
        ledger.error("the deadline passed before every message was finished")
    print(ledger.to_json(), flush=True)
    ThreadPool(1).apply(sys.stdin.read)  # a thread of its own, so that the greenlets go on answering heartbeats
    driver.close()


if __name__ == "__main__":
    _main()
