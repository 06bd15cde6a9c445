"""A fuzzer that is guided by coverage: it keeps an input that makes emberq go where no input made it go before.

    pick one of the corpus ──> mutate it ──> play it to the target ──> did it reach a new block? ──> into the corpus
                                                     │
                                                     └─> the oracle objects: a finding

`quality.blocks` notes the blocks that run, in dicts that only grow: an input is new if they grew while it was played.
Compiled modules, and those that were imported before it began, give no guidance.

Everything follows from the seed and the corpus. What a target holds over several inputs, such as topics of an nsqd, is
thrown away now and then, and before a finding is tried again.
"""

from __future__ import annotations

import hashlib
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import ClassVar

from quality import blocks
from tests.fuzz.mutation import Mutator
from tests.fuzz.oracle import SOURCE, Oracle, Verdict

CORPUS = Path(__file__).parent / "corpus"
PLAYS_PER_OPENING = 2000
"""Then the target is closed and opened again, to be rid of what it holds."""
SHARE_OF_NEWEST = 0.5
"""So often one of the newest inputs is picked: what lies behind a door that has just opened is least known."""
MAX_MINIMISING_PLAYS = 3000
MAX_MINIMISING_S = 20.0


class Target(ABC):
    """Something that takes hostile bytes.

    `play` lets pass what its unit may raise. Anything else that it raises is a finding, an AssertionError among it.
    """

    name: ClassVar[str]
    modules: ClassVar[tuple[str, ...]]
    """What is tested: patterns of files below src/emberq, whose blocks count."""
    tokens: ClassVar[tuple[bytes, ...]] = ()
    """What its language is made of."""
    max_bytes: ClassVar[int] = 8192
    max_cpu_s: float = 1.0
    slice_count: ClassVar[int] = 200
    """Mutations that `make test` plays."""

    @abstractmethod
    def seeds(self) -> Iterable[bytes]:
        """Inputs to begin with."""

    @abstractmethod
    def play(self, data: bytes) -> None:
        """Take an input."""

    def open(self) -> None:  # noqa: B027 - most have nothing to do
        """Get ready; called before the first `play` and after each `close`."""

    def close(self) -> None:  # noqa: B027
        """Let go of everything."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Ready, within."""
        self.open()
        try:
            yield
        finally:
            self.close()

    def reopen(self) -> None:
        """Forget all inputs so far."""
        self.close()
        self.open()


def kept_inputs(name: str, *folders: Path) -> list[bytes]:
    """What earlier runs have kept for a target: in the repository, and in these folders."""
    paths = (path for folder in (CORPUS, *folders) for path in sorted((folder / name).glob("*")) if path.is_file())
    return [path.read_bytes() for path in paths]


class Reached:
    """Counts the blocks that were reached in the modules of a target."""

    def __init__(self, modules: Iterable[str], *, source: Path = SOURCE) -> None:
        patterns = [str(source / module) for module in modules]
        self._blocks = [ran for path, ran in blocks.seen.items() if any(fnmatch(path, each) for each in patterns)]
        for ran in self._blocks:
            ran.clear()

    @property
    def count(self) -> int:
        """How many were reached so far."""
        return sum(map(len, self._blocks))


@dataclass
class Finding:
    """An input that the oracle objects to."""

    target: str
    data: bytes
    verdict: Verdict
    is_repeatable: bool = True
    """Whether it failed again on a target that had seen no other input."""


@dataclass
class Score:
    """How far a fuzzer has come."""

    plays: int = 0
    blocks: int = 0
    cpu_s: float = 0.0
    kept: list[bytes] = field(default_factory=list)
    """The corpus."""
    findings: list[Finding] = field(default_factory=list)


