"""Large blocks of memory are reused, and those of a queue that grows are there before they are needed."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from emberq.base import memory
from emberq.base.memory import (
    BLOCK_BYTES,
    BLOCKS_PER_TURN,
    LOOK_EVERY_BYTES,
    SETTINGS,
    TRY_AGAIN_EVERY,
    GivingBack,
    PageChoice,
    Reserve,
    blank,
)

MB = 1024 * 1024
ROUNDS = 200
REUSING = f"""
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
GROWING = f"""
import resource, sys, threading, time
from emberq.base import memory
from emberq.base.memory import Reserve
memory.keep_freed()
reserve = Reserve()
reserve.start()
queue = []
def publish():
    queue.append(b"x" * 65536)
    if sys.argv[1] == "told":
        reserve.published(65536)
        time.sleep(0.0005)  # the thread has its turn, as beside an event loop
for _ in range(200):
    publish()
before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
for _ in range({ROUNDS} * 5):
    publish()
print(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
reserve.stop()
"""


def is_touched_when_asked() -> bool:
    """Whether this system touches memory by one call, as Linux does since 5.14."""
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        try:
            page.madvise(23)
        except (AttributeError, OSError):
            return False
    return True


needs_glibc = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")


def faults_in(program: str, word: str, **settings: str) -> float:
    """How often memory was touched first, in one round."""
    plain = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    command = [sys.executable, "-c", program, word]
    done = subprocess.run(command, env={**plain, **settings}, capture_output=True, text=True, check=True)
    return int(done.stdout) / ROUNDS


@needs_glibc
def test_a_message_of_1_mb_is_not_faulted_in_page_by_page() -> None:
    assert faults_in(REUSING, "as it is") > 100
    assert faults_in(REUSING, "prepared") < 10


@needs_glibc
def test_what_the_operator_has_set_is_left_alone() -> None:
    assert faults_in(REUSING, "prepared", MALLOC_TRIM_THRESHOLD_="131072") > 100


@needs_glibc
@pytest.mark.skipif(not is_touched_when_asked(), reason="Linux before 5.14")
def test_a_queue_that_grows_finds_its_memory_touched() -> None:
    untold, told = faults_in(GROWING, "untold"), faults_in(GROWING, "told")
    assert untold > 70  # five blocks of 16 pages
    assert told < untold / 2  # how much less depends on how soon the other thread runs


@needs_glibc
def test_there_is_no_reserve_where_the_operator_has_set_the_heap_up() -> None:
    assert faults_in(GROWING, "told", MALLOC_TOP_PAD_="65536") > 70


@pytest.fixture
def threads_before() -> set[threading.Thread]:
    return set(threading.enumerate())


