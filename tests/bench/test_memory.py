"""Memory that is there before the works begin."""

from __future__ import annotations

import mmap
import subprocess
import sys

import pytest

from bench import memory

MEGABYTE = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is made ready on Linux alone")


def test_all_of_it_is_touched_and_nearly_all_given_back() -> None:
    program = f"""
from pathlib import Path
from bench import memory

def figure(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024

before = figure("VmRSS")
with memory.ready({64 * MEGABYTE}, lambda share: None):
    print(figure("VmHWM") - before, figure("VmRSS") - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    most, kept = map(int, done.stdout.split())
    assert most > 60 * MEGABYTE
    assert kept < 4 * MEGABYTE


def test_the_observer_hears_how_far_it_is() -> None:
    shares: list[float] = []
    with memory.ready(130 * MEGABYTE, shares.append):
        assert shares == sorted(shares)
        assert len(shares) == 3
        assert shares[-1] == 1


def test_less_than_a_page_is_none() -> None:
    with memory.ready(mmap.PAGESIZE - 1, lambda _share: pytest.fail("nothing is to be told")):
        pass


def test_a_machine_is_asked_for_no_more_than_half_of_what_it_has() -> None:
    assert 0 < memory.wanted_bytes() <= memory.READY_BYTES
