"""Many crashes of many runs: each run is recorded once, and crashed again and again.

    seed ──> settings, history ──> recording ──> state 0: crash, recover, check, go on, crash again, recover, check
                                            ├──> state 1: ...
                                            └──> ...

A run follows from its seed, and a crash from the seed and the number of the state: `python -m tests.crash --seed S
--state N` replays one exactly.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from emberq.broker.store import SyncMode
from emberq.storage.journal.commit import Workers
from emberq.storage.journal.folder import CURSORS, FOLDER_SUFFIX, JournalFolder
from emberq.storage.journal.recovery import recover
from tests.crash.checking import Checker
from tests.crash.history import History, Numbers
from tests.crash.model import BrokenPromiseError, Model, Promises
from tests.crash.node import Node, NodeSettings, journal_config, new_clock
from tests.crash.queue_run import QueueRun
from tests.crash.simulated_files import ROOT, Choice, SimulatedFiles

STATES_PER_RUN = 40
"""Crashes of one run. More of them would be more alike than those of another run."""

FULL_SHARE = 0.25
"""How many starts find the disk full."""


NEEDED = (".log", "journal.json")
"""How the names of files end that a journal cannot do without."""


class CrashFoundError(AssertionError):
    """A crash after which a promise is broken, and how to see it again."""


@dataclass
class Crash:
    """What a crash left, and the promises that hold of it."""

    fs: SimulatedFiles
    promises: Promises
    is_lossless: bool
    is_killed: bool


def settings_of(seed: int, *, sync: SyncMode | None = None) -> NodeSettings:
    """How the nsqd of a run is set up."""
    dice = random.Random(f"settings {seed}")
    mode = dice.choice((SyncMode.ALWAYS, SyncMode.ALWAYS, SyncMode.INTERVAL, SyncMode.NEVER))
    return NodeSettings(
        sync=sync or mode,
        segment_bytes=dice.choice((6 * 1024, 24 * 1024, 1 << 20)),
        retention_bytes=dice.choice((None, None, 50_000)),
        mem_queue_size=dice.choice((0, 3, 1000)),
        max_open=dice.choice((1, 2, 100)),
    )


class Run:
    """One recorded run of an nsqd, from its first start on."""

    def __init__(
        self, seed: int, *, steps: int = 120, sync: SyncMode | None = None, fs: SimulatedFiles | None = None
    ) -> None:
        self.seed = seed
        self._settings = settings_of(seed, sync=sync)
        self._numbers = Numbers()
        dice = random.Random(f"history {seed}")
        self._trouble = dice.random() < 0.35
        self._fs = fs or SimulatedFiles()
        node = Node(self._fs, self._settings, clock=new_clock())
        node.start()
        history = History(node, Model(), dice=dice, numbers=self._numbers, trouble=self._trouble)
        history.run(steps)
        self._model = history.model
        self._clock = node.clock

    def __repr__(self) -> str:
        return f"<Run {self.seed} {self._settings} trouble={self._trouble} moments={self._fs.moment}>"

    def try_state(self, number: int) -> None:
        """Crash, recover, check, go on, and so on for up to three crashes."""
        dice = random.Random(f"state {self.seed} {number}")
        numbers = copy.deepcopy(self._numbers)
        moment = dice.randint(0, self._fs.moment)
        crash = self._crash(self._fs, moment, self._model.at(moment), dice)
        self._check_what_opening_leaves(crash.fs)
        for life in range(3):
            fs, model = crash.fs, Model(crash.promises)
            node = Node(fs, self._settings, clock=new_clock(self._clock))
            was_full = self._start(node, random.Random(f"start {self.seed} {number} {life}"))
            # On a full disk a classic topic may lose what it cannot hand to a channel, as in NSQ.
            is_killed = crash.is_killed and not was_full
            Checker(node, model, is_lossless=crash.is_lossless, is_killed=is_killed).run()
            if life == 2 or dice.random() < 0.4:
                node.stop()
                if fs.open_count:
                    raise BrokenPromiseError(f"{fs.open_count} descriptors were left open")
                return
            checked_at = fs.moment
            history = History(node, model, dice=dice, numbers=numbers, trouble=self._trouble)
            history.run(dice.choice((0, 10, 40)))
            fs.faults.clear()
            if dice.random() < 0.15:
                node.stop()
            moment = dice.randint(fs.first_moment, fs.moment)
            # While it was checked, it was not known yet what the crash before had taken.
            is_checked = moment >= checked_at
            crash = self._crash(
                fs,
                moment,
                model.at(moment),
                dice,
                was_lossless=crash.is_lossless or is_checked,
                was_killed=is_checked,  # before, classic messages were on their way from the topic to the channel
            )

    def _check_what_opening_leaves(self, found: SimulatedFiles) -> None:
        """What an opened journal starts with is on the disk, also what an earlier process had not brought there."""
        config = journal_config(self._settings)
        for path in [ROOT / name for name in found.names(ROOT) if name.endswith(FOLDER_SUFFIX)]:
            fs = found.killed(found.moment, Choice(0))
            report = recover(path, config, clock=self._clock, fs=fs).report
            left = {name for name in fs.unsynced_names(path) | fs.unsynced_files(path) if name.endswith(NEEDED)}
            if config.fsync and left and not any("header" in repair for repair in report.repairs):
                raise BrokenPromiseError(f"opening {path} left {', '.join(sorted(left))} unsynced")
            fs = found.killed(found.moment, Choice(0))
            JournalFolder(path, config, clock=self._clock, workers=Workers(start=_not_now), fs=fs)
            if fs.unsynced_names(path / CURSORS):
                raise BrokenPromiseError(f"opening {path} left the names of cursors unsynced")

    @staticmethod
    def _start(node: Node, dice: random.Random) -> bool:
        """Start it, sometimes on a full disk: then it is read-only until there is room. Whether it was full."""
        node.fs.is_full = was_full = dice.random() < FULL_SHARE
        node.start()
        if was_full:
            if dice.random() < 0.5:
                node.advance(ms=1100)
                node.settle()
            node.make_room()
        return was_full

    def _crash(
        self,
        fs: SimulatedFiles,
        moment: int,
        promises: Promises,
        dice: random.Random,
        *,
        was_lossless: bool = True,
        was_killed: bool = True,
    ) -> Crash:
        choice = Choice(dice.getrandbits(64))
        is_always = self._settings.sync is SyncMode.ALWAYS
        if dice.random() < 0.25:  # what a failed sync left may be lost even so
            is_well = not self._trouble
            return Crash(
                fs.killed(moment, choice), promises, is_always or (was_lossless and is_well), was_killed and is_well
            )
        return Crash(fs.power_cut(moment, choice), promises, is_always, is_killed=False)


def _not_now(_work: Callable[[], None]) -> None:
    """What is to run in another thread does not run."""


def recorded(seed: int, *, sync: SyncMode | None = None, fs: SimulatedFiles | None = None) -> Run | QueueRun:
    """The run with this seed: of journaled topics, or in every fifth case of what classic topics keep."""
    return QueueRun(seed, fs=fs) if seed % 5 == 0 and sync is None else Run(seed, sync=sync, fs=fs)


def try_state(run: Run | QueueRun, number: int) -> None:
    """Crash, recover and check; CrashFoundError if a promise is broken."""
    try:
        run.try_state(number)
    except Exception as error:
        replay = f"replay: python -m tests.crash --seed {run.seed} --state {number}"
        raise CrashFoundError(f"{type(error).__name__}: {error}\n{run!r}\n{replay}") from error


def try_states(run: Run | QueueRun, count: int) -> Iterator[CrashFoundError | None]:
    """Try the first states of a run: for each the broken promise, or None."""
    for number in range(count):
        try:
            try_state(run, number)
        except CrashFoundError as found:
            yield found
        else:
            yield None


def explore(*, seed: int, states: int, sync: SyncMode | None = None) -> Iterator[CrashFoundError | None]:
    """Try so many crash states, of runs with the seeds from `seed` on: for each the broken promise, or None."""
    for first in range(0, states, STATES_PER_RUN):
        run = recorded(seed + first // STATES_PER_RUN, sync=sync)
        yield from try_states(run, min(STATES_PER_RUN, states - first))
