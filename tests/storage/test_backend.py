"""The queue that keeps nothing, and that both queues are backends."""

from __future__ import annotations

from emberq.storage.backend import Backend, NullQueue
from tests.storage.rig import Rig, batch


def test_the_null_queue_drops_what_is_put() -> None:
    queue = NullQueue()
    queue.open()
    queue.put(batch(b"a", b"b"))
    assert queue.depth == 0
    assert queue.take(max_count=10, max_bytes=1000) is None
    assert queue.peek(max_count=10) is None
    queue.sync()
    queue.empty()
    queue.close()
    queue.delete()


def test_both_queues_can_stand_behind_a_topic(rig: Rig) -> None:
    backends: list[Backend] = [NullQueue(), rig.queue()]
    for backend in backends:
        backend.put(batch(b"a"))
        backend.delete()
        assert backend.depth == 0
    assert rig.names() == set()
