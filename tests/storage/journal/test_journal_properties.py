"""The journal against a list: any history of appends, rolls, crashes, power failures and damage."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from emberq.storage.journal.journal import Journal
from tests.storage.journal.rig import JournalRig, flip, producer, read_all

batches = st.tuples(st.just("append"), st.lists(st.integers(0, 60), min_size=1, max_size=6))
repeats = st.tuples(st.just("repeat"), st.lists(st.integers(0, 3), min_size=1, max_size=1))
others = st.tuples(st.sampled_from(["sync", "reopen", "crash", "power_failure", "trim", "lose_indexes"]), st.just([0]))
histories = st.lists(st.one_of(batches, batches, batches, repeats, others), max_size=25)


@contextmanager
def rig() -> Iterator[JournalRig]:
    """A folder of its own for each example."""
    with tempfile.TemporaryDirectory() as name:
        made = JournalRig(Path(name) / "topic")
        yield made
        made.close()


class Player:
    """Plays a history on a journal and on a list."""

    def __init__(self, journals: JournalRig, *, segment_bytes: int) -> None:
        self.journals = journals
        self.published: list[bytes] = []
        self.sequences: dict[int, int] = {}  # the last number of each producer that is stored
        self.durable = 0  # so many messages must survive a power failure
        self._segment_bytes = segment_bytes
        self._sent = 0
        self.journal = self._opened()

    def _opened(self) -> Journal:
        return self.journals.open(segment_bytes=self._segment_bytes, retention_bytes=600)

    def play(self, history: list[tuple[str, list[int]]]) -> None:
        for name, numbers in history:
            getattr(self, f"_{name}")(*numbers)
            self.compare()

    def compare(self) -> None:
        journal = self.journal
        assert journal.next_offset == len(self.published)
        assert self.durable <= journal.synced_offset <= journal.next_offset
        bodies, gaps = read_all(journal, offset=journal.first_offset, max_bytes=300)
        assert bodies == self.published[journal.first_offset :]
        assert not gaps

    def _append(self, *sizes: int) -> None:
        bodies = [b"%0*d" % (size, index) if size else b"" for index, size in enumerate(sizes, len(self.published))]
        assert self.journals.append(self.journal, *bodies).base_offset == len(self.published)
        self.published += bodies

    def _repeat(self, name: int) -> None:
        """A producer sends its last batch again, then a new one twice."""
        if name in self.sequences:
            assert self._send(name, self.sequences[name])
        self._sent += 1
        assert not self._send(name, self._sent)
        self.published.append(b"%d" % self._sent)
        self.sequences[name] = self._sent
        assert self._send(name, self._sent)

    def _send(self, name: int, sequence: int) -> bool:
        sender = producer(b"%d" % name, sequence)
        return self.journals.append(self.journal, b"%d" % sequence, by=sender).is_repeated

    def _sync(self, _: int) -> None:
        self.journal.sync()
        self.durable = len(self.published)

    def _reopen(self, _: int) -> None:
        self.journal.close()
        self.journal = self._opened()
        self.durable = len(self.published)

    def _crash(self, _: int) -> None:
        self.journal = self._opened()
        self.durable = len(self.published)

    def _power_failure(self, _: int) -> None:
        """Everything behind the last synced offset is torn off the last segment; the active one loses a byte."""
        active = self.journal.segments[-1]
        if self.durable >= active.base_offset and self.durable < len(self.published):
            with active.path.open("r+b") as file:
                file.truncate(active.size_bytes - 1)
        self.journal = self._opened()
        survived = self.journal.next_offset
        assert self.durable <= survived
        del self.published[survived:]
        self.sequences.clear()
        self.durable = survived

    def _trim(self, _: int) -> None:
        self.journal.trim(before_offset=len(self.published), now_ns=0)

    def _lose_indexes(self, _: int) -> None:
        """Only what can be made anew: the first of all segments is still there."""
        if self.journal.first_offset == 0:
            for path in self.journals.folder.glob("*.idx"):
                path.unlink()


@given(histories, st.sampled_from([150, 400, 2000]))
@settings(max_examples=60)
def test_any_history_keeps_every_message_at_its_offset(
    history: list[tuple[str, list[int]]], segment_bytes: int
) -> None:
    with rig() as journals:
        Player(journals, segment_bytes=segment_bytes).play(history)


@given(st.lists(st.integers(0, 80), min_size=1, max_size=12), st.data())
@settings(max_examples=60)
def test_any_damage_shows_and_nothing_false_is_read(sizes: list[int], data: st.DataObject) -> None:
    with rig() as journals:
        journal = journals.open(segment_bytes=400)
        published = [b"%0*d" % (size + 1, number) for number, size in enumerate(sizes)]
        for body in published:
            journals.append(journal, body)
        for _ in range(data.draw(st.integers(1, 6))):
            path = data.draw(st.sampled_from(journals.segments()))
            flip(path, data.draw(st.integers(0, path.stat().st_size - 1)), bit=data.draw(st.integers(0, 7)))
        again = journals.open(segment_bytes=400)
        lost: set[int] = set()
        offset = 0
        while offset < again.next_offset:
            chunk = again.read(offset, max_bytes=200)
            for gap in chunk.gaps:
                lost |= set(range(gap.first_offset, gap.next_offset))
            for batch in chunk.batches:
                assert batch.messages() == published[batch.base_offset : batch.next_offset]
            held = {number for batch in chunk.batches for number in range(batch.base_offset, batch.next_offset)}
            assert set(range(offset, chunk.next_offset)) <= lost | held
            assert not lost & held
            offset = chunk.next_offset
