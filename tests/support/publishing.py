"""What tests of publishing share: peers that record what they are sent, and ways to send them much."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from emberq.client.config import ReconnectDelay
from emberq.client.producer import Producer
from tests.support.scripted_peer import Peer
from tests.support.waiting import until

AT_ONCE = ReconnectDelay(first_s=0.001, max_s=0.001)
NEVER_AGAIN = ReconnectDelay(first_s=3600, max_s=3600)


class Recorder:
    """A script that confirms what it is sent, and remembers it; `limit` is how much it confirms before it dies."""

    def __init__(self, *, limit: int | None = None) -> None:
        self.limit = limit
        self.bodies: list[bytes] = []
        self.connection_count = 0

    async def __call__(self, peer: Peer) -> None:
        self.connection_count += 1
        await peer.accept()
        while self.limit is None or len(self.bodies) < self.limit:
            self.bodies.append(await peer.read_publication())
            peer.respond(b"OK")


class Mute:
    """A script that reads and never answers."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, peer: Peer) -> None:
        await peer.accept()
        while True:
            self.bodies.append(await peer.read_publication())


class Publishing:
    """Tasks that publish one message after the other until they are told to stop."""

    def __init__(self, producer: Producer, topic: str, *, task_count: int = 4) -> None:
        self._producer = producer
        self._topic = topic
        self._is_stopping = False
        self.confirmed: set[bytes] = set()
        self._tasks = [asyncio.create_task(self._publish(number)) for number in range(task_count)]

    async def _publish(self, number: int) -> None:
        serial = 0
        while not self._is_stopping:
            body = b"%d-%d" % (number, serial)
            await self._producer.publish(self._topic, body)
            self.confirmed.add(body)
            serial += 1
            await asyncio.sleep(0.002)  # traffic without end need not be heavy

    async def stop(self) -> None:
        self._is_stopping = True
        await asyncio.gather(*self._tasks)


async def connect_all(producer: Producer) -> None:
    producer.start()
    await until(lambda: all(health.is_connected for health in producer.health()))


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def publish_all(producer: Producer, bodies: Sequence[bytes]) -> None:
    await asyncio.gather(*(producer.publish("t", body) for body in bodies))