class Fuzzer:
    """Fuzzes one target, which is open."""

    def __init__(
        self,
        target: Target,
        oracle: Oracle,
        *,
        seed: int,
        reached: Reached | None = None,
        note: Callable[[bytes], None] | None = None,
    ) -> None:
        """Without `reached` only inputs that are loaded are kept. `note` is told each input before it is played."""
        self._target = target
        self._oracle = oracle
        self._reached = reached
        self._note_input = note
        self._dice = random.Random(f"{target.name} {seed}")
        self._mutator = Mutator(self._dice, tokens=target.tokens, max_bytes=target.max_bytes)
        self._known: set[tuple[str, str]] = set()
        self._began_s = time.process_time()
        self.score = Score()

    def load(self, inputs: Iterable[bytes]) -> None:
        """Play inputs that are known, and keep those that reach something new."""
        for data in inputs:
            is_new = self.play(data)
            if is_new or self._reached is None:
                self.score.kept.append(data)
        if not self.score.kept:
            self.score.kept.append(b"")

    def run(self, *, seconds: float | None = None, count: int | None = None) -> Iterator[Score]:
        """Play mutations until the time is over, or so many; the score now and then, for a caller who shows it."""
        ends_s = None if seconds is None else time.monotonic() + seconds
        last = None if count is None else self.score.plays + count
        while (ends_s is None or time.monotonic() < ends_s) and (last is None or self.score.plays < last):
            data = self._mutator.mutate(self._pick(), self._dice.choice(self.score.kept))
            if self.play(data):
                self.score.kept.append(data)
            if self.score.plays % PLAYS_PER_OPENING == 0:
                self._target.reopen()
                self._note_leak()
                yield self._scored()
        yield self._scored()

    def _scored(self) -> Score:
        self.score.cpu_s = time.process_time() - self._began_s
        return self.score

    def _note_leak(self) -> None:
        verdict = self._oracle.leak()
        if verdict is not None and verdict.signature not in self._known:
            self._known.add(verdict.signature)
            self.score.findings.append(Finding(self._target.name, b"", verdict, is_repeatable=False))

    def _pick(self) -> bytes:
        kept = self.score.kept
        if self._dice.random() < SHARE_OF_NEWEST:
            return self._dice.choice(kept[-max(4, len(kept) // 8) :])
        return self._dice.choice(kept)

    def play(self, data: bytes) -> bool:
        """Play one input; whether it reached something new."""
        score = self.score
        verdict = self._judge(data)
        score.plays += 1
        if verdict is not None:
            self._note(data, verdict)
            self._target.reopen()
        count = 0 if self._reached is None else self._reached.count
        is_new = count > score.blocks
        score.blocks = count
        return is_new

    def _judge(self, data: bytes) -> Verdict | None:
        if self._note_input is not None:
            self._note_input(data)
        return self._oracle.judge(self._target, data)

    def _note(self, data: bytes, verdict: Verdict) -> None:
        if verdict.signature in self._known:
            return
        self._known.add(verdict.signature)
        again = self._verdict_alone(data)
        finding = Finding(self._target.name, data, verdict, again is not None)
        if again is not None:
            self._known.add(again.signature)
            finding.data = minimised(data, lambda shorter: self._has(again, shorter))
            finding.verdict = self._verdict_alone(finding.data) or again
        if again is not None or verdict.kind not in ("time", "memory"):  # else a moment's mood of the machine
            self.score.findings.append(finding)

    def _verdict_alone(self, data: bytes) -> Verdict | None:
        """What the oracle says if no other input came before."""
        self._target.reopen()
        return self._judge(data)

    def _has(self, wanted: Verdict, data: bytes) -> bool:
        found = self._verdict_alone(data)
        return found is not None and found.signature == wanted.signature


def minimised(data: bytes, fails: Callable[[bytes], bool]) -> bytes:
    """A shorter input that still fails: parts are left out, large ones first, as long as it does."""
    ends_s = time.monotonic() + MAX_MINIMISING_S
    plays = 0
    size = len(data)
    while size >= 1:
        start = 0
        while start < len(data):
            if plays >= MAX_MINIMISING_PLAYS or time.monotonic() > ends_s:
                return data
            plays += 1
            shorter = data[:start] + data[start + size :]
            if len(shorter) < len(data) and fails(shorter):
                data = shorter
            else:
                start += size
        size //= 2
    return data


def tells_in_a_line(failure: Exception, *, max_characters: int = 2000) -> None:
    """AssertionError unless what an error says fits a line of a log."""
    assert str(failure).isprintable(), repr(failure)
    assert len(str(failure)) <= max_characters, repr(failure)


def keep(folder: Path, data: bytes) -> Path:
    """Write an input to a folder, under a name that follows from it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:12]
    path.write_bytes(data)
    return path
