"""The consumer: `python manage.py bill_orders`, until SIGTERM or Ctrl-C."""

import json
import signal
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import close_old_connections

from emberq import ConsumerConfig, Message
from emberq.sync import Consumer
from shop.models import Order


def bill(message: Message) -> None:
    """Runs in a thread. A message may come twice, so billing twice must do no harm."""
    close_old_connections()  # as Django does before each request: the database may have closed an idle one
    Order.objects.filter(pk=json.loads(message.body)["id"]).update(is_billed=True)


class Command(BaseCommand):
    """Bills orders as they come."""

    help = "bill orders as they come"

    def handle(self, **_options: Any) -> None:
        config = ConsumerConfig(concurrency=4, max_attempts=5, dead_letter_topic="orders.dead")
        consumer = Consumer("orders", "billing", nsqd_addresses=[settings.NSQD], config=config)
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop(wait=False))
        consumer.run(bill)
        self.stdout.write("stopped")
