from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from emberq.spark.sink import digest, fitting_count, mpub_body, mpub_bytes
from emberq.wire import command

MESSAGES = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=20)


@given(MESSAGES, st.integers(0, 5))
def test_it_is_the_body_that_the_client_would_send(messages: list[bytes], skipped: int) -> None:
    column = pa.array([b"before"] * skipped + messages + [b"after"], pa.binary()).slice(skipped, len(messages))
    whole = b"".join(mpub_body(column))
    assert command.mpub("t", messages) == b"MPUB t\n" + len(whole).to_bytes(4, "big") + whole
    assert len(whole) == 4 + mpub_bytes(column)


@given(MESSAGES, st.integers(0, 900))
def test_as_many_fit_as_there_is_room_for(messages: list[bytes], room_bytes: int) -> None:
    column = pa.array([b"before", *messages], pa.binary()).slice(1)
    count = fitting_count(column, room_bytes=room_bytes)
    assert sum(4 + len(message) for message in messages[:count]) <= room_bytes
    assert count == len(messages) or sum(4 + len(message) for message in messages[: count + 1]) > room_bytes


@given(MESSAGES, st.randoms(use_true_random=False))
def test_a_digest_stands_for_the_messages_in_whatever_order(messages: list[bytes], random: object) -> None:
    shuffled = list(messages)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    name = digest(pa.array(messages, pa.binary()), salt=b"q/1")
    assert digest(pa.array(shuffled, pa.binary()), salt=b"q/1") == name
    assert digest(pa.array(messages, pa.binary()), salt=b"q/2") != name
    assert digest(pa.array([*messages, b"more"], pa.binary()), salt=b"q/1") != name


def test_where_messages_end_counts_for_the_digest() -> None:
    assert digest(pa.array([b"ab", b"c"]), salt=b"") != digest(pa.array([b"a", b"bc"]), salt=b"")
