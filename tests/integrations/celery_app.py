"""The Celery application whose worker `test_celery.py` starts; its settings come from there."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import Queue

import emberq.integrations.celery  # noqa: F401 - makes nsq:// known

SETTINGS: dict[str, Any] = json.loads(os.environ["EMBERQ_CELERY_TEST"])

app = Celery("tests", broker=SETTINGS["broker"], backend="rpc://")
app.conf.update(
    broker_transport_options=SETTINGS["transport_options"],
    broker_connection_retry_on_startup=True,
    task_queues=[Queue("celery"), Queue("doomed")],
    worker_prefetch_multiplier=1,
    beat_schedule={"tick": {"task": "tests.tick", "schedule": 0.5}},
)


def note(name: str, text: object) -> None:
    """Leave a line for the test to read."""
    with (Path(SETTINGS["folder"]) / name).open("a") as file:
        file.write(f"{text}\n")


@app.task(name="tests.add")
def add(first: int, second: int) -> int:
    return first + second


@app.task(name="tests.begun_at")
def begun_at() -> float:
    return time.time()


@app.task(name="tests.tick", ignore_result=True)
def tick() -> None:
    note("ticks", time.time())


@app.task(name="tests.stubborn", bind=True, max_retries=5)
def stubborn(self: Any, *, failures: int) -> int:
    """Fails so many times."""
    if self.request.retries < failures:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task(name="tests.rejected_once", bind=True, acks_late=True)
def rejected_once(self: Any) -> bool:
    """Whether it came again, after it was rejected the first time."""
    from celery.exceptions import Reject

    if not self.request.delivery_info["redelivered"]:
        raise Reject(requeue=True)
    return True


@app.task(name="tests.slow", bind=True, acks_late=True)
def slow(self: Any, number: int, *, seconds: float = 0.0, hangs_on: str = "") -> str:
    """Notes when it begins and when it is done; returns the name of its worker."""
    note("begun", number)
    time.sleep(60 if self.request.hostname == hangs_on else seconds)
    note("done", number)
    return str(self.request.hostname)


@app.task(name="tests.parent", bind=True)
def parent(self: Any) -> str:
    """Publishes from a process that the worker forked."""
    return str(add.delay(20, 22).id)
