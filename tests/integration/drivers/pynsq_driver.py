"""Carries out a plan with pynsq: `python -m tests.integration.drivers.pynsq_driver PLAN` prints the report.

pynsq runs on tornado's loop, which is asyncio's. Writer and Reader share it, so that messages are consumed
while others are still being published, as in a service that does both.
"""

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any

import nsq
from tornado.httpclient import AsyncHTTPClient

from tests.integration.drivers.ledger import Fate, Ledger
from tests.integration.plan import Plan, body_of

# Unanswered PUBs on the writer's connection: more than one, as pynsq does not wait, yet few enough for
# the loop to get round to the reader's messages long before they time out.
_PIPELINED_PUBLISHES = 50

_POLL_S = 0.01


class _ErrorLog(logging.Handler):
    """pynsq tells of errors from nsqd only by logging them."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(level=logging.ERROR)
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        self._ledger.error(record.getMessage())


class PynsqDriver:
    """One Writer and one Reader on the plan's topic."""

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        self._plan = plan
        self._ledger = ledger
        self._holds: set[asyncio.Task[None]] = set()  # the loop keeps only weak references to tasks

    async def run(self) -> None:
        """Publishes and consumes until every message is finished, then listens for any that come back."""
        plan = self._plan
        writer = nsq.Writer([plan.address], **_connection_options(plan))
        reader = nsq.Reader(
            plan.topic,
            plan.channel,
            message_handler=self._handle,
            **_whereabouts(plan),
            max_in_flight=plan.max_in_flight,
            # pynsq's first backoff is a 35th of this: long enough to be one, short enough for a test.
            max_backoff_duration=1,
            msg_timeout=plan.msg_timeout_ms / 1000,
            requeue_delay=0,
            **_connection_options(plan),
        )
        # One that asks nsqlookupd finds nothing until something has been published.
        await _until(lambda: writer.conns and (reader.conns or plan.lookupd_http_address))
        await self._publish(writer)
        await _until(lambda: self._ledger.complete)
        await asyncio.sleep(plan.linger_ms / 1000)

    async def _publish(self, writer: nsq.Writer) -> None:
        topic = self._plan.topic
        window = asyncio.Semaphore(_PIPELINED_PUBLISHES)

        async def publish(send: Callable[..., object], *arguments: object, count: int = 1) -> None:
            """Waits for the answer to one command; `send` is a method of the writer."""
            answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            async with window:
                send(topic, *arguments, callback=lambda _conn, answer: answered.set_result(answer))
                answer = await answered
            if answer == b"OK":
                self._ledger.published(count)
            else:
                self._ledger.error(f"{send.__name__}: {answer!r}")

        for number in self._plan.deferred:
            self._ledger.deferring(number)
            await publish(writer.dpub, self._plan.defer_ms, body_of(number))
        await asyncio.gather(*(publish(writer.pub, body_of(number)) for number in self._plan.singles))
        for batch in self._plan.batches:
            await publish(writer.mpub, [body_of(number) for number in batch], count=len(batch))

    def _handle(self, message: nsq.Message) -> bool | None:
        """The handler of the Reader: True finishes, False requeues and backs off, None answers later."""
        fate = self._ledger.delivered(message.body, attempts=message.attempts)
        if fate is Fate.FINISH:
            self._ledger.finished(message.body)
            return True
        if fate is Fate.REQUEUE:
            return False
        message.enable_async()
        if fate is Fate.TOUCH:
            hold = asyncio.get_running_loop().create_task(self._hold(message))
            self._holds.add(hold)
            hold.add_done_callback(self._holds.discard)
        return None

    async def _hold(self, message: nsq.Message) -> None:
        """Works on a message for longer than its timeout."""
        for held_ms in range(0, self._plan.hold_ms, self._plan.touch_interval_ms):
            await asyncio.sleep(min(self._plan.touch_interval_ms, self._plan.hold_ms - held_ms) / 1000)
            message.touch()
            self._ledger.touched()
        self._ledger.finished(message.body)
        message.finish()


def _whereabouts(plan: Plan) -> dict[str, Any]:
    """How the Reader gets to know of nsqd."""
    if plan.lookupd_http_address:
        return {"lookupd_http_addresses": [plan.lookupd_url], "lookupd_poll_interval": plan.lookup_interval_s}
    return {"nsqd_tcp_addresses": [plan.address]}


def _show_secret(plan: Plan) -> None:
    """Tell tornado's client, by which pynsq asks nsqlookupd, what to show. pynsq would log a secret in the address."""
    shown = {"auth_username": "pynsq", "auth_password": plan.lookupd_secret}
    files = {"ca_certs": plan.authority_path, "client_cert": plan.certificate_path, "client_key": plan.key_path}
    AsyncHTTPClient.configure(None, defaults={**shown, **files})


def _connection_options(plan: Plan) -> dict[str, Any]:
    """What Writer and Reader have in common."""
    options: dict[str, Any] = {"heartbeat_interval": plan.heartbeat_interval_ms // 1000}
    if plan.authority_path:
        options |= {"tls_v1": True, "tls_options": {"ca_certs": plan.authority_path}}
    if plan.certificate_path:
        options["tls_options"] |= {"certfile": plan.certificate_path, "keyfile": plan.key_path}
    if plan.compression:
        options[plan.compression] = True
    if plan.auth_secret:
        options["auth_secret"] = plan.auth_secret
    return options


async def _until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(_POLL_S)


async def _main() -> None:
    plan = Plan.from_json(sys.argv[1])
    ledger = Ledger(plan)
    logging.getLogger("nsq").addHandler(_ErrorLog(ledger))
    if plan.lookupd_secret:
        _show_secret(plan)
    try:
        await asyncio.wait_for(PynsqDriver(plan, ledger).run(), plan.deadline_ms / 1000)
    except TimeoutError:
        ledger.error("the deadline passed before every message was finished")
    print(ledger.to_json(), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main())
