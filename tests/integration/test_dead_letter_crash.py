"""nsqd is killed while messages are being given up: each is in its channel or in the dead-letter topic, never lost."""

from __future__ import annotations

import random
import sys
from contextlib import closing
from pathlib import Path

from emberq.wire.dead_letter import decode_dead_letter
from tests.support.journal_nsqd import JournalNsqdProcess
from tests.support.raw_client import Client
from tests.support.waiting import wait_until

KILLS = 4
IN_FLIGHT = 20
BODIES = [b"order %d" % number for number in range(200)]


def test_what_is_given_up_is_a_dead_letter_although_nsqd_is_killed(tmp_path: Path) -> None:
    chance = random.Random(KILLS)
    with JournalNsqdProcess(tmp_path / "nsqd") as nsqd:
        nsqd.post("/topic/create", topic="orders")
        nsqd.post("/channel/create", topic="orders", channel="billing", max_attempts=2, dead_letter_topic="orders.dead")
        nsqd.publish("orders", BODIES)
        for _ in range(KILLS):
            fail_at(nsqd, count=chance.randrange(30, 90))
            nsqd.kill()
            nsqd.start()
        fail_at(nsqd, count=sys.maxsize)
        assert not waiting_count(nsqd)
        assert sorted(set(bodies_of_letters(nsqd))) == sorted(BODIES)


def fail_at(nsqd: JournalNsqdProcess, *, count: int) -> None:
    """Take so many messages, if there are so many, and give each back at once; leave without waiting for anything."""
    with closing(Client(("127.0.0.1", nsqd.tcp_port))) as consumer:
        consumer.sub("orders", "billing")
        consumer.rdy(IN_FLIGHT)
        taken = 0
        while taken < count:
            wait_until(lambda: consumer.has_input() or not waiting_count(nsqd))
            if not consumer.has_input():
                return
            consumer.req(consumer.read_message())
            taken += 1


def waiting_count(nsqd: JournalNsqdProcess) -> int:
    """How many messages are still the channel's."""
    (topic,) = nsqd.get("/stats", format="json", topic="orders", channel="billing")["topics"]
    (channel,) = topic["channels"]
    return int(channel["depth"] + channel["in_flight_count"] + channel["deferred_count"])


def bodies_of_letters(nsqd: JournalNsqdProcess) -> list[bytes]:
    """Of all letters that the dead-letter topic holds."""
    bodies: list[bytes] = []
    offset = 0
    while messages := nsqd.get("/topic/peek", topic="orders.dead", offset=offset, count=100)["messages"]:
        letters = [decode_dead_letter(message["body"].encode()) for message in messages]
        bodies += [letter.body for letter in letters if letter is not None]
        offset = messages[-1]["offset"] + 1
    return bodies