@needs_glibc
def test_its_thread_ends_with_it() -> None:
    program = f"""
import threading
from emberq.base import memory
from emberq.base.memory import Reserve
def names():
    return [thread.name for thread in threading.enumerate()]
def grow():
    queue.append(bytes({MB}))
    reserve.published({MB})
memory.keep_freed()
reserve, queue = Reserve(), []
reserve.start()
for _ in range(64):
    grow()
print(names())
reserve.stop()
grow()  # what is published at the very end has no effect
print(names())
"""
    plain = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    done = subprocess.run([sys.executable, "-c", program], env=plain, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['MainThread', 'memory']", "['MainThread']"]


def test_a_loop_in_another_thread_has_no_reserve(threads_before: set[threading.Thread]) -> None:
    def run() -> None:
        reserve = Reserve()
        reserve.start()
        blocks = []
        for _ in range(64):
            blocks.append(bytes(MB))
            reserve.published(LOOK_EVERY_BYTES)
        found.update(threading.enumerate())
        reserve.stop()

    found: set[threading.Thread] = set()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found - threads_before == {thread}


def test_what_publishes_little_has_no_thread(threads_before: set[threading.Thread]) -> None:
    reserve = Reserve()
    reserve.start()
    for _ in range(1000):
        reserve.published(100)
    assert set(threading.enumerate()) == threads_before
    reserve.stop()


def test_blank_memory_has_its_size() -> None:
    assert [len(blank(size)) for size in (1, 100, MB)] == [1, 100, MB]


def test_giving_memory_back_can_be_done_at_any_time() -> None:
    memory.give_back()
    memory.give_back()


EMPTIED = """
from collections import deque
from emberq.base import memory
from emberq.base.metrics import read_resident
def resident():
    return read_resident().own_bytes
memory.keep_freed()
giving_back = memory.GivingBack()
giving_back.start()
before, kept = resident(), []
queue = deque()
for number in range(2000):
    queue.append(b"x" * 100_000)
    if number % 500 == 0:
        kept.append(bytes(3000))
full = last = resident()
most_by_message = most_by_turn = 0
while queue:
    queue.popleft()
    now = resident()
    most_by_message, last = max(most_by_message, last - now), now
emptied = last
while giving_back.step():
    now = resident()
    most_by_turn, last = max(most_by_turn, last - now), now
memory.give_back()
print(full - before, most_by_message, emptied - before, most_by_turn, resident() - before)
giving_back.stop()
"""


@needs_glibc
def test_the_room_of_a_queue_that_was_emptied_goes_back_a_little_at_a_time() -> None:
    full, most_by_message, emptied, most_by_turn, left = emptied_queue()
    assert full > 190 * MB
    assert most_by_message < MB
    assert emptied > full - MB
    assert most_by_turn <= BLOCKS_PER_TURN * BLOCK_BYTES
    assert left < 8 * MB


@needs_glibc
def test_where_the_operator_has_set_it_nothing_goes_back_in_turns() -> None:
    _, _, _, most_by_turn, _ = emptied_queue(MALLOC_TRIM_THRESHOLD_="131072")
    assert most_by_turn == 0


def emptied_queue(**settings: str) -> list[int]:
    """In bytes: a full queue, most that went back with one message, what the empty one kept, most that went back in one
    turn, and what is left.
    """
    plain = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    command = [sys.executable, "-c", EMPTIED]
    done = subprocess.run(command, env={**plain, **settings}, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def test_beside_the_main_thread_nothing_is_given_back_in_turns() -> None:
    found = []

    def run() -> None:
        giving_back = GivingBack()
        giving_back.start()
        found.append(giving_back.step())
        giving_back.stop()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [False]


def parts(pages: PageChoice, count: int, *, small_ns: float, huge_ns: float) -> list[str]:
    """What so many parts of a heap were made of, on a machine where to touch a byte takes so long."""
    made_of = []
    for _ in range(count):
        if pages.is_huge or pages.is_trial:
            made_of.append("huge" if pages.is_huge else "trial")
            pages.huge_took(huge_ns)
        else:
            made_of.append("small")
            if pages.is_small_measured:
                pages.small_took(small_ns)
        pages.next()
    return made_of


def test_a_queue_grows_by_huge_pages_where_they_are_cheap() -> None:
    made_of = parts(PageChoice(), 200, small_ns=0.5, huge_ns=0.06)
    assert made_of[:6] == ["small"] * 4 + ["trial", "huge"]
    assert made_of.count("huge") > 190


def test_huge_pages_that_are_dear_are_tried_now_and_then_one_at_a_time() -> None:
    made_of = parts(PageChoice(), 3 * TRY_AGAIN_EVERY, small_ns=0.5, huge_ns=1.6)
    assert [made_of.count(each) for each in ("huge", "trial")] == [0, 3]


def test_the_choice_follows_the_machine() -> None:
    pages = PageChoice()
    parts(pages, 100, small_ns=0.5, huge_ns=0.06)
    assert parts(pages, 24, small_ns=0.5, huge_ns=1.6)[-20:] == ["small"] * 20
    assert parts(pages, 300, small_ns=0.5, huge_ns=0.06)[-20:] == ["huge"] * 20


def test_one_dear_page_among_cheap_ones_changes_nothing() -> None:
    pages = PageChoice()
    parts(pages, 20, small_ns=0.5, huge_ns=0.06)
    parts(pages, 1, small_ns=0.5, huge_ns=0.9)
    assert pages.is_huge


HUGE = f"""
from emberq.base import memory
class Huge(memory.PageChoice):
    is_huge = True
memory.PageChoice = Huge
memory.keep_freed()
reserve, queue = memory.Reserve(), []
reserve.start()
for _ in range(640):
    queue.append(bytes({MB} // 4))
    reserve.published({MB} // 4)
print(sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHugePages")))
reserve.stop()
"""


def gives_huge_pages() -> bool:
    """Whether this system hands out huge pages when it is asked to."""
    try:
        return "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return False


@needs_glibc
@pytest.mark.skipif(not is_touched_when_asked(), reason="Linux before 5.14")
@pytest.mark.skipif(not gives_huge_pages(), reason="no huge pages")
def test_what_was_chosen_is_what_the_queue_gets() -> None:
    plain = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    done = subprocess.run([sys.executable, "-c", HUGE], env=plain, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 32 * 1024


@needs_glibc
def test_messages_stay_as_they_are_while_memory_is_made_ready_and_given_back() -> None:
    def body(number: int) -> bytes:
        return bytes([number % 256]) * 65536

    reserve, giving_back = Reserve(), GivingBack()
    reserve.start()
    giving_back.start()
    queue = []
    for number in range(1200):
        queue.append(body(number))
        reserve.published(65536)
    reserve.stop()
    del queue[::2], queue[:100]
    while giving_back.step():
        pass
    giving_back.stop()
    assert all(message == body(2 * number + 201) for number, message in enumerate(queue))
