"""Whatever consumers do with messages: each ends up finished or among the dead letters, once, and never beyond its
attempts. Also across restarts, which are clean here; see `test_dead_letter` for those that are not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberq.broker.error import NotOwnerError
from tests.broker.dead_letters import dead_bodies, give_up_after
from tests.broker.journal_rig import JournalRig
from tests.broker.rig import Consumer, Message, Rig

MSG_TIMEOUT_MS = 1000
MAX_ATTEMPTS = 2

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 5)),
        st.tuples(st.just("finish"), st.integers(0, 9)),
        st.tuples(st.just("requeue"), st.integers(0, 9)),
        st.tuples(st.just("defer"), st.integers(0, 9)),
        st.tuples(st.just("fail"), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([1, MSG_TIMEOUT_MS, 10_000])),
        st.tuples(st.just("refuse"), st.booleans()),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    min_size=10,
    max_size=40,
)


class History:
    """Plays steps, and keeps count."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.published: list[str] = []
        self.finished: Counter[str] = Counter()
        self.deliveries: Counter[str] = Counter()
        give_up_after(rig, MAX_ATTEMPTS)
        self._connect()

    def _connect(self) -> None:
        self._consumer: Consumer = self.rig.consumer(rdy=4, msg_timeout_ms=MSG_TIMEOUT_MS)
        self._seen = 0

    def play(self, step: str, number: int) -> None:
        match step:
            case "publish":
                if self.rig.broker.gate.reason is None:
                    bodies = [f"{len(self.published) + index}" for index in range(number)]
                    self.published += bodies
                    self.rig.publish(*(body.encode() for body in bodies))
            case "wait":
                self.rig.advance(ms=number)
            case "refuse":
                self.rig.broker.gate.reason = "full" if number else None
            case "restart":
                self._consumer.leave()
                self._count()
                self.rig.restart()
                self._connect()
            case "fail":
                for index in range(len(self._held())):
                    self._answer("requeue", index)
            case _:
                self._answer(step, number)
        self.rig.run_due()
        self._count()

    def _held(self) -> list[Message]:
        """What the consumer has not answered."""
        why_not = self._consumer.channel.why_not
        latest = {message.id: message for message in self._consumer.received}
        return [message for message in latest.values() if isinstance(why_not(message.id), NotOwnerError)]

    def _answer(self, step: str, number: int) -> None:
        messages = self._held()
        if not messages:
            return
        message = messages[number % len(messages)]
        if step == "finish":
            self._consumer.finish(message)
            self.finished[message.body.decode()] += 1
        else:
            self._consumer.requeue(message, delay_ms=500 if step == "defer" else 0)

    def _count(self) -> None:
        for message in self._consumer.received[self._seen :]:
            self.deliveries[message.body.decode()] += 1
            assert message.attempts <= MAX_ATTEMPTS
        self._seen = len(self._consumer.received)

    def let_all_die(self) -> None:
        self.rig.broker.gate.reason = None
        for _ in range(200):
            self.play("wait", 10_000)
            if not (self.rig.stats().depth or self.rig.stats().in_flight_count or self.rig.stats().deferred_count):
                return
        raise AssertionError("some messages neither live nor die")


@pytest.mark.parametrize("kind", ["classic", "journaled"])
@settings(max_examples=30)
@given(steps=STEPS)
def test_every_message_is_finished_or_buried_once(kind: str, steps: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder, Rig() if kind == "classic" else JournalRig(Path(folder)) as rig:
        history = History(rig)
        history.play("publish", 5)
        for step, number in steps:
            history.play(step, number)
        history.let_all_die()
        dead = Counter(dead_bodies(rig) if rig.broker.find_topic("dead") else [])
        assert history.finished + dead == Counter(history.published)
        assert all(history.deliveries[body] == MAX_ATTEMPTS for body in dead)
