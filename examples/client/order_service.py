"""A service that consumes orders, writes bills, and ends in order when it is told to.

    python order_service.py [NSQD_ADDRESS]

Orders that cannot be read are given up after three attempts and go to the topic `orders.dead`; give them another chance
with `emberq requeue-dead orders.dead --to orders`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys

from emberq import Consumer, ConsumerConfig, Message, Producer

CONFIG = ConsumerConfig(max_in_flight=200, max_attempts=3, dead_letter_topic="orders.dead")


class BillingService:
    """Turns each order into a bill. The bill is confirmed before the order is finished, so none is lost."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def handle(self, message: Message) -> None:
        """Whatever this raises brings the order back later."""
        order = json.loads(message.body)
        bill = {"order": order["id"], "amount": sum(item["price"] for item in order["items"])}
        await self._producer.publish("bills", json.dumps(bill).encode())


async def main(address: str) -> None:
    """Run until SIGINT or SIGTERM."""
    async with Producer(address) as producer:
        service = BillingService(producer)
        async with Consumer("orders", "billing", service.handle, nsqd_addresses=[address], config=CONFIG) as consumer:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, lambda: loop.create_task(consumer.stop()))
            await consumer.wait_stopped()
    print("stopped")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4150"))
