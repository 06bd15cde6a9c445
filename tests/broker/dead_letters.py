"""What the tests of dead letters and redrive share."""

from __future__ import annotations

import json
from typing import Any

from emberq.storage.data_folder import ChannelPolicy
from tests.broker.rig import Consumer, Rig


def give_up_after(rig: Rig, max_attempts: int, *, channel: str = "c", topic: str = "t", dead: str = "dead") -> None:
    policy = ChannelPolicy(max_attempts=max_attempts, dead_letter_topic=dead)
    rig.broker.set_policy(rig.channel(channel, topic=topic), policy)


def fail(rig: Rig, consumer: Consumer, *, times: int) -> None:
    """Requeue whatever comes, so often, and let the broker do what follows."""
    for _ in range(times):
        for message in consumer.take_new():
            consumer.requeue(message)
        rig.run_due()


def letters(rig: Rig, topic: str = "dead") -> list[dict[str, Any]]:
    """The dead letters that a channel made now finds, read without our own code."""
    return [json.loads(message.body) for message in rig.channel("reader", topic=topic).peek(10_000)]


def dead_bodies(rig: Rig, topic: str = "dead") -> list[str]:
    return [letter["body"] for letter in letters(rig, topic)]
