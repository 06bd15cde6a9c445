"""Finding out that the disk works again after a write failed.

As in the reference, nsqd's health is the outcome of its last write to a disk queue. But a failed write may well be the
last for a long time: load balancers and publishers turn away from an nsqd that is not healthy, and then nothing
overflows to its disk any more. So when no queue has written for a while since the failure, a small file is written,
synced and removed in their place; if that works, the failure is over.

As long as queues go on failing the probe keeps out of it: one queue's file may be broken on a disk that works.

    write_failed ──quiet──> try, in the worker's thread ──works──> on_success
          ^                            │
          └──────── quiet <──fails─────┘             write_succeeded ends it at any point
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.timers import Timers

QUIET_NS = 5 * NS_PER_SECOND
"""How long no write may have failed before the disk is tried, or tried again."""
LOOK_NS = NS_PER_SECOND
"""How often to see whether a try has ended: a sick disk may keep it for minutes."""
PROBE_NAME = "nsqd.write-probe.tmp"
PROBE_BYTES = 64 * 1024
"""Some blocks, so that a full disk does not pass for a good one."""

_FILE_MODE = 0o600

_log = logging.getLogger(__name__)


class _Try:
    """One try. Written to by the worker, and read by the loop's thread once `ended`."""

    __slots__ = ("ended", "failure")

    def __init__(self) -> None:
        self.failure: OSError | None = None
        self.ended = False

    def run(self, path: Path) -> None:
        try:
            try_to_write(path)
        except OSError as error:
            self.failure = error
        self.ended = True


class WriteProbe:
    """Tries the disk while the last write to it has failed. Owned by the daemon."""

    def __init__(
        self,
        data_path: Path,
        *,
        clock: Clock,
        timers: Timers,
        run: Callable[[Callable[[], None]], None],
        on_success: Callable[[], None],
    ) -> None:
        self._path = data_path / PROBE_NAME
        self._clock = clock
        self._run = run
        """Runs a function soon, off the loop's thread."""
        self._on_success = on_success
        self._alarm = timers.alarm(self._on_time)
        self._try: _Try | None = None
        """The try under way. A write that fails meanwhile makes it worthless."""

    def write_failed(self) -> None:
        """A queue could not write."""
        self._try = None
        self._ring_in(QUIET_NS)

    def write_succeeded(self) -> None:
        """A queue could write, which says more than any probe."""
        self._try = None
        self._alarm.cancel()

    stop = write_succeeded

    def _ring_in(self, delay_ns: int) -> None:
        self._alarm.set(self._clock.monotonic_ns() + delay_ns)

    def _on_time(self) -> None:
        if self._try is None:
            self._try = attempt = _Try()
            self._run(lambda: attempt.run(self._path))
            self._ring_in(LOOK_NS)
        elif not self._try.ended:
            self._ring_in(LOOK_NS)
        else:
            self._conclude(self._try.failure)

    def _conclude(self, failure: OSError | None) -> None:
        self._try = None
        if failure is None:
            _log.info("DISK: writing to %s works again", self._path.parent)
            self._on_success()
        else:
            _log.warning("DISK: writing to %s still fails - %s", self._path.parent, failure)
            self._ring_in(QUIET_NS)


def try_to_write(path: Path) -> None:
    """Write a file, bring it to the disk and remove it; OSError if that cannot be done."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE)
        try:
            content = bytes(PROBE_BYTES)
            while content:
                content = content[os.write(fd, content) :]
            os.fsync(fd)
        finally:
            os.close(fd)
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
