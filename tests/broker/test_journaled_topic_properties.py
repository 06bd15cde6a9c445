"""Journaled topics against a model: any history leaves them where it says, and no crash loses or invents a message."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from itertools import count
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from emberq.base.clock import NS_PER_MS
from emberq.broker.error import BrokerError
from emberq.broker.store import SyncMode
from tests.broker.journal_model import JournaledBrokerModel, JournaledChannelModel, JournaledTopicModel
from tests.broker.journal_rig import JournalRig, Outcome
from tests.broker.rig import Consumer, Message
from tests.broker.test_broker_properties import MAX_MSG_TIMEOUT_MS, BrokerMachine, choices, topic_names

SEGMENT_BYTES = [400, 4000, 1 << 20]
"""So small that a journal has many segments, middling, and one."""
MEM_QUEUE_SIZES = [0, 1, 3, 1000]
SLOW_DISK = [HealthCheck.too_slow]
"""A step may take as long as the disk does."""


class JournaledBrokerMachine(BrokerMachine):
    """What `BrokerMachine` does, with journaled topics, whose channels can also be moved."""

    @initialize(
        mem_queue_size=st.sampled_from(MEM_QUEUE_SIZES),
        segment_bytes=st.sampled_from(SEGMENT_BYTES),
        sync=st.sampled_from(SyncMode),
    )
    def start(self, mem_queue_size: int, segment_bytes: int, sync: SyncMode) -> None:
        self.model = JournaledBrokerModel()
        self.rig: JournalRig = JournalRig(
            self.folder,
            mem_queue_size=mem_queue_size,
            max_msg_timeout_ms=MAX_MSG_TIMEOUT_MS,
            segment_bytes=segment_bytes,
            sync=sync,
        )
        self.subscribe(topic="t", name="c", timeout_ms=4000, rdy=10)

    def topic_model(self, name: str) -> JournaledTopicModel:
        new = JournaledTopicModel(wall_ns=lambda: self.rig.clock.wall_ns())
        model = self.model.topics.setdefault(name, new)
        assert isinstance(model, JournaledTopicModel)
        return model

    def channel_model(self, topic: str, name: str) -> JournaledChannelModel:
        is_ephemeral = name.endswith("#ephemeral")
        new = JournaledChannelModel(is_ephemeral, max_held_ns=MAX_MSG_TIMEOUT_MS * NS_PER_MS)
        model = self.topic_model(topic).channels.setdefault(name, new)
        assert isinstance(model, JournaledChannelModel)
        return model

    @rule(topic=topic_names, name=st.sampled_from(["c", "d"]), choice=choices)
    def seek(self, topic: str, name: str, choice: int) -> None:
        model, topic_model = self.channel_model(topic, name), self.topic_model(topic)
        channel = self.rig.journaled_channel(name, topic=topic)
        self.model.settle(now_ns=self.now_ns, wall_ns=self.rig.clock.wall_ns())
        offset = choice % (len(topic_model.released) + 1)
        channel.seek(offset)
        model.seek(topic_model.released[offset:], wall_ns=self.rig.clock.wall_ns())


JournaledBrokerMachine.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=60,
    suppress_health_check=SLOW_DISK,
)


class TestAnyHistoryOfJournaledTopics(JournaledBrokerMachine.TestCase):  # type: ignore[misc, valid-type]
    """Any history leaves the broker where the model is."""


class Reader:
    """A channel with one consumer, and what it must still get."""

    def __init__(self, rig: JournalRig, name: str) -> None:
        self.name = name
        self.owed: set[bytes] = set()
        """Messages that were confirmed to their publishers and are not finished."""
        self.finished_ns: dict[bytes, int] = {}
        """When messages were finished, by the wall clock."""
        self.settled: set[bytes] = set()
        """Messages that were finished so long before a crash that they must not come again."""
        self.connect(rig)

    def connect(self, rig: JournalRig) -> None:
        self.consumer = Consumer(rig.channel(self.name), msg_timeout_ms=2000, rdy=5)
        self.held: list[Message] = []

    def receive(self) -> None:
        for message in self.consumer.take_new():
            assert message.body not in self.settled, "finished and saved, and yet it comes again"
            self.held.append(message)

    def finish(self, message: Message, *, wall_ns: int) -> None:
        self.held.remove(message)
        if not self.consumer.finish(message):  # else it has timed out
            self.owed.discard(message.body)
            self.finished_ns[message.body] = wall_ns


class CrashMachine(RuleBasedStateMachine):
    """Publishers, consumers, a slow disk, and crashes that leave the files as they are or cut what was not synced."""

    @initialize(
        mem_queue_size=st.sampled_from(MEM_QUEUE_SIZES),
        sync=st.sampled_from([SyncMode.ALWAYS, SyncMode.ALWAYS, SyncMode.INTERVAL]),
    )
    def start(self, mem_queue_size: int, sync: SyncMode) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.numbers = count()
        self.rig = JournalRig(self.folder, mem_queue_size=mem_queue_size, sync=sync)
        self.readers = [Reader(self.rig, "c"), Reader(self.rig, "d")]
        self.unanswered: list[tuple[list[bytes], Outcome]] = []
        self.sent: set[bytes] = set()
        self.is_settled_ns = 0
        """All that was finished before this moment is in the cursors' files."""

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        self.drain()
        self.rig.broker.close()
        shutil.rmtree(self.folder)

    # Publishing.

    @rule(message_count=st.integers(1, 12))
    def publish(self, message_count: int) -> None:
        bodies = [b"%05d" % next(self.numbers) for _ in range(message_count)]
        self.sent |= set(bodies)
        self.unanswered.append((bodies, self.rig.send(*bodies)))

    @rule(delay_ms=st.sampled_from([10, 3000]))
    def publish_deferred(self, delay_ms: int) -> None:
        body = b"%05d" % next(self.numbers)
        self.sent.add(body)
        blob = b"\0\0\0\x05" + body
        pending = self.rig.topic().publish_deferred(blob, delay_ns=delay_ms * NS_PER_MS)
        self.unanswered.append(([body], Outcome(pending)))

    # The disk.

    @rule(is_slow=st.booleans())
    def change_speed(self, is_slow: bool) -> None:
        self.rig.slow_disk.is_slow = is_slow
        if not is_slow:
            self.rig.slow_disk.work_off()

    @rule(work_count=st.integers(1, 3))
    def work_off(self, work_count: int) -> None:
        self.rig.slow_disk.work_off(work_count)

    # Consuming.

    @rule(choice=choices, part=st.integers(1, 5), backwards=st.booleans())
    def finish(self, choice: int, part: int, backwards: bool) -> None:
        reader = self.readers[choice % 2]
        chosen = reader.held[-part:] if backwards else reader.held[:part]
        for message in chosen:
            reader.finish(message, wall_ns=self.rig.clock.wall_ns())

    @rule(choice=choices, delay_ms=st.sampled_from([0, 0, 500, 10_000]))
    def requeue(self, choice: int, delay_ms: int) -> None:
        reader = self.readers[choice % 2]
        if reader.held and reader.consumer.subscriber.in_flight_count:
            message = reader.held.pop(0)
            with suppress(BrokerError):  # it may have timed out
                reader.consumer.requeue(message, delay_ms=delay_ms)

    @rule(ms=st.sampled_from([10, 1000, 1000, 2500]))
    def advance(self, ms: int) -> None:
        before_ns = self.rig.clock.wall_ns()
        self.rig.advance(ms=ms)
        if ms >= 1000 and not self.rig.slow_disk.is_slow:
            self.is_settled_ns = before_ns

    # Ends.

    @rule()
    def crash(self) -> None:
        self.note_answers()
        self.rig.crash()
        self.reconnect()

    @rule(part=st.integers(0, 100))
    def lose_power(self, part: int) -> None:
        """What is not synced may be on the disk or not, from any byte on. All of it is in one segment here."""
        self.note_answers()
        journal = self.rig.journaled_topic().journal
        chunk = journal.read(journal.synced_offset, max_bytes=1 << 30)
        unsynced = [batch for batch in chunk.batches if batch.base_offset >= journal.synced_offset]
        cut_bytes = sum(batch.length for batch in unsynced) * part // 100
        if self.rig.settings.sync is SyncMode.INTERVAL:  # that is what was risked
            lost = {body for batch in unsynced for body in batch.messages()} if cut_bytes else set()
            for reader in self.readers:
                reader.owed -= lost
        self.rig.crash(before_start=lambda: self.cut_off(cut_bytes))
        self.reconnect()

    def cut_off(self, cut_bytes: int) -> None:
        path = self.rig.last_segment()
        content = path.read_bytes()
        path.write_bytes(content[: len(content) - cut_bytes])

    @rule()
    def restart(self) -> None:
        self.rig.slow_disk.is_slow = False
        self.rig.slow_disk.work_off()
        self.note_answers()
        self.is_settled_ns = self.rig.clock.wall_ns() + 1
        self.rig.restart()
        self.reconnect()

    def reconnect(self) -> None:
        self.unanswered.clear()
        for reader in self.readers:
            saved = {body: at_ns for body, at_ns in reader.finished_ns.items() if at_ns < self.is_settled_ns}
            reader.settled |= saved.keys()
            reader.finished_ns = saved
            reader.connect(self.rig)

    # What must hold.

    @invariant()
    def note_answers(self) -> None:
        if not hasattr(self, "rig"):
            return
        for bodies, outcome in self.unanswered:
            if outcome.is_known:
                assert outcome.is_stored
                for reader in self.readers:
                    reader.owed |= set(bodies) - reader.finished_ns.keys()
        self.unanswered = [(bodies, outcome) for bodies, outcome in self.unanswered if not outcome.is_known]
        for reader in self.readers:
            reader.receive()

    def drain(self) -> None:
        """In the end everything that is owed comes, and nothing that was never sent."""
        self.rig.slow_disk.is_slow = False
        self.rig.slow_disk.work_off()
        self.note_answers()
        for reader in self.readers:
            came: set[bytes] = set()
            reader.consumer.ready(1000)
            for _ in range(10):
                reader.receive()
                for message in list(reader.held):
                    came.add(message.body)
                    reader.finish(message, wall_ns=self.rig.clock.wall_ns())
                self.rig.advance(ms=11_000)
            stats = self.rig.stats(reader.name)
            assert (stats.depth, stats.in_flight_count, stats.deferred_count) == (0, 0, 0)
            assert not reader.owed, "confirmed and lost"
            assert came <= self.sent, "invented"
            assert self.rig.journaled_channel(reader.name).low_water == self.rig.journaled_topic().stored_offset


CrashMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=50,
    suppress_health_check=SLOW_DISK,
)


class TestAnyCrash(CrashMachine.TestCase):  # type: ignore[misc, valid-type]
    """Whatever happens, what was confirmed is delivered."""
