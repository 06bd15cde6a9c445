"""A run over several targets: each in a process of its own, so that what one leaves behind is not blamed on the next.

Inputs that reach something new are kept in <output>/corpus, and the next run begins with them. Findings are written to
<output>/findings, each with a text beside it. The input that is being played is in <output>/last: if native code ends
the process, that is the finding.
"""

from __future__ import annotations

import mmap
import multiprocessing
import struct
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

from quality import blocks
from tests.fuzz.engine import Finding, Fuzzer, Reached, Score, keep, kept_inputs
from tests.fuzz.oracle import Oracle, Verdict
from tests.fuzz.targets import TARGETS

PROGRESS_S = 30.0
MAX_NOTED_BYTES = 1 << 17


class Order(NamedTuple):
    """What one process does."""

    target: str
    seed: int
    seconds: float
    output: Path


def run_all(orders: Sequence[Order], *, jobs: int) -> list[Score]:
    """Carry out the orders, so many at a time, and show the score of each."""
    with ThreadPoolExecutor(jobs) as waiting:
        return list(waiting.map(_in_a_process, orders))


def _in_a_process(order: Order) -> Score:
    new_process = multiprocessing.get_context("spawn")
    # Blocks are marked ahead of every import of emberq: nothing of it is there before the process has its first order.
    with ProcessPoolExecutor(1, new_process, initializer=blocks.begin) as pool:
        try:
            score = pool.submit(fuzz, order).result()
        except BrokenProcessPool:
            score = Score(findings=[_crash(order)])
            _write_down(score.findings[0], order)
    print(score_line(order.target, score), flush=True)
    return score


def _crash(order: Order) -> Finding:
    verdict = Verdict("crash", "", "the process of the fuzzer ended")
    return Finding(order.target, LastInput.read(_last(order)), verdict)


class LastInput:
    """The input that is being played, in a file that outlives the process."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(MAX_NOTED_BYTES))
        with path.open("r+b") as file:
            self._content = mmap.mmap(file.fileno(), MAX_NOTED_BYTES)

    def note(self, data: bytes) -> None:
        """Called before each play, so it is not a write but an assignment."""
        noted = struct.pack("<I", len(data)) + data[: MAX_NOTED_BYTES - 4]
        self._content[: len(noted)] = noted

    @staticmethod
    def read(path: Path) -> bytes:
        """What was noted last; nothing if the process ended before."""
        content = path.read_bytes() if path.exists() else bytes(4)
        return content[4 : 4 + struct.unpack_from("<I", content)[0]]


def _last(order: Order) -> Path:
    return order.output / "last" / order.target


def fuzz(order: Order) -> Score:
    """Fuzz one target for its time."""
    target = TARGETS[order.target]()
    oracle, reached = Oracle(), Reached(target.modules)
    shown_s = time.monotonic()
    with oracle.watching(interrupts=True), target.opened():
        fuzzer = Fuzzer(target, oracle, seed=order.seed, reached=reached, note=LastInput(_last(order)).note)
        fuzzer.load([*target.seeds(), *kept_inputs(target.name, order.output / "corpus")])
        for score in fuzzer.run(seconds=order.seconds):
            if time.monotonic() - shown_s > PROGRESS_S:
                shown_s = time.monotonic()
                print("  " + score_line(target.name, score), flush=True)
    score = fuzzer.score
    for data in score.kept:
        keep(order.output / "corpus" / target.name, data)
    for finding in score.findings:
        _write_down(finding, order)
    return score


def _write_down(finding: Finding, order: Order) -> None:
    path = keep(order.output / "findings", finding.data)
    path = path.rename(path.with_name(f"{finding.target}-{path.name}"))
    verdict = finding.verdict
    alone = "" if finding.is_repeatable else " (not by itself: only behind the inputs before it)"
    path.with_suffix(".txt").write_text(
        f"{verdict.kind} {verdict.place}{alone}\nseed {order.seed}\n{finding.data!r}\n\n{verdict.text}\n"
    )
    print(f"FINDING {finding.target}: {verdict.kind} {verdict.place}{alone}", flush=True)
    print(f"  again: python -m tests.fuzz --again {path}", flush=True)


def score_line(name: str, score: Score) -> str:
    """How far a target has come, in a line."""
    rate = score.plays / score.cpu_s if score.cpu_s else 0.0
    return (
        f"{name:18} {score.plays:9} inputs  {rate:7.0f}/s  {score.cpu_s:6.0f} s CPU  corpus {len(score.kept):5}"
        f"  blocks {score.blocks:6}  findings {len(score.findings)}"
    )
