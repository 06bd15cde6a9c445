"""A subscription that is watched."""

from __future__ import annotations

from emberq.client.config import ClientConfig, ConsumerConfig
from emberq.client.consumer import Consumer
from emberq.client.message import Message
from emberq.client.observer import ObservedChannel, Observer
from tests.client.scripted_nsqd import ScriptedNsqd
from tests.support.waiting import until


class Listener(Observer):
    def __init__(self) -> None:
        self.requeues: list[tuple[bytes, ObservedChannel]] = []
        self.given_up: list[tuple[bytes, ObservedChannel]] = []

    def requeued(self, message: Message, source: ObservedChannel) -> None:
        self.requeues.append((message.body, source))

    def gave_up(self, message: Message, source: ObservedChannel) -> None:
        self.given_up.append((message.body, source))


async def test_each_message_of_a_batch_that_is_requeued_is_told_of_and_no_other() -> None:
    listener = Listener()
    async with ScriptedNsqd() as nsqd:
        consumer = Consumer("t", "c", nsqd_addresses=[nsqd.address], client_config=ClientConfig(observer=listener))
        async with consumer:
            for body in (b"a", b"b", b"c"):
                nsqd.send(body)
            await until(lambda: consumer.statistics().received == 3)
            async for batch in consumer.batches():
                batch[1].finish()
                batch.requeue(0, backoff=False)
                break
            await nsqd.expect("RDY 100", "FIN", "REQ", "REQ")
    assert listener.requeues == [(b"a", ObservedChannel("t", "c")), (b"c", ObservedChannel("t", "c"))]


async def test_a_message_that_is_given_up_is_told_of() -> None:
    listener = Listener()

    async def handle(message: Message) -> None:
        message.finish()

    async with (
        ScriptedNsqd() as nsqd,
        Consumer(
            "t",
            "c",
            handle,
            nsqd_addresses=[nsqd.address],
            config=ConsumerConfig(max_attempts=2),
            client_config=ClientConfig(observer=listener),
        ),
    ):
        nsqd.send(b"tired", attempts=3)
        nsqd.send(b"fresh")
        await until(lambda: nsqd.commands.count("FIN") == 2, show=lambda: nsqd.commands)
    assert listener.given_up == [(b"tired", ObservedChannel("t", "c"))]
