"""What nsqd brings again is recognized, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from emberq.spark.channel_frames import Arrived, Messages
from emberq.spark.channel_spool import Spool, without_stored
from emberq.spark.journal_offset import Place
from tests.spark.message_frames import HERE, array, frame, messages

ELSEWHERE = Place("other:4150", "t")


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    """The messages 1, 2 and 3 are there."""
    with Spool(tmp_path) as opened:
        opened.append([messages(1, 2)])
        opened.append([messages(3)])
        opened.prune(before=1)
        yield opened


def arrived(*frames: bytes, in_doubt_until_ns: int = -1, origin: Place = HERE) -> Arrived:
    return Arrived(origin, array(*frames), in_doubt_until_ns, lambda _data: None)


def frames_in(batches: Sequence[Messages]) -> list[bytes]:
    return [each for batch in batches for each in batch.frames.to_pylist()]


def test_messages_that_were_delivered_before_are_looked_up(spool: Spool) -> None:
    fresh = without_stored([arrived(frame(3, attempts=2), frame(4, attempts=2), frame(5))], spool)
    assert frames_in(fresh) == [frame(5), frame(4, attempts=2)]


def test_after_a_crash_of_nsqd_messages_are_looked_up_that_seem_to_be_new(spool: Spool) -> None:
    fresh = without_stored([arrived(frame(2), frame(3), frame(4), in_doubt_until_ns=3)], spool)
    assert frames_in(fresh) == [frame(4)]


def test_a_message_with_the_id_of_another_is_not_taken_for_it(spool: Spool) -> None:
    """As when a journaled topic is deleted and made again: its ids begin anew."""
    anew = frame(1, attempts=2, time_ns=2)
    assert frames_in(without_stored([arrived(anew)], spool)) == [anew]
    assert frames_in(without_stored([arrived(frame(1, attempts=2), origin=ELSEWHERE)], spool)) == [frame(1, attempts=2)]


def test_a_message_that_comes_twice_at_the_same_time_is_stored_once(spool: Spool) -> None:
    early, late = arrived(frame(7), frame(8, attempts=2)), arrived(frame(7, attempts=2), frame(8, attempts=3))
    assert frames_in(without_stored([early, late], spool)) == [frame(7), frame(8, attempts=2)]
    assert frames_in(without_stored([late, early], spool)) == [frame(7), frame(8, attempts=3)]


def test_a_batch_of_which_all_is_stored_is_left_out(spool: Spool) -> None:
    known, fresh = arrived(frame(1, attempts=2)), arrived(frame(9), origin=ELSEWHERE)
    assert without_stored([known], spool) == []
    assert [batch.origin for batch in without_stored([known, fresh], spool)] == [ELSEWHERE]
