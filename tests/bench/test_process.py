"""What /proc tells, asked about this very process."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from bench import process


def test_the_cpu_of_a_process_is_the_time_it_has_used() -> None:
    before_s = time.process_time()
    seen_s = process.cpu_s(os.getpid())
    after_s = time.process_time()
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert before_s - 2 * tick_s <= seen_s <= after_s + 2 * tick_s


def test_the_memory_of_a_process_grows_by_what_it_touches() -> None:
    size_bytes = 64 << 20
    before_bytes = process.rss_bytes(os.getpid())
    block = b"x" * size_bytes
    grown_bytes = process.rss_bytes(os.getpid()) - before_bytes
    assert len(block) == size_bytes
    assert 0.9 * size_bytes < grown_bytes < 1.5 * size_bytes


def test_a_child_is_stopped_and_the_time_until_its_end_is_told() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        before_s = time.monotonic()
        took_s = process.stop_s(child.pid)
        assert 0 < took_s <= time.monotonic() - before_s
    assert child.returncode != 0


def test_a_process_that_does_nothing_is_calm() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        process.calm_down(child.pid)
        process.settle(child.pid)
        child.kill()
