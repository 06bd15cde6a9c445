"""Publishers and consumers under load, and an nsqd that is killed again and again.

    publishers ──PUB, MPUB, DPUB──> nsqd ──> channel "fast"     finishes at once
                                     ^  └──> channel "slow"     requeues, finishes out of order, lags
                                     └ SIGKILL at random moments, then a new process on the same folder

What each side knows is written down as it happens: a message is `sent` before its bytes leave, and `acknowledged` when
its OK has come. A publisher never sends anything twice, so in the end, when the consumers have drained the channels,

    acknowledged  ⊆  delivered  ⊆  sent           nothing lost, nothing invented

must hold for each channel. What is delivered again after it was finished is a duplicate, which a crash may cause.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.nsqd_process import NsqdProcess
from tests.support.raw_client import ERROR, HEARTBEAT, MESSAGE, Client, Frame, mpub_body, parse_message
from tests.support.waiting import wait_until

TOPIC = "orders"
CHANNELS = ("fast", "slow")
PUBLISHERS = 2
PIPELINED = 3
"""So many publishes are on their way at a time, on each connection."""
FLAGS = ("--journal", "--journal-segment-bytes=1048576", "--mem-queue-size=100", "--msg-timeout=5s")
LOST_CONNECTION = (OSError, EOFError, AssertionError)
"""What a client may come across when its nsqd is killed; an answer that is no answer shows as an AssertionError."""
MAX_BEHIND = 5_000
"""A consumer that is further behind than that is waited for, or it would not be done in time."""
DRAIN_TIMEOUT_S = 60.0


@dataclass
class Ledger:
    """Everything the clients know. Written by their threads, each to its own entries or under the lock."""

    sent: set[bytes] = field(default_factory=set)
    acknowledged: set[bytes] = field(default_factory=set)
    delivered: dict[str, Counter[bytes]] = field(default_factory=lambda: {name: Counter() for name in CHANNELS})
    finished: dict[str, set[bytes]] = field(default_factory=lambda: {name: set() for name in CHANNELS})
    duplicates: Counter[str] = field(default_factory=Counter)
    """Deliveries of messages that had been finished before, by channel."""
    refusals: list[bytes] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def behind(self) -> int:
        """How many messages the slowest channel has not delivered yet."""
        return len(self.acknowledged) - min(len(delivered) for delivered in self.delivered.values())

    def lost(self, channel: str) -> set[bytes]:
        with self.lock:
            return self.acknowledged - self.delivered[channel].keys()

    def invented(self, channel: str) -> set[bytes]:
        with self.lock:
            return self.delivered[channel].keys() - self.sent


class CrashRun:
    """One run; a context manager. Owns the nsqd of the moment and the threads of the clients."""

    def __init__(self, folder: Path, *, sync: str, seed: int) -> None:
        self.ledger = Ledger()
        self.kill_count = 0
        self._folder = folder
        self._sync = sync
        self._random = random.Random(seed)
        self._data_path = folder / "data"
        self._data_path.mkdir()
        self._nsqd: NsqdProcess | None = None
        self._starts = 0
        self._publishing = True
        self._consuming = True
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> CrashRun:
        self._start_nsqd()
        for channel in CHANNELS:
            self._current().connect().sub(TOPIC, channel)  # so that both get everything
            self._current().wait_until_known_on_disk(TOPIC, channel)
        for channel in CHANNELS:
            self._spawn(lambda channel=channel: self._consume(channel))  # type: ignore[misc]
        for number in range(PUBLISHERS):
            self._spawn(lambda number=number: self._publish(number))  # type: ignore[misc]
        return self

    def __exit__(self, *_raised: object) -> None:
        self._publishing = self._consuming = False
        if self._nsqd is not None:
            self._nsqd.kill()
            self._nsqd.__exit__()
        for thread in self._threads:
            thread.join(10)

    def _spawn(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    # The daemon.

    def _start_nsqd(self) -> None:
        self._starts += 1
        log_path = self._folder / f"nsqd-{self._starts}.log"
        nsqd = NsqdProcess(*FLAGS, f"--journal-sync={self._sync}", data_path=self._data_path, log_path=log_path)
        self._nsqd = nsqd.__enter__()

    def _current(self) -> NsqdProcess:
        if self._nsqd is None:
            raise ConnectionError("there is no nsqd at the moment")
        return self._nsqd

    def kill(self, times: int, *, longest_life_s: float = 2.5) -> None:
        """Let it run for a moment, kill it, start it again; so many times.

        Half of its lives are too short for a cursor to be saved, which happens within a second.
        """
        for _ in range(times):
            shortest_s, longest_s = self._random.choice(((0.05, 0.5), (1.0, longest_life_s)))
            time.sleep(self._random.uniform(shortest_s, longest_s))
            nsqd, self._nsqd = self._current(), None
            nsqd.kill()
            nsqd.__exit__()
            assert "Traceback" not in nsqd.log, nsqd.log
            self.kill_count += 1
            self._start_nsqd()

    def drain(self) -> None:
        """Publish no more, and wait until each channel has delivered what it owes."""
        self._publishing = False
        for thread in self._threads[len(CHANNELS) :]:
            thread.join(10)
        ledger = self.ledger
        with contextlib.suppress(AssertionError):  # what is missing then, the test finds and names
            wait_until(lambda: not any(ledger.lost(name) for name in CHANNELS), timeout_s=DRAIN_TIMEOUT_S)
        self._consuming = False
        for thread in self._threads:
            thread.join(10)
        nsqd, self._nsqd = self._current(), None
        assert nsqd.terminate() == 0
        nsqd.__exit__()
        assert "Traceback" not in nsqd.log, nsqd.log

    # Publishing.

    def _publish(self, number: int) -> None:
        luck = random.Random(self._random.random())
        serial = 0
        while self._publishing:
            with contextlib.suppress(*LOST_CONNECTION), contextlib.closing(self._current().connect()) as client:
                while self._publishing:
                    if self.ledger.behind() > MAX_BEHIND:
                        time.sleep(0.05)
                        continue
                    groups: list[list[bytes]] = []
                    for _ in range(PIPELINED):
                        size = luck.choice((1, 1, 5, 40))
                        groups.append([_body(number, serial + index) for index in range(size)])
                        serial += size
                    self._send(client, groups, luck)
            time.sleep(0.01)

    def _send(self, client: Client, groups: list[list[bytes]], luck: random.Random) -> None:
        with self.ledger.lock:
            self.ledger.sent.update(body for group in groups for body in group)
        for group in groups:
            if len(group) > 1:
                client.command(b"MPUB " + TOPIC.encode(), mpub_body(group))
            elif luck.random() < 0.3:
                client.command(b"DPUB %s %d" % (TOPIC.encode(), luck.choice((1, 200))), group[0])
            else:
                client.command(b"PUB " + TOPIC.encode(), group[0])
        for group in groups:
            answer = _next_frame(client)
            if answer.type == ERROR:
                self.ledger.refusals.append(answer.data)
                raise ConnectionError(answer.data)
            assert answer.data == b"OK"
            with self.ledger.lock:
                self.ledger.acknowledged.update(group)
        time.sleep(luck.uniform(0, 0.01))

    # Consuming.

    def _consume(self, channel: str) -> None:
        luck = random.Random(self._random.random())
        while self._consuming:
            with contextlib.suppress(*LOST_CONNECTION), contextlib.closing(self._current().connect()) as client:
                client.socket.settimeout(0.5)  # to notice the end of the run
                client.sub(TOPIC, channel)
                client.rdy(50)
                while self._consuming:
                    with contextlib.suppress(TimeoutError):
                        self._answer(client, channel, luck)
            time.sleep(0.01)

    def _answer(self, client: Client, channel: str, luck: random.Random) -> None:
        frame = _next_frame(client)
        if frame.type != MESSAGE:
            return  # a FIN that came too late
        message = parse_message(frame.data)
        finished = self.ledger.finished[channel]
        with self.ledger.lock:
            self.ledger.delivered[channel][message.body] += 1
            if message.body in finished:
                self.ledger.duplicates[channel] += 1
        if channel == "slow" and luck.random() < 0.1:
            client.req(message, luck.choice((0, 100)))
            return
        client.fin(message)
        finished.add(message.body)


def _body(publisher: int, serial: int) -> bytes:
    """A message that no other is like, long enough for the journal to begin new segments now and then."""
    return b"%d-%07d" % (publisher, serial) + b"." * 190


def _next_frame(client: Client) -> Frame:
    """The next frame that says something; heartbeats are answered."""
    while (frame := client.read_frame()).data == HEARTBEAT:
        client.nop()
    return frame


def summary(run: CrashRun, *, sync: str) -> str:
    """What a run came to, in one line."""
    ledger = run.ledger
    deliveries = sum(counter.total() for counter in ledger.delivered.values())
    return (
        f"journal-sync={sync}: {run.kill_count} kills, "
        f"{len(ledger.sent)} sent, {len(ledger.acknowledged)} acknowledged, "
        f"{deliveries} deliveries, lost {sum(len(ledger.lost(name)) for name in CHANNELS)}, "
        f"invented {sum(len(ledger.invented(name)) for name in CHANNELS)}, "
        f"duplicates {sum(ledger.duplicates.values())}, refusals {len(ledger.refusals)}"
    )


def check(run: CrashRun) -> None:
    """Nothing acknowledged is lost, nothing is invented, nothing was refused."""
    assert run.ledger.acknowledged
    for channel in CHANNELS:
        assert not run.ledger.lost(channel), f"{channel} lost {sorted(run.ledger.lost(channel))[:10]}"
        assert not run.ledger.invented(channel)
    assert run.ledger.refusals == []
