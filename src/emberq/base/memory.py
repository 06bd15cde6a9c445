"""What the C library keeps of freed memory, has ready before it is needed, and gives back. Only glibc can do that.

Memory is dear when it comes from the system: page by page, each when it is first touched, while the event loop waits.
For a message of 1 MB that is half of all its work. So a daemon does four things:

- It keeps some of what was freed (`keep_freed`), instead of getting it anew for the next large message.
- While its queues grow, it has another thread touch the next megabytes first (`Reserve`). The system hands them out
  there, beside the loop, and in one call instead of a thousand.
- A large message is received into memory that was not filled before (`blank`).
- Now and then it gives all back that is not in use (`give_back`; see `daemon.Sweeper`).

What the operator has set by MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_ or MALLOC_TOP_PAD_ holds. Then nothing is
kept or made ready by us. Other C libraries than glibc are left as they are.

    heap    | in use ... | free | in use ... | RESERVE_BYTES at least, touched | limit of the heap
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, cast

MAX_REUSED_BYTES = 4 * 1024 * 1024
"""A block of more comes from the system each time: no message is larger, unless --max-msg-size was raised."""
MAX_KEPT_BYTES = 32 * 1024 * 1024
"""Most freed memory that is kept at the heap's end. A queue that grows and shrinks by less costs the system nothing. To
give back so much at once takes three milliseconds."""
RESERVE_BYTES = 2 * 1024 * 1024
"""What is ready at the heap's end while queues grow: two milliseconds of publishing at full speed."""
GROWTH_BYTES = 2 * 1024 * 1024
"""The heap grows by so much more than is asked for. More would be touched with fewer wakes of the other thread; but a
loop that needs memory of another kind has to wait while it is touched."""
LOOK_EVERY_BYTES = 512 * 1024
"""How much may be published before the reserve is looked at again."""
SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")

_M_TRIM_THRESHOLD = -1  # as malloc.h names them
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_MADV_POPULATE_WRITE = 23  # since Linux 5.14; an older one refuses it, and then pages come one by one as ever


def _library() -> Any | None:
    """glibc, if that is what we run on and the operator has not set it up."""
    library = ctypes.CDLL(None, use_errno=True)
    return library if hasattr(library, "mallopt") and not any(name in os.environ for name in SETTINGS) else None


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


def give_back() -> None:
    """Give memory that the C library keeps back to the system: 5 ms for 60 MB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Reserve:
    """Some memory at the end of the heap that the system has handed out before it is needed.

    Owned by the daemon, which tells it how much was published: a queue that does not grow needs none. The heap with an
    end is the main thread's; a daemon whose loop runs in another thread has no reserve.
    """

    def __init__(self) -> None:
        self._library: Any | None = None
        """None: there is no reserve."""
        self._end = 0
        """Where the heap ended when we last looked."""
        self._unseen_bytes = 0
        self._grown: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        """New parts of the heap, first and last byte, for the thread: few, for each is of a megabyte or more."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """To be called in the loop's thread."""
        library = _library() if threading.current_thread() is threading.main_thread() else None
        if library is None:
            return
        library.mallopt(_M_TOP_PAD, GROWTH_BYTES)
        library.malloc.restype = library.sbrk.restype = ctypes.c_size_t
        library.malloc.argtypes = library.free.argtypes = [ctypes.c_size_t]
        library.sbrk.argtypes = [ctypes.c_ssize_t]
        library.madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
        self._library = library
        self._end = library.sbrk(0)

    def stop(self) -> None:
        self._library = None
        if self._thread is not None:
            self._grown.put(None)
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
        """Have the heap grow if little is left at its end. It grows without being touched; the thread does that."""
        library.free(library.malloc(RESERVE_BYTES))
        end = library.sbrk(0)
        if end > self._end:
            if self._thread is None:
                self._thread = threading.Thread(target=self._touch_all, args=(library,), name="memory", daemon=True)
                self._thread.start()
            self._grown.put((self._end, end))
        self._end = end

    def _touch_all(self, library: Any) -> None:
        while (part := self._grown.get()) is not None:
            start, end = part
            start += -start % mmap.PAGESIZE
            failed = library.madvise(start, max(0, end - start), _MADV_POPULATE_WRITE)
            if failed and ctypes.get_errno() in (errno.EINVAL, errno.ENOSYS):
                self._library = None  # this system has no such call
