"""What the C library keeps of freed memory, has ready before it is needed, and gives back. Only glibc can do that.

Memory is dear when it comes from the system: page by page, each when it is first touched, while the event loop waits.
For a message of 1 MB that is half of all its work. So a daemon does four things:

- It keeps some of what was freed (`keep_freed`), instead of getting it anew for the next large message.
- While its queues grow, it has another thread touch the next megabytes first (`Reserve`). The system hands them out
  there, beside the loop, and in one call instead of a thousand. They come in huge pages where that is cheaper
  (`PageChoice`).
- A large message is received into memory that was not filled before (`blank`).
- Now and then it gives all back that is not in use (`GivingBack`; see `daemon.Sweeper`).

What the operator has set by MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_ or MALLOC_TOP_PAD_ holds. Then nothing is
kept or made ready by us. Other C libraries than glibc are left as they are.

    heap    | in use ... | free | in use ... | AHEAD_BYTES, touched | not touched yet | limit of the heap
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, cast

MAX_REUSED_BYTES = 4 * 1024 * 1024
"""A block of more comes from the system each time: no message is larger, unless --max-msg-size was raised."""
STEP_BYTES = 128 * 1024 * 1024
"""By so much more than is asked for the heap grows. It costs nothing before it is touched. The more, the fewer huge
pages are lost: with each step the library touches the first one or two before it can be said what they shall be."""
MAX_KEPT_BYTES = 64 * 1024 * 1024
"""Most memory that is kept at the heap's end. A queue that grows and shrinks by less costs the system nothing. A daemon
keeps more for a minute (`GivingBack`)."""
HUGE_PAGE_BYTES = 2 * 1024 * 1024
"""On x86-64, and on Arm where other pages have 4 kB."""
AHEAD_BYTES = 4 * HUGE_PAGE_BYTES
PART_BYTES = 2 * HUGE_PAGE_BYTES
"""So much is touched behind what is in use, or less by a part: it lasts for four milliseconds of publishing at full
speed."""
SEARCH_BYTES = 1024 * 1024
"""A block that is asked for, and given back, to see where free memory begins. A small one may lie between others, and
one of more than AHEAD_BYTES - PART_BYTES would touch what is behind the last part: the library writes at its end."""
LOOK_EVERY_BYTES = 512 * 1024
"""How much may be published before the reserve is looked at again."""
SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")

_USUAL_STEP_BYTES = 128 * 1024
"""The library's own."""

_M_TRIM_THRESHOLD = -1  # as malloc.h names them
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_MADV_DONTNEED = 4
_MADV_HUGEPAGE = 14
_MADV_POPULATE_WRITE = 23  # since Linux 5.14; an older one refuses it, and then pages come one by one as ever


