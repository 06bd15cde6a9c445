"""Who has stored what last."""

from __future__ import annotations

from emberq.storage.journal.summary import LastBatch, ProducerTable
from tests.storage.journal.rig import producer


def test_a_number_up_to_the_last_one_is_stored_already() -> None:
    table = ProducerTable(max_producers=10)
    table.record(b"p".ljust(16, b"."), LastBatch(5, 100, 3))
    last = LastBatch(5, 100, 3)
    assert last.next_offset == 103
    assert [table.stored_already(producer(b"p", sequence)) for sequence in (4, 5, 6)] == [last, last, None]
    assert table.stored_already(producer(b"q", 1)) is None


def test_the_one_that_was_silent_longest_is_forgotten() -> None:
    table = ProducerTable(max_producers=2)
    for name in (b"p", b"q", b"p", b"r"):
        table.record(name, LastBatch(1, 0, 1))
    assert [producer_id for producer_id, _ in table.items()] == [b"p", b"r"]
    assert len(table) == 2
    assert table.last(b"q") is None
