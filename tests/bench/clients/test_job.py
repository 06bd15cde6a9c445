"""What becomes of a job that was done."""

from __future__ import annotations

import pytest

from bench.clients.job import Job, Way
from bench.clients.quota import Quota
from bench.failure import Miscounted
from bench.frame import BODY_BYTES


def job(way: Way, *bodies: bytes) -> Job:
    return Job(
        way=way,
        address=("127.0.0.1", 4150),
        topic="t",
        channel="c",
        messages=10,
        seconds=2,
        width=1,
        bodies=bodies or (bytes(BODY_BYTES),),
    )


def quota() -> Quota:
    return Quota(10, on_over=lambda: None)


def test_an_address_is_written_as_clients_take_it() -> None:
    assert job(Way.PUBLISH).nsqd == "127.0.0.1:4150"


@pytest.mark.parametrize(("way", "delivered", "published"), [(Way.BATCHES, 4, 0), (Way.PUBLISH_MANY, 0, 4)])
def test_a_tally_holds_what_was_done_in_time(way: Way, delivered: int, published: int) -> None:
    done = quota()
    done.add(4 * BODY_BYTES, 4)
    done.end()
    tally = job(way).tally(done)
    assert (tally.delivered, tally.published, tally.timed) == (delivered, published, 4)
    assert tally.timed_until_s == done.ended_s


def test_a_publication_counts_all_its_messages() -> None:
    done = quota()
    job(Way.PUBLISH_MANY, *[bytes(BODY_BYTES)] * 3).published(done)
    assert done.count == 3


def test_bodies_of_several_lengths_are_taken_by_turns_and_are_so_long_on_the_average() -> None:
    mixed = job(Way.PUBLISH, bytes(100), bytes(300))
    assert [len(body) for body, _ in zip(mixed.bodies_by_turns(), range(3), strict=False)] == [100, 300, 100]
    done = quota()
    done.add(8 * 200, 8)
    done.end()
    assert job(Way.BATCHES, bytes(100), bytes(300)).tally(done).delivered == 8
    with pytest.raises(Miscounted, match="8 messages with 1600 bytes, 300 each were published"):
        job(Way.BATCHES, bytes(300)).tally(done)


def test_a_run_without_any_message_is_none() -> None:
    done = quota()
    done.end()
    with pytest.raises(Miscounted, match="not a single message within 2 s"):
        job(Way.HANDLER).tally(done)


def test_messages_that_are_not_those_published_are_noticed() -> None:
    done = quota()
    done.add(BODY_BYTES - 1)
    done.end()
    with pytest.raises(Miscounted, match="1 messages with 199 bytes, 200 each were published"):
        job(Way.HANDLER).tally(done)
