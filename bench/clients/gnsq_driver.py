"""gnsq: a plain function for each message, and publications that are waited for in greenlets or by their results.

It brings gevent with it, and greenlets in place of tasks. The one that reads and handles messages gives way to nobody
as long as there is something to read, not even to timers, so the handler has to look at the clock.
"""

from __future__ import annotations

import time

import gevent
import gnsq
from gevent.event import Event

from bench.clients.job import Job, Way
from bench.clients.quota import Quota
from bench.crew import Tally


class GnsqLoad:
    """One Consumer or one Producer."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._bodies = job.bodies_by_turns()
        self._over = Event()
        self._quota = Quota(job.messages, on_over=self._over.set)
        self._until_s = 0.0

    def run(self) -> Tally:
        self._until_s = time.monotonic() + self._job.seconds
        gevent.spawn_later(self._job.seconds, self._quota.end)
        if self._job.way.is_consuming:
            self._consume()
        else:
            self._publish()
        return self._job.tally(self._quota)

    def _consume(self) -> None:
        job = self._job
        consumer = gnsq.Consumer(
            job.topic, job.channel, job.nsqd, message_handler=self._handle, max_in_flight=job.width
        )
        consumer.start(block=False)
        self._over.wait()
        consumer.close()

    def _handle(self, _: gnsq.Consumer, message: gnsq.Message) -> None:
        self._quota.add(len(message.body))
        if self._quota.is_over or time.monotonic() > self._until_s:
            self._quota.end()
            gevent.sleep(0)

    def _publish(self) -> None:
        producer = gnsq.Producer(self._job.nsqd)
        producer.start()
        if self._job.way is Way.PUBLISH_AT_ONCE:
            self._publish_at_once(producer)
        else:
            gevent.joinall(
                [gevent.spawn(self._publish_one_by_one, producer) for _ in range(self._job.width)], raise_error=True
            )
        producer.close()

    def _publish_one_by_one(self, producer: gnsq.Producer) -> None:
        job = self._job
        while not self._quota.is_over:
            if job.way is Way.PUBLISH_MANY:
                producer.multipublish(job.topic, job.bodies)
            else:
                producer.publish(job.topic, next(self._bodies))
            job.published(self._quota)

    def _publish_at_once(self, producer: gnsq.Producer) -> None:
        job = self._job
        while not self._quota.is_over:
            results = [producer.publish(job.topic, next(self._bodies), raise_error=False) for _ in range(job.width)]
            for result in results:
                result.get()
                job.published(self._quota)
