"""A chaos run: three nsqds, one for each sync mode, under load and under faults; then the verdict.

    node       journaled topic, synced     classic topics
    always     before each OK              overflowing from memory to disk
    interval   every so often              on disk alone (--mem-queue-size=0), and a backlog without consumers
    never      by the operating system     in memory

Each journaled topic has a channel whose messages all become dead letters, in a journaled topic too.

Each nsqd has a deck of faults of its own, which is shuffled by the seed. So a seed replays what is done to which nsqd,
in which order and for how long, though not the moment at which a machine gets round to it. When the time is over the
faults end, the publishers too, the consumers drain what is left, and the whole history is judged.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos import faults
from tests.chaos.checking import Checker, Promise, Verdict
from tests.chaos.faults import Fault, FlappingLookupd, Site, inflict, name_of
from tests.chaos.history import NONE, History, Kind, key_of, read_history
from tests.chaos.load import LETTERS, Load, Stream
from tests.chaos.node import ChaosNode, NodeSettings, StartRefusedError
from tests.chaos.shim import compile_shim
from tests.support.waiting import wait_until

Lab = Callable[[random.Random], Coroutine[Any, Any, None]]
SYNC_MODES = ("always", "interval", "never")
LOOKED_UP = "always"
"""The nsqd whose consumers find it by nsqlookupd; those of the others know its address."""
MEMORY_QUEUES = {"always": 100, "interval": 0, "never": 10_000}
CLASSIC_AGAIN_S = 2.0
"""A disk queue saves its place with each sync, by default every two seconds."""
DRAIN_TIMEOUT_S = 90.0
SAMPLING_S = 1.0
FLAGS = (
    "--journal-topic=-log$",
    "--journal-segment-bytes=1048576",
    "--msg-timeout=30s",
    # The longest a message may be deferred; a clock that was wrong holds none longer.
    "--max-req-timeout=5s",
)


@dataclass(frozen=True)
class Plan:
    """What a run is to be like."""

    seed: int
    duration_s: float
    modes: Sequence[str] = SYNC_MODES
    rate: float = 150.0
    """Messages a second to each topic."""
    pause_s: tuple[float, float] = (1.0, 4.0)
    """Between two faults of one nsqd."""
    longest_s: float = 4.0
    """Of what a fault lasts."""
    kills: dict[str, int] = field(default_factory=dict)
    """If given: nothing but so many kills of each nsqd, however long that takes."""
    only: frozenset[str] = frozenset()
    """If given: no faults but those with these names."""
    has_all_topics: bool = True
    """Classic topics and dead letters too, and not only what is published to a journal and finished."""
    mount_bytes: int = 0
    """The size of the file system of each nsqd; 0: a folder like any other."""


@dataclass
class Outcome:
    """What a run came to."""

    plan: Plan
    verdict: Verdict
    incidents: list[str]
    """What went wrong beyond what the history tells."""
    notes: list[str]
    """What could not be done here, and what labs have found out."""
    nodes: dict[str, str]
    """Which nsqd has which topic."""
    backlogs: list[str]
    """The topics without consumers."""

    @property
    def is_clean(self) -> bool:
        return self.verdict.is_clean and not self.incidents


class ChaosRun:
    """One run in one folder. `run` does all of it."""

    def __init__(self, plan: Plan, folder: Path, *, history_path: Path, labs: Sequence[Lab] = ()) -> None:
        self.plan = plan
        self.incidents: list[str] = []
        self.notes: list[str] = []
        self._folder = folder
        self._labs = labs
        self._history = History(history_path)
        self._nodes: dict[str, ChaosNode] = {}
        self._streams: list[Stream] = []
        self._lookupd: FlappingLookupd | None = None

    async def run(self) -> Outcome:
        async with AsyncExitStack() as running:
            running.enter_context(self._history)
            await self._start_nodes(running)
            await self._start_load(running)
            sampler = asyncio.create_task(self._sample())
            running.callback(sampler.cancel)
            await self._make_trouble()
            await self._drain()
            await self._look_back()
        nodes = {stream.topic: stream.node for stream in self._streams}
        backlogs = [stream.topic for stream in self._streams if stream.is_backlog]
        return Outcome(self.plan, self._judged(), self.incidents, self.notes, nodes, backlogs)

    # Starting.

    async def _start_nodes(self, running: AsyncExitStack) -> None:
        plan = self.plan
        library = compile_shim(self._folder)
        if library is None:
            self.notes.append("no C compiler: no errors of files and no wrong clocks")
        if LOOKED_UP in plan.modes and not plan.kills:
            self._lookupd = await asyncio.to_thread(FlappingLookupd, self._folder)
            running.callback(self._lookupd.close)
        for mode in plan.modes:
            flags = [*FLAGS, f"--journal-sync={mode}", f"--mem-queue-size={MEMORY_QUEUES[mode]}", "--min-free-bytes=0"]
            if mode == LOOKED_UP and self._lookupd is not None:
                flags.append(f"--lookupd-tcp-address={self._lookupd.process.tcp_address}")
            settings = NodeSettings(mode, flags, mount_bytes=plan.mount_bytes)
            dice = random.Random(f"{plan.seed} network {mode}")
            node = ChaosNode(settings, self._folder / mode, history=self._history, library=library, dice=dice)
            self._nodes[mode] = await running.enter_async_context(node)
        if plan.mount_bytes and not all(node.is_mounted for node in self._nodes.values()):
            self.notes.append("mounting is not allowed: no full and no read-only disk")

    async def _start_load(self, running: AsyncExitStack) -> None:
        for node in self._nodes.values():
            self._streams += self._streams_of(node)
        for stream in self._streams:
            life = self._nodes[stream.node].life
            await life.post("/topic/create", topic=stream.topic)
            for channel in stream.channels:
                await life.post("/channel/create", topic=stream.topic, channel=channel)
            for channel in stream.hopeless:
                await life.post("/topic/create", topic=stream.dead_letter_topic)
                await life.post("/channel/create", topic=stream.dead_letter_topic, channel=LETTERS)
                policy = {"max_attempts": 2, "dead_letter_topic": stream.dead_letter_topic}
                await life.post("/channel/policy", json.dumps(policy).encode(), topic=stream.topic, channel=channel)
        await asyncio.to_thread(self._wait_until_on_disk)
        self._load = Load(self._streams, history=self._history, dice=random.Random(f"{self.plan.seed} load"))
        await running.enter_async_context(self._load)

    def _streams_of(self, node: ChaosNode) -> list[Stream]:
        rate, address = self.plan.rate, node.proxy.address
        log = Stream(
            f"{node.name}-log",
            node.name,
            address,
            rate,
            ["fast", "slow"],
            numbered=[1, 2],
            plain=[3],
            deferring=[3],
            choosy=["slow"],
        )
        if self.plan.has_all_topics:
            log.channels, log.hopeless = [*log.channels, "doomed"], ["doomed"]
            log.dead_letter_topic = f"{node.name}-dead-log"
        if self._lookupd is not None and node.name == LOOKED_UP:
            log.lookupd = self._lookupd.process.http_address
        streams = [log]
        if self.plan.has_all_topics:
            streams.append(Stream(f"{node.name}-queue", node.name, address, rate, ["work"], plain=[4], choosy=["work"]))
        if self.plan.has_all_topics and node.name == "interval":
            streams.append(Stream("backlog", node.name, address, rate / 5, ["later"], plain=[5], is_backlog=True))
        return streams

    def _wait_until_on_disk(self) -> None:
        """A kill before nsqd has written down which topics there are would say nothing about messages."""
        for stream in self._streams:
            path = self._nodes[stream.node].data_path / "nsqd.dat"
            for topic in filter(None, (stream.topic, stream.dead_letter_topic)):
                wait_until(partial(_is_named, topic, path))

    async def _sample(self) -> None:
        while True:
            for node in self._nodes.values():
                node.note_memory()
            await asyncio.sleep(SAMPLING_S)

    # Trouble.

    async def _make_trouble(self) -> None:
        end_s = asyncio.get_running_loop().time() + self.plan.duration_s
        loops = [self._trouble_node(node, end_s) for node in self._nodes.values()]
        loops += [self._visit_labs(end_s)] if self._labs else []
        ends = await asyncio.gather(*loops, return_exceptions=True)
        self.incidents += [f"trouble ended early: {end!r}" for end in ends if isinstance(end, Exception)]

    async def _trouble_node(self, node: ChaosNode, end_s: float) -> None:
        dice = random.Random(f"{self.plan.seed} faults {node.name}")
        if self.plan.kills:
            await self._kill_often(node, self.plan.kills[node.name], dice)
            return
        deck: list[Fault] = []
        while asyncio.get_running_loop().time() < end_s:
            if not deck:
                deck = self._deck(node)
                dice.shuffle(deck)
            await asyncio.sleep(dice.uniform(*self.plan.pause_s))
            await self._inflict(deck.pop(), node, dice)

    def _deck(self, node: ChaosNode) -> list[Fault]:
        """All faults that can be had here, the usual ones twice."""
        deck = [*faults.PROCESS_FAULTS, *faults.PROCESS_FAULTS, *faults.NETWORK_FAULTS]
        deck += faults.MOUNT_FAULTS if node.is_mounted else ()
        deck += faults.SHIM_FAULTS if node.shim is not None else ()
        deck += faults.LOOKUPD_FAULTS if self._lookupd is not None and node.name == LOOKED_UP else ()
        only = self.plan.only
        return [fault for fault in deck if not only or name_of(fault) in only]

    async def _inflict(self, fault: Fault, node: ChaosNode, dice: random.Random) -> None:
        streams = [stream for stream in self._streams if stream.node == node.name]
        site = Site(node, streams, self._history, dice, self._lookupd, self.plan.longest_s)
        name = name_of(fault)
        print(f"{self._history.now_s:7.1f} s  {node.name:8}  {name}", flush=True)
        try:
            await inflict(fault, site)
        except (StartRefusedError, AssertionError) as error:
            self.incidents.append(f"{node.name}: {name}: {type(error).__name__}: {error}")
        if not node.life.is_running:
            await node.start()

    async def _kill_often(self, node: ChaosNode, times: int, dice: random.Random) -> None:
        """Half of its lives are too short for a cursor to be saved."""
        for _ in range(times):
            await asyncio.sleep(dice.uniform(*dice.choice(((0.05, 0.5), (1.0, 2.5)))))
            await self._inflict(faults.kill, node, dice)

    async def _visit_labs(self, end_s: float) -> None:
        """What is done to folders of their own, beside the load."""
        dice = random.Random(f"{self.plan.seed} labs")
        while asyncio.get_running_loop().time() < end_s:
            for lab in self._labs:
                try:
                    await lab(dice)
                except (StartRefusedError, AssertionError, OSError) as error:
                    self.incidents.append(f"{getattr(lab, '__qualname__', lab)}: {type(error).__name__}: {error}")
            await asyncio.sleep(dice.uniform(*self.plan.pause_s))

    # The end.

    async def _drain(self) -> None:
        """Publish no more, and wait until each channel has delivered what it owes, and has nothing left."""
        await self._load.end_publishing()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + DRAIN_TIMEOUT_S
        while loop.time() < deadline_s:
            left = [await node.stats() for node in self._nodes.values()]
            if self._load.is_drained and not any(count for each in left for count in each.values()):
                break
            await asyncio.sleep(0.2)
        self.incidents += [f"a client ended: {error!r}" for error in self._load.failures]

    async def _look_back(self) -> None:
        """Write down what is left and what the journals hold, and stop all nsqds as an operator would."""
        for node in self._nodes.values():
            for (topic, channel), count in (await node.stats()).items():
                self._history.note(Kind.LEFT, topic, channel, detail=str(count))
        for stream in self._streams:
            node = self._nodes[stream.node]
            if self._is_journaled(stream):
                await self._note_journal(node, stream.topic)
        for node in self._nodes.values():
            await node.stop()
            self.incidents += node.incidents
            await self._verify(node)

    async def _note_journal(self, node: ChaosNode, topic: str) -> None:
        try:
            messages = await node.journal(topic)
        except OSError as error:
            self.incidents.append(f"{node.name}: the journal of {topic} cannot be read: {error}")
            return
        for offset, body in messages:
            self._history.note(Kind.STORED, topic, NONE, key_of(topic, body), f"{offset:016x}")

    async def _verify(self, node: ChaosNode) -> None:
        command = [sys.executable, "-m", "emberq.cli.main", "journal", "verify", str(node.data_path)]
        verified = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        if verified.returncode != 0:
            self.incidents.append(f"{node.name}: emberq journal verify: {verified.stdout}{verified.stderr}")

    @staticmethod
    def _is_journaled(stream: Stream) -> bool:
        return stream.topic.endswith("-log")

    def _promise(self, stream: Stream) -> Promise:
        if self._is_journaled(stream):
            return Promise(stream.node, numbered=frozenset(stream.numbered))
        return Promise(
            stream.node,
            is_journaled=False,
            survives_kill=stream.is_backlog,  # what waits in a disk queue does; what is in memory or in flight does not
            again_s=CLASSIC_AGAIN_S,
            is_backlog=stream.is_backlog,
        )

    def _judged(self) -> Verdict:
        promises = {stream.topic: self._promise(stream) for stream in self._streams}
        channels = {stream.topic: stream.channels for stream in self._streams}
        return Checker(promises, channels).check(read_history(self._history.path))


def _is_named(topic: str, metadata: Path) -> bool:
    """Whether nsqd.dat names a topic."""
    return metadata.exists() and f'"{topic}"' in metadata.read_text()
