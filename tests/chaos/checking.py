"""The judge of a run: reads a complete history and says which promises were broken.

    lost            confirmed, and not delivered and finished in the end, though the channel has nothing left
    stuck           the same while the channel has something left; or a delivery that came far too late
    invented        delivered or stored, and never published: a changed body, or a message that no publisher made
    doubled         stored twice although it was numbered; or delivered again though its FIN was long safe
    out of order    numbered batches of one publisher lie in the journal in another order than that of their numbers
    reissued        one offset of a journal was given to two messages

What may come again: a message whose FIN was written shortly before its nsqd was killed or its connection was lost. How
shortly depends on the promise: `again_s` for a kill, which is how often the place of a channel is saved, and TRANSIT_S
for a connection. Time during which a fault was going on does not count: a FIN may be on its way that long. Nor does
time in which the run itself stood still on a busy machine: it looks at the memory of each nsqd every second, so a gap
between two looks tells that its clients sent nothing meanwhile.

A dead letter ends a message like a FIN. But a message and its letter may both be there after a crash, so either may
come again.

What may be lost: on a topic that is not to survive a kill, everything that was published before one.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from tests.chaos.history import DAMAGED, NONE, Event, Kind

TRANSIT_S = 2.0
"""What a FIN may take to nsqd while no fault is going on, on a machine that is busy with other things."""
STANDSTILL_S = 2.0
"""Between two looks at the memory of an nsqd."""
STUCK_S = 30.0
"""What a delivery may take while no fault is going on: clients that lost nsqd come back within a few seconds."""
SHOWN = 5
"""Findings of one kind that are shown in full."""


@dataclass(frozen=True)
class Promise:
    """What is promised of one topic."""

    node: str
    """Its nsqd."""
    is_journaled: bool = True
    survives_kill: bool = True
    again_s: float = 0.02
    """What was finished in so many seconds before a kill may come again."""
    is_backlog: bool = False
    """Its messages are not consumed before the run is over, so none of them is late."""
    numbered: frozenset[int] = frozenset()
    """The publishers that number their batches."""


class Finding(NamedTuple):
    """A broken promise."""

    kind: str
    topic: str
    channel: str
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.topic}/{self.channel} message {self.key}: {self.text}"


@dataclass
class Verdict:
    """What a history came to."""

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """How many messages were published, confirmed and so on, over all topics."""
    again_s: float = 0.0
    """The longest time of any promise in which a message must have been finished to come again after a kill."""
    oldest_again_s: float = 0.0
    """Of all messages that came again after a kill: the longest time from the FIN to the kill."""

    @property
    def is_clean(self) -> bool:
        return not self.findings

    def lines(self) -> list[str]:
        """The verdict for people."""
        counts = self.counts
        names = (
            "published",
            "confirmed",
            "unconfirmed",
            "deliveries",
            "finished",
            "kills",
            "disconnects",
        )
        lines = [", ".join(f"{counts[name]} {name}" for name in names)]
        lines.append(f"{counts['lost to a kill']} messages of classic topics were lost to a kill, as NSQ has it")
        lines.append(
            f"{counts['again']} deliveries of messages that had been finished, "
            f"the oldest of them {self.oldest_again_s:.2f} s before a kill "
            f"(promised: {self.again_s:g} s, and up to {TRANSIT_S:g} s for a FIN to arrive)"
        )
        kinds = Counter(finding.kind for finding in self.findings)
        lines.append("broken promises: " + (", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())) or "none"))
        shown: Counter[str] = Counter()
        for finding in self.findings:
            shown[finding.kind] += 1
            if shown[finding.kind] <= SHOWN:
                lines.append(f"  {finding}")
        return lines


class Disturbances:
    """When faults were going on at one nsqd; tells how much of a stretch of time was undisturbed."""

    def __init__(self) -> None:
        self._open: dict[str, float] = {}
        self._spans: list[tuple[float, float]] = []
        self._ends: list[float] | None = None
        """Where the spans end once they are sorted and joined: there may be a million questions about them."""
        self._covered: list[float] = []
        """The length of all spans up to each."""

    def begin(self, name: str, time_s: float) -> None:
        self._open.setdefault(name, time_s)

    def end(self, name: str, time_s: float) -> None:
        self._spans.append((self._open.pop(name, time_s), time_s))

    def quiet_s(self, start_s: float, end_s: float) -> float:
        """How long no fault was going on between two moments."""
        return end_s - start_s - (self._covered_until(end_s) - self._covered_until(start_s))

    def _covered_until(self, time_s: float) -> float:
        if self._ends is None:
            self._join()
        assert self._ends is not None
        index = bisect.bisect_right(self._ends, time_s)
        before_s = self._covered[index - 1] if index else 0.0
        under_way_s = max(0.0, time_s - self._spans[index][0]) if index < len(self._spans) else 0.0
        return before_s + under_way_s

    def _join(self) -> None:
        """Make the spans disjoint; a fault that has not ended goes on for ever."""
        joined: list[tuple[float, float]] = []
        for begun_s, ended_s in sorted(self._spans + [(begun_s, math.inf) for begun_s in self._open.values()]):
            if joined and begun_s <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(ended_s, joined[-1][1]))
            else:
                joined.append((begun_s, ended_s))
        self._spans = joined
        self._ends = [ended_s for _, ended_s in joined]
        self._covered = list(accumulate(ended_s - begun_s for begun_s, ended_s in joined))


class _Fate:
    """What a channel did with one message."""

    __slots__ = ("delivered_s", "finished_s", "handed_out", "is_done")

    def __init__(self, delivered_s: float) -> None:
        self.delivered_s = delivered_s
        self.finished_s: float | None = None
        self.is_done = False
        self.handed_out: tuple[float, ...] = (delivered_s,)
        """When it was delivered; kept for classic topics, which write down anew what is requeued."""


class _Repeat(NamedTuple):
    """A delivery of a message that had been finished before."""

    topic: str
    channel: str
    key: str
    finished_s: float
    delivered_s: float
    handed_out: tuple[float, ...]


class _Account:
    """All that is known of one topic."""

    def __init__(self, promise: Promise) -> None:
        self.promise = promise
        self.published: dict[str, float] = {}
        self.confirmed: dict[str, float] = {}
        self.channels: dict[str, dict[str, _Fate]] = {}
        self.disconnects: dict[str, list[float]] = defaultdict(list)
        self.key_at: dict[str, str] = {}
        """Which message has an id."""
        self.id_of: dict[str, str] = {}
        self.stored: list[str] | None = None
        """The journal, in the order of the offsets; None: it was not read."""
        self.left: dict[str, int] = {}


class Checker:
    """Takes in events in their order; `verdict` judges when all are there."""

    def __init__(self, promises: Mapping[str, Promise], channels: Mapping[str, Iterable[str]]) -> None:
        self._accounts = {topic: _Account(promise) for topic, promise in promises.items()}
        for topic, names in channels.items():
            self._accounts[topic].channels = {name: {} for name in names}
        self._disturbances: dict[str, Disturbances] = defaultdict(Disturbances)
        self._kills: dict[str, list[float]] = defaultdict(list)
        self._starts: dict[str, list[float]] = defaultdict(list)
        self._last_look_s = math.inf
        self._repeats: list[_Repeat] = []
        self._verdict = Verdict(again_s=max(promise.again_s for promise in promises.values()))

    def check(self, events: Iterable[Event]) -> Verdict:
        """The verdict on a whole history."""
        for event in events:
            self._take(event)
        for repeat in self._repeats:
            self._judge_repeat(repeat)
        for topic, account in self._accounts.items():
            self._judge_journal(topic, account)
            for channel, fates in account.channels.items():
                self._judge_channel(topic, channel, fates, account)
        return self._verdict

    def _find(self, kind: str, topic: str, channel: str, key: str, text: str) -> None:
        self._verdict.findings.append(Finding(kind, topic, channel, key, text))

    # Taking in.

    def _take(self, event: Event) -> None:
        if event.kind in (Kind.FAULT, Kind.HEALED):
            disturbed = self._disturbances[event.topic]
            (disturbed.begin if event.kind is Kind.FAULT else disturbed.end)(event.detail, event.time_s)
        elif event.kind is Kind.KILL:
            self._kills[event.topic].append(event.time_s)
            self._verdict.counts["kills"] += 1
        elif event.kind is Kind.START:
            self._starts[event.topic].append(event.time_s)
        elif event.kind is Kind.MEMORY:
            self._note_look(event.time_s)
        elif event.topic in self._accounts:
            self._take_message(event, self._accounts[event.topic])

    def _note_look(self, time_s: float) -> None:
        last_s, self._last_look_s = self._last_look_s, time_s
        if time_s - last_s > STANDSTILL_S:
            for node in {account.promise.node for account in self._accounts.values()}:
                self._disturbances[node].begin("standstill", last_s)
                self._disturbances[node].end("standstill", time_s)

    def _take_message(self, event: Event, account: _Account) -> None:
        counts, key = self._verdict.counts, event.key
        match event.kind:
            case Kind.PUBLISH:
                counts["published"] += 1
                account.published[key] = event.time_s
            case Kind.OK:
                counts["confirmed"] += 1
                account.confirmed[key] = event.time_s
            case Kind.REFUSED:
                counts["unconfirmed"] += 1
            case Kind.DELIVER:
                counts["deliveries"] += 1
                self._take_delivery(event, account)
            case Kind.FIN | Kind.LATE | Kind.LETTER:
                self._take_fin(event, account)
            case Kind.DISCONNECT:
                counts["disconnects"] += 1
                account.disconnects[event.channel].append(event.time_s)
            case Kind.STORED:
                self._take_stored(event, account)
            case Kind.LEFT:
                account.left[event.channel] = int(event.detail)

    def _take_delivery(self, event: Event, account: _Account) -> None:
        topic, channel, key = event.topic, event.channel, event.key
        if key == DAMAGED or key not in account.published:
            self._find("invented", topic, channel, key, f"delivered as {event.detail}, and never published")
            return
        if account.promise.is_journaled:
            self._note_id(event, account, event.detail.split(" ")[0])
        fates = account.channels.setdefault(channel, {})
        fate = fates.get(key)
        if fate is None:
            fates[key] = _Fate(event.time_s)
        elif fate.finished_s is not None:
            self._verdict.counts["again"] += 1
            self._repeats.append(_Repeat(topic, channel, key, fate.finished_s, event.time_s, fate.handed_out))
        if fate is not None and not account.promise.is_journaled:
            fate.handed_out += (event.time_s,)

    def _take_fin(self, event: Event, account: _Account) -> None:
        fate = account.channels.get(event.channel, {}).get(event.key)
        if fate is None:
            return  # of a message that was found to be invented
        self._verdict.counts["finished"] += not fate.is_done
        fate.is_done = True
        fate.finished_s = event.time_s if event.kind is Kind.FIN else None

    def _take_stored(self, event: Event, account: _Account) -> None:
        account.stored = [] if account.stored is None else account.stored
        if event.key == DAMAGED or event.key not in account.published:
            self._find("invented", event.topic, NONE, event.key, f"stored at {event.detail}, and never published")
            return
        self._note_id(event, account, event.detail)
        account.stored.append(event.key)

    def _note_id(self, event: Event, account: _Account, message_id: str) -> None:
        """An id is an offset: it belongs to one message for ever, and a message is stored once."""
        other = account.key_at.setdefault(message_id, event.key)
        if other != event.key:
            self._find("reissued", event.topic, event.channel, event.key, f"id {message_id} was that of {other}")
        known = account.id_of.setdefault(event.key, message_id)
        publisher = int(event.key.split(".")[0])
        if known != message_id and publisher in account.promise.numbered:
            self._find("doubled", event.topic, event.channel, event.key, f"stored as {known} and as {message_id}")

    # Judging.

    def _judge_repeat(self, repeat: _Repeat) -> None:
        account = self._accounts[repeat.topic]
        node = account.promise.node
        kill_s = _first_since(self._kills[node], repeat.finished_s)
        quiet_s = self._disturbances[node].quiet_s
        if kill_s <= repeat.delivered_s:
            age_s = quiet_s(repeat.finished_s, kill_s)
            if age_s <= account.promise.again_s + TRANSIT_S:
                self._verdict.oldest_again_s = max(self._verdict.oldest_again_s, age_s)
                return
        cut_s = _first_since(account.disconnects[repeat.channel], repeat.finished_s)
        if cut_s <= repeat.delivered_s and quiet_s(repeat.finished_s, cut_s) <= TRANSIT_S:
            return
        if not account.promise.is_journaled and self._has_copies(repeat, account.promise):
            return
        self._find(
            "doubled",
            repeat.topic,
            repeat.channel,
            repeat.key,
            f"finished at {repeat.finished_s:.3f} s and delivered again at {repeat.delivered_s:.3f} s",
        )

    def _has_copies(self, repeat: _Repeat, promise: Promise) -> bool:
        """Whether a disk queue may hold a classic message several times: it was handed out shortly before a kill, after
        which the queue goes on from an earlier place, and it was requeued, which wrote it down once more."""
        kills = self._kills[promise.node]
        for handed_out_s in repeat.handed_out:
            kill_s = _first_since(kills, handed_out_s)
            age_s = self._disturbances[promise.node].quiet_s(handed_out_s, kill_s)
            if kill_s <= repeat.delivered_s and age_s <= promise.again_s + TRANSIT_S:
                return True
        return False

    def _judge_journal(self, topic: str, account: _Account) -> None:
        if account.stored is None:
            return
        stored = set(account.stored)
        for key in account.confirmed.keys() - stored:
            self._find("lost", topic, NONE, key, "confirmed, and not in the journal")
        last: dict[int, int] = {}
        for key in account.stored:
            publisher, serial = map(int, key.split("."))
            if publisher in account.promise.numbered:
                if serial < last.get(publisher, -1):
                    self._find("out of order", topic, NONE, key, f"stored behind number {last[publisher]}")
                last[publisher] = max(serial, last.get(publisher, -1))

    def _judge_channel(self, topic: str, channel: str, fates: dict[str, _Fate], account: _Account) -> None:
        kills = self._kills[account.promise.node]
        last_kill_s = kills[-1] if kills and not account.promise.survives_kill else -1.0
        left = account.left.get(channel, 0)
        kind, rest = ("stuck", f"{left} are left in the channel") if left else ("lost", "the channel is empty")
        quiet_s = self._disturbances[account.promise.node].quiet_s
        for key, confirmed_s in account.confirmed.items():
            fate = fates.get(key)
            if fate is None:
                if account.published[key] > last_kill_s:
                    self._find(kind, topic, channel, key, f"confirmed at {confirmed_s:.3f} s, never delivered; {rest}")
                else:
                    self._verdict.counts["lost to a kill"] += 1
            elif not account.promise.is_backlog and fate.delivered_s - confirmed_s > STUCK_S:
                waited_s = quiet_s(confirmed_s, fate.delivered_s)
                if waited_s > STUCK_S:
                    text = f"confirmed at {confirmed_s:.3f} s, delivered after {waited_s:.1f} s without a fault"
                    self._find("stuck", topic, channel, key, text)
        # Until nsqd is back, a consumer may still come across messages that the one before has sent.
        back_s = _first_since(self._starts[account.promise.node], last_kill_s) if last_kill_s > 0 else last_kill_s
        for key, fate in fates.items():
            if not fate.is_done and fate.delivered_s > back_s:
                self._find(kind, topic, channel, key, f"delivered at {fate.delivered_s:.3f} s, never finished; {rest}")


def _first_since(times: list[float], start_s: float) -> float:
    """The first moment of a sorted list that is not before `start_s`; infinity if there is none."""
    index = bisect.bisect_left(times, start_s)
    return times[index] if index < len(times) else math.inf