def _library() -> Any | None:
    """glibc, if that is what we run on and the operator has not set it up."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "mallopt") or any(name in os.environ for name in SETTINGS):
        return None
    library.malloc.restype = library.sbrk.restype = ctypes.c_size_t
    library.malloc.argtypes = library.free.argtypes = [ctypes.c_size_t]
    library.sbrk.argtypes = [ctypes.c_ssize_t]
    library.madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    return library


def _library_with_heap() -> Any | None:
    """The same, in the main thread: only its heap has an end that moves."""
    return _library() if threading.current_thread() is threading.main_thread() else None


def _blank() -> Callable[[int], bytes]:
    new: Any = ctypes.pythonapi.PyBytes_FromStringAndSize
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_char_p, ctypes.c_ssize_t)
    return lambda size_bytes: cast(bytes, new(None, size_bytes))


blank: Final = _blank()
"""A bytes object that holds what was in memory before: for a caller that overwrites it before others see it.
`bytes(size)` would fill it first, which takes as long as receiving a tenth of it."""


def keep_freed() -> None:
    """Have the C library keep what large messages leave."""
    library = _library()
    if library is not None:
        library.mallopt(_M_MMAP_THRESHOLD, MAX_REUSED_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, MAX_KEPT_BYTES)


# Giving back.

BLOCK_BYTES = 2 * 1024 * 1024
BLOCKS_PER_TURN = 2
"""To give these back takes a millisecond or two."""
_GIVES_NOTHING_BACK = -1
_GIVES_ALL_BACK = 0


def give_back() -> None:
    """Give memory that the C library keeps back to the system, at once: 0.1 ms for 1 MB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class GivingBack:
    """Gives the large parts of what the C library keeps back to the system, a little in each turn.

    By itself the library gives back all that is free at the heap's end when that is much: of a queue of 1 GB that was
    emptied, all at once with its last message, while everybody waits for a tenth of a second. So it is told not to.
    Instead, blocks are taken from what is free, as if they were needed, until the heap would have to grow for one more.
    The system gets the pages of each. In the end the blocks are freed, addresses without memory, and the heap is
    shortened.
    """

    def __init__(self) -> None:
        self._library: Any | None = None
        """None: the library does as it likes."""
        self._taken: list[int] = []

    def start(self) -> None:
        """To be called in the loop's thread."""
        self._library = _library_with_heap()
        if self._library is not None:
            self._library.mallopt(_M_TRIM_THRESHOLD, _GIVES_NOTHING_BACK)
            self._library.mallopt(_M_TOP_PAD, STEP_BYTES)

    def stop(self) -> None:
        if self._library is not None:
            self._free_all(self._library)
            self._library.mallopt(_M_TRIM_THRESHOLD, MAX_KEPT_BYTES)
            self._library.mallopt(_M_TOP_PAD, _USUAL_STEP_BYTES)
            self._library = None

    def step(self) -> bool:
        """Give some back; whether there may be more."""
        library = self._library
        if library is None:
            return False
        for _ in range(BLOCKS_PER_TURN):
            limit = library.sbrk(0)
            block = library.malloc(BLOCK_BYTES)
            self._taken.append(block)
            if not block or block > limit or library.sbrk(0) != limit:
                self._free_all(library)
                return False
            start = block + -block % mmap.PAGESIZE
            library.madvise(start, (block + BLOCK_BYTES - start) // mmap.PAGESIZE * mmap.PAGESIZE, _MADV_DONTNEED)
        return True

    def _free_all(self, library: Any) -> None:
        """Free the blocks, and have the library shorten the heap: there is nothing in it that takes long."""
        library.mallopt(_M_TOP_PAD, 0)
        library.mallopt(_M_TRIM_THRESHOLD, _GIVES_ALL_BACK)
        for block in self._taken:
            library.free(block)
        self._taken.clear()
        library.mallopt(_M_TRIM_THRESHOLD, _GIVES_NOTHING_BACK)
        library.mallopt(_M_TOP_PAD, STEP_BYTES)


# Which pages.

SAMPLE_BYTES = 256 * 1024
"""Of small pages, what is touched to see how long that takes."""
TRY_AGAIN_EVERY = 64
SMALL_TURN, HUGE_TURN = 3, 4
"""Of so many parts, those that show what small pages take, and huge ones where they are not used. Not the first: a
queue that stays short shall cost nothing."""


class PageChoice:
    """Which pages the heap had better be made of. It depends on the machine, and may change.

    To touch huge ones takes an eighth of the time of small ones, byte for byte. But where a host takes back what its
    virtual machines leave free, it takes whole huge pages, and to get these again takes three times as long.
    """

    def __init__(self) -> None:
        self._count = 0
        self._small_ns = 0.0
        self._huge_ns = math.inf
        """What it takes to touch a byte."""

    @property
    def is_huge(self) -> bool:
        """Whether the next part is to be of huge pages."""
        return self._is_huge_cheaper and self._turn != SMALL_TURN

    @property
    def is_trial(self) -> bool:
        """Whether one page of it is to be huge, to see what that takes."""
        return self._turn == HUGE_TURN and not self._is_huge_cheaper

    @property
    def is_small_measured(self) -> bool:
        """Whether it is to be seen what its small pages take. That is too long to be done each time."""
        return self._turn == SMALL_TURN

    def small_took(self, ns: float) -> None:
        """What it took to touch a byte."""
        self._small_ns = ns

    def huge_took(self, ns: float) -> None:
        """The same. The mean counts, for a huge page may have to be put together first."""
        self._huge_ns = ns if self._huge_ns == math.inf else (self._huge_ns + ns) / 2

    def next(self) -> None:
        """A part is done."""
        self._count += 1

    @property
    def _turn(self) -> int:
        return self._count % TRY_AGAIN_EVERY

    @property
    def _is_huge_cheaper(self) -> bool:
        return self._huge_ns <= self._small_ns


# What is ready.


class Reserve:
    """Some memory at the end of the heap that the system has handed out before it is needed.

    Owned by the daemon, which tells it how much was published: a queue that does not grow needs none. The heap with an
    end is the main thread's; a daemon whose loop runs in another thread has no reserve.
    """

    def __init__(self) -> None:
        self._library: Any | None = None
        """None: there is no reserve."""
        self._touched_end = 0
        """How far the heap is touched, or will be soon."""
        self._unseen_bytes = 0
        self._pages = PageChoice()
        self._untouched: SimpleQueue[tuple[int, int, bool] | None] = SimpleQueue()
        """Parts of the heap, from where to where, and whether of huge pages, for the thread: few, for each is of some
        megabytes."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """To be called in the loop's thread."""
        self._library = _library_with_heap()
        if self._library is not None:
            self._library.mallopt(_M_TOP_PAD, STEP_BYTES)
            self._touched_end = _whole(self._library.sbrk(0))

    def stop(self) -> None:
        if self._library is not None:
            self._library.mallopt(_M_TOP_PAD, _USUAL_STEP_BYTES)
            self._library = None
        if self._thread is not None:
            self._untouched.put(None)
            self._thread.join()
            self._thread = None

    def published(self, size_bytes: int) -> None:
        """So many bytes of messages have come."""
        self._unseen_bytes += size_bytes
        if self._unseen_bytes >= LOOK_EVERY_BYTES:
            self._unseen_bytes = 0
            if self._library is not None:
                self._look(self._library)

    def _look(self, library: Any) -> None:
        """Have the heap grow if little is left at its end, and the next part touched. The thread does that."""
        free = library.malloc(SEARCH_BYTES)
        library.free(free)
        limit = _whole(library.sbrk(0))
        start = self._touched_end = min(self._touched_end, limit)
        end = min(limit, _whole(free + AHEAD_BYTES))
        if end - start >= PART_BYTES:
            self._prepare(library, start, end)
            self._touched_end = end

    def _prepare(self, library: Any, start: int, end: int) -> None:
        """Ask for the pages that are cheaper, see what a sample of the other ones takes, and call the thread."""
        pages = self._pages
        if pages.is_huge:
            library.madvise(start, end - start, _MADV_HUGEPAGE)
        elif pages.is_trial:
            library.madvise(end - HUGE_PAGE_BYTES, HUGE_PAGE_BYTES, _MADV_HUGEPAGE)
            pages.huge_took(_touching_ns(library, end, HUGE_PAGE_BYTES))
        elif pages.is_small_measured:
            pages.small_took(_touching_ns(library, end, SAMPLE_BYTES))
        self._have_touched(library, start, end)
        pages.next()

    def _have_touched(self, library: Any, start: int, end: int) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._touch_all, args=(library,), name="memory", daemon=True)
            self._thread.start()
        self._untouched.put((start, end, self._pages.is_huge))

    def _touch_all(self, library: Any) -> None:
        while (part := self._untouched.get()) is not None:
            start, end, is_huge = part
            for each in range(start, end, HUGE_PAGE_BYTES):
                size_bytes = min(HUGE_PAGE_BYTES, end - each)
                began_ns = time.thread_time_ns()
                failed = library.madvise(each, size_bytes, _MADV_POPULATE_WRITE)
                if failed and ctypes.get_errno() in (errno.EINVAL, errno.ENOSYS):
                    self._library = None  # this system has no such call
                elif is_huge and each == start:  # the loop may have come to the others before, which then cost nothing
                    self._pages.huge_took((time.thread_time_ns() - began_ns) / size_bytes)


def _whole(address: int) -> int:
    """The last huge page that begins here or before."""
    return address - address % HUGE_PAGE_BYTES


def _touching_ns(library: Any, end: int, size_bytes: int) -> float:
    """How long it takes to touch a byte of the last ones before `end`, which nobody has used."""
    began_ns = time.thread_time_ns()
    library.madvise(end - size_bytes, size_bytes, _MADV_POPULATE_WRITE)
    return (time.thread_time_ns() - began_ns) / size_bytes
