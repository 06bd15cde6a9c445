"""kill -9 while a process appends: what it was told is synced is there, and nothing it did not publish."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from emberq.base.clock import SystemClock
from emberq.storage.journal.inspection import Finding, Severity, verify
from emberq.storage.journal.journal import Journal
from emberq.storage.journal.segment import JournalConfig
from tests.storage.journal.rig import read_all

SEGMENT_BYTES = 20_000

APPEND_FOR_EVER = f"""
import os, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from emberq.base.clock import SystemClock
from emberq.wire.journal_batch import Bodies
from emberq.storage.journal.commit import GroupCommit, Workers
from emberq.storage.journal.segment import JournalConfig
from emberq.storage.journal.journal import Journal
from emberq.wire.parameter import ProducerSequence

journal = Journal.open(Path(sys.argv[1]), JournalConfig(segment_bytes={SEGMENT_BYTES}), clock=SystemClock())
handed_back = SimpleQueue()
commit = GroupCommit(journal, workers=Workers(start=ThreadPoolExecutor(1).submit, hand_back=handed_back.put))

waiting = 0

def tell(offset):
    global waiting
    waiting -= 1
    os.write(1, b"%d\\n" % offset)

while True:
    waiting += 1
    first = journal.next_offset
    bodies = [b"%d" % number * (1 + number % 40) for number in range(first, first + 1 + first % 7)]
    stored = journal.append(Bodies.of(bodies), timestamp_ns=first, producer=ProducerSequence(b"p" * 16, first))
    commit.when_synced(stored.next_offset, lambda error, end=stored.next_offset: tell(end))
    while not handed_back.empty() or waiting > 20:
        handed_back.get()()
"""


def run_and_kill(folder: Path, *, after_lines: int) -> int:
    """Let a process append until it has reported so many syncs, kill it, and return what it last knew to be synced."""
    process = subprocess.Popen([sys.executable, "-c", APPEND_FOR_EVER, str(folder)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    reported = [int(process.stdout.readline()) for _ in range(after_lines)]
    os.kill(process.pid, signal.SIGKILL)
    rest, _ = process.communicate()
    reported += map(int, rest.split(b"\n")[:-1])
    return reported[-1]


@pytest.mark.parametrize("rounds", [6])
def test_what_was_synced_survives_kill_9(tmp_path: Path, rounds: int) -> None:
    folder = tmp_path / "topic"
    for number in range(rounds):
        synced = run_and_kill(folder, after_lines=20 + 37 * number)
        losses = [found for found in verify(folder) if isinstance(found, Finding) and found.severity is Severity.LOSS]
        assert not losses
        journal = Journal.open(folder, JournalConfig(segment_bytes=SEGMENT_BYTES), clock=SystemClock())
        assert journal.next_offset >= synced
        bodies, gaps = read_all(journal, max_bytes=10_000)
        assert not gaps
        assert bodies == [b"%d" % n * (1 + n % 40) for n in range(journal.next_offset)]
        last = journal.producer_state(b"p" * 16)
        assert last is not None
        assert last.next_offset == journal.next_offset
        if number % 2:
            journal.close()
    assert len(list(folder.glob("*.log"))) > 1
