"""Large blocks of memory are reused, and not got from the system page by page each time."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from emberq.base.program import MALLOC_SETTINGS

ROUNDS = 200
PROGRAM = f"""
import resource, sys
from emberq.base import program
if sys.argv[1] == "prepared":
    program.prepare()
packets = [bytes(65536) for _ in range(16)]
def publish():
    joined = b"".join(packets)
    return joined[1:]
publish()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    publish()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults_per_message(word: str, **settings: str) -> float:
    plain = {name: value for name, value in os.environ.items() if name not in MALLOC_SETTINGS}
    command = [sys.executable, "-c", PROGRAM, word]
    done = subprocess.run(command, env={**plain, **settings}, capture_output=True, text=True, check=True)
    return int(done.stdout) / ROUNDS


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_a_message_of_1_mb_is_not_faulted_in_page_by_page() -> None:
    assert faults_per_message("as it is") > 100
    assert faults_per_message("prepared") < 10


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_what_the_operator_has_set_is_left_alone() -> None:
    assert faults_per_message("prepared", MALLOC_TRIM_THRESHOLD_="131072") > 100
